/* tn_batch.h - a batch on its way through find, gather, accumulate and apply.
 *
 * An id passes through three orders, none of which writes to another thread's memory:
 *
 *   part      thread t reads its part of the examples and deals the ids out: entry list (t, o) has
 *             the ids of part t whose shards thread o owns, in the order of the batch
 *   owned     thread o walks the lists (0, o), (1, o), ... : again the order of the batch. It finds
 *             the rows, and later sums the gradients of each row in this same order
 *   part      to pool, thread t walks its examples again; entry_of says which list and place each
 *             id was dealt to
 *
 *     ids of the batch     7 3 9 5 | 3 8 7 2          two threads; 0 owns the shards of 2 3 5,
 *     deal                 thread 0  thread 1         1 owns those of 7 8 9
 *     lists of owner 0     [3 5]     [3 2]            it sees 3 5 3 2
 *     lists of owner 1     [7 9]     [8 7]            it sees 7 9 8 7
 *
 * With one thread the only list is the batch itself: an owner sees the occurrences of one row in
 * the same order for any number of threads, which is why the sums of its gradients have the same
 * bits.
 *
 * Distinct rows are numbered per owner in the order they are first met (uidx), from first_row on.
 */
#ifndef TN_BATCH_H
#define TN_BATCH_H

#include "tn_exact_sum.h"
#include "tn_table.h"

#define ROWS_AHEAD 16 /* rows announced to the cache while pooling */
#define MAX_THREADS 64
#define MAX_ENTRIES UINT64_C(0xfffffff0) /* ids x threads: their places have 32 bits */

/* One id on its way: first the id (of a batch of keys, its hash) and its group, then the row and
 * its place in the batch. */
typedef struct {
    union {
        uint64_t id;
        tn_row *row;
    };
    uint32_t cell;
    uint32_t place;
} tn_entry;

typedef struct {
    uint64_t first_row, rows; /* this owner's part of batch->rows */
    uint64_t no_row;          /* the last place of its part: no row has it when an id has no row */
    int code;
} tn_owner;

/* Where the rows of a batch are and whose ids it has: a bit each. */
typedef enum {
    BATCH_OF_TABLE = 1, /* tn_find: rows of the table for ids of this process */
    BATCH_OF_KEYS = 2,  /* tn_keys: rows in other processes, for ids of this one (tn_exchange.h) */
    BATCH_PULLED = 4    /* tn_pull: rows of the table for keys of other processes */
} tn_batch_source;

/* What the calls so far allow next: each state allows what the states before it do. */
typedef enum {
    BATCH_EMPTY,
    BATCH_NUMBERED, /* tn_keys: the keys can be written */
    BATCH_READ,     /* found without inserting: gather */
    BATCH_INSERTED, /* count, accumulate */
    BATCH_SUMMED    /* norm, apply */
} tn_batch_state;

/* Memory of arrays with room for so many ids or keys; NULL before the first. */
typedef struct {
    char *start;
    uint64_t bytes, room;
} tn_batch_memory;

struct tn_batch {
    tn_table *table;
    tn_slot *slots;
    uint32_t n_slots;
    uint64_t cell_factor; /* cell / n_slots = cell * cell_factor >> 64 */
    int threads, sum_only, any_apart;
    tn_batch_source source;
    tn_batch_state state;
    float limit;       /* of summed gradients: from this size on they are refused */
    uint64_t removals; /* the table's, at the last tn_find */

    const uint64_t *ids; /* the caller's, as the weights: during tn_find only */
    const float *given_weights;
    uint32_t examples;
    uint64_t first_of_part[MAX_THREADS + 1]; /* the first id of each thread's part */
    char *memory;                            /* all arrays below */
    uint64_t memory_bytes;
    uint32_t *offsets;
    uint64_t room_for_cells, room_for_ids;
    uint32_t *entry_of; /* per id: its place in entries */
    tn_row **row_of;    /* per id, while pooling */
    char *copies;       /* per id, while pooling: its row as it reads, where rows are copied */
    tn_entry *entries;
    int weighted;         /* the three below hold what the last tn_find was given */
    float *weights;       /* per id */
    float *entry_weights; /* the same per entry */
    float *divisors;      /* per cell: what its weighted sum is divided by */
    uint64_t counts[MAX_THREADS][MAX_THREADS]; /* [part][owner]: entries of each list */

    tn_row **rows;
    float *sums;
    uint32_t sums_stride;
    float *shows;      /* per row, where the table keeps them: its occurrences and their clicks, */
    int counted;       /* once tn_count has summed them */
    float *clicks;     /* per example, where the table has cvm: its own clicks, */
    int has_clicks;    /* once tn_leave_out has given them */
    uint32_t *met;     /* per thread and row, while pooling: how often the example has the row; 0 */
    uint64_t met_room; /* rows of each thread */
    tn_owner owners[MAX_THREADS];
    uint64_t distinct; /* rows of the last inserting tn_find */

    struct tn_key_set *keys;                    /* of tn_keys; NULL before the first */
    struct tn_pulled *pulled;                   /* of tn_pull; NULL before the first */
    tn_batch_memory keys_memory, pulled_memory; /* their arrays */
    const uint32_t *occurrences; /* of tn_pull: of each key; NULL: an entry is one occurrence */
    uint32_t *waits;             /* and how many of them wait */
};

/* Cuts the next array out of the memory; while `memory` is NULL it only adds up the bytes. */
void *tn_cut(char *memory, uint64_t *used, uint64_t bytes);
/* Makes the arrays large enough for so many cells and ids; what they held is lost. TN_NO_MEMORY. */
int tn_batch_make_room(tn_batch *batch, uint64_t cells, uint64_t ids);

static inline tn_entry *list_of(const tn_batch *batch, uint64_t first_id, uint64_t ids_of_part,
                                int owner) {
    return batch->entries + first_id * (uint64_t)batch->threads + ids_of_part * (uint64_t)owner;
}

/* The state of a batch of the given sources, empty of another one. Empty, too, once rows of its
 * table were removed, for its pointers may be to rows that are free now. */
static inline tn_batch_state state_of(const tn_batch *batch, unsigned sources) {
    int valid = batch->source == BATCH_OF_KEYS || batch->removals == batch->table->removals;
    return valid && (batch->source & sources) ? batch->state : BATCH_EMPTY;
}

/* Whether what the batch reads of show and click is to lack each example's own part: its examples
 * train, and were counted in an earlier pass. Rows that are pulled then have show and click in the
 * place of cvm's columns, which tn_gather makes of them. */
static inline int tn_leaves_out(const tn_batch *batch) {
    return batch->table->cvm && !batch->table->counting && batch->state != BATCH_READ;
}

static inline uint32_t example_of(const tn_batch *batch, uint32_t cell) {
    /* With one slot the factor would be 2^64. */
    return batch->n_slots == 1 ? cell : (uint32_t)((tn_wide)batch->cell_factor * cell >> 64);
}

/* Whether an entry of an inserting batch is an occurrence before its id's row is made. It reads
 * zeros, and its gradient goes to a place of the sums that belongs to no row. */
static inline int waits(const tn_batch *batch, const tn_entry *entry) {
    return entry->row == (const tn_row *)(const void *)batch->table->zero_row;
}

/* The ids of part t: [*from, *to). */
static inline void part_of(const tn_batch *batch, int t, uint64_t *from, uint64_t *to) {
    *from = batch->first_of_part[t];
    *to = batch->first_of_part[t + 1];
}

#endif
