/* tn_shows.h - show and click: counts of a row that decay by days, and the columns made of them.
 *
 * A row stores both as of the day of its last update, as weights are stored as of its last step
 * (tn_decay.h): a day's end touches no row, and what is read is the product with
 * show_decay^(days since then). */
#ifndef TN_SHOWS_H
#define TN_SHOWS_H

#include "tn_days.h"
#include "tn_decay.h"

/* What is left on `day` of a show of step `changed`. Most rows were trained today: one comparison
 * finds them, and only the others look for their day. */
static inline float tn_show_kept(const tn_table *table, uint16_t group, uint32_t changed,
                                 uint32_t day) {
    if (TN_LIKELY(changed >= table->today_from)) {
        return 1;
    }
    uint32_t day_changed = tn_day_of(table, changed);
    return day_changed < day
               ? (float)tn_power(table->groups[group].life.show_decay, day - day_changed)
               : 1;
}

/* Show and click of a row, as they read at the table's day. */
static inline void tn_read_shows(const tn_table *table, const tn_row *row, float *to) {
    const float *shows = row_shows(table, row);
    float kept = tn_show_kept(table, row->group, row->changed, table->today);
    to[0] = shows[0] * kept;
    to[1] = shows[1] * kept;
}

/* Show and click of some rows as they read, two floats each. */
void tn_rows_counts(const tn_table *table, tn_row *const *rows, uint64_t n, float *counts);
/* The columns of cvm of such counts, as tn_cvm_columns writes them; `columns` may be `counts`.
 * `own` (NULL: nothing) is what an example itself has added to them, which is left out. */
void tn_counts_cvm(const float *counts, const float *own, uint64_t n, float *columns);

/* Adds what a batch counted (NULL: nothing) to the show and click of a row, as of the table's step,
 * whose day is `day`; to be followed by the update that sets `changed`. */
static inline void tn_row_count(const tn_table *table, tn_row *row, const float *counts,
                                uint32_t day) {
    float *shows = row_shows(table, row), kept = tn_show_kept(table, row->group, row->changed, day);
    shows[0] = shows[0] * kept + (counts ? counts[0] : 0);
    shows[1] = shows[1] * kept + (counts ? counts[1] : 0);
}

#endif
