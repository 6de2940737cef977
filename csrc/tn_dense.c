/* tn_dense.c - all trainable dense weights in one flat buffer, with their optimizer.
 *
 * A call on gradients is split over the threads of the pool by weights: thread t has the same part
 * of every gradient each time. Updates of different weights do not depend on each other, so no
 * split can change a bit of them; norms are exact sums (tn_exact_sum.h) of chunks of fixed size. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tn_exact_sum.h"
#include "tn_memory.h"
#include "tn_optimizer.h"
#include "tn_thread_pool.h"

struct tn_dense {
    tn_optimizer optimizer;
    const tn_rule *rule;
    tn_extras extras;
    tn_thread_pool *pool;
    uint64_t n, step;
    uint32_t states;
    double power1, power2; /* beta1^step and beta2^step */
    float *weights, *state[TN_MAX_STATES];
};

int tn_dense_new(const tn_optimizer *optimizer, uint64_t n, tn_thread_pool *pool, tn_dense **out) {
    if (!tn_optimizer_fits(optimizer, 1) || pool == NULL) {
        return TN_BAD_VALUE;
    }
    if (n > UINT64_MAX / sizeof(float)) {
        return TN_NO_MEMORY;
    }
    tn_dense *dense = TN_CALLOC(1, sizeof *dense);
    if (dense == NULL) {
        return TN_NO_MEMORY;
    }
    tn_state states[TN_MAX_STATES];
    dense->optimizer = *optimizer;
    dense->rule = tn_rule_of(optimizer);
    dense->extras = tn_extras_of(optimizer);
    dense->pool = pool;
    dense->n = n;
    dense->power1 = dense->power2 = 1;
    dense->states = tn_optimizer_states(optimizer, 1, states);
    dense->weights = tn_aligned_new(n * sizeof(float));
    int failed = dense->weights == NULL;
    for (uint32_t k = 0; k < dense->states && !failed; k++) {
        dense->state[k] = tn_aligned_new(n * sizeof(float));
        failed = dense->state[k] == NULL;
    }
    if (failed) {
        tn_dense_free(dense);
        return TN_NO_MEMORY;
    }
    for (uint32_t k = 0; k < dense->states; k++) {
        for (uint64_t i = 0; i < n && states[k].accumulator; i++) {
            dense->state[k][i] = optimizer->initial_accumulator;
        }
    }
    *out = dense;
    return TN_OK;
}

void tn_dense_free(tn_dense *dense) {
    if (dense == NULL) {
        return;
    }
    TN_FREE(dense->weights);
    for (uint32_t k = 0; k < TN_MAX_STATES; k++) {
        TN_FREE(dense->state[k]);
    }
    TN_FREE(dense);
}

float *tn_dense_weights(tn_dense *dense) {
    return dense->weights;
}

float *tn_dense_state(tn_dense *dense, uint32_t k) {
    return k < dense->states ? dense->state[k] : NULL;
}

int tn_dense_set_learning_rate(tn_dense *dense, float learning_rate) {
    if (!isfinite(learning_rate) || learning_rate < 0) {
        return TN_BAD_VALUE;
    }
    dense->optimizer.learning_rate = learning_rate;
    return TN_OK;
}

uint64_t tn_dense_step(tn_dense *dense) {
    return dense->step;
}

static void advance(tn_dense *dense) {
    dense->step++;
    dense->power1 *= tn_beta(dense->optimizer.beta1);
    dense->power2 *= tn_beta(dense->optimizer.beta2);
}

int tn_dense_set_step(tn_dense *dense, uint64_t step) {
    dense->step = 0;
    dense->power1 = dense->power2 = 1;
    /* Powers must come from the same multiplications as in a run that was never interrupted: pow()
     * would round once where these round at every step. Rounding stops them at one of the smallest
     * numbers, mostly before 0; from there on every step is the same, and need not be taken. */
    double last1 = 0, last2 = 0;
    while (dense->step < step && (dense->power1 != last1 || dense->power2 != last2)) {
        last1 = dense->power1;
        last2 = dense->power2;
        advance(dense);
    }
    dense->step = step;
    return TN_OK;
}

/* ---- Gradients ---------------------------------------------------------- */

typedef struct {
    tn_dense *dense;
    const float *const *gradients;
    const uint64_t *offsets, *lengths;
    uint32_t n;
    float rate, scale;
    atomic_int bad;
    tn_exact_sum *squares;
    pthread_mutex_t lock; /* of squares */
} dense_call;

static int covers(const tn_dense *dense, const uint64_t *offsets, const uint64_t *lengths,
                  uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (offsets[i] > dense->n || lengths[i] > dense->n - offsets[i]) {
            return 0;
        }
    }
    return 1;
}

static void check_part(void *argument, int thread, int threads) {
    dense_call *call = argument;
    for (uint32_t i = 0; i < call->n; i++) {
        uint64_t from = tn_part(call->lengths[i], thread, threads);
        uint64_t to = tn_part(call->lengths[i], thread + 1, threads);
        if (!tn_all_finite(call->gradients[i] + from, to - from)) {
            atomic_store(&call->bad, 1);
        }
    }
}

#define TOGETHER 1024 /* weights whose final gradients stay in the first-level cache */

/* Weights from `at` on with all that goes around the formula, in the order of tnctl.h. */
TN_CLONES
static void update_with_extras(const tn_dense *dense, float rate, uint64_t at, const float *g,
                               uint64_t n, float scale) {
    const tn_optimizer *o = &dense->optimizer;
    float final[TOGETHER], decay = o->learning_rate * o->decay;
    for (uint64_t done = 0; done < n; done += TOGETHER) {
        uint64_t count = n - done < TOGETHER ? n - done : TOGETHER;
        float *w = dense->weights + at + done, *states[TN_MAX_STATES] = {0};
        for (uint32_t k = 0; k < dense->states; k++) {
            states[k] = dense->state[k] + at + done;
        }
        final_gradient(&dense->extras, w, g + done, final, count);
        multiply(final, scale, count);
        for (uint64_t j = 0; j < count && o->decay > 0; j++) {
            w[j] -= decay * w[j];
        }
        dense->rule->dense(o, rate, w, states, final, count);
        if (o->bound > 0) {
            hold_in_bound(o->bound, w, count);
        }
    }
}

/* The job of tn_dense_apply: each thread updates its part of every gradient's weights. Every
 * weight is updated from its own gradient and state alone, so where the parts meet changes no
 * bit. Gradients as given, with a scale of 1, go to the kernel directly. */
static void apply_part(void *argument, int thread, int threads) {
    const dense_call *call = argument;
    const tn_dense *dense = call->dense;
    for (uint32_t i = 0; i < call->n; i++) {
        uint64_t from = tn_part(call->lengths[i], thread, threads);
        uint64_t count = tn_part(call->lengths[i], thread + 1, threads) - from;
        uint64_t at = call->offsets[i] + from;
        const float *g = call->gradients[i] + from;
        if (dense->extras.any || call->scale != 1) {
            update_with_extras(dense, call->rate, at, g, count, call->scale);
        } else {
            float *states[TN_MAX_STATES] = {0};
            for (uint32_t k = 0; k < dense->states; k++) {
                states[k] = dense->state[k] + at;
            }
            dense->rule->dense(&dense->optimizer, call->rate, dense->weights + at, states, g,
                               count);
        }
    }
}

TN_CLONES
static double squares_of(const tn_dense *dense, uint64_t at, const float *g, uint64_t n) {
    float final[TOGETHER];
    double squares = 0;
    for (uint64_t done = 0; done < n; done += TOGETHER) {
        uint64_t count = n - done < TOGETHER ? n - done : TOGETHER;
        final_gradient(&dense->extras, dense->weights + at + done, g + done, final, count);
        squares += sum_of_squares(final, count);
    }
    return squares;
}

/* Floats whose squares are summed in double one after the other. Chunks start at multiples of this
 * in each gradient, so the doubles that tn_exact_sum adds exactly do not depend on the threads. */
#define CHUNK ((uint64_t)TN_NORM_CHUNK)

/* The job of tn_dense_norm: each thread takes a share of the chunks of every gradient and sums
 * their squares in a tn_exact_sum of its own, which it adds to the caller's under the lock. Those
 * additions are exact, so the order in which threads get the lock does not matter. */
static void norm_part(void *argument, int thread, int threads) {
    dense_call *call = argument;
    const tn_dense *dense = call->dense;
    tn_exact_sum squares = {{0}};
    for (uint32_t i = 0; i < call->n; i++) {
        uint64_t chunks = (call->lengths[i] + CHUNK - 1) / CHUNK;
        uint64_t last = tn_part(chunks, thread + 1, threads);
        for (uint64_t chunk = tn_part(chunks, thread, threads); chunk < last; chunk++) {
            uint64_t from = chunk * CHUNK, left = call->lengths[i] - from;
            tn_exact_sum_add(&squares,
                             squares_of(dense, call->offsets[i] + from, call->gradients[i] + from,
                                        left < CHUNK ? left : CHUNK));
        }
    }
    pthread_mutex_lock(&call->lock);
    tn_exact_sum_merge(call->squares, &squares);
    pthread_mutex_unlock(&call->lock);
}

int tn_dense_check(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                   const uint64_t *lengths, uint32_t n) {
    if (!covers(dense, offsets, lengths, n)) {
        return TN_BAD_VALUE;
    }
    dense_call call = {
        .dense = dense, .gradients = gradients, .offsets = offsets, .lengths = lengths, .n = n};
    tn_thread_pool_run(dense->pool, check_part, &call);
    return call.bad ? TN_NOT_FINITE : TN_OK;
}

static int norm(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                const uint64_t *lengths, uint32_t n, tn_exact_sum *sum) {
    if (!covers(dense, offsets, lengths, n)) {
        return TN_BAD_VALUE;
    }
    dense_call call = {.dense = dense,
                       .gradients = gradients,
                       .offsets = offsets,
                       .lengths = lengths,
                       .n = n,
                       .squares = sum};
    pthread_mutex_init(&call.lock, NULL);
    tn_thread_pool_run(dense->pool, norm_part, &call);
    pthread_mutex_destroy(&call.lock);
    return TN_OK;
}

int tn_dense_norm(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                  const uint64_t *lengths, uint32_t n, double *squares) {
    tn_exact_sum sum = {{0}};
    int code = norm(dense, gradients, offsets, lengths, n, &sum);
    if (code == TN_OK) {
        *squares = tn_exact_sum_total(&sum);
    }
    return code;
}

int tn_dense_norm_words(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                        const uint64_t *lengths, uint32_t n, uint64_t *words) {
    tn_exact_sum sum = {{0}};
    int code = norm(dense, gradients, offsets, lengths, n, &sum);
    if (code == TN_OK) {
        tn_exact_sum_words(&sum, words);
    }
    return code;
}

int tn_dense_apply(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                   const uint64_t *lengths, uint32_t n, float scale) {
    if (!covers(dense, offsets, lengths, n) || !isfinite(scale) || scale < 0) {
        return TN_BAD_VALUE;
    }
    const tn_optimizer *optimizer = &dense->optimizer;
    dense_call call = {.dense = dense,
                       .gradients = gradients,
                       .offsets = offsets,
                       .lengths = lengths,
                       .n = n,
                       .rate = optimizer->learning_rate,
                       .scale = scale};
    advance(dense);
    if (dense->rule->corrects_dense) {
        call.rate =
            (float)(optimizer->learning_rate * sqrt(1 - dense->power2) / (1 - dense->power1));
    }
    tn_thread_pool_run(dense->pool, apply_part, &call);
    return TN_OK;
}

/* ---- Gradients of several ranks ------------------------------------------ */

TN_CLONES
static void add_weighted(float *restrict out, const float *restrict values, float weight,
                         uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        out[i] += weight * values[i];
    }
}

int tn_weighted_sum(float *out, const float *values, float weight, uint64_t n) {
    if (!(weight >= 0 && weight <= 1)) {
        return TN_BAD_VALUE;
    }
    add_weighted(out, values, weight, n);
    return TN_OK;
}
