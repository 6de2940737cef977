/* tn_shows.c - the two columns that are read of show and click.
 *
 * ln(click + 1) - ln(show + 1) is one logarithm of a quotient, computed by + - x / alone, because
 * libm's logarithms differ between machines and checkpoints would then differ with them. */
#include "tn_shows.h"

#define EXPONENT_ONE (UINT64_C(1023) << 52)
#define FRACTION ((UINT64_C(1) << 52) - 1)

TN_INLINE double in_one_to_two(uint64_t bits) {
    double value;
    bits = (bits & FRACTION) | EXPONENT_ONE;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ln(a / b) of normal doubles above 0 by + - x / alone: 2 atanh((a - b) / (a + b)) of fractions
 * that differ by a factor of at most sqrt(2), so (a - b) / (a + b) is below 0.1716 and the tenth
 * term of the series below 1e-15 of the first. */
TN_INLINE double log_of_ratio(double a, double b) {
    uint64_t a_bits, b_bits;
    memcpy(&a_bits, &a, sizeof a_bits);
    memcpy(&b_bits, &b, sizeof b_bits);
    double twos = (int32_t)(uint32_t)(a_bits >> 52) - (int32_t)(uint32_t)(b_bits >> 52);
    a = in_one_to_two(a_bits);
    b = in_one_to_two(b_bits);
    double half_a = a > b * 1.4142135623730951 ? 1 : 0;
    double half_b = b > a * 1.4142135623730951 ? 1 : 0;
    twos += half_a - half_b;
    a -= a * 0.5 * half_a;
    b -= b * 0.5 * half_b;
    double s = (a - b) / (a + b), square = s * s, series = 1.0 / 17;
    series = series * square + 1.0 / 15;
    series = series * square + 1.0 / 13;
    series = series * square + 1.0 / 11;
    series = series * square + 1.0 / 9;
    series = series * square + 1.0 / 7;
    series = series * square + 1.0 / 5;
    series = series * square + 1.0 / 3;
    series = series * square + 1;
    return twos * 0.69314718055994531 + 2 * s * series;
}

/* Of shows and clicks as they read; vector code, for several at a time. */
TN_CLONES
static void make_columns(const float *restrict show, const float *restrict click, uint64_t n,
                         float *restrict columns) {
    for (uint64_t i = 0; i < n; i++) {
        columns[CVM_COLUMNS * i] = show[i];
        columns[CVM_COLUMNS * i + 1] =
            (float)log_of_ratio((double)click[i] + 1, (double)show[i] + 1);
    }
}

#define TOGETHER 64

void tn_cvm_columns(const float *show, const float *click, const float *factors, uint64_t n,
                    float *columns) {
    float kept[2][TOGETHER];
    for (uint64_t start = 0; start < n; start += TOGETHER) {
        uint64_t count = n - start < TOGETHER ? n - start : TOGETHER;
        for (uint64_t i = 0; i < count; i++) {
            kept[0][i] = show[start + i] * factors[start + i];
            kept[1][i] = click[start + i] * factors[start + i];
        }
        make_columns(kept[0], kept[1], count, columns + CVM_COLUMNS * start);
    }
}

void tn_rows_counts(const tn_table *table, tn_row *const *rows, uint64_t n, float *counts) {
    for (uint64_t i = 0; i < n; i++) {
        tn_read_shows(table, rows[i], counts + CVM_COLUMNS * i);
    }
}

/* Takes an example's own part out of counts. Of a row that was made, or made again, after the
 * example was counted, the counts lack this part: they stay at least 0, and clicks at most shows
 * where they were. */
static void leave_out(float *show, float *click, const float *own) {
    int is_share = *click <= *show;
    *show = *show > own[0] ? *show - own[0] : 0;
    *click = *click > own[1] ? *click - own[1] : 0;
    *click = is_share && *click > *show ? *show : *click;
}

void tn_counts_cvm(const float *counts, const float *own, uint64_t n, float *columns) {
    float read[2][TOGETHER];
    for (uint64_t start = 0; start < n; start += TOGETHER) {
        uint64_t count = n - start < TOGETHER ? n - start : TOGETHER;
        for (uint64_t i = 0; i < count; i++) {
            read[0][i] = counts[CVM_COLUMNS * (start + i)];
            read[1][i] = counts[CVM_COLUMNS * (start + i) + 1];
            if (own != NULL) {
                leave_out(&read[0][i], &read[1][i], own + CVM_COLUMNS * (start + i));
            }
        }
        make_columns(read[0], read[1], count, columns + CVM_COLUMNS * start);
    }
}
