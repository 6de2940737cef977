/* tn_index.c - see tn_index.h for how the index works and why. */
#include "tn_index.h"

#define FIRST_CAPACITY 64

static uint64_t fill_limit(uint64_t capacity) {
    return capacity * 3 / 4;
}

static uint64_t entries_bytes(const tn_shard *shard) {
    return shard->capacity * sizeof *shard->entries;
}

int tn_index_new(tn_shard *shard, uint32_t i) {
    /* Shards fill alike. Were their capacities equal, all 64 would grow in the same batch, which
     * would take 64 times as long as its neighbours. First capacities are therefore spread evenly
     * over one step of growth (64 to 95), and stay spread, for each grows by the same factor; so
     * the memory per key is also about the same at every size of the table. */
    shard->capacity = FIRST_CAPACITY + FIRST_CAPACITY / 2 * i / SHARDS;
    shard->grow_at = fill_limit(shard->capacity);
    shard->entries = tn_large_alloc(entries_bytes(shard));
    return shard->entries == NULL ? TN_NO_MEMORY : TN_OK;
}

void tn_index_free(tn_shard *shard) {
    tn_large_free(shard->entries, entries_bytes(shard));
}

tn_row *tn_row_find(const tn_table *table, uint16_t group, uint64_t id, uint64_t hash) {
    const tn_shard *shard = &table->shards[shard_of(hash)];
    uint32_t tag = tag_of(hash);
    for (uint64_t at = home_of(shard, tag); shard->entries[at] != 0; at = next_place(shard, at)) {
        if ((uint32_t)(shard->entries[at] >> 32) == tag) {
            tn_row *row = row_at(table, shard, (uint32_t)shard->entries[at] - 1);
            if (is_key(row, group, id)) {
                return row;
            }
        }
    }
    return NULL;
}

static void put_entry(tn_shard *shard, uint64_t entry) {
    uint64_t at = home_of(shard, (uint32_t)(entry >> 32));
    while (shard->entries[at] != 0) {
        at = next_place(shard, at);
    }
    shard->entries[at] = entry;
}

void tn_index_add(tn_shard *shard, uint64_t hash, uint32_t row_number) {
    put_entry(shard, (uint64_t)tag_of(hash) << 32 | (row_number + 1u));
}

/* The old array is given back only when the new one is whole, so running out of memory changes
 * nothing. */
static int resize(tn_shard *shard, uint64_t capacity) {
    tn_shard larger = *shard;
    larger.capacity = capacity;
    larger.grow_at = fill_limit(larger.capacity);
    larger.entries = tn_large_alloc(entries_bytes(&larger));
    if (larger.entries == NULL) {
        return TN_NO_MEMORY;
    }
    for (uint64_t i = 0; i < shard->capacity; i++) {
        if (shard->entries[i] != 0) {
            put_entry(&larger, shard->entries[i]);
        }
    }
    tn_large_free(shard->entries, entries_bytes(shard));
    *shard = larger;
    return TN_OK;
}

int tn_index_reserve(tn_shard *shard, uint64_t rows) {
    /* Half as large again as often as it takes: the capacity that row by row it would have grown
     * to, so a loaded table has the memory of one that was trained. */
    uint64_t capacity = shard->capacity;
    while (rows > fill_limit(capacity)) {
        capacity += capacity / 2;
    }
    return capacity == shard->capacity ? TN_OK : resize(shard, capacity);
}

/* Emptying a place breaks invariant 1 for the entries after it in its run, whose searches would end
 * there. So each of these is taken out and put again, in the order they stand in:
 *
 *     run before     a1  b1  c2  d2  .        b1 is removed
 *     b1 out         a1  .   c2  d2  .        a search for c or d would stop at the gap
 *     c2 put again   a1  c2  .   d2  .        its home is 2: it moves to the first empty place
 *     d2 put again   a1  c2  d2  .   .
 *
 * An entry that is put again lands at its old place or before it, for its old place is empty now
 * and every place between it and the home was passed over or is empty: it cannot land on a place
 * that is still to be visited. The walk starts behind an empty place, so it meets every run from
 * its first entry on; it ends when it is back there. */
void tn_index_remove(tn_shard *shard, const uint64_t *marks) {
    uint64_t start = 0;
    while (shard->entries[start] != 0) {
        start++;
    }
    int moving = 0; /* whether an entry of this run was removed */
    for (uint64_t i = 1; i <= shard->capacity; i++) {
        uint64_t at = start + i < shard->capacity ? start + i : start + i - shard->capacity;
        uint64_t entry = shard->entries[at];
        if (entry == 0) {
            moving = 0;
            continue;
        }
        uint32_t number = (uint32_t)entry - 1;
        int marked = (int)(marks[number / 64] >> number % 64 & 1);
        moving |= marked;
        if (moving) {
            shard->entries[at] = 0;
        }
        if (moving && !marked) {
            put_entry(shard, entry);
        }
    }
}
