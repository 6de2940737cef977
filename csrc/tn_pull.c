/* tn_pull.c - the rows of keys that other processes have in their batches: found and read. See
 * tn_exchange.h.
 *
 * The keys of all ranks, one after the other, are the ids of a batch: entry.cell is a key's number
 * among them. They are dealt to the threads, found and numbered as those of tn_find, so a row that
 * two ranks have gets one place, and tn_apply updates it once:
 *
 *     keys       rank 0: 7 3 9 5   rank 1: 3 8 7
 *     number             0 1 2 3           4 5 6
 *     rows       thread 0: R3 R5   thread 1: R7 R9 R8
 *     sums       R3: weight 0 * sums 0[1] + weight 1 * sums 1[0]
 *
 * A key that a rank names twice is one row that gets both sums: as if its occurrences had been
 * split. */
#include "tn_exchange.h"
#include "tn_find.h"
#include "tn_reading.h"
#include "tn_shows.h"

#define TOGETHER 64

/* ---- Keys ---------------------------------------------------------------- */

static int make_room(tn_batch *batch, uint64_t keys) {
    if (batch->pulled == NULL) {
        batch->pulled = TN_CALLOC(1, sizeof *batch->pulled);
        if (batch->pulled == NULL) {
            return TN_NO_MEMORY;
        }
    }
    tn_batch_memory *memory = &batch->pulled_memory;
    if (memory->start == NULL || keys > memory->room) {
        tn_large_free(memory->start, memory->bytes);
        memory->room = keys + keys / 4;
        memory->bytes = 2 * memory->room * sizeof(uint32_t);
        memory->start = tn_large_alloc(memory->bytes);
        if (memory->start == NULL) {
            return TN_NO_MEMORY;
        }
        batch->pulled->occurrences = (uint32_t *)(void *)memory->start;
        batch->pulled->waits = batch->pulled->occurrences + memory->room;
    }
    return tn_batch_make_room(batch, 1, keys);
}

typedef struct {
    tn_batch *batch;
    const tn_rank_keys *ranks;
} pull_call;

/* Checks a key of a rank; sets its hash, and copies its occurrences. */
TN_INLINE int take_key(const tn_batch *batch, const tn_rank_keys *rank, uint64_t i, uint64_t k,
                       uint64_t *hash) {
    const tn_table *table = batch->table;
    uint16_t group = rank->groups[i];
    if (!tn_group_declared(table, group)) {
        return TN_NO_GROUP;
    }
    *hash = key_hash(table, group, rank->ids[i]);
    if (!tn_has_shard(table, shard_of(*hash))) {
        return TN_NOT_OWNED;
    }
    uint32_t occurrences = rank->occurrences ? rank->occurrences[i] : 1;
    batch->pulled->occurrences[k] = occurrences;
    batch->pulled->waits[k] = 0;
    return occurrences > 0 ? TN_OK : TN_BAD_VALUE;
}

static void deal_pulled(void *argument, int thread, int threads) {
    const pull_call *call = argument;
    tn_batch *batch = call->batch;
    const uint64_t *first_key = batch->pulled->first_key;
    uint64_t from, to, hash;
    part_of(batch, thread, &from, &to);
    tn_entry *ends[MAX_THREADS];
    for (int o = 0; o < threads; o++) {
        ends[o] = list_of(batch, from, to - from, o);
    }
    uint32_t r = 0;
    int code = TN_OK;
    for (uint64_t k = from; k < to && code == TN_OK; k++) {
        while (k >= first_key[r + 1]) {
            r++;
        }
        const tn_rank_keys *rank = &call->ranks[r];
        code = take_key(batch, rank, k - first_key[r], k, &hash);
        if (code == TN_OK) {
            int owner = owner_of(batch->table, shard_of(hash), threads);
            batch->entry_of[k] = (uint32_t)(ends[owner] - batch->entries);
            *ends[owner]++ = (tn_entry){.id = rank->ids[k - first_key[r]],
                                        .cell = (uint32_t)k,
                                        .place = rank->groups[k - first_key[r]]};
        }
    }
    for (int o = 0; o < threads; o++) {
        batch->counts[thread][o] = (uint64_t)(ends[o] - list_of(batch, from, to - from, o));
    }
    batch->owners[thread].code = code;
}

/* Adds up the keys of the ranks. */
static int count_keys(const tn_batch *batch, const tn_rank_keys *ranks, uint32_t n_ranks,
                      uint64_t *first_key) {
    first_key[0] = 0;
    if (n_ranks < 1 || n_ranks > MAX_RANKS) {
        return TN_BAD_VALUE;
    }
    for (uint32_t r = 0; r < n_ranks; r++) {
        if (ranks[r].n > MAX_ENTRIES || !is_aligned(ranks[r].ids, 8) ||
            !is_aligned(ranks[r].groups, 2) || !is_aligned(ranks[r].occurrences, 4)) {
            return TN_BAD_VALUE;
        }
        first_key[r + 1] = first_key[r] + ranks[r].n;
    }
    return first_key[n_ranks] > MAX_ENTRIES / (uint64_t)batch->threads ? TN_BAD_VALUE : TN_OK;
}

static int pull(tn_batch *batch, const tn_rank_keys *ranks, uint32_t n_ranks, int missing) {
    uint64_t first_key[MAX_PEERS + 1];
    int code = count_keys(batch, ranks, n_ranks, first_key);
    code = code == TN_OK ? make_room(batch, first_key[n_ranks]) : code;
    if (code != TN_OK) {
        return code;
    }
    tn_pulled *pulled = batch->pulled;
    memcpy(pulled->first_key, first_key, (n_ranks + 1) * sizeof *first_key);
    pulled->n_ranks = n_ranks;
    pulled->summed = pulled->counted = 0;
    for (int t = 0; t <= batch->threads; t++) {
        batch->first_of_part[t] = tn_part(first_key[n_ranks], t, batch->threads);
    }
    tn_thread_pool_run(batch->table->pool, deal_pulled, &(pull_call){batch, ranks});
    for (int t = 0; t < batch->threads && code == TN_OK; t++) {
        code = batch->owners[t].code;
    }
    batch->occurrences = pulled->occurrences;
    batch->waits = pulled->waits;
    return code == TN_OK ? tn_find_dealt(batch, missing) : code;
}

int tn_pull(tn_batch *batch, const tn_rank_keys *ranks, uint32_t n_ranks, int missing) {
    pthread_mutex_lock(&batch->table->lock);
    batch->source = BATCH_PULLED;
    batch->state = BATCH_EMPTY;
    int code =
        (unsigned)missing <= TN_PULL_AGAIN ? pull(batch, ranks, n_ranks, missing) : TN_BAD_VALUE;
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- Rows ---------------------------------------------------------------- */

typedef struct {
    const tn_batch *batch;
    uint64_t first, n; /* keys of the rank */
    float *rows;
} read_call;

/* At most TOGETHER rows of keys from `first` on, as they read; an inserting batch reads what the
 * step before left. */
static void read_rows(const tn_batch *batch, uint64_t first, uint64_t n, float *to) {
    const tn_table *table = batch->table;
    uint32_t at = batch->state == BATCH_READ ? table->step : tn_last_step(table);
    tn_row *rows[TOGETHER];
    for (uint64_t i = 0; i < n; i++) {
        rows[i] = batch->entries[batch->entry_of[first + i]].row;
        TN_PREFETCH(rows[i]);
        TN_PREFETCH((const char *)rows[i] + table->stride - 1);
    }
    if (!table->copies) {
        for (uint64_t i = 0; i < n; i++) {
            copy_row(to + i * table->weights, row_floats(rows[i]) + table->weights_at,
                     table->weights);
        }
        return;
    }
    float *copies[TOGETHER], columns[TOGETHER * CVM_COLUMNS];
    for (uint64_t i = 0; i < n; i++) {
        copies[i] = to + i * table->read_floats;
    }
    if (table->cvm) {
        tn_rows_counts(table, rows, n, columns);
        if (!tn_leaves_out(batch)) {
            tn_counts_cvm(columns, NULL, n, columns);
        }
    }
    tn_rows_read(table, rows, n, at, columns, copies);
}

static void read_part(void *argument, int thread, int threads) {
    const read_call *call = argument;
    uint64_t last = tn_part(call->n, thread + 1, threads);
    for (uint64_t i = tn_part(call->n, thread, threads); i < last; i += TOGETHER) {
        read_rows(call->batch, call->first + i, last - i < TOGETHER ? last - i : TOGETHER,
                  call->rows + i * call->batch->table->read_floats);
    }
}

int tn_pull_read(tn_batch *batch, uint32_t rank, float *rows) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_rank(batch, rank, BATCH_READ);
    code = code == TN_OK && !is_aligned(rows, 4) ? TN_BAD_VALUE : code;
    if (code == TN_OK) {
        const uint64_t *first_key = batch->pulled->first_key + rank;
        read_call call = {batch, first_key[0], first_key[1] - first_key[0], rows};
        run_on_keys(batch, call.n, read_part, &call);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

int tn_pull_waits(tn_batch *batch, uint32_t rank, uint32_t *waits) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_rank(batch, rank, BATCH_READ);
    code = code == TN_OK && !is_aligned(waits, 4) ? TN_BAD_VALUE : code;
    if (code == TN_OK) {
        const uint64_t *first_key = batch->pulled->first_key + rank;
        memcpy(waits, batch->pulled->waits + first_key[0],
               (first_key[1] - first_key[0]) * sizeof *waits);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}
