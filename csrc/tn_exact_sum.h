/* tn_exact_sum.h - sums of squares that do not depend on the order of their terms. */
#ifndef TN_EXACT_SUM_H
#define TN_EXACT_SUM_H

#include <stdint.h>

__extension__ typedef unsigned __int128 tn_wide;

/* A sum of doubles >= 0. For each of the 2048 exponents of a double the mantissas of the terms with
 * that exponent are added as integers. Integers add exactly, so the sum is the same whatever the
 * order of the terms and however threads share them: the rows of a table lie in another order
 * after a checkpoint was loaded, and a step that is clipped by its norm must not change for that.
 * 128 bits hold 2^75 mantissas of 53 bits each. */
typedef struct {
    tn_wide mantissas[2048];
} tn_exact_sum;

/* `value` is 0 or a normal double above 0, as every square of a float is. */
void tn_exact_sum_add(tn_exact_sum *sum, double value);
void tn_exact_sum_merge(tn_exact_sum *sum, const tn_exact_sum *other);
/* The sum as a double: rounded in one fixed order, from the smallest exponent up. */
double tn_exact_sum_total(const tn_exact_sum *sum);
/* The sum as TN_EXACT_WORDS words (tnctl.h): for each exponent the lower 64 bits, then the upper.
 */
void tn_exact_sum_words(const tn_exact_sum *sum, uint64_t *words);

#define TN_LARGEST 0x1p58f
/* Whether no value is NaN, infinite or at least 2^58 in size. Below that the sum of the squares of
 * 2^10 values is finite in float32. */
int tn_all_finite(const float *values, uint64_t n);
/* The same with another limit above 0 than 2^58. */
int tn_all_below(const float *values, uint64_t n, float limit);

#endif
