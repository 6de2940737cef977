/* tn_table.h - the parts of a sparse table that its source files share. */
#ifndef TN_TABLE_H
#define TN_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tn_admission.h"
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
#define CVM_COLUMNS 2u
#define FREE_ROW                                                                                   \
    UINT32_MAX /* the uidx of a row that is no key's; its `changed` is the next                    \
                  one */

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
    /* What is read of a row, counted in it, or in its copy where rows are not read as they stand;
     * cvm's columns are a part of it. */
    uint32_t read_at, read_width;
    uint32_t sums_at;    /* in the summed gradient of a row: widest segment first, for alignment */
    double *corrections; /* Adam: sqrt(1-b2^t)/(1-b1^t) for t = 1 ..; 1 past the end */
    uint64_t n_corrections;
    double keep; /* what a step's decay leaves of a weight; 1 without */
} tn_layout;

typedef struct {
    int declared;
    uint64_t initial_seed[MAX_SEGMENTS];
    tn_initial initial[MAX_SEGMENTS];
    _Atomic uint64_t rows, evicted;
    _Atomic int64_t waiting; /* ids counted for admission that have no row */
    tn_life life;
    tn_admission admission; /* of `life`, by tn_admission_of */
} tn_group;

typedef struct {
    uint64_t *entries; /* tag << 32 | row number + 1; 0 is empty */
    uint64_t capacity, used, grow_at;
    char **blocks;
    uint32_t n_blocks, room_for_blocks;
    uint64_t next_row; /* rows below this number exist */
    /* Removed rows, to be used before new ones. With them it is 64 bytes: the shard of a hash is
     * one shift away. */
    uint32_t free_rows, first_free;
} tn_shard;

/* A key that was removed. */
typedef struct {
    uint64_t hash; /* the id, too: they are one to one */
    uint32_t step;
    uint16_t group;
} tn_gone;

/* Those of a shard, in any order. */
typedef struct {
    tn_gone *keys;
    uint64_t n, room;
} tn_gone_list;

struct tn_table {
    tn_layout layout[MAX_SEGMENTS];
    uint32_t n_segments, n_groups;
    uint32_t stride, record_size, weights_at, weights, floats;
    uint32_t block_log; /* rows in a block, as a power of two */
    uint32_t step;
    int plain;     /* all segments are AdaGrad by row or Adam, and have no extras */
    int has_decay; /* weights of some segment decay */
    int all;       /* tn_apply updates every row */
    int shows, cvm;
    uint32_t shows_at;           /* show, then click */
    int copies;                  /* decay or cvm: rows must not be read as they stand */
    uint32_t reads, copy_stride; /* floats that are read of a row, bytes of such a copy */
    /* Days, ascending; `today` is the last one and began with step `today_from`. */
    uint32_t *days, *first_steps;
    uint32_t n_days, today, today_from;
    uint64_t removals; /* calls that removed rows: a batch of before is none any
                          more */
    tn_gone_list gone[SHARDS];
    uint64_t seed;
    tn_pool *pool;
    tn_group *groups;
    uint64_t *salts;       /* per group: apart, for they are read for every id */
    char *zero_row;        /* what a missing id reads */
    uint8_t *sketch;       /* of admission: per shard its lines, one after the other;
                              NULL without */
    uint64_t sketch_width; /* counters in a line */
    pthread_mutex_t lock;
    /* The arena: chunks of whole blocks, handed to shards as they grow. */
    pthread_mutex_t arena_lock;
    char **chunks;
    char *chunk_next;
    uint64_t chunk_left, n_chunks, room_for_chunks, arena_bytes;
    tn_shard shards[SHARDS];
};

/* ---- Keys --------------------------------------------------------------- */

static inline int tn_group_declared(const tn_table *table, uint16_t number) {
    return number < table->n_groups && table->groups[number].declared;
}
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
/* The same with nothing in it but the key: the caller writes all the rest, and counts it as a row
 * of its group. */
int tn_row_place(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out);
/* Writes a whole row as it is when inserted at the table's step. */
void tn_row_start(const tn_table *table, tn_row *row, uint16_t group, uint64_t id, uint64_t hash);
/* An index in which `rows` rows find place. */
int tn_shard_reserve(tn_shard *shard, uint64_t rows);
/* Room for so many more rows: none of their tn_row_place fails then. */
int tn_shard_make_room(tn_table *table, tn_shard *shard, uint64_t rows);
/* Takes rows out of the index, those whose bit (row number) is set; they are not looked at. */
void tn_index_remove(tn_shard *shard, const uint64_t *marks);

/* Rows in the order they lie in memory, each with its number. The rows of a block follow each
 * other, so the CPU sees the stream; only the next block has to be announced. */
#define FOR_ROWS_OF_SHARD(table, shard, row, number, statement)                                    \
    do {                                                                                           \
        uint64_t in_block = UINT64_C(1) << (table)->block_log;                                     \
        for (uint64_t number = 0; number < (shard)->next_row;) {                                   \
            uint64_t left = (shard)->next_row - number;                                            \
            char *at = (shard)->blocks[number >> (table)->block_log];                              \
            for (uint64_t end = number + (left < in_block ? left : in_block); number < end;        \
                 number++, at += (table)->stride) {                                                \
                tn_row *row = (tn_row *)(void *)at;                                                \
                TN_PREFETCH_WRITE(at + 2048);                                                      \
                if (TN_LIKELY(row->uidx != FREE_ROW)) {                                            \
                    statement;                                                                     \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    } while (0)

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

/* Copies what is read of some rows, all segments after each other: weights as at step `at`, and
 * columns[2 * i], columns[2 * i + 1] in a table with cvm. */
void tn_rows_read(const tn_table *table, tn_row *const *rows, uint64_t n, uint32_t at,
                  const float *columns, float *const *to);

/* The step before the table's: what the step under way finds. */
static inline uint32_t tn_last_step(const tn_table *table) {
    return table->step > 0 ? table->step - 1 : 0;
}

/* ---- Show and click ----------------------------------------------------- */

static inline float *row_shows(const tn_table *table, const tn_row *row) {
    return row_floats(row) + table->shows_at;
}

/* The day of a step. */
uint32_t tn_day_of(const tn_table *table, uint32_t step);

/* What is left on `day` of a show of step `changed`. */
static inline float tn_show_kept(const tn_table *table, uint16_t group, uint32_t changed,
                                 uint32_t day) {
    if (TN_LIKELY(changed >= table->today_from)) {
        return 1;
    }
    uint32_t then = tn_day_of(table, changed);
    return then < day ? (float)tn_power(table->groups[group].life.show_decay, day - then) : 1;
}

/* Cvm's columns of some rows, as tn_cvm_columns writes them. */
void tn_rows_cvm(const tn_table *table, tn_row *const *rows, uint64_t n, float *columns);

/* Adds what a batch counted (NULL: nothing) to the show and click of a row, as of the table's step,
 * whose day is `day`; to be followed by the update that sets `changed`. */
static inline void tn_row_count(const tn_table *table, tn_row *row, const float *counts,
                                uint32_t day) {
    float *shows = row_shows(table, row), kept = tn_show_kept(table, row->group, row->changed, day);
    shows[0] = shows[0] * kept + (counts ? counts[0] : 0);
    shows[1] = shows[1] * kept + (counts ? counts[1] : 0);
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
    const float *counts; /* of row i at counts + 2 * i, or NULL */
} tn_summed;

/* Adds what was counted to the shows and clicks of the batch's rows. */
void tn_rows_count(const tn_table *table, const tn_summed *batch);
/* The same as tn_rows_update for every kind and extra, the gradients times `scale`. */
void tn_rows_update_any(const tn_table *table, const tn_summed *batch, float scale);
/* The same for all rows of a shard; those that are not in the batch have the gradient 0. */
void tn_shard_update(const tn_table *table, const tn_shard *shard, const tn_summed *batch,
                     float scale);
/* Adds each row's sum of squares as tn_norm counts it. */
void tn_rows_norm(const tn_table *table, const tn_summed *batch, tn_squares *squares);
void tn_shard_norm(const tn_table *table, const tn_shard *shard, const tn_summed *batch,
                   tn_squares *squares);

#endif
