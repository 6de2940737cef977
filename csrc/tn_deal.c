/* tn_deal.c - the ids of a batch, checked and dealt out to the threads that own their shards. */
#include "tn_deal.h"

#include <math.h>

/* What the weighted sum of a cell is divided by. */
static float weighted_divisor(uint16_t pooling, const float *weights, uint64_t count) {
    if (pooling == TN_POOL_SUM) {
        return 1;
    }
    float sum = 0;
    for (uint64_t i = 0; i < count; i++) {
        sum += pooling == TN_POOL_MEAN ? weights[i] : weights[i] * weights[i];
    }
    return pooling == TN_POOL_MEAN ? sum : sqrtf(sum);
}

/* Copies the weights of cells first .. last - 1: by id to pool, by entry to sum gradients. */
static void weigh(tn_batch *batch, uint64_t first, uint64_t last) {
    const uint32_t *offsets = batch->offsets;
    for (uint64_t k = offsets[first]; k < offsets[last]; k++) {
        batch->weights[k] = batch->given_weights[k];
        batch->entry_weights[batch->entry_of[k]] = batch->given_weights[k];
    }
    uint32_t slot = 0;
    for (uint64_t cell = first; cell < last; cell++) {
        batch->divisors[cell] =
            weighted_divisor(batch->slots[slot].pooling, batch->weights + offsets[cell],
                             offsets[cell + 1] - offsets[cell]);
        slot = slot + 1 == batch->n_slots ? 0 : slot + 1;
    }
}

/* ---- Dealing ------------------------------------------------------------- */

/* Copies each id of a part into the list of its shard's owner. With `hashed` rows are in other
 * processes: threads divide all shards, and entries have the hashes of their keys. */
TN_INLINE void deal_part(tn_batch *batch, int thread, int threads, int hashed) {
    const tn_table *table = batch->table;
    uint64_t from, to;
    part_of(batch, thread, &from, &to);
    tn_entry *ends[MAX_THREADS];
    for (int o = 0; o < threads; o++) {
        ends[o] = list_of(batch, from, to - from, o);
    }
    uint64_t first = tn_part(batch->examples, thread, threads) * batch->n_slots;
    uint64_t last = tn_part(batch->examples, thread + 1, threads) * batch->n_slots;
    uint32_t slot = 0;
    for (uint64_t cell = first; cell < last; cell++) {
        uint16_t group = batch->slots[slot].group;
        slot = slot + 1 == batch->n_slots ? 0 : slot + 1;
        for (uint64_t k = batch->offsets[cell]; k < batch->offsets[cell + 1]; k++) {
            uint64_t id = batch->ids[k];
            int owner = 0;
            if (hashed) {
                id = key_hash(table, group, id);
                owner = (int)(shard_of(id) * (uint32_t)threads >> SHARD_BITS);
            } else if (threads > 1) {
                owner = owner_of(table, shard_of(key_hash(table, group, id)), threads);
            }
            batch->entry_of[k] = (uint32_t)(ends[owner] - batch->entries);
            *ends[owner]++ = (tn_entry){.id = id, .cell = (uint32_t)cell, .place = group};
        }
    }
    for (int o = 0; o < threads; o++) {
        batch->counts[thread][o] = (uint64_t)(ends[o] - list_of(batch, from, to - from, o));
    }
    if (batch->weighted) {
        weigh(batch, first, last);
    }
}

static void deal_ids(void *argument, int thread, int threads) {
    deal_part(argument, thread, threads, 0);
}

static void deal_hashes(void *argument, int thread, int threads) {
    deal_part(argument, thread, threads, 1);
}

/* ---- Checks -------------------------------------------------------------- */

static int offsets_ascend(const uint32_t *offsets, uint64_t cells) {
    uint32_t wrong = offsets[0];
    for (uint64_t c = 0; c < cells; c++) {
        wrong |= (uint32_t)(offsets[c + 1] < offsets[c]);
    }
    return !wrong;
}

/* Whether the keys of a part are of shards that the table owns. */
static void check_part(void *argument, int thread, int threads) {
    tn_batch *batch = argument;
    const tn_table *table = batch->table;
    uint64_t first = tn_part(batch->examples, thread, threads) * batch->n_slots;
    uint64_t last = tn_part(batch->examples, thread + 1, threads) * batch->n_slots;
    int owned = 1;
    for (uint64_t cell = first; cell < last; cell++) {
        uint16_t group = batch->slots[cell % batch->n_slots].group;
        for (uint64_t k = batch->offsets[cell]; k < batch->offsets[cell + 1]; k++) {
            owned &= tn_has_shard(table, shard_of(key_hash(table, group, batch->ids[k])));
        }
    }
    batch->owners[thread].code = owned ? TN_OK : TN_NOT_OWNED;
}

static int check_owned(tn_batch *batch) {
    int code = TN_OK;
    tn_thread_pool_run(batch->table->pool, check_part, batch);
    for (int t = 0; t < batch->threads && code == TN_OK; t++) {
        code = batch->owners[t].code;
    }
    return code;
}

int tn_deal(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, const float *weights,
            uint32_t examples, int hashed) {
    uint64_t cells = (uint64_t)examples * batch->n_slots;
    batch->state = BATCH_EMPTY;
    if (cells > UINT32_MAX || !offsets_ascend(offsets, cells) ||
        offsets[cells] > MAX_ENTRIES / (uint64_t)batch->threads ||
        (weights != NULL && !tn_all_finite(weights, offsets[cells]))) {
        return TN_BAD_VALUE;
    }
    int code = tn_batch_make_room(batch, cells, offsets[cells]);
    if (code != TN_OK) {
        return code;
    }
    memcpy(batch->offsets, offsets, (cells + 1) * sizeof *offsets);
    memset(batch->entry_of + offsets[cells], 0, ROWS_AHEAD * sizeof *batch->entry_of);
    batch->examples = examples;
    for (int t = 0; t <= batch->threads; t++) {
        batch->first_of_part[t] = offsets[tn_part(examples, t, batch->threads) * batch->n_slots];
    }
    batch->ids = ids;
    batch->given_weights = weights;
    batch->weighted = weights != NULL;
    if (!hashed && batch->table->n_shards < SHARDS) {
        code = check_owned(batch);
    }
    if (code == TN_OK) {
        tn_thread_pool_run(batch->table->pool, hashed ? deal_hashes : deal_ids, batch);
    }
    batch->ids = NULL;
    batch->given_weights = NULL;
    return code;
}
