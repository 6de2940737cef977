/* tn_pooling.c - gather: rows to the model's input; accumulate and apply: its gradient to rows. */
#include <math.h>

#include "tn_batch.h"

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
        case 10: { /* 8 and cvm's columns */                                                       \
            enum { WIDTH = 10 };                                                                   \
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

#define COPIED 64 /* rows that are copied together */

/* ---- Gather ------------------------------------------------------------- */

/* Matrices come in two sets: 0 the usual one, 1 that of the slots set apart; the same one twice
 * when no slot is. */
typedef struct {
    tn_batch *batch;
    float *const *outputs[2];
    const float *const *gradients[2];
    const uint32_t *strides[2];
    int add;
} batch_call;

/* Which loops a batch needs; each is compiled without what the ways before it do not. */
typedef enum {
    PLAIN,
    APART,   /* some slots are set apart */
    WEIGHTED /* each id has a weight; slots may be set apart */
} way_through;

static way_through way_of(const tn_batch *batch) {
    return batch->weighted ? WEIGHTED : batch->any_apart ? APART : PLAIN;
}

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

/* The rows of ids first .. last - 1, in their order, from the lists they were dealt to. Rows that
 * are not whole cache lines mostly lie in two. */
TN_INLINE void collect_rows(const tn_batch *batch, uint64_t first, uint64_t last) {
    const tn_entry *entries = batch->entries;
    const uint32_t *entry_of = batch->entry_of;
    if (batch->table->stride == 64) {
        for (uint64_t k = first; k < last; k++) {
            TN_PREFETCH(entries[entry_of[k + AHEAD]].row);
            batch->row_of[k] = entries[entry_of[k]].row;
        }
        return;
    }
    uint32_t end = batch->table->stride - 1;
    for (uint64_t k = first; k < last; k++) {
        TN_PREFETCH(entries[entry_of[k + AHEAD]].row);
        TN_PREFETCH((const char *)entries[entry_of[k + AHEAD]].row + end);
        batch->row_of[k] = entries[entry_of[k]].row;
    }
}

/* Puts copies in the place of the rows of ids first .. last - 1: rows as they read. */
static void copy_rows(const tn_batch *batch, uint64_t first, uint64_t last) {
    const tn_table *table = batch->table;
    uint32_t at = batch->found == 1 ? table->step : tn_last_step(table);
    for (uint64_t k = first; k < last; k += COPIED) {
        uint64_t n = last - k < COPIED ? last - k : COPIED;
        float *copies[COPIED], columns[COPIED * CVM_COLUMNS];
        if (table->cvm) {
            tn_rows_cvm(table, batch->row_of + k, n, columns);
        }
        for (uint64_t i = 0; i < n; i++) {
            tn_row *copy = (tn_row *)(void *)(batch->copies + (k + i) * table->copy_stride);
            copies[i] = row_floats(copy);
        }
        tn_rows_read(table, batch->row_of + k, n, at, columns, copies);
        for (uint64_t i = 0; i < n; i++) {
            batch->row_of[k + i] = (tn_row *)(void *)((char *)copies[i] - HEADER);
        }
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

/* The same with a weight per id. A sum that nothing sensible divides is zeros. */
TN_INLINE void pool_weighted(float *restrict to, tn_row *const *rows, const float *weights,
                             uint32_t count, uint32_t at, uint32_t width, float by) {
    memset(to, 0, width * sizeof(float));
    if (!(by > 0)) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const float *from = row_floats(rows[i]) + at;
        for (uint32_t j = 0; j < width; j++) {
            to[j] += weights[i] * from[j];
        }
    }
    for (uint32_t j = 0; j < width && by != 1; j++) {
        to[j] /= by;
    }
}

/* Cell b * n_slots + slot; `offsets` are those of example b. */
TN_INLINE void pool_slot(float *restrict to, const tn_batch *batch, const uint32_t *offsets,
                         uint32_t slot, uint32_t at, uint32_t width, way_through way) {
    tn_row *const *rows = batch->row_of + offsets[slot];
    uint32_t count = offsets[slot + 1] - offsets[slot];
    if (way == WEIGHTED) {
        pool_weighted(to, rows, batch->weights + offsets[slot], count, at, width,
                      batch->divisors[offsets + slot - batch->offsets]);
    } else {
        pool_cell(to, rows, count, at, width, batch->slots[slot].pooling);
    }
}

/* One TN_CONCAT segment of one example. */
TN_INLINE void gather_concat(const tn_batch *batch, uint32_t at, uint64_t b, float *const *outputs,
                             uint32_t width, way_through way) {
    const uint32_t *offsets = batch->offsets + b * batch->n_slots;
    for (uint32_t slot = 0; slot < batch->n_slots; slot++) {
        float *output = outputs[way == PLAIN ? 0 : batch->slots[slot].apart];
        pool_slot(output + batch->slots[slot].column, batch, offsets, slot, at, width, way);
    }
}

/* One TN_SUM segment of one example; the running total stays in registers for known widths. */
TN_INLINE void gather_sum(const tn_batch *batch, uint32_t at, uint64_t b, float *restrict output,
                          uint32_t width, int add, way_through way) {
    const uint32_t *offsets = batch->offsets + b * batch->n_slots;
    float total[MAX_WIDTH], pooled[MAX_WIDTH];
    for (uint32_t j = 0; j < width; j++) {
        total[j] = add ? output[j] : 0;
    }
    for (uint32_t slot = 0; slot < batch->n_slots; slot++) {
        pool_slot(pooled, batch, offsets, slot, at, width, way);
        add_floats(total, pooled, width);
    }
    copy_floats(output, total, width);
}

TN_INLINE void gather_segment(const batch_call *call, uint32_t s, uint64_t b, uint32_t width,
                              way_through way) {
    const tn_layout *segment = &call->batch->table->layout[s];
    float *output = call->outputs[0][s] + b * call->strides[0][s];
    if (segment->as_given.output == TN_SUM) {
        gather_sum(call->batch, segment->read_at, b, output, width, call->add, way);
    } else {
        float *outputs[2] = {output, call->outputs[1][s] + b * call->strides[1][s]};
        gather_concat(call->batch, segment->read_at, b, outputs, width, way);
    }
}

TN_INLINE void gather_examples(const batch_call *call, uint64_t first, uint64_t last,
                               way_through way) {
    const tn_batch *batch = call->batch;
    for (uint64_t b = first; b < last; b++) {
        collect_rows(batch, batch->offsets[b * batch->n_slots],
                     batch->offsets[(b + 1) * batch->n_slots]);
        if (TN_UNLIKELY(batch->table->copies)) {
            copy_rows(batch, batch->offsets[b * batch->n_slots],
                      batch->offsets[(b + 1) * batch->n_slots]);
        }
        for (uint32_t s = 0; s < batch->table->n_segments; s++) {
            FOR_WIDTH(batch->table->layout[s].read_width, gather_segment(call, s, b, WIDTH, way));
        }
    }
}

TN_CLONES
static void gather_plain(const batch_call *call, uint64_t first, uint64_t last) {
    gather_examples(call, first, last, PLAIN);
}

TN_CLONES
static void gather_apart(const batch_call *call, uint64_t first, uint64_t last) {
    gather_examples(call, first, last, APART);
}

TN_CLONES
static void gather_weighted(const batch_call *call, uint64_t first, uint64_t last) {
    gather_examples(call, first, last, WEIGHTED);
}

static void gather_part(void *argument, int thread, int threads) {
    const batch_call *call = argument;
    uint64_t first = tn_part(call->batch->examples, thread, threads);
    uint64_t last = tn_part(call->batch->examples, thread + 1, threads);
    switch (way_of(call->batch)) {
    case PLAIN:
        gather_plain(call, first, last);
        break;
    case APART:
        gather_apart(call, first, last);
        break;
    case WEIGHTED:
        gather_weighted(call, first, last);
    }
}

/* Whether each slot's columns lie inside a row of the matrices it uses. */
static int columns_fit(const tn_batch *batch, const uint32_t *const *strides) {
    for (uint32_t s = 0; s < batch->table->n_segments; s++) {
        const tn_layout *segment = &batch->table->layout[s];
        int concat = segment->as_given.output == TN_CONCAT;
        for (uint32_t slot = 0; slot < batch->n_slots; slot++) {
            uint64_t column = concat ? batch->slots[slot].column : 0;
            if (column + segment->read_width > strides[concat && batch->slots[slot].apart][s]) {
                return 0;
            }
        }
    }
    return 1;
}

/* Whether the matrices of the slots set apart are there: one for each TN_CONCAT segment. */
static int apart_given(const tn_batch *batch, const float *const *apart, const uint32_t *strides) {
    for (uint32_t s = 0; s < batch->table->n_segments; s++) {
        if (batch->table->layout[s].as_given.output == TN_CONCAT &&
            (apart == NULL || strides == NULL || apart[s] == NULL)) {
            return 0;
        }
    }
    return 1;
}

int tn_gather(tn_batch *batch, float *const *outputs, const uint32_t *strides, float *const *apart,
              const uint32_t *apart_strides, int add) {
    if (batch->any_apart && !apart_given(batch, (const float *const *)apart, apart_strides)) {
        return TN_BAD_VALUE;
    }
    batch_call call = {.batch = batch,
                       .outputs = {outputs, batch->any_apart ? apart : outputs},
                       .strides = {strides, batch->any_apart ? apart_strides : strides},
                       .add = add};
    if (!columns_fit(batch, call.strides)) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code = found(batch) ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
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

/* The same for one id of a weighted sum. */
TN_INLINE void take_weighted(float *restrict sum, const float *restrict g, uint32_t width,
                             float weight, float by) {
    if (by == 1) {
        for (uint32_t j = 0; j < width; j++) {
            sum[j] += g[j] * weight;
        }
    } else if (by > 0) {
        for (uint32_t j = 0; j < width; j++) {
            sum[j] += g[j] * weight / by;
        }
    }
}

#define TOGETHER 64 /* entries that stay in the first-level cache for all segments */

/* Where the gradients of some entries come from and go to. */
typedef struct {
    float *sums[TOGETHER];
    float by[TOGETHER], weight[TOGETHER];
    uint32_t example[TOGETHER], column[TOGETHER], apart[TOGETHER];
} gradient_paths;

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
            paths->by[i] = batch->divisors[cell];
        } else {
            uint32_t count = batch->offsets[cell + 1] - batch->offsets[cell];
            paths->by[i] = batch->sum_only ? 1 : divisor(slot->pooling, count);
        }
    }
}

TN_INLINE void accumulate_segment(const batch_call *call, uint32_t s, const gradient_paths *paths,
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
            take_weighted(paths->sums[i] + at, g, width, paths->weight[i], paths->by[i]);
        } else {
            take_gradient(paths->sums[i] + at, g, width, paths->by[i]);
        }
    }
}

TN_INLINE void accumulate_entries(const batch_call *call, const tn_entry *entries, uint64_t n,
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
static void accumulate_plain(const batch_call *call, const tn_entry *entries, uint64_t n) {
    accumulate_entries(call, entries, n, PLAIN);
}

TN_CLONES
static void accumulate_apart(const batch_call *call, const tn_entry *entries, uint64_t n) {
    accumulate_entries(call, entries, n, APART);
}

TN_CLONES
static void accumulate_weighted(const batch_call *call, const tn_entry *entries, uint64_t n) {
    accumulate_entries(call, entries, n, WEIGHTED);
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
    owner->code = tn_all_finite(sums, owner->rows * batch->sums_stride) ? TN_OK : TN_NOT_FINITE;
}

int tn_accumulate(tn_batch *batch, const float *const *gradients, const uint32_t *strides,
                  const float *const *apart, const uint32_t *apart_strides) {
    if (batch->any_apart && !apart_given(batch, apart, apart_strides)) {
        return TN_BAD_VALUE;
    }
    batch_call call = {.batch = batch,
                       .gradients = {gradients, batch->any_apart ? apart : gradients},
                       .strides = {strides, batch->any_apart ? apart_strides : strides}};
    if (!columns_fit(batch, call.strides)) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code = found(batch) == 2 ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        tn_pool_run(batch->table->pool, accumulate_owned, &call);
        for (int o = 0; o < batch->threads && code == TN_OK; o++) {
            code = batch->owners[o].code;
        }
        batch->found = code == TN_OK ? 3 : 2;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- Show and click ----------------------------------------------------- */

typedef struct {
    tn_batch *batch;
    const float *clicks;
} count_call;

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

int tn_count(tn_batch *batch, const float *clicks) {
    pthread_mutex_lock(&batch->table->lock);
    int code = found(batch) >= 2 ? TN_OK : TN_NO_BATCH;
    if (!batch->table->shows || (code == TN_OK && !clicks_fit(clicks, batch->examples))) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        tn_pool_run(batch->table->pool, count_owned, &(count_call){batch, clicks});
        batch->counted = 1;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- Updates ------------------------------------------------------------ */

static tn_summed summed_of(const tn_batch *batch, int thread) {
    const tn_owner *owner = &batch->owners[thread];
    return (tn_summed){.rows = batch->rows,
                       .first_row = owner->first_row,
                       .n = owner->rows,
                       .sums = batch->sums + owner->first_row * batch->sums_stride,
                       .sums_stride = batch->sums_stride,
                       .counts = batch->counted ? batch->shows + 2 * owner->first_row : NULL};
}

/* Rows from .. to - 1 of those that an owner has. */
static tn_summed some_of(const tn_summed *all, uint64_t from, uint64_t to) {
    tn_summed some = *all;
    some.first_row += from;
    some.n = to - from;
    some.sums += from * all->sums_stride;
    some.counts = all->counts ? all->counts + 2 * from : NULL;
    return some;
}

typedef struct {
    tn_batch *batch;
    float scale;
    tn_squares *squares;
    pthread_mutex_t lock; /* of squares */
} update_call;

static int has_l2(const tn_table *table) {
    float l2 = 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        l2 += table->layout[s].as_given.optimizer.l2;
    }
    return l2 > 0;
}

static void norm_owned(void *argument, int thread, int threads) {
    update_call *call = argument;
    const tn_table *table = call->batch->table;
    tn_summed summed = summed_of(call->batch, thread);
    tn_squares squares = {{0}};
    if (table->all && has_l2(table)) {
        for (uint32_t i = 0; i < SHARDS; i++) {
            if (owner_of(i, threads) == thread) {
                tn_shard_norm(table, &table->shards[i], &summed, &squares);
            }
        }
    } else {
        tn_rows_norm(table, &summed, &squares);
    }
    pthread_mutex_lock(&call->lock);
    tn_squares_merge(call->squares, &squares);
    pthread_mutex_unlock(&call->lock);
}

int tn_norm(tn_batch *batch, double *squares) {
    tn_squares sum = {{0}};
    pthread_mutex_lock(&batch->table->lock);
    int code = found(batch) == 3 ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        update_call call = {.batch = batch, .squares = &sum};
        pthread_mutex_init(&call.lock, NULL);
        tn_pool_run(batch->table->pool, norm_owned, &call);
        pthread_mutex_destroy(&call.lock);
        *squares = tn_squares_total(&sum);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

static void update_rows(const tn_table *table, const tn_summed *summed, float scale) {
    if (table->plain && scale == 1) {
        tn_rows_update(table, summed->rows + summed->first_row, summed->n, summed->sums,
                       summed->sums_stride);
    } else {
        tn_rows_update_any(table, summed, scale);
    }
}

#define COUNTED 256

static void apply_owned(void *argument, int thread, int threads) {
    const update_call *call = argument;
    const tn_table *table = call->batch->table;
    tn_summed summed = summed_of(call->batch, thread);
    if (table->all) {
        for (uint32_t i = 0; i < SHARDS; i++) {
            if (owner_of(i, threads) == thread) {
                tn_shard_update(table, &table->shards[i], &summed, call->scale);
            }
        }
    } else if (!table->shows) {
        update_rows(table, &summed, call->scale);
    } else {
        /* In pieces that the cache keeps from the one loop to the other. */
        for (uint64_t from = 0; from < summed.n; from += COUNTED) {
            uint64_t to = from + COUNTED < summed.n ? from + COUNTED : summed.n;
            tn_summed some = some_of(&summed, from, to);
            tn_rows_count(table, &some);
            update_rows(table, &some, call->scale);
        }
    }
}

int tn_apply(tn_batch *batch, float scale) {
    if (!isfinite(scale) || scale < 0) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code = found(batch) == 3 ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        update_call call = {.batch = batch, .scale = scale};
        tn_pool_run(batch->table->pool, apply_owned, &call);
        batch->found = 0;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}
