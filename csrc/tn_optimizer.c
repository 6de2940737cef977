/* tn_optimizer.c - the update rules, of rows and of dense weights.
 *
 * The formulas stand in tnctl.h. Powers of beta come from repeated multiplication in double; the
 * only other function is sqrt, which every CPU rounds alike. Tables of row-wise AdaGrad and Adam
 * without extras have a loop of their own; one more loop does everything. */
#include <math.h>

#include "tn_dense.h"
#include "tn_table.h"

/* ---- Settings ----------------------------------------------------------- */

static int in_range(double value, double most) {
    return value >= 0 && value <= most;
}

static int is_ftrl(const tn_optimizer *o) {
    return o->kind == TN_FTRL || o->kind == TN_TENSORNET_FTRL;
}

int tn_optimizer_fits(const tn_optimizer *o) {
    const float numbers[] = {o->learning_rate,
                             o->epsilon,
                             o->initial_accumulator,
                             o->l1,
                             o->beta,
                             o->l2,
                             o->decay,
                             o->clip,
                             o->bound,
                             o->max_norm};
    for (uint32_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (!isfinite(numbers[i]) || numbers[i] < 0) {
            return 0;
        }
    }
    if (o->nesterov > 1 || !(o->momentum >= 0 && o->momentum < 1)) {
        return 0;
    }
    switch (o->kind) {
    case TN_ADAM:
    case TN_TENSORNET_ADAM:
        return o->epsilon > 0 && in_range(o->beta1, 0.9999) && in_range(o->beta2, 0.9999);
    case TN_ADAGRAD:
    case TN_ADAGRAD_COORDINATE:
    case TN_TENSORNET_ADAGRAD:
        return o->epsilon > 0 && in_range(o->beta1, 1) && in_range(o->beta2, 1);
    case TN_SGD:
        return in_range(o->beta1, 1) && in_range(o->beta2, 1);
    case TN_FTRL:
    case TN_TENSORNET_FTRL: {
        float start = o->kind == TN_FTRL ? o->initial_accumulator : 0;
        return (o->beta > 0 || o->l2 > 0 || start > 0) && in_range(o->beta1, 1) &&
               in_range(o->beta2, 1);
    }
    default:
        return 0;
    }
}

int tn_optimizer_fits_dense(const tn_optimizer *o) {
    return tn_optimizer_fits(o) && o->kind != TN_TENSORNET_FTRL && o->max_norm == 0;
}

int tn_no_extras(const tn_optimizer *o) {
    float l2 = is_ftrl(o) ? 0 : o->l2;
    return l2 == 0 && o->decay == 0 && o->clip == 0 && o->bound == 0 && o->max_norm == 0;
}

int tn_optimizer_plain(const tn_optimizer *o) {
    return tn_no_extras(o) && (o->kind == TN_ADAGRAD || o->kind == TN_ADAM);
}

/* ---- State -------------------------------------------------------------- */

/* Adam's first float is the 32 bits of its step count. */
uint32_t tn_state_floats(const tn_optimizer *o, uint32_t width) {
    switch (o->kind) {
    case TN_ADAGRAD:
    case TN_TENSORNET_ADAGRAD:
        return 1;
    case TN_ADAM:
        return 1 + 2 * width;
    case TN_SGD:
        return o->momentum > 0 ? width : 0;
    case TN_ADAGRAD_COORDINATE:
        return width;
    default:
        return 2 * width;
    }
}

void tn_state_start(const tn_table *table, const tn_layout *segment, float *state) {
    const tn_optimizer *o = &segment->as_given.optimizer;
    uint32_t accumulators = 0;
    switch (o->kind) {
    case TN_ADAGRAD:
    case TN_TENSORNET_ADAGRAD:
        accumulators = 1;
        break;
    case TN_ADAGRAD_COORDINATE:
    case TN_FTRL:
        accumulators = segment->as_given.width;
        break;
    case TN_ADAM:
        if (table->all) {
            uint32_t steps = tn_last_step(table);
            memcpy(state, &steps, sizeof steps);
        }
        break;
    default:
        break;
    }
    for (uint32_t j = 0; j < accumulators; j++) {
        state[j] = o->initial_accumulator;
    }
}

uint32_t tn_dense_states(const tn_optimizer *o) {
    switch (o->kind) {
    case TN_ADAGRAD:
    case TN_ADAGRAD_COORDINATE:
        return 1;
    case TN_SGD:
        return o->momentum > 0 ? 1 : 0;
    case TN_TENSORNET_ADAGRAD:
        return 3;
    default:
        return 2;
    }
}

uint32_t tn_dense_accumulator(const tn_optimizer *o) {
    switch (o->kind) {
    case TN_ADAGRAD:
    case TN_ADAGRAD_COORDINATE:
    case TN_FTRL:
        return 0;
    case TN_TENSORNET_ADAGRAD:
        return 1;
    default:
        return MAX_STATES;
    }
}

/* Not inlined: where two of these stand together, GCC 12 makes a vector of them and drops both
 * roundings. */
__attribute__((noinline)) double tn_beta(double beta) {
    return (double)(float)beta;
}

int tn_corrections(const tn_optimizer *optimizer, double **corrections, uint64_t *n) {
    if (optimizer->kind != TN_ADAM) {
        return TN_OK;
    }
    double beta1 = tn_beta(optimizer->beta1), beta2 = tn_beta(optimizer->beta2);
    uint64_t count = 0;
    double power1 = 1, power2 = 1;
    while (1 - power1 < 1 || 1 - power2 < 1) {
        power1 *= beta1;
        power2 *= beta2;
        count++;
    }
    *corrections = TN_CALLOC(count, sizeof **corrections);
    if (*corrections == NULL) {
        return TN_NO_MEMORY;
    }
    *n = count;
    power1 = power2 = 1;
    for (uint64_t t = 0; t < count; t++) {
        power1 *= beta1;
        power2 *= beta2;
        (*corrections)[t] = sqrt(1 - power2) / (1 - power1);
    }
    return TN_OK;
}

/* ---- Formulas ----------------------------------------------------------- */

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

TN_INLINE void tensornet_adagrad_row(const tn_optimizer *o, float *restrict state,
                                     float *restrict w, const float *restrict g, uint32_t width) {
    double squares = 0;
    for (uint32_t j = 0; j < width; j++) {
        squares += (double)(g[j] * g[j]);
    }
    state[0] = (float)((double)state[0] + squares / width);
    float root = o->epsilon + sqrtf(state[0]);
    for (uint32_t j = 0; j < width; j++) {
        w[j] -= o->learning_rate * g[j] / root;
    }
}

TN_INLINE void tensornet_adagrad_weights(const tn_optimizer *o, float *restrict w,
                                         float *restrict d, float *restrict sum, float *restrict m,
                                         const float *restrict g, uint64_t n) {
    float keep = (float)o->beta2, rest = (float)(1 - o->beta1);
    for (uint64_t j = 0; j < n; j++) {
        d[j] = keep * d[j] + 1;
        sum[j] = keep * sum[j] + g[j] * g[j];
        m[j] += (g[j] - m[j]) * rest;
        w[j] -= o->learning_rate * m[j] / (sqrtf(sum[j]) / sqrtf(d[j]) + o->epsilon);
    }
}

TN_INLINE void adagrad_weights(const tn_optimizer *o, float *restrict w, float *restrict sum,
                               const float *restrict g, uint64_t n) {
    for (uint64_t j = 0; j < n; j++) {
        sum[j] += g[j] * g[j];
        w[j] -= o->learning_rate * g[j] / (sqrtf(sum[j]) + o->epsilon);
    }
}

/* 1 - beta in double, as Keras takes it: see tn_beta. */
TN_INLINE void adam_weights(const tn_optimizer *o, float rate, float *restrict w, float *restrict m,
                            float *restrict v, const float *restrict g, uint64_t n) {
    float rest1 = (float)(1 - o->beta1), rest2 = (float)(1 - o->beta2), epsilon = o->epsilon;
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
    adam_weights(o, (float)(o->learning_rate * correction), w, state + 1, state + 1 + width, g,
                 width);
}

TN_INLINE void sgd_weights(const tn_optimizer *o, float *restrict w, float *restrict m,
                           const float *restrict g, uint64_t n) {
    float rate = o->learning_rate, momentum = o->momentum;
    if (momentum == 0) {
        for (uint64_t j = 0; j < n; j++) {
            w[j] -= rate * g[j];
        }
    } else if (!o->nesterov) {
        for (uint64_t j = 0; j < n; j++) {
            m[j] = momentum * m[j] + g[j];
            w[j] -= rate * m[j];
        }
    } else {
        for (uint64_t j = 0; j < n; j++) {
            m[j] = momentum * m[j] + g[j];
            w[j] -= rate * (g[j] + momentum * m[j]);
        }
    }
}

/* As comparisons that are one instruction each. */
TN_INLINE float clamp(float value, float bound) {
    float low = value < bound ? value : bound;
    return low > -bound ? low : -bound;
}

/* sqrt(n+g^2) - sqrt(n) as g^2 / (sqrt(n+g^2) + sqrt(n)): a large n cancels all digits of the
 * difference. */
TN_INLINE void ftrl_weights(const tn_optimizer *o, float *restrict w, float *restrict sum,
                            float *restrict z, const float *restrict g, uint64_t n) {
    if (o->learning_rate == 0) {
        return;
    }
    float slope = o->kind == TN_FTRL ? 1 / o->learning_rate : o->learning_rate;
    float l1 = o->l1, l2 = o->l2, beta = o->beta;
    for (uint64_t j = 0; j < n; j++) {
        float square = g[j] * g[j], root = sqrtf(sum[j]);
        sum[j] += square;
        float new_root = sqrtf(sum[j]);
        /* The least float keeps 0/0 away and is lost in every other sum. */
        z[j] += g[j] - square / (new_root + root + 0x1p-126f) * slope * w[j];
        w[j] = (clamp(z[j], l1) - z[j]) / ((beta + new_root) * slope + l2);
    }
}

/* ---- Extras ------------------------------------------------------------- */

TN_INLINE void hold_in_bound(float bound, float *restrict values, uint64_t n) {
    for (uint64_t j = 0; j < n; j++) {
        values[j] = clamp(values[j], bound);
    }
}

/* The summed gradient as the formulas take it: clipped, and with l2*w. */
TN_INLINE void final_gradient(const tn_optimizer *o, const float *restrict w,
                              const float *restrict sum, float *restrict g, uint64_t n) {
    memcpy(g, sum, n * sizeof *g);
    if (o->clip > 0) {
        hold_in_bound(o->clip, g, n);
    }
    if (o->l2 > 0 && !is_ftrl(o)) {
        for (uint64_t j = 0; j < n; j++) {
            g[j] += o->l2 * w[j];
        }
    }
}

TN_INLINE void multiply(float *restrict values, float by, uint64_t n) {
    for (uint64_t j = 0; j < n; j++) {
        values[j] *= by;
    }
}

TN_INLINE void hold_norm(float max_norm, float *restrict w, uint64_t n) {
    if (max_norm == 0) {
        return;
    }
    float squares = 0;
    for (uint64_t j = 0; j < n; j++) {
        squares += w[j] * w[j];
    }
    float norm = sqrtf(squares);
    if (norm > max_norm) {
        multiply(w, max_norm / norm, n);
    }
}

/* Four sums side by side, which vector code can carry. */
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

/* ---- Rows: AdaGrad and Adam without extras ------------------------------- */

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

/* ---- Rows: everything --------------------------------------------------- */

TN_INLINE void update_segment_any(const tn_table *table, const tn_layout *segment, tn_row *row,
                                  const float *sum, float scale, uint32_t width) {
    const tn_optimizer *o = &segment->as_given.optimizer;
    float *state = row_floats(row) + segment->state_at;
    float *w = row_floats(row) + segment->weights_at;
    float g[MAX_WIDTH];
    if (o->decay > 0) {
        multiply(w, tn_kept(segment, row->changed, tn_last_step(table)), width);
    }
    final_gradient(o, w, sum, g, width);
    if (scale != 1) {
        multiply(g, scale, width);
    }
    /* Where all rows train, one that is inserted stands for one that was there since step 1. */
    if (o->decay > 0 && (table->all || row->changed < table->step)) {
        multiply(w, (float)segment->keep, width);
    }
    switch (o->kind) {
    case TN_ADAGRAD:
        adagrad_row(o, state, w, g, width);
        break;
    case TN_ADAM:
        adam_row(segment, state, w, g, width);
        break;
    case TN_SGD:
        sgd_weights(o, w, state, g, width);
        break;
    case TN_ADAGRAD_COORDINATE:
        adagrad_weights(o, w, state, g, width);
        break;
    case TN_TENSORNET_ADAGRAD:
        tensornet_adagrad_row(o, state, w, g, width);
        break;
    case TN_TENSORNET_ADAM:
        adam_weights(o, o->learning_rate, w, state, state + width, g, width);
        break;
    default:
        ftrl_weights(o, w, state, state + width, g, width);
    }
    if (o->bound > 0) {
        hold_in_bound(o->bound, w, width);
    }
    hold_norm(o->max_norm, w, width);
}

TN_INLINE void update_row_any(const tn_table *table, tn_row *row, const float *sums, float scale) {
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        const float *sum = sums + segment->sums_at;
        uint32_t width = segment->as_given.width;
        switch (width) {
        case 1:
            update_segment_any(table, segment, row, sum, scale, 1);
            break;
        case 8:
            update_segment_any(table, segment, row, sum, scale, 8);
            break;
        case 16:
            update_segment_any(table, segment, row, sum, scale, 16);
            break;
        default:
            update_segment_any(table, segment, row, sum, scale, width);
        }
    }
    row->changed = table->step;
}

TN_CLONES
void tn_rows_update_any(const tn_table *table, const tn_summed *batch, float scale) {
    tn_row *const *rows = batch->rows + batch->first_row;
    for (uint64_t i = 0; i < batch->n; i++) {
        if (i + AHEAD < batch->n) {
            TN_PREFETCH_WRITE(rows[i + AHEAD]);
            TN_PREFETCH_WRITE((const char *)rows[i + AHEAD] + 63);
        }
        update_row_any(table, rows[i], batch->sums + i * batch->sums_stride, scale);
    }
}

/* ---- Rows: show and click ------------------------------------------------ */

void tn_rows_count(const tn_table *table, const tn_summed *batch) {
    tn_row *const *rows = batch->rows + batch->first_row;
    uint32_t day = tn_day_of(table, table->step);
    for (uint64_t i = 0; i < batch->n; i++) {
        if (i + AHEAD < batch->n) {
            TN_PREFETCH_WRITE(rows[i + AHEAD]);
            TN_PREFETCH_WRITE(row_shows(table, rows[i + AHEAD]));
        }
        tn_row_count(table, rows[i], batch->counts ? batch->counts + 2 * i : NULL, day);
    }
}

/* ---- Rows: all of a shard ------------------------------------------------ */

static const float NO_GRADIENT[MAX_SEGMENTS * MAX_WIDTH];

/* The sums of a row, which is in the batch if the row at its place there is this one. */
TN_INLINE const float *sums_of(const tn_summed *batch, const tn_row *row) {
    uint64_t i = row->uidx - batch->first_row;
    if (i < batch->n && batch->rows[row->uidx] == row) {
        return batch->sums + i * batch->sums_stride;
    }
    return NO_GRADIENT;
}

/* What was counted of the row that has these sums. */
TN_INLINE const float *counts_of(const tn_summed *batch, const float *sums) {
    if (batch->counts == NULL || sums == NO_GRADIENT) {
        return NULL;
    }
    return batch->counts + 2 * ((uint64_t)(sums - batch->sums) / batch->sums_stride);
}

TN_CLONES
void tn_shard_update(const tn_table *table, const tn_shard *shard, const tn_summed *batch,
                     float scale) {
    if (table->plain && scale == 1 && !table->shows) {
        FOR_ROWS_OF_SHARD(table, shard, row, number, {
            row->changed = table->step;
            update_row(table, row_floats(row), sums_of(batch, row));
        });
        return;
    }
    uint32_t day = table->shows ? tn_day_of(table, table->step) : 0;
    FOR_ROWS_OF_SHARD(table, shard, row, number, {
        const float *sums = sums_of(batch, row);
        if (table->shows) {
            tn_row_count(table, row, counts_of(batch, sums), day);
        }
        update_row_any(table, row, sums, scale);
    });
}

/* ---- Rows: the norm ------------------------------------------------------ */

TN_INLINE double row_squares(const tn_table *table, const tn_row *row, const float *sums) {
    double squares = 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        const tn_optimizer *o = &segment->as_given.optimizer;
        uint32_t width = segment->as_given.width;
        float w[MAX_WIDTH], g[MAX_WIDTH];
        if (o->l2 > 0) {
            memcpy(w, row_floats(row) + segment->weights_at, width * sizeof *w);
            multiply(w, tn_kept(segment, row->changed, tn_last_step(table)), width);
        }
        final_gradient(o, w, sums + segment->sums_at, g, width);
        squares += sum_of_squares(g, width);
    }
    return squares;
}

TN_CLONES
void tn_rows_norm(const tn_table *table, const tn_summed *batch, tn_squares *squares) {
    tn_row *const *rows = batch->rows + batch->first_row;
    for (uint64_t i = 0; i < batch->n; i++) {
        tn_squares_add(squares, row_squares(table, rows[i], batch->sums + i * batch->sums_stride));
    }
}

TN_CLONES
void tn_shard_norm(const tn_table *table, const tn_shard *shard, const tn_summed *batch,
                   tn_squares *squares) {
    FOR_ROWS_OF_SHARD(table, shard, row, number,
                      tn_squares_add(squares, row_squares(table, row, sums_of(batch, row))));
}

/* ---- Dense weights ------------------------------------------------------ */

TN_CLONES
void tn_adam_dense(const tn_optimizer *o, float rate, float *w, float *m, float *v, const float *g,
                   uint64_t n) {
    adam_weights(o, rate, w, m, v, g, n);
}

TN_CLONES
void tn_adagrad_dense(const tn_optimizer *o, float *restrict w, float *restrict sum,
                      const float *restrict g, uint64_t n) {
    adagrad_weights(o, w, sum, g, n);
}

#define TOGETHER 1024 /* weights whose gradients stay in the first-level cache */

TN_CLONES
void tn_any_dense(const tn_optimizer *o, float rate, float *weights, float *const *states,
                  uint64_t at, const float *g, uint64_t n, float scale) {
    float final[TOGETHER];
    for (uint64_t done = 0; done < n; done += TOGETHER) {
        uint64_t count = n - done < TOGETHER ? n - done : TOGETHER;
        float *w = weights + at + done, *state[MAX_STATES];
        for (uint32_t k = 0; k < MAX_STATES; k++) {
            state[k] = states[k] ? states[k] + at + done : NULL;
        }
        final_gradient(o, w, g + done, final, count);
        multiply(final, scale, count);
        if (o->decay > 0) {
            float decay = o->learning_rate * o->decay;
            for (uint64_t j = 0; j < count; j++) {
                w[j] -= decay * w[j];
            }
        }
        switch (o->kind) {
        case TN_ADAM:
        case TN_TENSORNET_ADAM:
            adam_weights(o, rate, w, state[0], state[1], final, count);
            break;
        case TN_SGD:
            sgd_weights(o, w, state[0], final, count);
            break;
        case TN_FTRL:
            ftrl_weights(o, w, state[0], state[1], final, count);
            break;
        case TN_TENSORNET_ADAGRAD:
            tensornet_adagrad_weights(o, w, state[0], state[1], state[2], final, count);
            break;
        default:
            adagrad_weights(o, w, state[0], final, count);
        }
        if (o->bound > 0) {
            hold_in_bound(o->bound, w, count);
        }
    }
}

TN_CLONES
double tn_dense_squares(const tn_optimizer *o, const float *w, const float *g, uint64_t n) {
    float final[TOGETHER];
    double squares = 0;
    for (uint64_t done = 0; done < n; done += TOGETHER) {
        uint64_t count = n - done < TOGETHER ? n - done : TOGETHER;
        final_gradient(o, w + done, g + done, final, count);
        squares += sum_of_squares(final, count);
    }
    return squares;
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

/* ---- Exact sums --------------------------------------------------------- */

#define MANTISSA 52

void tn_squares_add(tn_squares *sum, double value) {
    uint64_t bits, implied = UINT64_C(1) << MANTISSA;
    memcpy(&bits, &value, sizeof bits);
    if (bits != 0) { /* squares of floats are 0 or far from the smallest doubles */
        sum->mantissas[bits >> MANTISSA] += implied | (bits & (implied - 1));
    }
}

void tn_squares_merge(tn_squares *sum, const tn_squares *other) {
    for (uint32_t e = 0; e < 2048; e++) {
        sum->mantissas[e] += other->mantissas[e];
    }
}

double tn_squares_total(const tn_squares *sum) {
    uint32_t last = 2047;
    while (last > 0 && sum->mantissas[last] == 0) {
        last--;
    }
    double total = 0;
    for (uint32_t e = 0; e <= last; e++) {
        total = total / 2 + (double)sum->mantissas[e];
    }
    if (last <= MANTISSA) {
        return 0;
    }
    /* 2^(last - 1075), the unit of the last mantissas. */
    uint64_t bits = (uint64_t)(last - MANTISSA) << MANTISSA;
    double unit;
    memcpy(&unit, &bits, sizeof unit);
    return total * unit;
}

/* ---- Decay, for readers of records ---------------------------------------- */

void tn_decay_factors(double f, const uint32_t *counts, uint64_t n, float *factors) {
    for (uint64_t i = 0; i < n; i++) {
        factors[i] = (float)tn_power(f, counts[i]);
    }
}
