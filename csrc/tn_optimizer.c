/* tn_optimizer.c - the update rules, of rows and of dense weights.
 *
 * The formulas stand in tnctl.h. Powers of beta come from repeated multiplication in double; the
 * only other function is sqrt, which every CPU rounds alike. */
#include <math.h>

#include "tn_dense.h"
#include "tn_table.h"

/* ---- State -------------------------------------------------------------- */

static int beta_fits(double beta) {
    return beta >= 0 && beta <= 0.9999;
}

int tn_optimizer_fits(const tn_optimizer *optimizer) {
    int numbers = isfinite(optimizer->learning_rate) && optimizer->learning_rate >= 0 &&
                  isfinite(optimizer->epsilon) && optimizer->epsilon > 0;
    switch (optimizer->kind) {
    case TN_ADAGRAD:
        return numbers && isfinite(optimizer->initial_accumulator) &&
               optimizer->initial_accumulator >= 0;
    case TN_ADAM:
        return numbers && beta_fits(optimizer->beta1) && beta_fits(optimizer->beta2);
    default:
        return 0;
    }
}

/* AdaGrad: G. Adam: the step count's 32 bits, m, v. */
uint32_t tn_state_floats(const tn_optimizer *optimizer, uint32_t width) {
    if (!tn_optimizer_fits(optimizer)) {
        return 0;
    }
    return optimizer->kind == TN_ADAGRAD ? 1 : 1 + 2 * width;
}

void tn_state_start(const tn_layout *segment, float *state) {
    if (segment->as_given.optimizer.kind == TN_ADAGRAD) {
        state[0] = segment->as_given.optimizer.initial_accumulator;
    }
}

int tn_corrections(const tn_optimizer *optimizer, double **corrections, uint64_t *n) {
    if (optimizer->kind != TN_ADAM) {
        return TN_OK;
    }
    uint64_t count = 0;
    double power1 = 1, power2 = 1;
    while (1 - power1 < 1 || 1 - power2 < 1) {
        power1 *= optimizer->beta1;
        power2 *= optimizer->beta2;
        count++;
    }
    *corrections = TN_CALLOC(count, sizeof **corrections);
    if (*corrections == NULL) {
        return TN_NO_MEMORY;
    }
    *n = count;
    power1 = power2 = 1;
    for (uint64_t t = 0; t < count; t++) {
        power1 *= optimizer->beta1;
        power2 *= optimizer->beta2;
        (*corrections)[t] = sqrt(1 - power2) / (1 - power1);
    }
    return TN_OK;
}

/* ---- One segment of one row --------------------------------------------- */

TN_INLINE void adagrad_row(const tn_optimizer *o, float *restrict state, float *restrict w,
                           const float *restrict g, uint32_t width) {
    float squares = 0;
    for (uint32_t j = 0; j < width; j++) {
        squares += g[j] * g[j];
    }
    state[0] += squares / (float)width;
    float rate = o->learning_rate / (sqrtf(state[0]) + o->epsilon);
    for (uint32_t j = 0; j < width; j++) {
        w[j] -= rate * g[j];
    }
}

TN_INLINE void adam_weights(float rate, float beta1, float beta2, float epsilon, float *restrict w,
                            float *restrict m, float *restrict v, const float *restrict g,
                            uint64_t n) {
    float rest1 = 1 - beta1, rest2 = 1 - beta2;
    for (uint64_t j = 0; j < n; j++) {
        m[j] += rest1 * (g[j] - m[j]);
        v[j] += rest2 * (g[j] * g[j] - v[j]);
        w[j] -= rate * m[j] / (sqrtf(v[j]) + epsilon);
    }
}

TN_INLINE void adam_row(const tn_layout *segment, float *restrict state, float *restrict w,
                        const float *restrict g, uint32_t width) {
    const tn_optimizer *o = &segment->as_given.optimizer;
    uint32_t steps;
    memcpy(&steps, state, sizeof steps);
    double correction = steps < segment->n_corrections ? segment->corrections[steps] : 1;
    steps += steps < UINT32_MAX;
    memcpy(state, &steps, sizeof steps);
    adam_weights((float)(o->learning_rate * correction), (float)o->beta1, (float)o->beta2,
                 o->epsilon, w, state + 1, state + 1 + width, g, width);
}

TN_INLINE void update_segment(const tn_layout *segment, float *floats, const float *g,
                              uint32_t width) {
    float *state = floats + segment->state_at, *w = floats + segment->weights_at;
    if (segment->as_given.optimizer.kind == TN_ADAGRAD) {
        adagrad_row(&segment->as_given.optimizer, state, w, g, width);
    } else {
        adam_row(segment, state, w, g, width);
    }
}

/* Widths that are known while compiling become straight vector code. */
TN_INLINE void update_row(const tn_table *table, float *floats, const float *sums) {
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        const float *g = sums + segment->sums_at;
        uint32_t width = segment->as_given.width;
        switch (width) {
        case 1:
            update_segment(segment, floats, g, 1);
            break;
        case 8:
            update_segment(segment, floats, g, 8);
            break;
        case 16:
            update_segment(segment, floats, g, 16);
            break;
        default:
            update_segment(segment, floats, g, width);
        }
    }
}

#define AHEAD 12

TN_CLONES
void tn_rows_update(const tn_table *table, tn_row *const *rows, uint64_t n, const float *sums,
                    uint32_t sums_stride) {
    uint32_t step = table->step;
    for (uint64_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            TN_PREFETCH_WRITE(rows[i + AHEAD]);
            TN_PREFETCH_WRITE((const char *)rows[i + AHEAD] + 63);
        }
        rows[i]->changed = step;
        update_row(table, row_floats(rows[i]), sums + i * sums_stride);
    }
}

/* ---- Dense weights ------------------------------------------------------ */

TN_CLONES
void tn_adam_dense(const tn_optimizer *o, float rate, float *w, float *m, float *v, const float *g,
                   uint64_t n) {
    adam_weights(rate, (float)o->beta1, (float)o->beta2, o->epsilon, w, m, v, g, n);
}

TN_CLONES
void tn_adagrad_dense(const tn_optimizer *o, float *restrict w, float *restrict sum,
                      const float *restrict g, uint64_t n) {
    for (uint64_t j = 0; j < n; j++) {
        sum[j] += g[j] * g[j];
        w[j] -= o->learning_rate * g[j] / (sqrtf(sum[j]) + o->epsilon);
    }
}

TN_CLONES
int tn_all_finite(const float *values, uint64_t n) {
    /* An exponent of 58 or more: large, infinite or NaN. On integers the test takes whole vectors.
     */
    uint32_t bad = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        bad |= (uint32_t)((bits & 0x7f800000u) >= (127u + 58u) << 23);
    }
    return !bad;
}
