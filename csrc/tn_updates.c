/* tn_updates.c - tn_norm and tn_apply: the optimizer of each segment, on the rows of a batch or on
 * all rows of a table.
 *
 * Rows are updated in blocks. A block is one call of a kernel (tn_optimizer.c) where all segments
 * have one optimizer and no extras, as in most tables; otherwise one per segment or so, while the
 * rows of the block stay in the first-level cache. The extras (clip, l2, scale, decay, bound,
 * max_norm) are done around the kernel, in the order of tnctl.h. */
#include <math.h>

#include "tn_batch.h"
#include "tn_shows.h"

/* Rows of a batch that one thread owns, and their summed gradients. */
typedef struct {
    tn_row *const *rows; /* of all owners; uidx counts in it */
    uint64_t first_row, n;
    const float *sums; /* of row i at sums + i * sums_stride */
    uint32_t sums_stride;
    const float *counts; /* of row i at counts + 2 * i, or NULL */
} summed_rows;

static summed_rows summed_of(const tn_batch *batch, int thread) {
    const tn_owner *owner = &batch->owners[thread];
    int counts = batch->counted && batch->table->counting;
    return (summed_rows){.rows = batch->rows,
                         .first_row = owner->first_row,
                         .n = owner->rows,
                         .sums = batch->sums + owner->first_row * batch->sums_stride,
                         .sums_stride = batch->sums_stride,
                         .counts = counts ? batch->shows + 2 * owner->first_row : NULL};
}

/* The gradient of rows outside of the batch, where all rows are updated. */
static const float NO_GRADIENT[MAX_SEGMENTS * MAX_WIDTH];

/* The place of a row among the owner's rows of the batch; summed->n when it is not in the batch. It
 * is if the row at the place that its uidx names is this one: see number_row in tn_find.c. */
TN_INLINE uint64_t place_in_batch(const summed_rows *summed, const tn_row *row) {
    uint64_t i = row->uidx - summed->first_row;
    return i < summed->n && summed->rows[row->uidx] == row ? i : summed->n;
}

TN_INLINE const float *sums_at(const summed_rows *summed, uint64_t place) {
    return place < summed->n ? summed->sums + place * summed->sums_stride : NO_GRADIENT;
}

/* ---- A block of rows ----------------------------------------------------- */

typedef struct {
    const tn_table *table;
    uint32_t day; /* of the table's step, in a table with shows */
    float scale;
    uint32_t n;
    tn_row *const *rows;
    uint64_t
        rows_to_come; /* how many may be announced to the cache: n and those after them, or 0 */
    const float *sums[TN_ROWS_TOGETHER];
} row_block;

/* Decays the weights of a segment and writes the gradients that its kernel takes to `final`. The
 * weights decay twice: by the steps since they were written, to what this step finds, and by this
 * step itself. A row that is inserted at this step starts after the latter, except where all rows
 * train: there it is treated as a row that exists since step 1. */
TN_INLINE void final_of_width(const row_block *block, const tn_layout *segment, float *final,
                              uint32_t width) {
    const tn_table *table = block->table;
    for (uint32_t i = 0; i < block->n; i++, final += width) {
        if (i + TN_ROWS_AHEAD < block->rows_to_come) {
            TN_PREFETCH_WRITE(block->rows[i + TN_ROWS_AHEAD]);
            TN_PREFETCH_WRITE((const char *)block->rows[i + TN_ROWS_AHEAD] + 63);
        }
        const tn_row *row = block->rows[i];
        float *w = row_floats(row) + segment->weights_at;
        if (segment->extras.decays) {
            multiply(w, tn_kept(segment, row, tn_last_step(table)), width);
        }
        final_gradient(&segment->extras, w, block->sums[i] + segment->sums_at, final, width);
        if (block->scale != 1) {
            multiply(final, block->scale, width);
        }
        if (segment->extras.decays && (table->all || row->changed < table->step)) {
            multiply(w, (float)tn_keep(segment, row), width);
        }
    }
}

TN_CLONES
static void final_gradients(const row_block *block, const tn_layout *segment, float *final) {
    FOR_WIDTH(segment->as_given.width, final_of_width(block, segment, final, WIDTH));
}

TN_INLINE void limit_of_width(const row_block *block, const tn_layout *segment, uint32_t width) {
    for (uint32_t i = 0; i < block->n; i++) {
        float *w = row_floats(block->rows[i]) + segment->weights_at;
        if (segment->extras.bound > 0) {
            hold_in_bound(segment->extras.bound, w, width);
        }
        if (segment->extras.max_norm > 0) {
            hold_norm(segment->extras.max_norm, w, width);
        }
    }
}

TN_CLONES
static void limit_weights(const row_block *block, const tn_layout *segment) {
    FOR_WIDTH(segment->as_given.width, limit_of_width(block, segment, WIDTH));
}

static tn_segment_update update_of(const tn_layout *segment) {
    return (tn_segment_update){.optimizer = &segment->as_given.optimizer,
                               .corrections = segment->corrections,
                               .n_corrections = segment->n_corrections,
                               .width = segment->as_given.width,
                               .state_at = segment->state_at,
                               .weights_at = segment->weights_at,
                               .gradient_at = segment->sums_at};
}

/* One segment with its extras around the kernel. */
static void update_with_extras(const row_block *block, const tn_layout *segment,
                               tn_row_updates *updates) {
    float final[TN_ROWS_TOGETHER * MAX_WIDTH];
    final_gradients(block, segment, final);
    updates->n_segments = 1;
    updates->segments[0] = update_of(segment);
    updates->segments[0].gradient_at = 0;
    updates->rows_to_come = 0; /* they were announced above */
    for (uint32_t i = 0; i < block->n; i++) {
        updates->gradients[i] = final + i * segment->as_given.width;
    }
    segment->rule->rows(updates);
    if (segment->extras.bound > 0 || segment->extras.max_norm > 0) {
        limit_weights(block, segment);
    }
}

/* Segments from number s on that one call of a kernel can update: of one optimizer, without extras.
 * Returns the number of the segment after them. */
static uint32_t update_plainly(const row_block *block, uint32_t s, tn_row_updates *updates) {
    const tn_table *table = block->table;
    const tn_rule *rule = table->layout[s].rule;
    updates->n_segments = 0;
    updates->rows_to_come = s == 0 ? block->rows_to_come : 0;
    for (; s < table->n_segments && table->layout[s].rule == rule && !table->layout[s].extras.any;
         s++) {
        updates->segments[updates->n_segments++] = update_of(&table->layout[s]);
    }
    memcpy(updates->gradients, block->sums, block->n * sizeof *block->sums);
    rule->rows(updates);
    return s;
}

/* Updates the rows of a block. Their `changed` is set last, for decay is counted from it. */
static void update_block(const row_block *block) {
    const tn_table *table = block->table;
    tn_row_updates updates;
    updates.n = block->n;
    updates.rows = (char *const *)block->rows;
    updates.floats_at = HEADER;
    for (uint32_t s = 0; s < table->n_segments;) {
        if (table->layout[s].extras.any || block->scale != 1) {
            update_with_extras(block, &table->layout[s++], &updates);
        } else {
            s = update_plainly(block, s, &updates);
        }
    }
    for (uint32_t i = 0; i < block->n; i++) {
        block->rows[i]->changed = table->step;
    }
}

/* ---- Apply --------------------------------------------------------------- */

/* Shows and clicks come before the update: both are counted as of `changed`, which the update
 * sets. */
static void update_batch(row_block *block, const summed_rows *summed) {
    const tn_table *table = block->table;
    tn_row *const *rows = summed->rows + summed->first_row;
    for (uint64_t start = 0; start < summed->n; start += block->n) {
        uint64_t left = summed->n - start;
        block->n = left < TN_ROWS_TOGETHER ? (uint32_t)left : TN_ROWS_TOGETHER;
        block->rows = rows + start;
        block->rows_to_come = left;
        for (uint32_t i = 0; i < block->n; i++) {
            block->sums[i] = sums_at(summed, start + i);
        }
        for (uint32_t i = 0; i < block->n && table->shows; i++) {
            if (i + TN_ROWS_AHEAD < left) {
                TN_PREFETCH_WRITE(rows[start + i + TN_ROWS_AHEAD]);
                TN_PREFETCH_WRITE(row_shows(table, rows[start + i + TN_ROWS_AHEAD]));
            }
            const float *counts = summed->counts ? summed->counts + 2 * (start + i) : NULL;
            tn_row_count(table, block->rows[i], counts, block->day);
        }
        update_block(block);
    }
}

/* All rows of a shard, as they lie in memory. */
static void update_shard(row_block *block, const tn_shard *shard, const summed_rows *summed) {
    const tn_table *table = block->table;
    tn_row *rows[TN_ROWS_TOGETHER];
    block->rows = rows;
    block->rows_to_come = 0; /* FOR_ROWS_OF_SHARD announces them */
    block->n = 0;
    FOR_ROWS_OF_SHARD(table, shard, row, number, {
        uint64_t place = place_in_batch(summed, row);
        if (table->shows) {
            int counted = place < summed->n && summed->counts != NULL;
            tn_row_count(table, row, counted ? summed->counts + 2 * place : NULL, block->day);
        }
        rows[block->n] = row;
        block->sums[block->n++] = sums_at(summed, place);
        if (block->n == TN_ROWS_TOGETHER) {
            update_block(block);
            block->n = 0;
        }
    });
    update_block(block);
}

typedef struct {
    tn_batch *batch;
    float scale;
    tn_exact_sum *squares;
    pthread_mutex_t lock; /* of squares */
} update_call;

/* The job of tn_apply: each thread updates the rows that it owns, those of the batch or, where
 * all rows train at every step, of all its shards. No other thread reads or writes these rows or
 * their sums, so the updates need no locks. */
static void apply_owned(void *argument, int thread, int threads) {
    const update_call *call = argument;
    const tn_table *table = call->batch->table;
    summed_rows summed = summed_of(call->batch, thread);
    row_block block = {.table = table, .scale = call->scale};
    block.day = table->shows ? tn_day_of(table, table->step) : 0;
    if (!table->all) {
        update_batch(&block, &summed);
        return;
    }
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(table, i, threads) == thread) {
            update_shard(&block, &table->shards[i], &summed);
        }
    }
}

int tn_apply(tn_batch *batch, float scale) {
    if (!isfinite(scale) || scale < 0) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    int code = state_of(batch, BATCH_OF_TABLE | BATCH_PULLED) == BATCH_SUMMED ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        update_call call = {.batch = batch, .scale = scale};
        tn_thread_pool_run(batch->table->pool, apply_owned, &call);
        batch->state = BATCH_EMPTY;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- The norm ------------------------------------------------------------ */

/* The squares of a row are summed in double in the order of its floats; the sums of all rows are
 * then added exactly (tn_exact_sum.h), so neither threads nor the order of rows can show. */
TN_INLINE double row_squares(const tn_table *table, const tn_row *row, const float *sums) {
    double squares = 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        uint32_t width = segment->as_given.width;
        float w[MAX_WIDTH], g[MAX_WIDTH];
        if (segment->extras.l2 > 0) {
            copy_floats(w, row_floats(row) + segment->weights_at, width);
            multiply(w, tn_kept(segment, row, tn_last_step(table)), width);
        }
        final_gradient(&segment->extras, w, sums + segment->sums_at, g, width);
        squares += sum_of_squares(g, width);
    }
    return squares;
}

TN_CLONES
static void add_batch(const tn_table *table, const summed_rows *summed, tn_exact_sum *squares) {
    for (uint64_t i = 0; i < summed->n; i++) {
        const tn_row *row = summed->rows[summed->first_row + i];
        tn_exact_sum_add(squares, row_squares(table, row, sums_at(summed, i)));
    }
}

TN_CLONES
static void add_shard(const tn_table *table, const tn_shard *shard, const summed_rows *summed,
                      tn_exact_sum *squares) {
    FOR_ROWS_OF_SHARD(table, shard, row, number, {
        const float *sums = sums_at(summed, place_in_batch(summed, row));
        tn_exact_sum_add(squares, row_squares(table, row, sums));
    });
}

/* Whether rows that are not in the batch have a gradient when all are updated. */
static int has_l2(const tn_table *table) {
    int any = 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        any |= table->layout[s].extras.l2 > 0;
    }
    return any;
}

/* The job of tn_norm: the squares of the final gradients of the rows that this thread owns,
 * added to the caller's under the lock. Rows outside of the batch have a gradient only where all
 * rows train and an l2 pulls at them; otherwise only rows of the batch are read. Sums are exact,
 * so the order of the threads does not matter. */
static void norm_owned(void *argument, int thread, int threads) {
    update_call *call = argument;
    const tn_table *table = call->batch->table;
    summed_rows summed = summed_of(call->batch, thread);
    tn_exact_sum squares = {{0}};
    if (table->all && has_l2(table)) {
        for (uint32_t i = 0; i < SHARDS; i++) {
            if (owner_of(table, i, threads) == thread) {
                add_shard(table, &table->shards[i], &summed, &squares);
            }
        }
    } else {
        add_batch(table, &summed, &squares);
    }
    pthread_mutex_lock(&call->lock);
    tn_exact_sum_merge(call->squares, &squares);
    pthread_mutex_unlock(&call->lock);
}

static int norm(tn_batch *batch, tn_exact_sum *sum) {
    pthread_mutex_lock(&batch->table->lock);
    int code = state_of(batch, BATCH_OF_TABLE | BATCH_PULLED) == BATCH_SUMMED ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK) {
        update_call call = {.batch = batch, .squares = sum};
        pthread_mutex_init(&call.lock, NULL);
        tn_thread_pool_run(batch->table->pool, norm_owned, &call);
        pthread_mutex_destroy(&call.lock);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

int tn_norm(tn_batch *batch, double *squares) {
    tn_exact_sum sum = {{0}};
    int code = norm(batch, &sum);
    if (code == TN_OK) {
        *squares = tn_exact_sum_total(&sum);
    }
    return code;
}

int tn_norm_words(tn_batch *batch, uint64_t *words) {
    tn_exact_sum sum = {{0}};
    int code = norm(batch, &sum);
    if (code == TN_OK) {
        tn_exact_sum_words(&sum, words);
    }
    return code;
}
