/* tn_table.c - groups, the index, rows and their memory. */
#include "tn_table.h"

#include <math.h>

#define FIRST_CAPACITY 64
#define BLOCK_BYTES 65536u
#define CHUNK_BYTES (2u << 20)
#define MAX_ROWS UINT64_C(0xfffffffe)

/* Three quarters: a hit reads 2.5 entries on average, a miss 8.5, all but the first in the same
 * or the next cache line. */
static uint64_t fill_limit(uint64_t capacity) {
    return capacity * 3 / 4;
}

static uint64_t entries_bytes(const tn_shard *shard) {
    return (shard->capacity + PADDING) * sizeof *shard->entries;
}

/* ---- Making a table ----------------------------------------------------- */

static int plan_layout(tn_table *table, const tn_segment *segments) {
    uint32_t at = 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        tn_layout *segment = &table->layout[s];
        segment->as_given = segments[s];
        if (segments[s].width < 1 || segments[s].width > 1024 ||
            (segments[s].output != TN_CONCAT && segments[s].output != TN_SUM)) {
            return TN_BAD_VALUE;
        }
        segment->state_floats = tn_state_floats(&segments[s].optimizer, segments[s].width);
        if (segment->state_floats == 0) {
            return TN_BAD_VALUE;
        }
        segment->state_at = at;
        at += segment->state_floats;
    }
    table->weights_at = at;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        table->layout[s].weights_at = at;
        at += segments[s].width;
    }
    for (uint32_t s = 0; s < table->n_segments; s++) {
        for (uint32_t other = 0; other < table->n_segments; other++) {
            int earlier = segments[other].width > segments[s].width ||
                          (segments[other].width == segments[s].width && other < s);
            table->layout[s].sums_at += earlier ? segments[other].width : 0;
        }
    }
    table->floats = at;
    table->weights = at - table->weights_at;
    table->record_size = HEADER - 4 + 4 * at;
    table->stride = (HEADER + 4 * at + 7) / 8 * 8;
    while ((2u << table->block_log) * table->stride <= BLOCK_BYTES) {
        table->block_log++;
    }
    return TN_OK;
}

static int fill_table(tn_table *table, const tn_segment *segments) {
    int code = plan_layout(table, segments);
    for (uint32_t s = 0; s < table->n_segments && code == TN_OK; s++) {
        code = tn_corrections(&segments[s].optimizer, &table->layout[s].corrections,
                              &table->layout[s].n_corrections);
    }
    if (code != TN_OK) {
        return code;
    }
    table->zero_row = TN_CALLOC(1, table->stride);
    if (table->zero_row == NULL) {
        return TN_NO_MEMORY;
    }
    for (uint32_t i = 0; i < SHARDS; i++) {
        tn_shard *shard = &table->shards[i];
        /* First sizes spread over one growth step, so that shards, which fill alike, never grow
         * all in the same batch, and the memory per key is the same at every size. */
        shard->capacity = FIRST_CAPACITY + FIRST_CAPACITY / 2 * i / SHARDS;
        shard->grow_at = fill_limit(shard->capacity);
        shard->entries = tn_large_alloc(entries_bytes(shard));
        if (shard->entries == NULL) {
            return TN_NO_MEMORY;
        }
    }
    return TN_OK;
}

int tn_table_new(const tn_segment *segments, uint32_t n_segments, uint64_t seed, tn_pool *pool,
                 tn_table **out) {
    if (n_segments < 1 || n_segments > MAX_SEGMENTS || pool == NULL) {
        return TN_BAD_VALUE;
    }
    tn_table *table = TN_CALLOC(1, sizeof *table);
    if (table == NULL) {
        return TN_NO_MEMORY;
    }
    table->n_segments = n_segments;
    table->seed = seed;
    table->pool = pool;
    pthread_mutex_init(&table->lock, NULL);
    pthread_mutex_init(&table->arena_lock, NULL);
    int code = fill_table(table, segments);
    if (code != TN_OK) {
        tn_table_free(table);
        return code;
    }
    *out = table;
    return TN_OK;
}

void tn_table_free(tn_table *table) {
    if (table == NULL) {
        return;
    }
    for (uint32_t i = 0; i < SHARDS; i++) {
        tn_large_free(table->shards[i].entries, entries_bytes(&table->shards[i]));
        TN_FREE(table->shards[i].blocks);
    }
    for (uint64_t i = 0; i < table->n_chunks; i++) {
        tn_large_free(table->chunks[i], CHUNK_BYTES);
    }
    for (uint32_t s = 0; s < table->n_segments; s++) {
        TN_FREE(table->layout[s].corrections);
    }
    TN_FREE(table->chunks);
    TN_FREE(table->groups);
    TN_FREE(table->salts);
    TN_FREE(table->zero_row);
    pthread_mutex_destroy(&table->arena_lock);
    pthread_mutex_destroy(&table->lock);
    TN_FREE(table);
}

/* ---- Groups ------------------------------------------------------------- */

static int grow_groups(tn_table *table, uint32_t n) {
    tn_group *groups = TN_CALLOC(n, sizeof *groups);
    uint64_t *salts = TN_REALLOC(table->salts, n * sizeof *salts);
    if (salts != NULL) {
        table->salts = salts;
    }
    if (groups == NULL || salts == NULL) {
        TN_FREE(groups);
        return TN_NO_MEMORY;
    }
    for (uint32_t i = 0; i < table->n_groups; i++) {
        groups[i] = table->groups[i];
    }
    TN_FREE(table->groups);
    table->groups = groups;
    table->n_groups = n;
    return TN_OK;
}

static int group_declared(const tn_table *table, uint16_t number) {
    return number < table->n_groups && table->groups[number].declared;
}

static int add_group(tn_table *table, uint16_t number, const char *name,
                     const tn_initial *initial) {
    for (uint32_t s = 0; s < table->n_segments; s++) {
        if (initial[s].kind > TN_NORMAL || !isfinite(initial[s].scale)) {
            return TN_BAD_VALUE;
        }
    }
    if (group_declared(table, number)) {
        return TN_BAD_VALUE;
    }
    if (number >= table->n_groups && grow_groups(table, number + 1u) != TN_OK) {
        return TN_NO_MEMORY;
    }
    tn_group *group = &table->groups[number];
    group->declared = 1;
    table->salts[number] = tn_group_salt(name);
    for (uint32_t s = 0; s < table->n_segments; s++) {
        group->initial[s] = initial[s];
        group->initial_seed[s] = mix64(mix64(table->seed ^ table->salts[number]) + s);
    }
    return TN_OK;
}

int tn_table_add_group(tn_table *table, uint16_t number, const char *name,
                       const tn_initial *initial) {
    pthread_mutex_lock(&table->lock);
    int code = add_group(table, number, name, initial);
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* ---- Settings and figures ----------------------------------------------- */

int tn_table_set_learning_rate(tn_table *table, uint32_t segment, float learning_rate) {
    if (segment >= table->n_segments || !isfinite(learning_rate) || learning_rate < 0) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&table->lock);
    table->layout[segment].as_given.optimizer.learning_rate = learning_rate;
    pthread_mutex_unlock(&table->lock);
    return TN_OK;
}

int tn_table_set_step(tn_table *table, uint32_t step) {
    pthread_mutex_lock(&table->lock);
    table->step = step;
    pthread_mutex_unlock(&table->lock);
    return TN_OK;
}

uint64_t tn_table_rows(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t rows = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        rows += table->shards[i].used;
    }
    pthread_mutex_unlock(&table->lock);
    return rows;
}

uint64_t tn_table_group_rows(tn_table *table, uint16_t number) {
    pthread_mutex_lock(&table->lock);
    uint64_t rows = group_declared(table, number) ? atomic_load(&table->groups[number].rows) : 0;
    pthread_mutex_unlock(&table->lock);
    return rows;
}

uint64_t tn_table_index_bytes(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        bytes += table->shards[i].capacity * sizeof(uint64_t);
        bytes += table->shards[i].room_for_blocks * sizeof(char *);
    }
    pthread_mutex_unlock(&table->lock);
    return bytes;
}

uint64_t tn_table_row_bytes(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t bytes = table->arena_bytes;
    pthread_mutex_unlock(&table->lock);
    return bytes;
}

uint32_t tn_table_stride(tn_table *table) {
    return table->stride;
}
uint32_t tn_table_record_size(tn_table *table) {
    return table->record_size;
}

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

/* Half as large again, in one pass over the entries in their order. */
static int grow_index(tn_shard *shard) {
    tn_shard larger = *shard;
    larger.capacity = shard->capacity + shard->capacity / 2;
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

static void start_row(tn_table *table, tn_row *row, uint16_t group, uint64_t id, uint64_t hash) {
    memset(row, 0, table->stride);
    row->id = id;
    row->group = group;
    row->changed = table->step;
    float *floats = row_floats(row);
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        const tn_group *of = &table->groups[group];
        tn_state_start(segment, floats + segment->state_at);
        initial_weights(&of->initial[s], mix64(of->initial_seed[s] ^ hash),
                        floats + segment->weights_at, segment->as_given.width);
    }
}

int tn_row_insert(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out) {
    tn_shard *shard = &table->shards[shard_of(hash)];
    if (shard->next_row > MAX_ROWS) {
        return TN_TABLE_FULL;
    }
    if (shard->used + 1 > shard->grow_at && grow_index(shard) != TN_OK) {
        return TN_NO_MEMORY;
    }
    if (shard->next_row >> table->block_log >= shard->n_blocks &&
        add_block(table, shard) != TN_OK) {
        return TN_NO_MEMORY;
    }
    uint32_t number = (uint32_t)shard->next_row++;
    shard->used++;
    tn_row *row = row_at(table, shard, number);
    start_row(table, row, group, id, hash);
    put_entry(shard, (uint64_t)tag_of(hash) << 32 | (number + 1u));
    atomic_fetch_add_explicit(&table->groups[group].rows, 1, memory_order_relaxed);
    *out = row;
    return TN_OK;
}

int tn_table_lookup(tn_table *table, uint16_t group, uint64_t id, float *weights, int *found) {
    pthread_mutex_lock(&table->lock);
    int code = group_declared(table, group) ? TN_OK : TN_NO_GROUP;
    if (code == TN_OK) {
        const tn_row *row = tn_row_find(table, group, id, key_hash(table, group, id));
        *found = row != NULL;
        const float *floats = row ? row_floats(row) : (const float *)(void *)table->zero_row;
        memcpy(weights, floats + (row ? table->weights_at : 0), table->weights * sizeof *weights);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
