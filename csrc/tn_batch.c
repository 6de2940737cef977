/* tn_batch.c - making the workspace of batches, and its memory. */
#include "tn_batch.h"

/* ---- Making a batch ----------------------------------------------------- */

/* TN_NO_GROUP or TN_BAD_VALUE for slots that the table cannot serve. */
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
    batch->threads = tn_thread_pool_size(table->pool);
    batch->sums_stride = (table->weights + 3) / 4 * 4;
    batch->limit = TN_LARGEST;
    batch->sum_only = 1;
    for (uint32_t s = 0; s < n_slots; s++) {
        batch->sum_only &= slots[s].pooling == TN_POOL_SUM;
        batch->any_apart |= slots[s].apart;
    }
    *out = batch;
    return TN_OK;
}

static void free_memory(tn_batch *batch) {
    tn_large_free(batch->memory, batch->memory_bytes);
    batch->memory = NULL;
    batch->room_for_cells = batch->room_for_ids = 0;
}

void tn_batch_free(tn_batch *batch) {
    if (batch == NULL) {
        return;
    }
    free_memory(batch);
    tn_large_free(batch->keys_memory.start, batch->keys_memory.bytes);
    tn_large_free(batch->pulled_memory.start, batch->pulled_memory.bytes);
    TN_FREE(batch->keys);
    TN_FREE(batch->pulled);
    TN_FREE(batch->slots);
    TN_FREE(batch);
}

void *tn_cut(char *memory, uint64_t *used, uint64_t bytes) {
    char *array = memory ? memory + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return array;
}

/* Points the arrays of the batch into `memory`, and returns the bytes they take together. Called
 * twice with the same sizes: with NULL to learn the bytes, then with memory of so many. */
static uint64_t cut_arrays(tn_batch *batch, char *memory, uint64_t cells, uint64_t ids) {
    uint64_t used = 0;
    batch->offsets = tn_cut(memory, &used, (cells + 1) * sizeof *batch->offsets);
    batch->entry_of = tn_cut(memory, &used, (ids + ROWS_AHEAD) * sizeof *batch->entry_of);
    batch->row_of = tn_cut(memory, &used, ids * sizeof *batch->row_of);
    uint64_t copies = batch->table->copies ? ids * batch->table->copy_bytes : 0;
    batch->copies = tn_cut(memory, &used, copies);
    /* A batch of keys has a place more for each owner: see tn_exchange.c. */
    uint64_t places = ids + (uint64_t)batch->threads;
    batch->rows = tn_cut(memory, &used, places * sizeof *batch->rows);
    batch->sums = tn_cut(memory, &used, places * batch->sums_stride * sizeof *batch->sums);
    uint64_t shows = batch->table->shows ? 2 * places * sizeof *batch->shows : 0;
    batch->shows = tn_cut(memory, &used, shows);
    int cvm = batch->table->cvm;
    batch->clicks = tn_cut(memory, &used, cvm ? cells * sizeof *batch->clicks : 0);
    batch->met_room = cvm ? places : 0;
    uint64_t met = batch->met_room * (uint64_t)batch->threads;
    batch->met = tn_cut(memory, &used, met * sizeof *batch->met);
    /* Every list may have to hold all ids of its part. The system gives memory to pages when they
     * are first written, so what no list reaches costs addresses only. */
    uint64_t entries = ids * (uint64_t)batch->threads;
    batch->entries = tn_cut(memory, &used, entries * sizeof *batch->entries);
    batch->weights = tn_cut(memory, &used, ids * sizeof *batch->weights);
    batch->entry_weights = tn_cut(memory, &used, entries * sizeof *batch->entry_weights);
    batch->divisors = tn_cut(memory, &used, cells * sizeof *batch->divisors);
    return used;
}

int tn_batch_make_room(tn_batch *batch, uint64_t cells, uint64_t ids) {
    if (batch->memory != NULL && cells <= batch->room_for_cells && ids <= batch->room_for_ids) {
        return TN_OK;
    }
    free_memory(batch);
    /* A quarter more: batches whose sizes vary a little soon find room without growing. */
    cells = cells + cells / 4;
    ids = ids + ids / 4;
    batch->memory_bytes = cut_arrays(batch, NULL, cells, ids);
    batch->memory = tn_large_alloc(batch->memory_bytes);
    if (batch->memory == NULL) {
        return TN_NO_MEMORY;
    }
    cut_arrays(batch, batch->memory, cells, ids);
    batch->room_for_cells = cells;
    batch->room_for_ids = ids;
    return TN_OK;
}
