/* tn_gather.c - tn_gather: the rows of a batch, pooled, into the model's input.
 *
 * Each thread writes the rows of its part of the examples, so no two write to the same place.
 * The sum of a cell runs over its ids in their order whichever shards they are of: the rows were
 * found by their owners, but are read here through entry_of, in the order of the batch. */
#include "tn_pooling.h"
#include "tn_reading.h"
#include "tn_shows.h"

#define COPIED 64 /* rows that are copied together */

/* The rows of ids first .. last - 1, in their order, from the lists they were dealt to. Rows that
 * are not whole cache lines mostly lie in two. */
TN_INLINE void collect_rows(const tn_batch *batch, uint64_t first, uint64_t last) {
    const tn_entry *entries = batch->entries;
    const uint32_t *entry_of = batch->entry_of;
    if (batch->table->stride == 64) {
        for (uint64_t k = first; k < last; k++) {
            TN_PREFETCH(entries[entry_of[k + ROWS_AHEAD]].row);
            batch->row_of[k] = entries[entry_of[k]].row;
        }
        return;
    }
    uint32_t end = batch->table->stride - 1;
    for (uint64_t k = first; k < last; k++) {
        TN_PREFETCH(entries[entry_of[k + ROWS_AHEAD]].row);
        TN_PREFETCH((const char *)entries[entry_of[k + ROWS_AHEAD]].row + end);
        batch->row_of[k] = entries[entry_of[k]].row;
    }
}

/* What an example has added to the show and click of the rows of its ids first .. first + n - 1. An
 * id that it has twice is in both. */
static void own_counts(const tn_batch *batch, uint64_t first, uint64_t n, const uint32_t *met,
                       float click, float *own) {
    for (uint64_t i = 0; i < n; i++) {
        float times = (float)met[batch->entries[batch->entry_of[first + i]].place];
        own[CVM_COLUMNS * i] = times;
        own[CVM_COLUMNS * i + 1] = times * click;
    }
}

static void meet_rows(const tn_batch *batch, uint64_t first, uint64_t last, uint32_t *met) {
    for (uint64_t k = first; k < last; k++) {
        met[batch->entries[batch->entry_of[k]].place]++;
    }
}

static void forget_rows(const tn_batch *batch, uint64_t first, uint64_t last, uint32_t *met) {
    for (uint64_t k = first; k < last; k++) {
        met[batch->entries[batch->entry_of[k]].place] = 0;
    }
}

/* Copies at most COPIED rows as they read; `own` as for tn_counts_cvm. An inserting find reads what
 * the step before left. */
static void copy_stored(const tn_batch *batch, tn_row *const *rows, uint64_t n, const float *own,
                        float *const *copies) {
    const tn_table *table = batch->table;
    uint32_t at = batch->state == BATCH_READ ? table->step : tn_last_step(table);
    float columns[COPIED * CVM_COLUMNS];
    if (table->cvm) {
        tn_rows_counts(table, rows, n, columns);
        tn_counts_cvm(columns, own, n, columns);
    }
    tn_rows_read(table, rows, n, at, columns, copies);
}

/* The same of rows that were received, which have show and click where the columns of cvm go. */
static void copy_received(const tn_batch *batch, tn_row *const *rows, uint64_t n, const float *own,
                          float *const *copies) {
    const tn_table *table = batch->table;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(copies[i], row_floats(rows[i]) + table->layout[0].read_at,
               table->read_floats * sizeof **copies);
        for (uint32_t s = 0; s < table->n_segments; s++) {
            const tn_layout *segment = &table->layout[s];
            if (segment->read_width > segment->as_given.width) {
                float *columns = copies[i] + segment->read_at - table->layout[0].read_at +
                                 segment->as_given.width;
                tn_counts_cvm(columns, own ? own + CVM_COLUMNS * i : NULL, 1, columns);
            }
        }
    }
}

/* Puts copies in the place of the rows of an example's ids first .. last - 1: rows as they read
 * (tn_decay.h), without what the example itself has counted. The rows themselves must stay as they
 * are, for other threads read them at the same time, and reading may not change a table. */
static void copy_rows(const tn_batch *batch, uint64_t first, uint64_t last, float click,
                      uint32_t *met) {
    const tn_table *table = batch->table;
    float counted[COPIED * CVM_COLUMNS], *own = NULL;
    if (tn_leaves_out(batch) && batch->has_clicks) {
        own = counted;
        meet_rows(batch, first, last, met);
    }
    for (uint64_t k = first; k < last; k += COPIED) {
        uint64_t n = last - k < COPIED ? last - k : COPIED;
        float *copies[COPIED];
        for (uint64_t i = 0; i < n; i++) {
            tn_row *copy = (tn_row *)(void *)(batch->copies + (k + i) * table->copy_bytes);
            copies[i] = row_floats(copy);
        }
        if (own != NULL) {
            own_counts(batch, k, n, met, click, own);
        }
        (batch->source == BATCH_OF_TABLE ? copy_stored : copy_received)(batch, batch->row_of + k, n,
                                                                        own, copies);
        for (uint64_t i = 0; i < n; i++) {
            batch->row_of[k + i] = (tn_row *)(void *)((char *)copies[i] - HEADER);
        }
    }
    if (own != NULL) {
        forget_rows(batch, first, last, met);
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
    float divisor = divisor_of(pooling, count);
    for (uint32_t j = 0; j < width && divisor != 1; j++) {
        to[j] /= divisor;
    }
}

/* The same with a weight per id. A sum that nothing sensible divides is zeros. */
TN_INLINE void pool_weighted(float *restrict to, tn_row *const *rows, const float *weights,
                             uint32_t count, uint32_t at, uint32_t width, float divisor) {
    memset(to, 0, width * sizeof(float));
    if (!(divisor > 0)) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        const float *from = row_floats(rows[i]) + at;
        for (uint32_t j = 0; j < width; j++) {
            to[j] += weights[i] * from[j];
        }
    }
    for (uint32_t j = 0; j < width && divisor != 1; j++) {
        to[j] /= divisor;
    }
}

/* Cell b * n_slots + slot; `offsets` has the offsets of example b. */
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

TN_INLINE void gather_segment(const pooling_call *call, uint32_t s, uint64_t b, uint32_t width,
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

/* Pools examples first .. last - 1 into their rows of the outputs. The rows of an example are
 * collected once and then read for every segment, while they are in the cache. */
TN_INLINE void gather_examples(const pooling_call *call, uint64_t first, uint64_t last,
                               uint32_t *met, way_through way) {
    const tn_batch *batch = call->batch;
    int copies = batch->table->copies && (batch->source == BATCH_OF_TABLE || tn_leaves_out(batch));
    for (uint64_t b = first; b < last; b++) {
        collect_rows(batch, batch->offsets[b * batch->n_slots],
                     batch->offsets[(b + 1) * batch->n_slots]);
        if (TN_UNLIKELY(copies)) {
            copy_rows(batch, batch->offsets[b * batch->n_slots],
                      batch->offsets[(b + 1) * batch->n_slots],
                      batch->has_clicks ? batch->clicks[b] : 0, met);
        }
        for (uint32_t s = 0; s < batch->table->n_segments; s++) {
            FOR_WIDTH(batch->table->layout[s].read_width, gather_segment(call, s, b, WIDTH, way));
        }
    }
}

TN_CLONES
static void gather_plain(const pooling_call *call, uint64_t first, uint64_t last, uint32_t *met) {
    gather_examples(call, first, last, met, PLAIN);
}

TN_CLONES
static void gather_apart(const pooling_call *call, uint64_t first, uint64_t last, uint32_t *met) {
    gather_examples(call, first, last, met, APART);
}

TN_CLONES
static void gather_weighted(const pooling_call *call, uint64_t first, uint64_t last,
                            uint32_t *met) {
    gather_examples(call, first, last, met, WEIGHTED);
}

/* The job of tn_gather: each thread writes the output rows of its part of the examples, and the
 * part of row_of and copies that belongs to their ids. Table rows are only read, whoever owns
 * them. */
static void gather_part(void *argument, int thread, int threads) {
    const pooling_call *call = argument;
    uint64_t first = tn_part(call->batch->examples, thread, threads);
    uint64_t last = tn_part(call->batch->examples, thread + 1, threads);
    uint32_t *met = call->batch->met + call->batch->met_room * (uint64_t)thread;
    switch (way_of(call->batch)) {
    case PLAIN:
        gather_plain(call, first, last, met);
        break;
    case APART:
        gather_apart(call, first, last, met);
        break;
    case WEIGHTED:
        gather_weighted(call, first, last, met);
    }
}

int tn_gather(tn_batch *batch, float *const *outputs, const uint32_t *strides, float *const *apart,
              const uint32_t *apart_strides, int add) {
    if (batch->any_apart && !tn_apart_given(batch, (const float *const *)apart, apart_strides)) {
        return TN_BAD_VALUE;
    }
    pooling_call call = {.batch = batch,
                         .outputs = {outputs, batch->any_apart ? apart : outputs},
                         .strides = {strides, batch->any_apart ? apart_strides : strides},
                         .add = add};
    if (!tn_columns_fit(batch, call.strides)) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code = state_of(batch, BATCH_OF_TABLE | BATCH_OF_KEYS) >= BATCH_READ ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        tn_thread_pool_run(batch->table->pool, gather_part, &call);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}
