/* tn_find.c - tn_find: the ids of a batch to rows. */
#include "tn_find.h"

#include "tn_admission.h"
#include "tn_deal.h"
#include "tn_index.h"
#include "tn_rows.h"

#define BLOCK 64 /* ids whose cache lines are on their way at a time */

/* ---- Rows ---------------------------------------------------------------- */

/* Numbers a row among the distinct rows of the batch, and returns its place there. `uidx` in the
 * row is the place it had when a batch last met it, so it may be a left-over of an earlier batch or
 * of another workspace; it is never cleared. It is believed only if it is in the part of
 * batch->rows that this call has filled, and the row standing there is this row:
 *
 *     owner's part of batch->rows      first_row
 *                                      v
 *     [ ................. ][ R4 | R9 | R2 |   |   ...     rows = 3
 *
 *     row R9 with uidx first_row + 1   ->  R9 is there: known, the same place
 *     row R7 with uidx first_row + 2   ->  R2 is there: R7 is new, it gets first_row + 3
 *     row R5 with uidx 10^6            ->  outside of the filled part: new
 *
 * That is right because places are only given out here: if this batch had met R7, R7 would stand at
 * the place its uidx names. So duplicates are found without a second hash table, in memory that is
 * needed anyway, and the next batch starts by setting rows to 0.
 *
 * No branches, for whether a row is new is as good as random and a wrong guess costs more than the
 * stores: the row is written to the next free place in any case, which counts only if it is new. */
static inline uint32_t number_row(tn_batch *batch, tn_owner *owner, tn_row *row) {
    uint64_t next = owner->first_row + owner->rows;
    uint64_t place = row->uidx;
    uint64_t known = place - owner->first_row < owner->rows;
    known &= batch->rows[known ? place : owner->first_row] == row;
    batch->rows[next] = row;
    place = known ? place : next;
    row->uidx = (uint32_t)place;
    owner->rows += !known;
    return (uint32_t)place;
}

/* The row of an entry's key; NULL when it has none and none is made, or waits for its admission. A
 * code when a row cannot be made. Searched again from the home, for a row that was inserted after
 * the candidate was taken may be this key's: the same id can come twice in a block. An entry of
 * tn_pull is all occurrences of its key in a batch of another process. */
static int find_or_insert(tn_batch *batch, const tn_entry *entry, uint64_t hash, int missing,
                          tn_row **row) {
    tn_table *table = batch->table;
    uint16_t group = (uint16_t)entry->place;
    uint32_t occurrences = batch->occurrences ? batch->occurrences[entry->cell] : 1, waiting = 0;
    *row = tn_row_find(table, group, entry->id, hash);
    if (*row != NULL || missing != TN_PULL_INSERT || !table->inserting) {
        return TN_OK;
    }
    while (waiting < occurrences && !tn_admit(table, group, hash)) {
        waiting++;
    }
    if (batch->occurrences) {
        batch->waits[entry->cell] = waiting;
    }
    return waiting < occurrences ? tn_row_insert(table, group, entry->id, hash, row) : TN_OK;
}

/* Finds the rows of one list, 64 ids at a time in three rounds, so that each waits for memory once
 * and not 64 times: the index lines of the next block are announced, then the candidates of this
 * one are read from the index and their rows announced, then the rows are compared. */
static int find_list(tn_batch *batch, tn_owner *owner, tn_entry *entries, uint64_t n, int missing) {
    tn_table *table = batch->table;
    uint64_t hashes[2][BLOCK];
    tn_row *candidates[BLOCK];
    uint64_t ready = 0;
    for (uint64_t start = 0; start < n; start += BLOCK) {
        /* The index lines of the next block, before this one's are used. */
        uint64_t wanted = start + 2 * BLOCK < n ? start + 2 * BLOCK : n;
        for (; ready < wanted; ready++) {
            uint64_t hash = key_hash(table, (uint16_t)entries[ready].place, entries[ready].id);
            tn_index_prefetch(table, hash);
            hashes[ready / BLOCK & 1][ready % BLOCK] = hash;
        }
        const uint64_t *hash = hashes[start / BLOCK & 1];
        tn_entry *block = entries + start;
        uint64_t count = n - start < BLOCK ? n - start : BLOCK;
        for (uint64_t i = 0; i < count; i++) {
            candidates[i] = tn_index_candidate(table, hash[i]);
            if (candidates[i] != NULL) {
                TN_PREFETCH_WRITE(candidates[i]);
            } else if (missing == TN_PULL_INSERT && table->sketch != NULL) {
                tn_admission_prefetch(table, hash[i]);
            }
        }
        for (uint64_t i = 0; i < count; i++) {
            tn_row *row = candidates[i];
            tn_entry *entry = &block[i];
            if (TN_UNLIKELY(row == NULL || !is_key(row, (uint16_t)entry->place, entry->id))) {
                int code = find_or_insert(batch, entry, hash[i], missing, &row);
                if (code != TN_OK) {
                    return code;
                }
            }
            if (missing != TN_PULL_READ) {
                entry->place = row ? number_row(batch, owner, row) : (uint32_t)owner->no_row;
            }
            entry->row = row ? row : (tn_row *)(void *)table->zero_row;
        }
    }
    return TN_OK;
}

static void find_owned(tn_batch *batch, int thread, int missing) {
    tn_owner *owner = &batch->owners[thread];
    owner->code = TN_OK;
    owner->rows = 0;
    for (int t = 0; t < batch->threads && owner->code == TN_OK; t++) {
        uint64_t from, to;
        part_of(batch, t, &from, &to);
        owner->code = find_list(batch, owner, list_of(batch, from, to - from, thread),
                                batch->counts[t][thread], missing);
    }
}

static void find_inserting(void *argument, int thread, int threads) {
    (void)threads;
    find_owned(argument, thread, TN_PULL_INSERT);
}

static void find_reading(void *argument, int thread, int threads) {
    (void)threads;
    find_owned(argument, thread, TN_PULL_READ);
}

static void find_again(void *argument, int thread, int threads) {
    (void)threads;
    find_owned(argument, thread, TN_PULL_AGAIN);
}

/* First rows are numbered from first_row of each owner on, with as many places as the owner was
 * dealt ids, so that owners number without knowing of each other. */
int tn_find_dealt(tn_batch *batch, int missing) {
    static const tn_job jobs[] = {find_reading, find_inserting, find_again};
    uint64_t first_row = 0;
    for (int o = 0; o < batch->threads; o++) {
        batch->owners[o].first_row = first_row;
        for (int t = 0; t < batch->threads; t++) {
            first_row += batch->counts[t][o];
        }
        /* An owner has as many places as ids. If one of its ids has no row, its distinct rows are
         * fewer than its places, and the last place is free to take that id's gradient. */
        batch->owners[o].no_row = first_row - 1;
    }
    tn_thread_pool_run(batch->table->pool, jobs[missing], batch);
    for (int o = 0; o < batch->threads; o++) {
        if (batch->owners[o].code != TN_OK) {
            return batch->owners[o].code;
        }
    }
    batch->state = missing == TN_PULL_READ ? BATCH_READ : BATCH_INSERTED;
    batch->removals = batch->table->removals;
    batch->counted = batch->has_clicks = 0;
    batch->distinct = missing == TN_PULL_READ ? batch->distinct : 0;
    for (int o = 0; o < batch->threads; o++) {
        batch->distinct += batch->owners[o].rows; /* 0 when reading */
    }
    return TN_OK;
}

int tn_find(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, const float *weights,
            uint32_t examples, int insert) {
    pthread_mutex_lock(&batch->table->lock);
    batch->source = BATCH_OF_TABLE;
    batch->occurrences = NULL;
    int code = tn_deal(batch, ids, offsets, weights, examples, 0);
    if (code == TN_OK) {
        code = tn_find_dealt(batch, insert ? TN_PULL_INSERT : TN_PULL_READ);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

uint64_t tn_batch_rows(tn_batch *batch) {
    return batch->distinct;
}
