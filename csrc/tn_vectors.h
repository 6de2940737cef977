/* tn_vectors.h - loops over floats that several files compile into their own hot loops.
 *
 * All are inlined, so a caller that is built for several CPU levels (TN_CLONES) gets them as vector
 * code of each level. Each does the same single operations in the same order at every level: that
 * is why all levels give the same bits. */
#ifndef TN_VECTORS_H
#define TN_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tn_cpu.h"

/* Runs a statement with WIDTH known while compiling for the widths that most tables have (10 is 8
 * and the two columns of cvm): loops over WIDTH then become straight vector code without a
 * remainder, which is worth a factor of 2 for a row of 8 floats. */
#define FOR_WIDTH(width, statement)                                                                \
    do {                                                                                           \
        switch (width) {                                                                           \
        case 1: {                                                                                  \
            enum { WIDTH = 1 };                                                                    \
            statement;                                                                             \
            break;                                                                                 \
        }                                                                                          \
        case 8: {                                                                                  \
            enum { WIDTH = 8 };                                                                    \
            statement;                                                                             \
            break;                                                                                 \
        }                                                                                          \
        case 10: {                                                                                 \
            enum { WIDTH = 10 };                                                                   \
            statement;                                                                             \
            break;                                                                                 \
        }                                                                                          \
        case 16: {                                                                                 \
            enum { WIDTH = 16 };                                                                   \
            statement;                                                                             \
            break;                                                                                 \
        }                                                                                          \
        default: {                                                                                 \
            const uint32_t WIDTH = width;                                                          \
            statement;                                                                             \
        }                                                                                          \
        }                                                                                          \
    } while (0)

/* In front of a loop whose arrays do not overlap. GCC 12 unrolls a loop of 8 floats before it makes
 * vectors of loops, and then finds no vectors in the 8 single steps: three times slower. Told not
 * to unroll, and that the arrays are separate, it makes one vector step of them. */
#if defined(__GNUC__) && !defined(__clang__)
#define TN_SEPARATE _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#else
#define TN_SEPARATE
#endif

TN_INLINE void copy_floats(float *restrict to, const float *restrict from, uint32_t n) {
    memcpy(to, from, n * sizeof(float));
}

TN_INLINE void add_floats(float *restrict to, const float *restrict from, uint32_t n) {
    for (uint32_t j = 0; j < n; j++) {
        to[j] += from[j];
    }
}

TN_INLINE void multiply(float *restrict values, float factor, uint64_t n) {
    TN_SEPARATE
    for (uint64_t j = 0; j < n; j++) {
        values[j] *= factor;
    }
}

/* value held in [-bound, bound]; NaN stays out of it, for gradients are checked before. Written as
 * two comparisons that are one instruction each (minss, maxss). */
TN_INLINE float clamp(float value, float bound) {
    float low = value < bound ? value : bound;
    return low > -bound ? low : -bound;
}

TN_INLINE void hold_in_bound(float bound, float *restrict values, uint64_t n) {
    TN_SEPARATE
    for (uint64_t j = 0; j < n; j++) {
        values[j] = clamp(values[j], bound);
    }
}

/* Scales a vector that is longer than max_norm to that L2 norm. */
TN_INLINE void hold_norm(float max_norm, float *restrict w, uint64_t n) {
    float squares = 0;
    for (uint64_t j = 0; j < n; j++) {
        squares += w[j] * w[j];
    }
    float norm = sqrtf(squares);
    if (norm > max_norm) {
        multiply(w, max_norm / norm, n);
    }
}

/* In four sums side by side, which a vector can hold: one sum would force the compiler to add one
 * after the other, for it may not change the order of additions. */
TN_INLINE double sum_of_squares(const float *restrict g, uint64_t n) {
    double lanes[4] = {0, 0, 0, 0};
    uint64_t j = 0;
    for (; j + 4 <= n; j += 4) {
        for (uint64_t k = 0; k < 4; k++) {
            lanes[k] += (double)g[j + k] * (double)g[j + k];
        }
    }
    for (; j < n; j++) {
        lanes[0] += (double)g[j] * (double)g[j];
    }
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

#endif
