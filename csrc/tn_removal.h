/* tn_removal.h - taking rows out of a table. */
#ifndef TN_REMOVAL_H
#define TN_REMOVAL_H

#include "tn_table.h"

/* Sets bit `number` of `marks`, which are zeros, for each row of a shard that is to be removed, and
 * returns how many are. Called on the shard's owner, for all shards before any row is removed. */
typedef uint64_t (*tn_marker)(const tn_table *table, const tn_shard *shard, const void *context,
                              uint64_t *marks);

/* Removes the rows that are marked, and sets how many were. Nothing is removed when memory runs
 * out. The caller holds the table's lock. */
int tn_remove_rows(tn_table *table, tn_marker marker, const void *context, uint64_t *removed);

/* What the score of tn_life is of show and click as they read. */
static inline double tn_score_of(const tn_life *life, const float *shows) {
    return ((double)shows[0] - (double)shows[1]) * life->nonclick + (double)shows[1] * life->click;
}

#endif
