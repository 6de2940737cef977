/* tn_rows.c - finding and inserting rows: the index, the memory of rows, initial weights. */
#include "tn_table.h"

#define MAX_ROWS UINT64_C(0xfffffffe)

/* ---- Index -------------------------------------------------------------- */

static uint64_t next_place(const tn_shard *shard, uint64_t place) {
    return place + 1 == shard->capacity ? 0 : place + 1;
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

/* In one pass over the entries in their order. */
static int resize_index(tn_shard *shard, uint64_t capacity) {
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

/* Half as large again, as often as it takes: the capacity it would have grown to. */
int tn_shard_reserve(tn_shard *shard, uint64_t rows) {
    uint64_t capacity = shard->capacity;
    while (rows > fill_limit(capacity)) {
        capacity += capacity / 2;
    }
    return capacity == shard->capacity ? TN_OK : resize_index(shard, capacity);
}

void tn_index_remove(tn_shard *shard, const uint64_t *marks) {
    /* From an empty place on, so that no run is met in its middle. What follows a removed entry in
     * its run is put again: at its place or before it, never past what is still to be met. */
    uint64_t start = 0;
    while (shard->entries[start] != 0) {
        start++;
    }
    int moved = 0;
    for (uint64_t i = 1; i <= shard->capacity; i++) {
        uint64_t at = start + i < shard->capacity ? start + i : start + i - shard->capacity;
        uint64_t entry = shard->entries[at];
        if (entry == 0) {
            moved = 0;
            continue;
        }
        uint32_t number = (uint32_t)entry - 1;
        int gone = (int)(marks[number / 64] >> number % 64 & 1);
        moved |= gone;
        if (moved) {
            shard->entries[at] = 0;
        }
        if (moved && !gone) {
            put_entry(shard, entry);
        }
    }
}

/* ---- Memory of rows ----------------------------------------------------- */

/* Room for one more pointer at the end of an array of them. */
static int room_for_pointer(char ***pointers, uint64_t used, uint64_t *room) {
    if (used < *room) {
        return TN_OK;
    }
    uint64_t wanted = *room == 0 ? 8 : *room * 2;
    char **larger = TN_REALLOC(*pointers, wanted * sizeof *larger);
    if (larger == NULL) {
        return TN_NO_MEMORY;
    }
    *pointers = larger;
    *room = wanted;
    return TN_OK;
}

static int take_block(tn_table *table, char **block) {
    uint64_t bytes = (uint64_t)table->stride << table->block_log;
    if (table->chunk_left < bytes) {
        if (room_for_pointer(&table->chunks, table->n_chunks, &table->room_for_chunks) != TN_OK) {
            return TN_NO_MEMORY;
        }
        char *chunk = tn_large_alloc(CHUNK_BYTES);
        if (chunk == NULL) {
            return TN_NO_MEMORY;
        }
        table->chunks[table->n_chunks++] = chunk;
        table->chunk_next = chunk;
        table->chunk_left = CHUNK_BYTES;
        table->arena_bytes += CHUNK_BYTES;
    }
    *block = table->chunk_next;
    table->chunk_next += bytes;
    table->chunk_left -= bytes;
    return TN_OK;
}

static int add_block(tn_table *table, tn_shard *shard) {
    uint64_t room = shard->room_for_blocks;
    if (room_for_pointer(&shard->blocks, shard->n_blocks, &room) != TN_OK) {
        return TN_NO_MEMORY;
    }
    shard->room_for_blocks = (uint32_t)room;
    pthread_mutex_lock(&table->arena_lock);
    int code = take_block(table, &shard->blocks[shard->n_blocks]);
    pthread_mutex_unlock(&table->arena_lock);
    shard->n_blocks += code == TN_OK;
    return code;
}

int tn_shard_make_room(tn_table *table, tn_shard *shard, uint64_t rows) {
    uint64_t more = rows > shard->free_rows ? rows - shard->free_rows : 0;
    if (more > MAX_ROWS + 1 - shard->next_row) {
        return TN_TABLE_FULL;
    }
    int code = tn_shard_reserve(shard, shard->used + rows);
    while (code == TN_OK &&
           (uint64_t)shard->n_blocks << table->block_log < shard->next_row + more) {
        code = add_block(table, shard);
    }
    return code;
}

/* ---- New rows ----------------------------------------------------------- */

/* Weights by + and x alone, the same on every CPU. Four 16-bit pieces of a hash, centred, are
 * uniform one by one; their sum has variance 4/3 of one's square, which the last factor undoes. */
static void initial_weights(const tn_initial *initial, uint64_t seed, float *weights,
                            uint32_t width) {
    for (uint32_t j = 0; j < width; j++) {
        uint64_t z = mix64(seed + j * UINT64_C(0x9e3779b97f4a7c15));
        if (initial->kind == TN_UNIFORM) {
            weights[j] = initial->scale * ((float)(int64_t)(z >> 40) * 0x1p-23f - 1.0f);
        } else if (initial->kind == TN_NORMAL) {
            int64_t sum = (int64_t)(z & 0xffff) + (int64_t)(z >> 16 & 0xffff) +
                          (int64_t)(z >> 32 & 0xffff) + (int64_t)(z >> 48);
            weights[j] = initial->scale * ((float)(2 * sum - 4 * 65535) * (0.8660254f / 65535.0f));
        } else {
            weights[j] = 0;
        }
    }
}

void tn_row_start(const tn_table *table, tn_row *row, uint16_t group, uint64_t id, uint64_t hash) {
    memset(row, 0, table->stride);
    row->id = id;
    row->group = group;
    row->changed = table->step;
    float *floats = row_floats(row);
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        const tn_group *of = &table->groups[group];
        tn_state_start(table, segment, floats + segment->state_at);
        initial_weights(&of->initial[s], mix64(of->initial_seed[s] ^ hash),
                        floats + segment->weights_at, segment->as_given.width);
    }
}

static int take_row(tn_table *table, tn_shard *shard, uint32_t *number) {
    if (shard->free_rows > 0) {
        *number = shard->first_free;
        shard->first_free = row_at(table, shard, *number)->changed;
        shard->free_rows--;
        if (shard->free_rows > 0) {
            TN_PREFETCH_WRITE(row_at(table, shard, shard->first_free));
        }
        return TN_OK;
    }
    if (shard->next_row > MAX_ROWS) {
        return TN_TABLE_FULL;
    }
    if (shard->next_row >> table->block_log >= shard->n_blocks &&
        add_block(table, shard) != TN_OK) {
        return TN_NO_MEMORY;
    }
    *number = (uint32_t)shard->next_row++;
    return TN_OK;
}

int tn_row_place(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out) {
    tn_shard *shard = &table->shards[shard_of(hash)];
    if (shard->used + 1 > shard->grow_at && tn_shard_reserve(shard, shard->used + 1) != TN_OK) {
        return TN_NO_MEMORY;
    }
    uint32_t number;
    int code = take_row(table, shard, &number);
    if (code != TN_OK) {
        return code;
    }
    shard->used++;
    tn_row *row = row_at(table, shard, number);
    row->id = id;
    row->group = group;
    row->uidx = 0; /* of a row that was free, it is FREE_ROW */
    put_entry(shard, (uint64_t)tag_of(hash) << 32 | (number + 1u));
    *out = row;
    return TN_OK;
}

int tn_row_insert(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out) {
    int code = tn_row_place(table, group, id, hash, out);
    if (code == TN_OK) {
        atomic_fetch_add_explicit(&table->groups[group].rows, 1, memory_order_relaxed);
        tn_row_start(table, *out, group, id, hash);
    }
    return code;
}
