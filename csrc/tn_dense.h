/* tn_dense.h - update loops and sums of squares that the sparse and the dense table share. */
#ifndef TN_DENSE_H
#define TN_DENSE_H

#include "tnctl.h"

#define MAX_STATES 3

int tn_optimizer_fits(const tn_optimizer *optimizer);
/* Whether dense weights can have it, and how many arrays of state it then keeps. */
int tn_optimizer_fits_dense(const tn_optimizer *optimizer);
uint32_t tn_dense_states(const tn_optimizer *optimizer);
/* The array of state that starts at initial_accumulator, all others at 0; MAX_STATES for none. */
uint32_t tn_dense_accumulator(const tn_optimizer *optimizer);
/* A beta whose powers correct the bias: rounded to float, as in Keras. 1 - 0.999 then is 1.3e-5 of
 * itself smaller than what the moments are updated with; training "as Keras" shows it after some
 * steps. */
double tn_beta(double beta);
/* Whether gradients and weights only go through the kind's own formula. */
int tn_no_extras(const tn_optimizer *optimizer);
/* Whether all are below 2^58, so that sums of their squares stay finite too. */
int tn_all_finite(const float *values, uint64_t n);
void tn_adam_dense(const tn_optimizer *o, float rate, float *w, float *m, float *v, const float *g,
                   uint64_t n);
void tn_adagrad_dense(const tn_optimizer *o, float *w, float *sum, const float *g, uint64_t n);
/* Every kind and extra: n weights from `at`; rate is the learning rate, Adam's bias corrected. */
void tn_any_dense(const tn_optimizer *o, float rate, float *weights, float *const *states,
                  uint64_t at, const float *g, uint64_t n, float scale);
/* The sum of squares of the gradients of n weights, clipped and with l2. */
double tn_dense_squares(const tn_optimizer *o, const float *w, const float *g, uint64_t n);

/* ---- Exact sums --------------------------------------------------------- */

__extension__ typedef unsigned __int128 tn_wide;

/* A sum of doubles >= 0 that no order changes: the mantissas, as integers, by exponent. */
typedef struct {
    tn_wide mantissas[2048];
} tn_squares;

void tn_squares_add(tn_squares *sum, double value);
void tn_squares_merge(tn_squares *sum, const tn_squares *other);
double tn_squares_total(const tn_squares *sum);

#endif
