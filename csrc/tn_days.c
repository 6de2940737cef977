/* tn_days.c - the days of a table, and the day of a step. */
#include "tn_days.h"

/* How many of the last days are looked at one by one before halving the list. */
#define RECENT 8

/* How many of the n first steps, which ascend, are at most `step`. */
static uint32_t days_begun(const uint32_t *first_steps, uint32_t n, uint32_t step) {
    /* Most rows that are asked for were trained in the last few days: a short walk from the end,
     * whose branches the CPU predicts, is faster there than halving. */
    uint32_t above = n, recent = n > RECENT ? n - RECENT : 0;
    while (above > recent && first_steps[above - 1] > step) {
        above--;
    }
    if (above > recent || recent == 0) {
        return above;
    }
    uint32_t from = 0; /* of the days before `recent`, those before `from` have begun */
    while (from < above) {
        uint32_t middle = from + (above - from) / 2;
        if (first_steps[middle] <= step) {
            from = middle + 1;
        } else {
            above = middle;
        }
    }
    return above;
}

static uint32_t day_of(const uint32_t *days, const uint32_t *first_steps, uint32_t n,
                       uint32_t step) {
    if (n == 0) {
        return 0;
    }
    uint32_t begun = days_begun(first_steps, n, step);
    return days[begun > 0 ? begun - 1 : 0];
}

uint32_t tn_day_of(const tn_table *table, uint32_t step) {
    return day_of(table->days, table->first_steps, table->n_days, step);
}

void tn_days_of_steps(const uint32_t *days, const uint32_t *first_steps, uint32_t n_days,
                      const uint32_t *steps, uint64_t n, uint32_t *out) {
    for (uint64_t i = 0; i < n; i++) {
        out[i] = day_of(days, first_steps, n_days, steps[i]);
    }
}

/* ---- The days of a table ------------------------------------------------- */

static int days_ascend(const uint32_t *days, const uint32_t *first_steps, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        if (days[i] < days[i - 1] || first_steps[i] < first_steps[i - 1]) {
            return 0;
        }
    }
    return 1;
}

static int copy_numbers(const uint32_t *numbers, uint32_t n, uint32_t **out) {
    *out = TN_CALLOC(n + 1, sizeof **out);
    if (*out == NULL) {
        return TN_NO_MEMORY;
    }
    if (n > 0) {
        memcpy(*out, numbers, n * sizeof **out);
    }
    return TN_OK;
}

int tn_table_set_days(tn_table *table, const uint32_t *days, const uint32_t *first_steps,
                      uint32_t n) {
    if (!days_ascend(days, first_steps, n)) {
        return TN_BAD_VALUE;
    }
    uint32_t *new_days, *new_steps;
    if (copy_numbers(days, n, &new_days) != TN_OK) {
        return TN_NO_MEMORY;
    }
    if (copy_numbers(first_steps, n, &new_steps) != TN_OK) {
        TN_FREE(new_days);
        return TN_NO_MEMORY;
    }
    pthread_mutex_lock(&table->lock);
    uint32_t *old_days = table->days, *old_steps = table->first_steps;
    table->days = new_days;
    table->first_steps = new_steps;
    table->n_days = n;
    table->today = n > 0 ? days[n - 1] : 0;
    table->today_from = n > 0 ? first_steps[n - 1] : 0;
    pthread_mutex_unlock(&table->lock);
    TN_FREE(old_days);
    TN_FREE(old_steps);
    return TN_OK;
}

uint32_t tn_table_day(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint32_t day = table->today;
    pthread_mutex_unlock(&table->lock);
    return day;
}
