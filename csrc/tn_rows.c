/* tn_rows.c - inserting rows: their memory, their numbers, and what a new one holds.
 *
 * Memory goes arena -> block -> row. The arena takes chunks of 2 MiB, which lie on huge pages, and
 * cuts them into blocks of at most 64 KiB; a shard takes one block at a time. Blocks are small so
 * that 64 shards that have just begun one waste little, and chunks are large so that few
 * translations (TLB entries) reach all rows. Nothing is given back before the table is freed: rows
 * that are removed are used again. */
#include "tn_rows.h"

#include "tn_index.h"

/* Row numbers are 32 bits, and an entry holds the number + 1. */
#define MAX_ROWS UINT64_C(0xfffffffe)

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

/* The next block of memory for rows, of the last chunk or of a new one. The caller holds
 * arena_lock. Chunks belong to the table and are freed with it; what a chunk has left when the
 * next block does not fit is never used. */
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

/* Takes one more block for a shard. Owners of different shards may do so at once: only the arena is
 * shared, and it has a lock. */
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
    int code = tn_index_reserve(shard, shard->used + rows);
    while (code == TN_OK &&
           (uint64_t)shard->n_blocks << table->block_log < shard->next_row + more) {
        code = add_block(table, shard);
    }
    return code;
}

/* ---- New rows ----------------------------------------------------------- */

/* Weights by + and x alone, the same on every CPU. Each coordinate is a function of the seed and
 * its number, so a row can be made at any time, on any thread, alone. For TN_NORMAL four 16-bit
 * pieces of a hash are centred and added: with a = 65535 each is uniform in [-a, a], of variance
 * a^2/3, and the sum of variance 4/3 a^2; the factor sqrt(3/4)/a makes it 1. */
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
    /* Where all rows train at every step, a row that comes later counts as one that was there from
     * the start and had no gradient: its state has seen the same steps. */
    uint32_t steps = table->all ? tn_last_step(table) : 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        const tn_group *of_group = &table->groups[group];
        uint32_t width = segment->as_given.width;
        tn_state_start(&segment->as_given.optimizer, width, steps, floats + segment->state_at);
        initial_weights(&of_group->initial[s], mix64(of_group->initial_seed[s] ^ hash),
                        floats + segment->weights_at, width);
    }
}

/* A row number that no key has: of a removed row if there is any, so a table whose rows
 * come and go does not grow. */
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

/* The index grows first and the entry comes last: whatever fails, no entry names a row that is not
 * there. */
int tn_row_place(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out) {
    tn_shard *shard = &table->shards[shard_of(hash)];
    if (shard->used + 1 > shard->grow_at && tn_index_reserve(shard, shard->used + 1) != TN_OK) {
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
    tn_index_add(shard, hash, number);
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
