/* tn_decimal.h - decimal text to doubles. */
#ifndef TN_DECIMAL_H
#define TN_DECIMAL_H

#include "tn_text.h"

#define DIGIT_ZERO UINT64_C(0x3030303030303030)
#define DIGIT_TO_HIGH UINT64_C(0x7676767676767676) /* added to 10 or more, it sets the high bit */
#define PAIRS UINT64_C(0x000000ff000000ff)

/* 1 to 8 digits in the bytes of a word, without a branch on how many there are: shifted up, so that
 * zeros come in front, then each byte becomes its digit, and neighbours are combined in three steps
 * of which each handles the whole word:
 *
 *     1 2 3 4 5 6 7 8   ->   12 34 56 78   ->   1234 5678   ->   12345678
 *
 * Returns 0, with `out` untouched, when a byte is no digit. */
TN_INLINE int short_integer(uint64_t word, uint64_t size, double *out) {
    uint64_t shift = 64 - 8 * size;
    /* Zeros in front, then each byte its digit. */
    word = ((word ^ DIGIT_ZERO) << shift);
    if (((word + DIGIT_TO_HIGH) | word) & HIGH_BITS) {
        return 0;
    }
    word = word * 10 + (word >> 8); /* pairs of digits in every other byte */
    word = ((word & PAIRS) * UINT64_C(0x000f424000000064) +
            (word >> 16 & PAIRS) * UINT64_C(0x0000271000000001)) >>
           32;
    *out = (double)(uint32_t)word;
    return 1;
}

/* The double nearest to a decimal number. Returns 0, with `out` untouched, when the text is none,
 * or one that needs more care than this: over 19 digits, or next to the middle of two doubles. The
 * caller leaves these to Arrow. */
int tn_simple_number(const byte *at, uint64_t size, double *out);

#endif
