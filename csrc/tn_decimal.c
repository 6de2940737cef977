/* tn_decimal.c - decimal text to doubles, where one rounding is enough.
 *
 * A number of at most 19 digits is an integer of 64 bits times a power of ten. Where both are exact
 * as doubles, one multiplication or division rounds once, and so correctly (Clinger 1990). Where
 * they are exact with the 64 bits of mantissa that x86's long double has, the result is rounded to
 * 64 bits and then to 53; that is right too unless the first rounding ends next to a tie of the
 * second. What is left over is rare, and Arrow reads it. */
#include "tn_decimal.h"

#include <float.h>

static inline int is_digit(byte c) {
    return (byte)(c - '0') < 10;
}

#define EXACT_POWER 22 /* the largest power of ten that a double holds */
static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

#if LDBL_MANT_DIG == 64
#define LONG_POWER 27 /* the largest power of ten that 64 bits of mantissa hold */
static const long double LONG_POWERS[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,
                                          1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
                                          1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L,
                                          1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

/* One operation rounds to 64 bits; rounding those to 53 is right unless the 11 that go are next to
 * the half of one, where the first rounding may have tipped the second. */
static int rounded_twice(uint64_t digits, int32_t power, double *out) {
    if (power < -LONG_POWER || power > LONG_POWER) {
        return 0;
    }
    long double value = (long double)digits;
    value = power < 0 ? value / LONG_POWERS[-power] : value * LONG_POWERS[power];
    uint64_t mantissa;
    memcpy(&mantissa, &value, sizeof mantissa);
    uint64_t dropped = mantissa & 0x7ff;
    if (dropped - 0x3ff <= 2) {
        return 0;
    }
    *out = (double)value;
    return 1;
}
#else
static int rounded_twice(uint64_t digits, int32_t power, double *out) {
    (void)digits, (void)power, (void)out;
    return 0;
}
#endif

int tn_simple_number(const byte *at, uint64_t size, double *out) {
    const byte *end = at + size;
    int negative = at < end && *at == '-';
    at += negative;
    uint64_t digits = 0;
    const byte *start = at;
    for (; at < end && is_digit(*at); at++) {
        digits = digits * 10 + (byte)(*at - '0');
    }
    int64_t count = at - start;
    int32_t power = 0;
    if (at < end && *at == '.') {
        start = ++at;
        for (; at < end && is_digit(*at); at++) {
            digits = digits * 10 + (byte)(*at - '0');
        }
        count += at - start;
        power = at - start > 19 ? 0 : -(int32_t)(at - start);
    }
    /* 19 digits fit into 64 bits, whatever they are. */
    if (count == 0 || count > 19) {
        return 0;
    }
    if (at < end && (*at | 0x20) == 'e') {
        at++;
        int down = at < end && *at == '-';
        at += at < end && (*at == '-' || *at == '+');
        int32_t exponent = 0;
        start = at;
        for (; at < end && at - start < 4 && is_digit(*at); at++) {
            exponent = exponent * 10 + (*at - '0');
        }
        if (at == start) {
            return 0;
        }
        power += down ? -exponent : exponent;
    }
    if (at != end) {
        return 0;
    }
    double value;
    if (power == 0) {
        value = (double)digits;
    } else if (digits <= UINT64_C(1) << 53 && power >= -EXACT_POWER && power <= EXACT_POWER) {
        value = (double)digits;
        value = power < 0 ? value / POWERS[-power] : value * POWERS[power];
    } else if (!rounded_twice(digits, power, &value)) {
        return 0;
    }
    *out = negative ? -value : value;
    return 1;
}
