/* tn_life.c - the rules of a group: which rows are evicted; and the counts of a group. */
#include <math.h>

#include "tn_admission.h"
#include "tn_removal.h"
#include "tn_shows.h"

/* ---- Rules --------------------------------------------------------------- */

static int is_size(double value) {
    return isfinite(value) && value >= 0;
}

static int life_fits(const tn_table *table, const tn_life *life) {
    int by_shows = life->show > 0 || life->score > 0;
    int unseen = life->unseen_steps > 0 || life->unseen_days > 0;
    return is_size(life->show_decay) && life->show_decay <= 1 && is_size(life->show) &&
           is_size(life->score) && is_size(life->nonclick) && is_size(life->click) &&
           life->both <= 1 && (!by_shows || table->shows) &&
           (!life->both || (life->show > 0 && unseen));
}

/* tn_table_set_life under the table's lock. The rules take effect together or not at all: the
 * life is stored only after tn_admission_of has accepted it. */
static int set_life(tn_table *table, uint16_t number, const tn_life *life) {
    if (!tn_group_declared(table, number)) {
        return TN_NO_GROUP;
    }
    tn_group *group = &table->groups[number];
    if (!life_fits(table, life)) {
        return TN_BAD_VALUE;
    }
    int code = tn_admission_of(table, life, &group->admission);
    if (code == TN_OK) {
        group->life = *life;
    }
    return code;
}

int tn_table_set_life(tn_table *table, uint16_t group, const tn_life *life) {
    pthread_mutex_lock(&table->lock);
    int code = set_life(table, group, life);
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* Both ages count from the last update: in steps, and in days by the table's days. A row of today's
 * steps is 0 days old, which most are, and needs no search. */
static int unseen_too_long(const tn_table *table, const tn_life *life, uint32_t changed) {
    if (life->unseen_steps > 0 && changed < table->step &&
        table->step - changed > life->unseen_steps) {
        return 1;
    }
    if (life->unseen_days == 0 || changed >= table->today_from) {
        return 0;
    }
    return table->today - tn_day_of(table, changed) > life->unseen_days;
}

/* Whether the rules of a row's group remove it. */
static int is_evicted(const tn_table *table, const tn_row *row) {
    const tn_life *life = &table->groups[row->group].life;
    int unseen = unseen_too_long(table, life, row->changed);
    if (life->show == 0 && life->score == 0) {
        return unseen;
    }
    float shows[2];
    tn_read_shows(table, row, shows);
    int below = (double)shows[0] < life->show;
    int low_score = life->score > 0 && tn_score_of(life, shows) < life->score;
    return low_score || (life->both ? below && unseen : below || unseen);
}

static uint64_t mark_evicted(const tn_table *table, const tn_shard *shard, const void *context,
                             uint64_t *marks) {
    (void)context;
    uint64_t n = 0;
    FOR_ROWS_OF_SHARD(table, shard, row, number, {
        uint64_t evicted = (uint64_t)is_evicted(table, row);
        marks[number / 64] |= evicted << number % 64;
        n += evicted;
    });
    return n;
}

/* Without rules a pass over all rows would find nothing. */
static int has_rules(const tn_table *table) {
    for (uint32_t g = 0; g < table->n_groups; g++) {
        const tn_life *life = &table->groups[g].life;
        if (life->unseen_steps > 0 || life->unseen_days > 0 || life->show > 0 || life->score > 0) {
            return 1;
        }
    }
    return 0;
}

int tn_evict(tn_table *table, uint64_t *evicted) {
    pthread_mutex_lock(&table->lock);
    int code = TN_OK;
    if (has_rules(table)) {
        code = tn_remove_rows(table, mark_evicted, NULL, evicted);
    } else {
        *evicted = 0;
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* ---- Counts of a group --------------------------------------------------- */

int tn_table_figures(tn_table *table, uint16_t number, tn_figures *out) {
    pthread_mutex_lock(&table->lock);
    int code = tn_group_declared(table, number) ? TN_OK : TN_NO_GROUP;
    if (code == TN_OK) {
        tn_group *group = &table->groups[number];
        out->rows = atomic_load(&group->rows);
        out->evicted = atomic_load(&group->evicted);
        out->admitted = out->rows + out->evicted;
        out->waiting = atomic_load(&group->waiting);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* `rows` follows from the records that are loaded, and `admitted` from rows and evicted. */
int tn_table_set_figures(tn_table *table, uint16_t number, const tn_figures *figures) {
    if (figures->waiting < 0) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&table->lock);
    int code = tn_group_declared(table, number) ? TN_OK : TN_NO_GROUP;
    if (code == TN_OK) {
        atomic_store(&table->groups[number].waiting, figures->waiting);
        atomic_store(&table->groups[number].evicted, figures->evicted);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
