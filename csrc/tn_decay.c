/* tn_decay.c - the factors of tn_decay.h, for readers of records. */
#include "tn_decay.h"

void tn_decay_factors(double f, const uint32_t *counts, uint64_t n, float *factors) {
    for (uint64_t i = 0; i < n; i++) {
        factors[i] = (float)tn_power(f, counts[i]);
    }
}

void tn_lazy_factors(double shrink, float epsilon, const float *accumulators,
                     const uint32_t *counts, uint64_t n, float *factors) {
    for (uint64_t i = 0; i < n; i++) {
        factors[i] = (float)tn_power(tn_lazy_keep(shrink, epsilon, accumulators[i]), counts[i]);
    }
}
