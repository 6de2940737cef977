/* tn_dense.h - update loops that the sparse and the dense table share. */
#ifndef TN_DENSE_H
#define TN_DENSE_H

#include "tnctl.h"

int tn_optimizer_fits(const tn_optimizer *optimizer);
/* Whether all are below 2^58, so that sums of their squares stay finite too. */
int tn_all_finite(const float *values, uint64_t n);
void tn_adam_dense(const tn_optimizer *o, float rate, float *w, float *m, float *v, const float *g,
                   uint64_t n);
void tn_adagrad_dense(const tn_optimizer *o, float *w, float *sum, const float *g, uint64_t n);

#endif
