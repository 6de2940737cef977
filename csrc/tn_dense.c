/* tn_dense.c - all trainable dense weights in one flat buffer, with their optimizer. */
#include "tn_dense.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "tn_memory.h"
#include "tn_pool.h"

struct tn_dense {
    tn_optimizer optimizer;
    tn_pool *pool;
    uint64_t n, step;
    uint32_t states;
    double power1, power2; /* beta1^step and beta2^step */
    float *weights, *state[MAX_STATES];
};

int tn_dense_new(const tn_optimizer *optimizer, uint64_t n, tn_pool *pool, tn_dense **out) {
    if (!tn_optimizer_fits_dense(optimizer) || pool == NULL) {
        return TN_BAD_VALUE;
    }
    if (n > UINT64_MAX / sizeof(float)) {
        return TN_NO_MEMORY;
    }
    tn_dense *dense = TN_CALLOC(1, sizeof *dense);
    if (dense == NULL) {
        return TN_NO_MEMORY;
    }
    dense->optimizer = *optimizer;
    dense->pool = pool;
    dense->n = n;
    dense->power1 = dense->power2 = 1;
    dense->states = tn_dense_states(optimizer);
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
    uint32_t accumulator = tn_dense_accumulator(optimizer);
    for (uint64_t i = 0; i < n && accumulator < MAX_STATES; i++) {
        dense->state[accumulator][i] = optimizer->initial_accumulator;
    }
    *out = dense;
    return TN_OK;
}

void tn_dense_free(tn_dense *dense) {
    if (dense == NULL) {
        return;
    }
    TN_FREE(dense->weights);
    for (uint32_t k = 0; k < MAX_STATES; k++) {
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
    /* Rounding stops the powers at the smallest numbers, most often before 0: from there on every
     * step is the same. */
    double before1 = 0, before2 = 0;
    while (dense->step < step && (dense->power1 != before1 || dense->power2 != before2)) {
        before1 = dense->power1;
        before2 = dense->power2;
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
    int plain;
    atomic_int bad;
    tn_squares *squares;
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

static void apply_part(void *argument, int thread, int threads) {
    const dense_call *call = argument;
    const tn_dense *dense = call->dense;
    for (uint32_t i = 0; i < call->n; i++) {
        uint64_t from = tn_part(call->lengths[i], thread, threads);
        uint64_t count = tn_part(call->lengths[i], thread + 1, threads) - from;
        uint64_t at = call->offsets[i] + from;
        const float *g = call->gradients[i] + from;
        if (call->plain && dense->optimizer.kind == TN_ADAM) {
            tn_adam_dense(&dense->optimizer, call->rate, dense->weights + at, dense->state[0] + at,
                          dense->state[1] + at, g, count);
        } else if (call->plain && dense->optimizer.kind == TN_ADAGRAD) {
            tn_adagrad_dense(&dense->optimizer, dense->weights + at, dense->state[0] + at, g,
                             count);
        } else {
            tn_any_dense(&dense->optimizer, call->rate, dense->weights, dense->state, at, g, count,
                         call->scale);
        }
    }
}

#define CHUNK 4096 /* floats whose squares are summed one after the other, whatever the threads */

static void norm_part(void *argument, int thread, int threads) {
    dense_call *call = argument;
    const tn_dense *dense = call->dense;
    tn_squares squares = {{0}};
    for (uint32_t i = 0; i < call->n; i++) {
        uint64_t chunks = (call->lengths[i] + CHUNK - 1) / CHUNK;
        uint64_t last = tn_part(chunks, thread + 1, threads);
        for (uint64_t chunk = tn_part(chunks, thread, threads); chunk < last; chunk++) {
            uint64_t from = chunk * CHUNK, left = call->lengths[i] - from;
            const float *weights = dense->weights + call->offsets[i] + from;
            tn_squares_add(&squares,
                           tn_dense_squares(&dense->optimizer, weights, call->gradients[i] + from,
                                            left < CHUNK ? left : CHUNK));
        }
    }
    pthread_mutex_lock(&call->lock);
    tn_squares_merge(call->squares, &squares);
    pthread_mutex_unlock(&call->lock);
}

int tn_dense_check(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                   const uint64_t *lengths, uint32_t n) {
    if (!covers(dense, offsets, lengths, n)) {
        return TN_BAD_VALUE;
    }
    dense_call call = {
        .dense = dense, .gradients = gradients, .offsets = offsets, .lengths = lengths, .n = n};
    tn_pool_run(dense->pool, check_part, &call);
    return call.bad ? TN_NOT_FINITE : TN_OK;
}

int tn_dense_norm(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                  const uint64_t *lengths, uint32_t n, double *squares) {
    if (!covers(dense, offsets, lengths, n)) {
        return TN_BAD_VALUE;
    }
    tn_squares sum = {{0}};
    dense_call call = {.dense = dense,
                       .gradients = gradients,
                       .offsets = offsets,
                       .lengths = lengths,
                       .n = n,
                       .squares = &sum};
    pthread_mutex_init(&call.lock, NULL);
    tn_pool_run(dense->pool, norm_part, &call);
    pthread_mutex_destroy(&call.lock);
    *squares = tn_squares_total(&sum);
    return TN_OK;
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
                       .scale = scale,
                       .plain = scale == 1 && tn_no_extras(optimizer)};
    advance(dense);
    if (optimizer->kind == TN_ADAM || optimizer->kind == TN_TENSORNET_ADAM) {
        call.rate =
            (float)(optimizer->learning_rate * sqrt(1 - dense->power2) / (1 - dense->power1));
    }
    tn_pool_run(dense->pool, apply_part, &call);
    return TN_OK;
}
