/* tn_admission.h - which occurrence of an id makes its row. */
#ifndef TN_ADMISSION_H
#define TN_ADMISSION_H

#include "tnctl.h"

/* The rule of a group. */
typedef struct {
    int counts;      /* 0: the first occurrence makes the row, and nothing is counted */
    uint32_t after;  /* this occurrence does, */
    uint64_t chance; /* or where this is above 0, each one whose draw is below it */
} tn_admission;

/* TN_BAD_VALUE when the life's numbers are out of range, or it has a rule and the table no
 * sketch. */
int tn_admission_of(const tn_table *table, const tn_life *life, tn_admission *out);

/* Counts an occurrence of a key that has no row, and tells whether it makes one. Only the thread
 * that owns the shard may call it. */
int tn_admit(tn_table *table, uint16_t group, uint64_t hash);
void tn_sketch_free(tn_table *table);
/* Brings the counters of a key that tn_admit may be asked for on their way. */
void tn_admission_prefetch(const tn_table *table, uint64_t hash);

#endif
