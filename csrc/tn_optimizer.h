/* tn_optimizer.h - the table of optimizers as rows and dense weights use it.
 *
 * tn_optimizer.c has one entry per optimizer: name, settings with their defaults and limits,
 * states, and two kernels. To add an optimizer: its formula, its entry, and a TN_ number in
 * tnctl.h. No other file knows one optimizer from another. */
#ifndef TN_OPTIMIZER_H
#define TN_OPTIMIZER_H

#include "tn_vectors.h"
#include "tnctl.h"

#define TN_ROWS_TOGETHER 16u   /* most rows of one call of a kernel */
#define TN_UPDATED_TOGETHER 4u /* most segments */
#define TN_ROWS_AHEAD 12u      /* how far ahead of its use a row is announced to the cache */

/* What any optimizer can be given beside its own formula; all 0 when it has none of it. */
typedef struct tn_extras {
    float l2; /* as an addition to the gradient: 0 for FTRL, whose l2 is in its formula */
    float clip, bound, max_norm;
    int decays; /* it has decay or lazy_l2 */
    int any;
} tn_extras;

/* A segment of rows as a kernel sees it. */
typedef struct tn_segment_update {
    const tn_optimizer *optimizer;
    const double *corrections; /* Adam's, by the steps of a row; 1 from n_corrections on */
    uint64_t n_corrections;
    uint32_t width;
    uint32_t state_at, weights_at; /* in the floats of a row */
    uint32_t gradient_at;          /* in what gradients[i] points to */
} tn_segment_update;

/* The work of one call of a kernel: some segments, all of its optimizer, of some rows. */
typedef struct tn_row_updates {
    uint32_t n_segments, n;
    tn_segment_update segments[TN_UPDATED_TOGETHER];
    char *const *rows;  /* n of them, */
    uint32_t floats_at; /* whose floats start at this byte, */
    uint64_t
        rows_to_come; /* how many may be announced to the cache: n and those after them, or 0 */
    const float *gradients[TN_ROWS_TOGETHER];
} tn_row_updates;

typedef void (*tn_rows_kernel)(const tn_row_updates *updates);
/* Updates n weights, with array k of state at states[k]. `rate` is the learning rate, with the
 * bias correction of the step where the optimizer has one. */
typedef void (*tn_dense_kernel)(const tn_optimizer *o, float rate, float *w, float *const *states,
                                const float *g, uint64_t n);

/* An entry of the table. */
typedef struct tn_rule {
    tn_kind kind;
    int (*fits)(const tn_optimizer *o); /* a rule about several settings together, or NULL */
    int corrects_dense;                 /* the dense rate is lr*sqrt(1-b2^t)/(1-b1^t) */
    tn_rows_kernel rows;
    tn_dense_kernel dense; /* NULL: rows only */
} tn_rule;

/* The entry of an optimizer's kind; NULL for a kind that does not exist. */
const tn_rule *tn_rule_of(const tn_optimizer *optimizer);
/* Whether all settings are in their limits; of dense weights, whether they can have it too. */
int tn_optimizer_fits(const tn_optimizer *optimizer, int dense);
tn_extras tn_extras_of(const tn_optimizer *optimizer);

/* Floats of state that the segment of a row keeps for `width` weights. */
uint32_t tn_state_floats(const tn_optimizer *optimizer, uint32_t width);
/* Writes the state of a new row into zeroed memory; a count of steps starts at `steps`. */
void tn_state_start(const tn_optimizer *optimizer, uint32_t width, uint32_t steps, float *state);

/* A beta whose powers correct the bias: rounded to float, as in Keras, while the moments are moved
 * by 1 - beta in double. 1 - 0.999 then is 1.3e-5 of itself smaller than what the moments are
 * updated with; training "as Keras" shows it after some steps. */
double tn_beta(double beta);
/* sqrt(1-b2^t)/(1-b1^t) for t = 1, 2, ... until it is 1 in double, in new memory; left NULL for
 * optimizers that count no steps per row. TN_NO_MEMORY. */
int tn_corrections(const tn_optimizer *optimizer, double **corrections, uint64_t *n);

/* The summed gradient as the formulas take it: clipped, then with l2*w. */
TN_INLINE void final_gradient(const tn_extras *extras, const float *restrict w,
                              const float *restrict sum, float *restrict g, uint64_t n) {
    memcpy(g, sum, n * sizeof *g);
    if (extras->clip > 0) {
        hold_in_bound(extras->clip, g, n);
    }
    if (extras->l2 > 0) {
        TN_SEPARATE
        for (uint64_t j = 0; j < n; j++) {
            g[j] += extras->l2 * w[j];
        }
    }
}

#endif
