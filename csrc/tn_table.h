/* tn_table.h - what a sparse table consists of: the structs that its source files share.
 *
 *     tn_table
 *       layout[]   per segment: where its state and weights are in a row
 *       groups[]   per group: its salt, initial weights, rules, counts
 *       shards[64] per range of the hash: an index, and the blocks its rows are in
 *       chunks[]   the arena: memory of 2 MiB each, cut into blocks
 *
 *     shard 5                                 arena
 *     entries  [tag, 0][     ][tag, 2] ...    chunk 0  [ block | block | block ... ]
 *     blocks   [ * ][ * ] ----------------------------------^       ^
 *                 `-----------------------------------------------'
 *
 * Row `number` of a shard is in block number >> block_log, at place number % 2^block_log: a row
 * never moves while the shard grows, so a pointer to it stays valid until the row is removed.
 *
 * Which thread owns a shard. While a call runs on a pool of T threads, thread t owns the shards
 * that owner_of gives it, a contiguous range of the 64, or of those that the table has when its
 * other keys are in the tables of other processes (tn_table_set_shards):
 *
 *     shard   0 ......... 21 | 22 ........ 42 | 43 ........ 63       (T = 3)
 *     owner        0               1                2
 *
 *     shard   0 ............... 31 | 32 .. 42 | 43 .. 53 | 54 .. 63       (shards 32 to 63)
 *     owner        none                 0          1          2
 *
 * Only the owner writes the rows, the index, the sketch and the removed keys of a shard, and in a
 * call that writes them nobody else reads them; calls that only read (tn_gather, tn_key_queries)
 * let any thread read any shard. So finding a row takes no lock and no atomic operation. It is safe
 * because a key has one shard (the top bits of its hash), table->lock admits one call at a time,
 * and a call ends only when all its threads have finished (tn_thread_pool_run). Only what an
 * insertion takes from the whole table is shared: the counts of a group are atomic, a new block
 * comes under arena_lock. The result does not depend on T, for each owner meets the ids of a shard
 * in the order of the batch, whichever other shards it owns, and what threads add together are
 * integers or exact sums (tn_exact_sum.h). */
#ifndef TN_TABLE_H
#define TN_TABLE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tn_cpu.h"
#include "tn_hash.h"
#include "tn_memory.h"
#include "tn_optimizer.h"
#include "tn_thread_pool.h"
#include "tnctl.h"

#define MAX_SEGMENTS 4
#define SHARD_BITS 6
#define SHARDS (1u << SHARD_BITS)
#define PER_SHARD_BITS 20
#define CHUNK_BYTES (2u << 20) /* of the arena */
#define HEADER 20u             /* bytes of a row before its state */
#define MAX_WIDTH 1024u        /* of a segment */
#define CVM_COLUMNS 2u
/* The uidx of a removed row: no key has it. Its `changed` is the number of the next such row. */
#define FREE_ROW UINT32_MAX

/* The head of a row; optimizer state and weights follow as floats. */
typedef struct {
    uint64_t id;
    uint32_t uidx; /* its place in the batch under way: see tn_find.c */
    uint16_t group;
    uint16_t flags; /* 0: reserved by the format of records */
    uint32_t changed;
} tn_row; /* 20 bytes are used: HEADER. sizeof is 24, and the state begins in that padding */

/* A segment as the table keeps it: where its floats are, counted from byte 20 of the row. */
typedef struct {
    tn_segment as_given;
    const tn_rule *rule;
    tn_extras extras;
    uint32_t state_at, weights_at;
    /* What is read of a row: where it starts, in the row, or in the row's copy where rows must not
     * be read as they are stored (`copies`); the columns of cvm are a part of it. */
    uint32_t read_at, read_width;
    uint32_t sums_at;    /* in the summed gradient of a row: widest segment first, for alignment */
    double *corrections; /* Adam: sqrt(1-b2^t)/(1-b1^t) for t = 1 ..; 1 past the end */
    uint64_t n_corrections;
    double keep;   /* what a step's decay leaves of a weight; 1 without */
    double shrink; /* learning_rate*lazy_l2; 0 without: see tn_decay.h */
} tn_layout;

/* Which occurrence of an id makes its row, of the rules of a group (tn_admission.c). */
typedef struct {
    int counts;      /* 0: the first occurrence makes the row, and nothing is counted */
    uint32_t after;  /* this occurrence does, */
    uint64_t chance; /* or where this is above 0, each one whose draw is below it */
} tn_admission;

typedef struct {
    int declared;
    uint64_t initial_seed[MAX_SEGMENTS];
    tn_initial initial[MAX_SEGMENTS];
    /* Counted by all owners at once; each is a sum, so the order of additions does not show. */
    _Atomic uint64_t rows, evicted;
    _Atomic int64_t waiting; /* ids counted for admission that have no row */
    tn_life life;
    tn_admission admission; /* of `life` */
} tn_group;

/* 64 bytes, so that the shard of a hash is one shift away. */
typedef struct {
    uint64_t *entries; /* tag << 32 | row number + 1; 0 is empty: see tn_index.h */
    uint64_t capacity, used, grow_at;
    char **blocks;
    uint32_t n_blocks, room_for_blocks;
    uint64_t next_row; /* rows below this number exist */
    /* Removed rows, in a list, that are used again before next_row. */
    uint32_t free_rows, first_free;
} tn_shard;

_Static_assert(sizeof(tn_shard) == 64, "the address of a shard is a shift");

/* A key that was removed. */
typedef struct {
    uint64_t hash; /* gives the id too: the hash is a bijection of it */
    uint32_t step;
    uint16_t group;
} tn_removed_key;

/* The removed keys of a shard, in the order of their removal until tn_take_removed sorts them. */
typedef struct {
    tn_removed_key *keys;
    uint64_t n, room;
} tn_removed_list;

struct tn_table {
    tn_layout layout[MAX_SEGMENTS];
    uint32_t n_segments, n_groups;
    uint32_t stride, record_size, weights_at, weights, floats;
    /* The shards that the table owns, and 2^PER_SHARD_BITS / n_shards, rounded up. */
    uint32_t first_shard, n_shards, per_shard;
    uint32_t block_log; /* rows in a block, as a power of two */
    uint32_t step;
    int has_decay; /* weights of some segment decay */
    int all;       /* tn_apply updates every row */
    int shows, cvm;
    int counting;                     /* occurrences count: for admission, and for show and click */
    int inserting;                    /* keys without a row get one */
    uint32_t shows_at;                /* show, then click */
    int copies;                       /* decay or cvm: rows must not be read as they are stored */
    uint32_t read_floats, copy_bytes; /* floats that are read of a row; bytes of such a copy */
    /* Days, ascending; `today` is the last one and began with step `today_from`. */
    uint32_t *days, *first_steps;
    uint32_t n_days, today, today_from;
    uint64_t
        removals; /* calls that removed rows: what tn_find found before one may be freed rows */
    tn_removed_list removed[SHARDS];
    uint64_t seed;
    tn_thread_pool *pool;
    tn_group *groups;
    uint64_t *salts; /* per group: not in tn_group, for they are read for every id */
    char *zero_row;  /* what a missing id reads */
    uint8_t *sketch; /* of admission: the lines of shard 0, of shard 1, ...; NULL without */
    uint64_t sketch_width, sketch_bytes; /* counters in a line; in all */
    pthread_mutex_t lock;                /* held by the public call under way */
    pthread_mutex_t arena_lock;          /* guards the line below while owners insert */
    char **chunks, *chunk_next;
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
static inline int tn_has_shard(const tn_table *table, uint32_t shard) {
    return shard - table->first_shard < table->n_shards;
}
/* The thread that works on a shard's rows; of a shard that the table does not own, no thread's
 * number. That is (shard - first) * threads / n_shards, by a product instead of a division: the
 * quotient's error is below 1/256, less than the 1/64 by which it can miss a whole number. */
static inline int owner_of(const tn_table *table, uint32_t shard, int threads) {
    uint32_t place = shard - table->first_shard;
    return place < table->n_shards
               ? (int)(place * (uint32_t)threads * table->per_shard >> PER_SHARD_BITS)
               : threads;
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

static inline float *row_shows(const tn_table *table, const tn_row *row) {
    return row_floats(row) + table->shows_at;
}

/* The step before the table's: what the step under way finds. */
static inline uint32_t tn_last_step(const tn_table *table) {
    return table->step > 0 ? table->step - 1 : 0;
}

/* Rows in the order they lie in memory, each with its number; removed ones are passed over. 2048
 * bytes, about 32 rows, are announced to the cache ahead of the row: far enough that a row has
 * arrived when it is needed. Past the end of a block the announced bytes may be another shard's,
 * which costs a little and changes nothing. */
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

#endif
