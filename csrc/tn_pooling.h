/* tn_pooling.h - what gather and accumulate share: matrices, divisors, and which loops to take. */
#ifndef TN_POOLING_H
#define TN_POOLING_H

#include <math.h>

#include "tn_batch.h"

/* Matrices come in two sets: 0 the usual one, 1 the matrices of slots set apart; the same set
 * twice when no slot is. */
typedef struct {
    tn_batch *batch;
    float *const *outputs[2];
    const float *const *gradients[2];
    const uint32_t *strides[2];
    int add;
} pooling_call;

/* Which loops a batch needs; each is compiled without what the ways before it do not. */
typedef enum {
    PLAIN,
    APART,   /* some slots are set apart */
    WEIGHTED /* each id has a weight; slots may be set apart */
} way_through;

static inline way_through way_of(const tn_batch *batch) {
    return batch->weighted ? WEIGHTED : batch->any_apart ? APART : PLAIN;
}

/* What a sum over `count` ids is divided by; 1 for sums and for no ids. */
TN_INLINE float divisor_of(uint16_t pooling, uint32_t count) {
    if (pooling == TN_POOL_SUM || count <= 1) {
        return 1;
    }
    return pooling == TN_POOL_MEAN ? (float)count : sqrtf((float)count);
}

/* Whether each slot's columns lie inside a row of the matrices it uses. */
int tn_columns_fit(const tn_batch *batch, const uint32_t *const *strides);
/* Whether the matrices of the slots set apart are given: one for each TN_CONCAT segment. */
int tn_apart_given(const tn_batch *batch, const float *const *apart, const uint32_t *strides);

#endif
