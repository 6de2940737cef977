/* tn_exact_sum.c - see tn_exact_sum.h. */
#include "tn_exact_sum.h"

#include <string.h>

#include "tn_cpu.h"
#include "tnctl.h"

#define MANTISSA 52 /* bits of a double's mantissa that are stored; the first one is implied */

void tn_exact_sum_add(tn_exact_sum *sum, double value) {
    uint64_t bits, implied = UINT64_C(1) << MANTISSA;
    memcpy(&bits, &value, sizeof bits);
    /* The square of the smallest float, 2^-298, is a normal double: no subnormal comes here. */
    if (bits != 0) {
        sum->mantissas[bits >> MANTISSA] += implied | (bits & (implied - 1));
    }
}

void tn_exact_sum_merge(tn_exact_sum *sum, const tn_exact_sum *other) {
    for (uint32_t e = 0; e < 2048; e++) {
        sum->mantissas[e] += other->mantissas[e];
    }
}

double tn_exact_sum_total(const tn_exact_sum *sum) {
    uint32_t last = 2047;
    while (last > 0 && sum->mantissas[last] == 0) {
        last--;
    }
    /* Horner's scheme in units of the exponent at hand: halving a double is exact, so only the
     * additions round, and their order is fixed. */
    double total = 0;
    for (uint32_t e = 0; e <= last; e++) {
        total = total / 2 + (double)sum->mantissas[e];
    }
    if (last <= MANTISSA) {
        return 0;
    }
    /* The unit of the last mantissas is 2^(last - 1075), built from its bits: no libm. */
    uint64_t bits = (uint64_t)(last - MANTISSA) << MANTISSA;
    double unit;
    memcpy(&unit, &bits, sizeof unit);
    return total * unit;
}

/* ---- Sums of several processes ------------------------------------------- */

_Static_assert(sizeof(tn_exact_sum) == TN_EXACT_WORDS * sizeof(uint64_t),
               "an exponent has two words");

void tn_exact_sum_words(const tn_exact_sum *sum, uint64_t *words) {
    memcpy(words, sum, sizeof *sum); /* little-endian: the lower word of an integer is first */
}

int tn_exact_add(uint64_t *words, const uint16_t *exponents, const uint64_t *parts, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (exponents[i] >= TN_EXACT_WORDS / 2) {
            return TN_BAD_VALUE;
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t *to = words + 2 * (uint64_t)exponents[i];
        to[0] += parts[2 * i];
        to[1] += parts[2 * i + 1] + (to[0] < parts[2 * i]);
    }
    return TN_OK;
}

double tn_exact_total(const uint64_t *words) {
    tn_exact_sum sum;
    memcpy(&sum, words, sizeof sum);
    return tn_exact_sum_total(&sum);
}

TN_CLONES
int tn_all_below(const float *values, uint64_t n, float limit) {
    /* Without their signs floats are in the order of their bits, infinity and NaN after all others.
     * Compared as integers, and without leaving the loop early, the test takes whole vectors. */
    uint32_t bad = 0, limit_bits;
    memcpy(&limit_bits, &limit, sizeof limit_bits);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        bad |= (uint32_t)((bits & 0x7fffffffu) >= limit_bits);
    }
    return !bad;
}

int tn_all_finite(const float *values, uint64_t n) {
    return tn_all_below(values, n, TN_LARGEST);
}
