/* tn_batch.c - a workspace for batches, and tn_find: ids to rows. */
#include "tn_batch.h"

#include <math.h>

#include "tn_admission.h"
#include "tn_dense.h"

#define MAX_ENTRIES UINT64_C(0xfffffff0) /* ids x threads: their places have 32 bits */
#define GROUP 64                         /* ids whose cache lines are on their way at a time */

/* ---- Making a batch ----------------------------------------------------- */

static int check_slots(const tn_table *table, const tn_slot *slots, uint32_t n_slots) {
    for (uint32_t s = 0; s < n_slots; s++) {
        if (slots[s].group >= table->n_groups || !table->groups[slots[s].group].declared) {
            return TN_NO_GROUP;
        }
        if (slots[s].pooling < TN_POOL_SUM || slots[s].pooling > TN_POOL_SQRTN ||
            slots[s].apart > 1) {
            return TN_BAD_VALUE;
        }
    }
    return n_slots >= 1 && n_slots <= 65535 ? TN_OK : TN_BAD_VALUE;
}

int tn_batch_new(tn_table *table, const tn_slot *slots, uint32_t n_slots, tn_batch **out) {
    pthread_mutex_lock(&table->lock);
    int code = check_slots(table, slots, n_slots);
    pthread_mutex_unlock(&table->lock);
    if (code != TN_OK) {
        return code;
    }
    tn_batch *batch = TN_CALLOC(1, sizeof *batch);
    if (batch == NULL) {
        return TN_NO_MEMORY;
    }
    batch->slots = TN_CALLOC(n_slots, sizeof *slots);
    if (batch->slots == NULL) {
        TN_FREE(batch);
        return TN_NO_MEMORY;
    }
    memcpy(batch->slots, slots, n_slots * sizeof *slots);
    batch->table = table;
    batch->n_slots = n_slots;
    batch->cell_factor = UINT64_MAX / n_slots + 1;
    batch->threads = tn_pool_threads(table->pool);
    batch->sums_stride = (table->weights + 3) / 4 * 4;
    batch->sum_only = 1;
    for (uint32_t s = 0; s < n_slots; s++) {
        batch->sum_only &= slots[s].pooling == TN_POOL_SUM;
        batch->any_apart |= slots[s].apart;
    }
    *out = batch;
    return TN_OK;
}

static void free_workspace(tn_batch *batch) {
    tn_large_free(batch->workspace, batch->workspace_bytes);
    batch->workspace = NULL;
    batch->room_for_cells = batch->room_for_ids = 0;
}

void tn_batch_free(tn_batch *batch) {
    if (batch == NULL) {
        return;
    }
    free_workspace(batch);
    TN_FREE(batch->slots);
    TN_FREE(batch);
}

/* Cuts the next array out of a workspace; while `workspace` is NULL it only adds up the bytes. */
static void *cut(char *workspace, uint64_t *used, uint64_t bytes) {
    char *array = workspace ? workspace + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return array;
}

static uint64_t cut_arrays(tn_batch *batch, char *workspace, uint64_t cells, uint64_t ids) {
    uint64_t used = 0;
    batch->offsets = cut(workspace, &used, (cells + 1) * sizeof *batch->offsets);
    batch->entry_of = cut(workspace, &used, (ids + AHEAD) * sizeof *batch->entry_of);
    batch->row_of = cut(workspace, &used, ids * sizeof *batch->row_of);
    uint64_t copies = batch->table->copies ? ids * batch->table->copy_stride : 0;
    batch->copies = cut(workspace, &used, copies);
    batch->rows = cut(workspace, &used, ids * sizeof *batch->rows);
    batch->sums = cut(workspace, &used, ids * batch->sums_stride * sizeof *batch->sums);
    uint64_t shows = batch->table->shows ? 2 * ids * sizeof *batch->shows : 0;
    batch->shows = cut(workspace, &used, shows);
    /* Every list may have to hold all ids of its part; pages that none reaches take no memory. */
    uint64_t entries = ids * (uint64_t)batch->threads;
    batch->entries = cut(workspace, &used, entries * sizeof *batch->entries);
    batch->weights = cut(workspace, &used, ids * sizeof *batch->weights);
    batch->entry_weights = cut(workspace, &used, entries * sizeof *batch->entry_weights);
    batch->divisors = cut(workspace, &used, cells * sizeof *batch->divisors);
    return used;
}

static int make_room(tn_batch *batch, uint64_t cells, uint64_t ids) {
    if (batch->workspace != NULL && cells <= batch->room_for_cells && ids <= batch->room_for_ids) {
        return TN_OK;
    }
    free_workspace(batch);
    cells = cells + cells / 4;
    ids = ids + ids / 4;
    batch->workspace_bytes = cut_arrays(batch, NULL, cells, ids);
    batch->workspace = tn_large_alloc(batch->workspace_bytes);
    if (batch->workspace == NULL) {
        return TN_NO_MEMORY;
    }
    cut_arrays(batch, batch->workspace, cells, ids);
    batch->room_for_cells = cells;
    batch->room_for_ids = ids;
    return TN_OK;
}

/* ---- Find --------------------------------------------------------------- */

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

static void deal(void *argument, int thread, int threads) {
    tn_batch *batch = argument;
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
            if (threads > 1) {
                owner = owner_of(shard_of(key_hash(table, group, id)), threads);
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

/* The row that the tag points to first: most often the right one, to be verified. */
static inline tn_row *candidate(const tn_table *table, uint64_t hash) {
    const tn_shard *shard = &table->shards[shard_of(hash)];
    uint32_t tag = tag_of(hash);
    uint64_t at = home_of(shard, tag);
    while (shard->entries[at] != 0) {
        if ((uint32_t)(shard->entries[at] >> 32) == tag) {
            return row_at(table, shard, (uint32_t)shard->entries[at] - 1);
        }
        at = at + 1 == shard->capacity ? 0 : at + 1;
    }
    return NULL;
}

/* Numbers a row among the rows of the batch. `uidx` is believed only if the row at that place is
 * this one. Without branches too: whether a row is new is a coin toss. */
static inline uint32_t number_row(tn_batch *batch, tn_owner *owner, tn_row *row) {
    uint64_t next = owner->first_row + owner->rows;
    uint64_t place = row->uidx;
    uint64_t known = place - owner->first_row < owner->rows;
    known &= batch->rows[known ? place : owner->first_row] == row;
    batch->rows[next] = row; /* a free place: overwritten by the next row unless this one is new */
    place = known ? place : next;
    row->uidx = (uint32_t)place;
    owner->rows += !known;
    return (uint32_t)place;
}

static int find_list(tn_batch *batch, tn_owner *owner, tn_entry *entries, uint64_t n, int insert) {
    tn_table *table = batch->table;
    uint64_t hashes[2][GROUP];
    tn_row *candidates[GROUP];
    uint64_t ready = 0;
    for (uint64_t start = 0; start < n; start += GROUP) {
        /* Start the index lines of the next group before using this one's. */
        uint64_t wanted = start + 2 * GROUP < n ? start + 2 * GROUP : n;
        for (; ready < wanted; ready++) {
            uint64_t hash = key_hash(table, (uint16_t)entries[ready].place, entries[ready].id);
            const tn_shard *shard = &table->shards[shard_of(hash)];
            TN_PREFETCH(&shard->entries[home_of(shard, tag_of(hash))]);
            hashes[ready / GROUP & 1][ready % GROUP] = hash;
        }
        const uint64_t *hash = hashes[start / GROUP & 1];
        tn_entry *group = entries + start;
        uint64_t count = n - start < GROUP ? n - start : GROUP;
        for (uint64_t i = 0; i < count; i++) {
            candidates[i] = candidate(table, hash[i]);
            if (candidates[i] != NULL) {
                TN_PREFETCH_WRITE(candidates[i]);
            } else if (insert && table->sketch != NULL) {
                tn_admission_prefetch(table, hash[i]);
            }
        }
        for (uint64_t i = 0; i < count; i++) {
            tn_row *row = candidates[i];
            uint64_t id = group[i].id;
            uint16_t of = (uint16_t)group[i].place;
            if (TN_UNLIKELY(row == NULL || !is_key(row, of, id))) {
                row = tn_row_find(table, of, id, hash[i]);
                if (row == NULL && insert) {
                    if (!tn_admit(table, of, hash[i])) {
                        group[i].place = (uint32_t)owner->no_row;
                        group[i].row = (tn_row *)(void *)table->zero_row;
                        continue;
                    }
                    int code = tn_row_insert(table, of, id, hash[i], &row);
                    if (code != TN_OK) {
                        return code;
                    }
                }
            }
            if (insert) {
                group[i].place = number_row(batch, owner, row);
                group[i].row = row;
            } else {
                group[i].row = row ? row : (tn_row *)(void *)table->zero_row;
            }
        }
    }
    return TN_OK;
}

static void find_owned(tn_batch *batch, int thread, int insert) {
    tn_owner *owner = &batch->owners[thread];
    owner->code = TN_OK;
    owner->rows = 0;
    for (int t = 0; t < batch->threads && owner->code == TN_OK; t++) {
        uint64_t from, to;
        part_of(batch, t, &from, &to);
        owner->code = find_list(batch, owner, list_of(batch, from, to - from, thread),
                                batch->counts[t][thread], insert);
    }
}

static void find_inserting(void *argument, int thread, int threads) {
    (void)threads;
    find_owned(argument, thread, 1);
}

static void find_reading(void *argument, int thread, int threads) {
    (void)threads;
    find_owned(argument, thread, 0);
}

static int offsets_ascend(const uint32_t *offsets, uint64_t cells) {
    uint32_t wrong = offsets[0];
    for (uint64_t c = 0; c < cells; c++) {
        wrong |= (uint32_t)(offsets[c + 1] < offsets[c]);
    }
    return !wrong;
}

static int find_locked(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets,
                       const float *weights, uint32_t examples, int insert) {
    uint64_t cells = (uint64_t)examples * batch->n_slots;
    if (cells > UINT32_MAX || !offsets_ascend(offsets, cells) ||
        offsets[cells] > MAX_ENTRIES / (uint64_t)batch->threads ||
        (weights != NULL && !tn_all_finite(weights, offsets[cells]))) {
        return TN_BAD_VALUE;
    }
    int code = make_room(batch, cells, offsets[cells]);
    if (code != TN_OK) {
        return code;
    }
    memcpy(batch->offsets, offsets, (cells + 1) * sizeof *offsets);
    memset(batch->entry_of + offsets[cells], 0, AHEAD * sizeof *batch->entry_of);
    batch->examples = examples;
    batch->ids = ids;
    batch->given_weights = weights;
    batch->weighted = weights != NULL;
    tn_pool_run(batch->table->pool, deal, batch);
    batch->ids = NULL;
    batch->given_weights = NULL;
    uint64_t first_row = 0;
    for (int o = 0; o < batch->threads; o++) {
        batch->owners[o].first_row = first_row;
        for (int t = 0; t < batch->threads; t++) {
            first_row += batch->counts[t][o];
        }
        batch->owners[o].no_row = first_row - 1; /* of no ids, nothing asks */
    }
    tn_pool_run(batch->table->pool, insert ? find_inserting : find_reading, batch);
    for (int o = 0; o < batch->threads; o++) {
        if (batch->owners[o].code != TN_OK) {
            return batch->owners[o].code;
        }
    }
    batch->found = insert ? 2 : 1;
    batch->removals = batch->table->removals;
    batch->counted = 0;
    batch->met = insert ? 0 : batch->met;
    for (int o = 0; o < batch->threads; o++) {
        batch->met += batch->owners[o].rows; /* 0 when reading */
    }
    return TN_OK;
}

int tn_find(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, const float *weights,
            uint32_t examples, int insert) {
    pthread_mutex_lock(&batch->table->lock);
    batch->found = 0;
    int code = find_locked(batch, ids, offsets, weights, examples, insert);
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

uint64_t tn_batch_rows(tn_batch *batch) {
    return batch->met;
}
