/* tn_decay.h - weights that decay when they are read.
 *
 * Each step multiplies every weight by a factor f, and no step touches every row. f is
 * 1 - learning_rate*decay, or with lazy_l2 1 - learning_rate*lazy_l2/(sqrt(G)+eps), which no step
 * changes that does not update the row. So a row keeps the weights of its last update and the step
 * of it (`changed`), and what it reads is computed from both:
 *
 *     step        10        11        12        13        14
 *     row         w = 2.0   .         .         .         is read: 2.0 * f^4
 *                 changed = 10                            (as step 14 leaves it)
 *
 * It is the same number that four sweeps over the table would have left, up to rounding, and the
 * rounding is fixed: the power by repeated squaring in double, rounded once to float, then one
 * multiplication. Reading never writes, so any number of reads leaves the row as it is; a
 * checkpoint writes (weights, changed) and loses nothing.
 *
 * Which step a read belongs to: a find that inserts is a part of the table's step, before its
 * update, so it reads the weights as the step before left them (tn_last_step); then the update
 * multiplies that by f itself. A find that does not insert, and a lookup, read at the table's step.
 */
#ifndef TN_DECAY_H
#define TN_DECAY_H

#include <math.h>

#include "tn_table.h"

/* base^exponent by repeated squaring. No libm: the same bits on every machine. */
static inline double tn_power(double base, uint32_t exponent) {
    double power = 1;
    for (; exponent > 0; exponent >>= 1) {
        power *= exponent & 1 ? base : 1;
        base *= base;
    }
    return power;
}

/* What the lazy_l2 of a step leaves of a weight: AdaGrad's step for the gradient lazy_l2*w.
 * `shrink` is learning_rate*lazy_l2, `accumulator` what the row's last update left. */
static inline double tn_lazy_keep(double shrink, float epsilon, float accumulator) {
    double share = shrink / (double)(sqrtf(accumulator) + epsilon);
    return share < 1 ? 1 - share : 0;
}

/* What a step leaves of the weights of a row: f. */
static inline double tn_keep(const tn_layout *segment, const tn_row *row) {
    if (segment->shrink == 0) {
        return segment->keep;
    }
    const float *state = row_floats(row) + segment->state_at;
    return tn_lazy_keep(segment->shrink, segment->as_given.optimizer.epsilon, *state);
}

/* What is left at step `at` of the weights that a row keeps. */
static inline float tn_kept(const tn_layout *segment, const tn_row *row, uint32_t at) {
    return row->changed < at ? (float)tn_power(tn_keep(segment, row), at - row->changed) : 1;
}

#endif
