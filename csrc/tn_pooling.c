/* tn_pooling.c - gather: rows to the model's input; accumulate and apply: its gradient to rows. */
#include <math.h>

#include "tn_batch.h"
#include "tn_dense.h"

#define MAX_WIDTH 1024

/* Runs a statement with WIDTH known while compiling for the widths most tables have: it becomes
 * straight vector code. */
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

__extension__ typedef unsigned __int128 uint128;

/* ---- Gather ------------------------------------------------------------- */

typedef struct {
    tn_batch *batch;
    float *const *outputs;
    const float *const *gradients;
    const uint32_t *strides;
    int add;
} batch_call;

TN_INLINE void copy_floats(float *restrict to, const float *restrict from, uint32_t n) {
    memcpy(to, from, n * sizeof(float));
}

TN_INLINE void add_floats(float *restrict to, const float *restrict from, uint32_t n) {
    for (uint32_t j = 0; j < n; j++) {
        to[j] += from[j];
    }
}

/* What a sum over `count` ids is divided by; 1 for sums and for no ids. */
TN_INLINE float divisor(uint16_t pooling, uint32_t count) {
    if (pooling == TN_POOL_SUM || count <= 1) {
        return 1;
    }
    return pooling == TN_POOL_MEAN ? (float)count : sqrtf((float)count);
}

/* The rows of ids first .. last - 1, in their order, from the lists they were dealt to. */
TN_INLINE void collect_rows(const tn_batch *batch, uint64_t first, uint64_t last) {
    const tn_entry *entries = batch->entries;
    const uint32_t *entry_of = batch->entry_of;
    for (uint64_t k = first; k < last; k++) {
        TN_PREFETCH(entries[entry_of[k + AHEAD]].row);
        batch->row_of[k] = entries[entry_of[k]].row;
    }
}

/* The pooled weights of one cell, `width` of them from `at` of each of its rows. */
TN_INLINE void pool_cell(float *restrict to, tn_row *const *rows, uint32_t count, uint32_t at,
                         uint32_t width, uint16_t pooling) {
    if (TN_LIKELY(count == 1)) {
        copy_floats(to, row_floats(rows[0]) + at, width);
        return;
    }
    memset(to, 0, width * sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        add_floats(to, row_floats(rows[i]) + at, width);
    }
    float by = divisor(pooling, count);
    for (uint32_t j = 0; j < width && by != 1; j++) {
        to[j] /= by;
    }
}

/* One TN_CONCAT segment of one example. */
TN_INLINE void gather_concat(const tn_batch *batch, uint32_t at, uint64_t b, float *restrict output,
                             uint32_t width) {
    const uint32_t *offsets = batch->offsets + b * batch->n_slots;
    for (uint32_t slot = 0; slot < batch->n_slots; slot++) {
        pool_cell(output + batch->slots[slot].column, batch->row_of + offsets[slot],
                  offsets[slot + 1] - offsets[slot], at, width, batch->slots[slot].pooling);
    }
}

/* One TN_SUM segment of one example; the running total stays in registers for known widths. */
TN_INLINE void gather_sum(const tn_batch *batch, uint32_t at, uint64_t b, float *restrict output,
                          uint32_t width, int add) {
    const uint32_t *offsets = batch->offsets + b * batch->n_slots;
    float total[MAX_WIDTH], pooled[MAX_WIDTH];
    for (uint32_t j = 0; j < width; j++) {
        total[j] = add ? output[j] : 0;
    }
    for (uint32_t slot = 0; slot < batch->n_slots; slot++) {
        pool_cell(pooled, batch->row_of + offsets[slot], offsets[slot + 1] - offsets[slot], at,
                  width, batch->slots[slot].pooling);
        add_floats(total, pooled, width);
    }
    copy_floats(output, total, width);
}

TN_INLINE void gather_segment(const batch_call *call, uint32_t s, uint64_t b, uint32_t width) {
    const tn_layout *segment = &call->batch->table->layout[s];
    float *output = call->outputs[s] + b * call->strides[s];
    if (segment->as_given.output == TN_SUM) {
        gather_sum(call->batch, segment->weights_at, b, output, width, call->add);
    } else {
        gather_concat(call->batch, segment->weights_at, b, output, width);
    }
}

TN_CLONES
static void gather_examples(const batch_call *call, uint64_t first, uint64_t last) {
    const tn_batch *batch = call->batch;
    for (uint64_t b = first; b < last; b++) {
        collect_rows(batch, batch->offsets[b * batch->n_slots],
                     batch->offsets[(b + 1) * batch->n_slots]);
        for (uint32_t s = 0; s < batch->table->n_segments; s++) {
            FOR_WIDTH(batch->table->layout[s].as_given.width, gather_segment(call, s, b, WIDTH));
        }
    }
}

static void gather_part(void *argument, int thread, int threads) {
    const batch_call *call = argument;
    gather_examples(call, tn_part(call->batch->examples, thread, threads),
                    tn_part(call->batch->examples, thread + 1, threads));
}

/* Whether each slot's columns lie inside an output row. */
static int columns_fit(const tn_batch *batch, const uint32_t *strides) {
    for (uint32_t s = 0; s < batch->table->n_segments; s++) {
        const tn_segment *segment = &batch->table->layout[s].as_given;
        for (uint32_t slot = 0; slot < batch->n_slots; slot++) {
            uint64_t column = segment->output == TN_CONCAT ? batch->slots[slot].column : 0;
            if (column + segment->width > strides[s]) {
                return 0;
            }
        }
    }
    return 1;
}

int tn_gather(tn_batch *batch, float *const *outputs, const uint32_t *strides, int add) {
    if (!columns_fit(batch, strides)) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code = batch->found ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        batch_call call = {.batch = batch, .outputs = outputs, .strides = strides, .add = add};
        tn_pool_run(batch->table->pool, gather_part, &call);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- Accumulate and apply ----------------------------------------------- */

TN_INLINE void take_gradient(float *restrict sum, const float *restrict g, uint32_t width,
                             float by) {
    if (TN_LIKELY(by == 1)) {
        add_floats(sum, g, width);
        return;
    }
    for (uint32_t j = 0; j < width; j++) {
        sum[j] += g[j] / by;
    }
}

#define TOGETHER 64 /* entries that stay in the first-level cache for all segments */

/* Where the gradients of some entries come from and go to. */
typedef struct {
    float *sums[TOGETHER];
    float by[TOGETHER];
    uint32_t example[TOGETHER], column[TOGETHER];
} gradient_paths;

TN_INLINE void find_paths(const tn_batch *batch, const tn_entry *entries, uint64_t n,
                          gradient_paths *paths) {
    uint32_t n_slots = batch->n_slots;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t cell = entries[i].cell;
        /* With one slot the factor would be 2^64. */
        uint32_t b = n_slots == 1 ? cell : (uint32_t)((uint128)batch->cell_factor * cell >> 64);
        const tn_slot *slot = &batch->slots[cell - b * n_slots];
        paths->sums[i] = batch->sums + (uint64_t)entries[i].place * batch->sums_stride;
        paths->example[i] = b;
        paths->column[i] = slot->column;
        paths->by[i] = batch->sum_only ? 1
                                       : divisor(slot->pooling,
                                                 batch->offsets[cell + 1] - batch->offsets[cell]);
    }
}

TN_INLINE void accumulate_segment(const batch_call *call, uint32_t s, const gradient_paths *paths,
                                  uint64_t n, uint32_t width) {
    const tn_layout *segment = &call->batch->table->layout[s];
    uint32_t column_mask = segment->as_given.output == TN_SUM ? 0 : UINT32_MAX;
    uint32_t at = segment->sums_at;
    uint64_t stride = call->strides[s];
    const float *gradients = call->gradients[s];
    for (uint64_t i = 0; i < n; i++) {
        take_gradient(paths->sums[i] + at,
                      gradients + paths->example[i] * stride + (paths->column[i] & column_mask),
                      width, paths->by[i]);
    }
}

TN_CLONES
static void accumulate_list(const batch_call *call, const tn_entry *entries, uint64_t n) {
    const tn_table *table = call->batch->table;
    gradient_paths paths;
    for (uint64_t start = 0; start < n; start += TOGETHER) {
        uint64_t count = n - start < TOGETHER ? n - start : TOGETHER;
        find_paths(call->batch, entries + start, count, &paths);
        for (uint32_t s = 0; s < table->n_segments; s++) {
            FOR_WIDTH(table->layout[s].as_given.width,
                      accumulate_segment(call, s, &paths, count, WIDTH));
        }
    }
}

static void accumulate_owned(void *argument, int thread, int threads) {
    const batch_call *call = argument;
    tn_batch *batch = call->batch;
    tn_owner *owner = &batch->owners[thread];
    float *sums = batch->sums + owner->first_row * batch->sums_stride;
    memset(sums, 0, owner->rows * batch->sums_stride * sizeof *sums);
    for (int t = 0; t < threads; t++) {
        uint64_t from, to;
        part_of(batch, t, &from, &to);
        accumulate_list(call, list_of(batch, from, to - from, thread), batch->counts[t][thread]);
    }
    owner->code = tn_all_finite(sums, owner->rows * batch->sums_stride) ? TN_OK : TN_NOT_FINITE;
}

int tn_accumulate(tn_batch *batch, const float *const *gradients, const uint32_t *strides) {
    if (!columns_fit(batch, strides)) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code = batch->found == 2 ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        batch_call call = {.batch = batch, .gradients = gradients, .strides = strides};
        tn_pool_run(batch->table->pool, accumulate_owned, &call);
        for (int o = 0; o < batch->threads && code == TN_OK; o++) {
            code = batch->owners[o].code;
        }
        batch->found = code == TN_OK ? 3 : 2;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

static void apply_owned(void *argument, int thread, int threads) {
    (void)threads;
    const tn_batch *batch = argument;
    const tn_owner *owner = &batch->owners[thread];
    tn_rows_update(batch->table, batch->rows + owner->first_row, owner->rows,
                   batch->sums + owner->first_row * batch->sums_stride, batch->sums_stride);
}

int tn_apply(tn_batch *batch) {
    pthread_mutex_lock(&batch->table->lock);
    int code = batch->found == 3 ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        tn_pool_run(batch->table->pool, apply_owned, batch);
        batch->found = 0;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}
