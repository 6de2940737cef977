/* tn_accumulate.c - tn_accumulate and tn_count: gradients and clicks of examples to sums per row.
 *
 * Each owner walks the entries of its rows in the order of the batch (tn_batch.h) and adds to sums
 * that only its rows have: no locks, and the order of the additions, so every rounding, is the same
 * for any number of threads. */
#include "tn_pooling.h"

/* ---- Gradients ----------------------------------------------------------- */

TN_INLINE void take_gradient(float *restrict sum, const float *restrict g, uint32_t width,
                             float divisor) {
    if (TN_LIKELY(divisor == 1)) {
        add_floats(sum, g, width);
        return;
    }
    for (uint32_t j = 0; j < width; j++) {
        sum[j] += g[j] / divisor;
    }
}

/* The same for one id of a weighted sum. */
TN_INLINE void take_weighted(float *restrict sum, const float *restrict g, uint32_t width,
                             float weight, float divisor) {
    if (divisor == 1) {
        for (uint32_t j = 0; j < width; j++) {
            sum[j] += g[j] * weight;
        }
    } else if (divisor > 0) {
        for (uint32_t j = 0; j < width; j++) {
            sum[j] += g[j] * weight / divisor;
        }
    }
}

/* Entries whose sums stay in the first-level cache for all segments: where the gradient comes from
 * and where it goes is found once per entry, then each segment is added in a loop of one width. */
#define TOGETHER 64

/* Where the gradients of some entries come from and go to. */
typedef struct {
    float *sums[TOGETHER];
    float divisor[TOGETHER], weight[TOGETHER];
    uint32_t example[TOGETHER], column[TOGETHER], apart[TOGETHER];
} gradient_paths;

/* For each of up to TOGETHER entries of the calling owner: the sums of its row, the row and
 * column of its gradient in the matrices, and what the gradient is divided by. Reads only what
 * tn_find wrote; without a row of its own an entry has the owner's unused place of the sums
 * (no_row). */
TN_INLINE void find_paths(const tn_batch *batch, const tn_entry *entries, uint64_t n,
                          gradient_paths *paths, way_through way) {
    uint32_t n_slots = batch->n_slots;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t cell = entries[i].cell;
        uint32_t b = example_of(batch, cell);
        const tn_slot *slot = &batch->slots[cell - b * n_slots];
        paths->sums[i] = batch->sums + (uint64_t)entries[i].place * batch->sums_stride;
        paths->example[i] = b;
        paths->column[i] = slot->column;
        if (way != PLAIN) {
            paths->apart[i] = slot->apart;
        }
        if (way == WEIGHTED) {
            paths->weight[i] = batch->entry_weights[entries + i - batch->entries];
            paths->divisor[i] = batch->divisors[cell];
        } else {
            uint32_t count = batch->offsets[cell + 1] - batch->offsets[cell];
            paths->divisor[i] = batch->sum_only ? 1 : divisor_of(slot->pooling, count);
        }
    }
}

/* Adds segment s of the gradients of n entries to the sums of their rows, one entry after the
 * other. Gradients of a TN_SUM segment are the same for all slots, so their column is masked to
 * 0 and set 0 serves the slots set apart too. */
TN_INLINE void accumulate_segment(const pooling_call *call, uint32_t s, const gradient_paths *paths,
                                  uint64_t n, uint32_t width, way_through way) {
    const tn_layout *segment = &call->batch->table->layout[s];
    int sum = segment->as_given.output == TN_SUM;
    uint32_t column_mask = sum ? 0 : UINT32_MAX;
    uint32_t at = segment->sums_at;
    const uint64_t strides[2] = {call->strides[0][s], call->strides[!sum][s]};
    const float *const gradients[2] = {call->gradients[0][s], call->gradients[!sum][s]};
    for (uint64_t i = 0; i < n; i++) {
        uint32_t apart = way == PLAIN ? 0 : paths->apart[i];
        const float *g = gradients[apart] + paths->example[i] * strides[apart] +
                         (paths->column[i] & column_mask);
        if (way == WEIGHTED) {
            take_weighted(paths->sums[i] + at, g, width, paths->weight[i], paths->divisor[i]);
        } else {
            take_gradient(paths->sums[i] + at, g, width, paths->divisor[i]);
        }
    }
}

TN_INLINE void accumulate_entries(const pooling_call *call, const tn_entry *entries, uint64_t n,
                                  way_through way) {
    const tn_table *table = call->batch->table;
    gradient_paths paths;
    for (uint64_t start = 0; start < n; start += TOGETHER) {
        uint64_t count = n - start < TOGETHER ? n - start : TOGETHER;
        find_paths(call->batch, entries + start, count, &paths, way);
        for (uint32_t s = 0; s < table->n_segments; s++) {
            FOR_WIDTH(table->layout[s].as_given.width,
                      accumulate_segment(call, s, &paths, count, WIDTH, way));
        }
    }
}

TN_CLONES
static void accumulate_plain(const pooling_call *call, const tn_entry *entries, uint64_t n) {
    accumulate_entries(call, entries, n, PLAIN);
}

TN_CLONES
static void accumulate_apart(const pooling_call *call, const tn_entry *entries, uint64_t n) {
    accumulate_entries(call, entries, n, APART);
}

TN_CLONES
static void accumulate_weighted(const pooling_call *call, const tn_entry *entries, uint64_t n) {
    accumulate_entries(call, entries, n, WEIGHTED);
}

/* The job of tn_accumulate: thread o sums the gradients of the rows it owns, and writes only to
 * their part of the sums and to owners[o]. It takes its lists part by part, which is the order
 * of the batch, so the sums have the same bits for any number of threads. The code is
 * TN_NOT_FINITE when a sum is not finite or nearly overflows. */
static void accumulate_owned(void *argument, int thread, int threads) {
    const pooling_call *call = argument;
    tn_batch *batch = call->batch;
    tn_owner *owner = &batch->owners[thread];
    float *sums = batch->sums + owner->first_row * batch->sums_stride;
    memset(sums, 0, owner->rows * batch->sums_stride * sizeof *sums);
    for (int t = 0; t < threads; t++) {
        uint64_t from, to;
        part_of(batch, t, &from, &to);
        const tn_entry *list = list_of(batch, from, to - from, thread);
        uint64_t n = batch->counts[t][thread];
        switch (way_of(batch)) {
        case PLAIN:
            accumulate_plain(call, list, n);
            break;
        case APART:
            accumulate_apart(call, list, n);
            break;
        case WEIGHTED:
            accumulate_weighted(call, list, n);
        }
    }
    owner->code =
        tn_all_below(sums, owner->rows * batch->sums_stride, batch->limit) ? TN_OK : TN_NOT_FINITE;
}

int tn_accumulate(tn_batch *batch, const float *const *gradients, const uint32_t *strides,
                  const float *const *apart, const uint32_t *apart_strides) {
    if (batch->any_apart && !tn_apart_given(batch, apart, apart_strides)) {
        return TN_BAD_VALUE;
    }
    pooling_call call = {.batch = batch,
                         .gradients = {gradients, batch->any_apart ? apart : gradients},
                         .strides = {strides, batch->any_apart ? apart_strides : strides}};
    if (!tn_columns_fit(batch, call.strides)) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code =
        state_of(batch, BATCH_OF_TABLE | BATCH_OF_KEYS) == BATCH_INSERTED ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        tn_thread_pool_run(batch->table->pool, accumulate_owned, &call);
        for (int o = 0; o < batch->threads && code == TN_OK; o++) {
            code = batch->owners[o].code;
        }
        batch->state = code == TN_OK ? BATCH_SUMMED : BATCH_INSERTED;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- Show and click ----------------------------------------------------- */

typedef struct {
    tn_batch *batch;
    const float *clicks;
} count_call;

/* Occurrences and clicks per distinct row, in the order of the batch. An id that waits for its
 * admission has no row to count for. */
static void count_owned(void *argument, int thread, int threads) {
    const count_call *call = argument;
    tn_batch *batch = call->batch;
    const tn_owner *owner = &batch->owners[thread];
    memset(batch->shows + 2 * owner->first_row, 0, 2 * owner->rows * sizeof *batch->shows);
    for (int t = 0; t < threads; t++) {
        uint64_t from, to;
        part_of(batch, t, &from, &to);
        const tn_entry *list = list_of(batch, from, to - from, thread);
        for (uint64_t i = 0; i < batch->counts[t][thread]; i++) {
            if (waits(batch, &list[i])) {
                continue;
            }
            float *counts = batch->shows + 2 * (uint64_t)list[i].place;
            counts[0] += 1;
            counts[1] += call->clicks[example_of(batch, list[i].cell)];
        }
    }
}

static int clicks_fit(const float *clicks, uint32_t examples) {
    int fit = tn_all_finite(clicks, examples);
    for (uint32_t b = 0; b < examples; b++) {
        fit &= clicks[b] >= 0;
    }
    return fit;
}

int tn_leave_out(tn_batch *batch, const float *clicks) {
    pthread_mutex_lock(&batch->table->lock);
    int code =
        state_of(batch, BATCH_OF_TABLE | BATCH_OF_KEYS) >= BATCH_INSERTED ? TN_OK : TN_NO_BATCH;
    if (!batch->table->cvm || (code == TN_OK && !clicks_fit(clicks, batch->examples))) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        memcpy(batch->clicks, clicks, batch->examples * sizeof *clicks);
        batch->has_clicks = 1;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

int tn_count(tn_batch *batch, const float *clicks) {
    pthread_mutex_lock(&batch->table->lock);
    int code =
        state_of(batch, BATCH_OF_TABLE | BATCH_OF_KEYS) >= BATCH_INSERTED ? TN_OK : TN_NO_BATCH;
    if (!batch->table->shows || (code == TN_OK && !clicks_fit(clicks, batch->examples))) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        tn_thread_pool_run(batch->table->pool, count_owned, &(count_call){batch, clicks});
        batch->counted = 1;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}
