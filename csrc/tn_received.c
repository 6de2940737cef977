/* tn_received.c - a batch with the rows that other processes sent, and the sums that it sends back.
 * See tn_exchange.h. */
#include "tn_exchange.h"

/* ---- Rows ---------------------------------------------------------------- */

typedef struct {
    tn_batch *batch;
    const float *const *rows;
    const uint32_t *const *waits; /* NULL: none waits */
} rows_call;

/* Where the row of each place is, and how many of its occurrences are still to wait. */
static void point_places(const rows_call *call, int thread) {
    tn_batch *batch = call->batch;
    const tn_table *table = batch->table;
    const tn_key_set *keys = batch->keys;
    uint64_t first, last;
    /* What tn_gather adds to the address of a row to reach the first segment. */
    uint64_t offset = HEADER + table->layout[0].read_at * sizeof(float);
    for (uint32_t p = 0; p < keys->n_peers; p++) {
        uint64_t i = keys_before(batch, thread, p);
        keys_of(batch, thread, p, &first, &last);
        for (uint64_t k = first; k < last; k++, i++) {
            uintptr_t row = (uintptr_t)call->rows[p] + i * table->read_floats * sizeof(float);
            batch->rows[keys->order[k]] = (tn_row *)(row - offset);
            if (call->waits != NULL) {
                keys->waits[keys->order[k]] = call->waits[p] ? call->waits[p][i] : 0;
            }
        }
    }
}

/* Each occurrence that waits reads zeros, the others the row. */
static void point_waiting(tn_batch *batch, const tn_owner *owner, tn_entry *entries, uint64_t n) {
    uint32_t *waits = batch->keys->waits;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t place = entries[i].place;
        entries[i].row = batch->rows[place];
        if (waits[place] > 0) {
            waits[place]--;
            entries[i].row = (tn_row *)(void *)batch->table->zero_row;
            entries[i].place = (uint32_t)owner->no_row;
        }
    }
}

static void point_owned(void *argument, int thread, int threads) {
    const rows_call *call = argument;
    tn_batch *batch = call->batch;
    point_places(call, thread);
    for (int t = 0; t < threads; t++) {
        uint64_t from, to;
        part_of(batch, t, &from, &to);
        tn_entry *entries = list_of(batch, from, to - from, thread);
        uint64_t n = batch->counts[t][thread];
        if (call->waits != NULL) {
            point_waiting(batch, &batch->owners[thread], entries, n);
            continue;
        }
        for (uint64_t i = 0; i < n; i++) {
            entries[i].row = batch->rows[entries[i].place];
        }
    }
}

/* Whether there are rows for all keys, and no key waits more often than it occurs; `any` becomes
 * whether one waits at all. */
static int rows_fit(const rows_call *call, int *any) {
    const tn_batch *batch = call->batch;
    const tn_key_set *keys = batch->keys;
    uint64_t first, last;
    *any = 0;
    for (uint32_t p = 0; p < keys->n_peers; p++) {
        const uint32_t *waits = call->waits ? call->waits[p] : NULL;
        uint64_t n = keys_before(batch, batch->threads, p), i = 0;
        if (n > 0 && (call->rows[p] == NULL || !is_aligned(call->rows[p], 4))) {
            return 0;
        }
        for (int t = 0; t < batch->threads && waits != NULL && is_aligned(waits, 4); t++) {
            keys_of(batch, t, p, &first, &last);
            for (uint64_t k = first; k < last; k++, i++) {
                *any |= waits[i] > 0;
                if (waits[i] > keys->occurrences[keys->order[k]]) {
                    return 0;
                }
            }
        }
        if (waits != NULL && i < n) {
            return 0;
        }
    }
    return 1;
}

int tn_keys_set_rows(tn_batch *batch, const float *const *rows, const uint32_t *const *waits,
                     int training) {
    rows_call call = {.batch = batch, .rows = rows, .waits = waits};
    pthread_mutex_lock(&batch->table->lock);
    int any = 0;
    int code = state_of(batch, BATCH_OF_KEYS) == BATCH_NUMBERED ? TN_OK : TN_NO_BATCH;
    if (code == TN_OK && !rows_fit(&call, &any)) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        call.waits = any ? waits : NULL;
        tn_thread_pool_run(batch->table->pool, point_owned, &call);
        batch->state = training ? BATCH_INSERTED : BATCH_READ;
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- Sums ---------------------------------------------------------------- */

static void write_sums(const tn_batch *batch, uint32_t peer, float *sums) {
    uint32_t weights = batch->table->weights;
    uint64_t first, last;
    for (int t = 0; t < batch->threads; t++) {
        keys_of(batch, t, peer, &first, &last);
        for (uint64_t k = first; k < last; k++, sums += weights) {
            uint64_t place = batch->keys->order[k];
            copy_row(sums, batch->sums + place * batch->sums_stride, weights);
        }
    }
}

int tn_keys_sums(tn_batch *batch, uint32_t peer, float *sums) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_keys(batch, peer, BATCH_SUMMED);
    code = code == TN_OK && !is_aligned(sums, 4) ? TN_BAD_VALUE : code;
    if (code == TN_OK) {
        write_sums(batch, peer, sums);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

static void write_shows(const tn_batch *batch, uint32_t peer, float *counts) {
    uint64_t first, last;
    for (int t = 0; t < batch->threads; t++) {
        keys_of(batch, t, peer, &first, &last);
        for (uint64_t k = first; k < last; k++, counts += 2) {
            memcpy(counts, batch->shows + 2 * (uint64_t)batch->keys->order[k], 2 * sizeof *counts);
        }
    }
}

int tn_keys_shows(tn_batch *batch, uint32_t peer, float *counts) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_keys(batch, peer, BATCH_INSERTED);
    code = code == TN_OK && !batch->counted ? TN_NO_BATCH : code;
    code = code == TN_OK && !is_aligned(counts, 4) ? TN_BAD_VALUE : code;
    if (code == TN_OK) {
        write_shows(batch, peer, counts);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

int tn_batch_set_ranks(tn_batch *batch, uint32_t ranks) {
    if (ranks < 1 || ranks > MAX_RANKS) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&batch->table->lock);
    batch->limit = TN_LARGEST / (float)ranks;
    pthread_mutex_unlock(&batch->table->lock);
    return TN_OK;
}
