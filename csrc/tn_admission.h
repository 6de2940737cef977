/* tn_admission.h - which occurrence of an id makes its row. */
#ifndef TN_ADMISSION_H
#define TN_ADMISSION_H

#include "tn_table.h"

/* The rule of a group's life. TN_BAD_VALUE when its numbers are out of range, or it counts and the
 * table has no sketch. */
int tn_admission_of(const tn_table *table, const tn_life *life, tn_admission *out);

/* Counts an occurrence of a key that has no row, unless the table does not count now, and returns
 * whether it makes one. Only the owner of the shard may call it. */
int tn_admit(tn_table *table, uint16_t group, uint64_t hash);
/* Announces to the cache the counters that tn_admit reads for a key. */
void tn_admission_prefetch(const tn_table *table, uint64_t hash);

#endif
