/* tn_batch.h - a batch on its way through find, gather, accumulate and apply.
 *
 * The ids of a batch pass through three orders, none of which writes to another thread's memory:
 *
 *   part      thread t reads its part of the examples and deals the ids out: entry (t, o) lists are
 *             the ids of part t whose shards thread o owns, in the order of the batch
 *   owned     thread o walks the lists (0, o), (1, o), ... : again the order of the batch; it finds
 *             the rows, and later sums the gradients of each row in this same order
 *   part      to pool, thread t walks its examples again; entry_of tells which list and place each
 *             id was dealt to
 *
 * Distinct rows are numbered per owner in the order they are first met (uidx), from first_row on.
 */
#ifndef TN_BATCH_H
#define TN_BATCH_H

#include "tn_table.h"

#define AHEAD 16 /* rows on their way while pooling */
#define MAX_THREADS 64

/* One id on its way: first the id and its group, then the row and its place in the batch. */
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

struct tn_batch {
    tn_table *table;
    tn_slot *slots;
    uint32_t n_slots;
    uint64_t cell_factor; /* cell / n_slots = cell * cell_factor >> 64 */
    int threads, sum_only, any_apart;
    int found;         /* 0 nothing yet, 1 reading, 2 inserting, 3 gradients summed */
    uint64_t removals; /* the table's, at the last tn_find */

    const uint64_t *ids; /* the caller's, as the weights: during tn_find only */
    const float *given_weights;
    uint32_t examples;
    char *workspace; /* all arrays below */
    uint64_t workspace_bytes;
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
    uint64_t counts[MAX_THREADS][MAX_THREADS]; /* [part][owner] */

    tn_row **rows;
    float *sums;
    uint32_t sums_stride;
    float *shows; /* per row, where the table keeps them: its occurrences and their clicks, */
    int counted;  /* once tn_count has summed them */
    tn_owner owners[MAX_THREADS];
    uint64_t met; /* distinct rows of the last inserting tn_find */
};

static inline tn_entry *list_of(const tn_batch *batch, uint64_t first_id, uint64_t ids_of_part,
                                int owner) {
    return batch->entries + first_id * (uint64_t)batch->threads + ids_of_part * (uint64_t)owner;
}

/* What the last tn_find is still good for: nothing once rows were removed. */
static inline int found(const tn_batch *batch) {
    return batch->removals == batch->table->removals ? batch->found : 0;
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
    uint64_t first = tn_part(batch->examples, t, batch->threads);
    uint64_t last = tn_part(batch->examples, t + 1, batch->threads);
    *from = batch->offsets[first * batch->n_slots];
    *to = batch->offsets[last * batch->n_slots];
}

#endif
