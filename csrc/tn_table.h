/* tn_table.h - the parts of a sparse table that its source files share. */
#ifndef TN_TABLE_H
#define TN_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tn_cpu.h"
#include "tn_dense.h"
#include "tn_hash.h"
#include "tn_memory.h"
#include "tn_pool.h"
#include "tnctl.h"

#define MAX_SEGMENTS 4
#define SHARD_BITS 6
#define SHARDS (1u << SHARD_BITS)
#define CHUNK_BYTES (2u << 20) /* the arena's chunks */
#define HEADER 20u             /* bytes of a row before its state */
#define MAX_WIDTH 1024u        /* of a segment */

/* The head of a row; optimizer state and weights follow as floats. */
typedef struct {
    uint64_t id;
    uint32_t uidx;
    uint16_t group;
    uint16_t flags;
    uint32_t changed;
} tn_row;

/* A segment as the table keeps it: where its floats are, counted from byte 20 of the row. */
typedef struct {
    tn_segment as_given;
    uint32_t state_floats, state_at, weights_at;
    uint32_t sums_at;    /* in the summed gradient of a row: widest segment first, for alignment */
    double *corrections; /* Adam: sqrt(1-b2^t)/(1-b1^t) for t = 1 ..; 1 past the end */
    uint64_t n_corrections;
    double keep; /* what a step's decay leaves of a weight; 1 without */
} tn_layout;

typedef struct {
    int declared;
    uint64_t initial_seed[MAX_SEGMENTS];
    tn_initial initial[MAX_SEGMENTS];
    _Atomic uint64_t rows;
} tn_group;

typedef struct {
    uint64_t *entries; /* tag << 32 | row number + 1; 0 is empty */
    uint64_t capacity, used, grow_at;
    char **blocks;
    uint32_t n_blocks, room_for_blocks;
    uint64_t next_row; /* rows below this number exist */
    uint64_t unused;   /* 64 bytes: the shard of a hash is one shift away */
} tn_shard;

struct tn_table {
    tn_layout layout[MAX_SEGMENTS];
    uint32_t n_segments, n_groups;
    uint32_t stride, record_size, weights_at, weights, floats;
    uint32_t block_log; /* rows in a block, as a power of two */
    uint32_t step;
    int plain;     /* all segments are AdaGrad by row or Adam, and have no extras */
    int has_decay; /* of some segment: rows must not be read as they stand */
    int all;       /* tn_apply updates every row */
    uint64_t seed;
    tn_pool *pool;
    tn_group *groups;
    uint64_t *salts; /* per group: apart, for they are read for every id */
    char *zero_row;  /* what a missing id reads */
    pthread_mutex_t lock;
    /* The arena: chunks of whole blocks, handed to shards as they grow. */
    pthread_mutex_t arena_lock;
    char **chunks;
    char *chunk_next;
    uint64_t chunk_left, n_chunks, room_for_chunks, arena_bytes;
    tn_shard shards[SHARDS];
};

/* ---- Keys --------------------------------------------------------------- */

static inline uint64_t key_hash(const tn_table *table, uint16_t group, uint64_t id) {
    return mix64(id ^ table->salts[group]);
}
static inline uint32_t shard_of(uint64_t hash) {
    return (uint32_t)(hash >> (64 - SHARD_BITS));
}
/* The thread that works on a shard's rows. */
static inline int owner_of(uint32_t shard, int threads) {
    return (int)(shard * (uint32_t)threads >> SHARD_BITS);
}
static inline uint32_t tag_of(uint64_t hash) {
    return (uint32_t)(hash >> (32 - SHARD_BITS));
}
static inline uint64_t home_of(const tn_shard *shard, uint32_t tag) {
    return (uint64_t)tag * shard->capacity >> 32;
}

/* ---- Index ------------------------------------------------------------- */

/* Three quarters: a hit reads 2.5 entries on average, a miss 8.5, all but the first in the same
 * or the next cache line. */
static inline uint64_t fill_limit(uint64_t capacity) {
    return capacity * 3 / 4;
}

static inline uint64_t entries_bytes(const tn_shard *shard) {
    return shard->capacity * sizeof *shard->entries;
}

/* ---- Rows --------------------------------------------------------------- */

static inline float *row_floats(const tn_row *row) {
    return (float *)(void *)((char *)(uintptr_t)row + HEADER);
}
static inline tn_row *row_at(const tn_table *table, const tn_shard *shard, uint32_t number) {
    uint32_t in_block = number & ((1u << table->block_log) - 1);
    char *block = shard->blocks[number >> table->block_log];
    return (tn_row *)(void *)(block + (uint64_t)in_block * table->stride);
}
static inline int is_key(const tn_row *row, uint16_t group, uint64_t id) {
    return row->id == id && row->group == group;
}

/* The row of a key, or NULL. */
tn_row *tn_row_find(const tn_table *table, uint16_t group, uint64_t id, uint64_t hash);
/* The row of a key that the table lacks, with its initial weights. */
int tn_row_insert(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out);

/* ---- Decay -------------------------------------------------------------- */

/* No libm: the same bits everywhere. */
static inline double tn_power(double base, uint32_t exponent) {
    double power = 1;
    for (; exponent > 0; exponent >>= 1) {
        power *= exponent & 1 ? base : 1;
        base *= base;
    }
    return power;
}

/* What is left at step `at` of a weight that was written at step `changed`. */
static inline float tn_kept(const tn_layout *segment, uint32_t changed, uint32_t at) {
    return changed < at ? (float)tn_power(segment->keep, at - changed) : 1;
}

/* Copies a row's weights, all segments after each other, as they read at step `at`. */
void tn_row_read(const tn_table *table, const tn_row *row, uint32_t at, float *weights);

/* The step before the table's: what the step under way finds. */
static inline uint32_t tn_last_step(const tn_table *table) {
    return table->step > 0 ? table->step - 1 : 0;
}

/* ---- Updates ------------------------------------------------------------ */

/* Floats of state that a fitting optimizer keeps for `width` weights. */
uint32_t tn_state_floats(const tn_optimizer *optimizer, uint32_t width);
/* Adam's bias corrections until they are 1 in double; left NULL for other kinds. */
int tn_corrections(const tn_optimizer *optimizer, double **corrections, uint64_t *n);
/* The state of a row inserted now, in zeroed memory. */
void tn_state_start(const tn_table *table, const tn_layout *segment, float *state);
/* Whether the plain loop can update rows of this segment. */
int tn_optimizer_plain(const tn_optimizer *optimizer);
/* Updates rows[i] with the summed gradient at sums + i * sums_stride, segment after segment. */
void tn_rows_update(const tn_table *table, tn_row *const *rows, uint64_t n, const float *sums,
                    uint32_t sums_stride);

/* Rows of a batch that one thread owns, and their summed gradients. */
typedef struct {
    tn_row *const *rows; /* of all owners; uidx counts in it */
    uint64_t first_row, n;
    const float *sums; /* of row i at sums + i * sums_stride */
    uint32_t sums_stride;
} tn_summed;

/* The same for every kind and extra, the gradients times `scale`. */
void tn_rows_update_any(const tn_table *table, const tn_summed *batch, float scale);
/* The same for all rows of a shard; those that are not in the batch have the gradient 0. */
void tn_shard_update(const tn_table *table, const tn_shard *shard, const tn_summed *batch,
                     float scale);
/* Adds each row's sum of squares as tn_norm counts it. */
void tn_rows_norm(const tn_table *table, const tn_summed *batch, tn_squares *squares);
void tn_shard_norm(const tn_table *table, const tn_shard *shard, const tn_summed *batch,
                   tn_squares *squares);

#endif
