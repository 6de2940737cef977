/* tn_exchange.h - a step whose rows are in the tables of several processes.
 *
 * N processes train one table. Each has examples of its own (a rank), and is a peer of the others:
 * it owns a range of the 64 shards of the hash, and the rows of their keys. A step is, for rank r
 * with a tn_batch of keys, and for each peer p with a tn_batch that pulls:
 *
 *     rank r                                               peer p
 *     tn_keys          ids -> distinct keys, by peer
 *     tn_keys_write    -- ids, groups, occurrences -->     tn_pull        keys of all ranks -> rows
 *     tn_keys_set_rows <-- rows as they read, waits --     tn_pull_read, tn_pull_waits
 *     tn_gather        rows -> model's input
 *     tn_accumulate    gradients -> a sum per key
 *     tn_keys_sums     -- a sum per key -------------->    tn_push_sums   reduced in rank order
 *     tn_keys_shows    -- show and click per key ----->    tn_push_shows
 *                                                          tn_apply
 *
 * A key travels once. Rows, waits, sums and counts are in the order in which the keys of this rank
 * and this peer were written, so none of them has a key beside it:
 *
 *     ids        u64 [n]              as they are
 *     groups     u16 [n]
 *     occurrences u32 [n]             in the rank's batch
 *     rows       f32 [n, read]        weights of all segments in their order, with cvm's columns;
 *                                     show and click instead, for training while the table does
 *                                     not count: tn_gather makes the columns of each example
 *     waits      u32 [n]              the first occurrences, which wait for the key's admission
 *     sums       f32 [n, weights]     gradients of the segments, the widest first (equal: in order)
 *     counts     f32 [n, 2]           show and click
 *
 * Keys of one shard are written in the order in which the batch first met them, and tn_pull inserts
 * in rank order: so a peer's table holds the rows, in the same order in each shard, that tn_find
 * would have inserted for the batches of the ranks one after the other.
 *
 * Keys with a hash table. tn_find numbers rows by a field in the row itself; here there are no
 * rows. Each thread therefore has a hash table of its own: linear probing from the low bits of the
 * hash, at most half full. An entry holds the whole hash and the group, which are the key, so a
 * search reads nothing else. Threads divide the 64 shards, whichever the process owns, as in a
 * table that owns all; a thread's keys have places from first_row on, in the order it met them:
 *
 *     shards     0 .............. 31 | 32 .............. 63      2 threads
 *     peers      0 ...... 20 | 21 ...... 41 | 42 ...... 63       3 peers
 *     places     [ of thread 0, x ]  [ of thread 1, x ]          x: no_row, of ids that wait
 *     order      [ peer 0| peer 1 ]  [ peer 1| peer 2 ]          the same places, sorted by peer
 *
 * `order` lists the places of a thread by peer, by counting sort, which keeps the order of the keys
 * of a peer. The keys of peer 1 are the second part of the first list and the first of the second.
 *
 * Rows in the reply's bytes. An entry's row is a pointer such that tn_gather finds the weights of a
 * segment where it would find them in a row, though what is there is the received array: gathering
 * copies nothing before it pools. The first `waits` occurrences of a key get the row of zeros and
 * the place no_row, whose sum nobody reads, as in a table (tn_find.c). */
#ifndef TN_EXCHANGE_H
#define TN_EXCHANGE_H

#include "tn_batch.h"

#define MAX_RANKS 64u /* that push */
#define MAX_PEERS 65u /* that keys are dealt to: the owners, and one without shards */

/* ---- Keys of a batch ----------------------------------------------------- */

typedef struct {
    uint64_t hash;
    uint32_t number; /* the key's place + 1; 0: empty */
    uint16_t group;
    uint16_t unused;
} tn_key_slot;

typedef struct tn_key_set {
    /* By place. */
    uint64_t *hashes;
    uint32_t *occurrences, *waits;
    uint16_t *groups;
    uint32_t *order; /* the places of each thread, from its first_row on, by peer */
    tn_key_slot *slots;
    uint64_t first_slot[MAX_THREADS], most_slots[MAX_THREADS]; /* of each thread; powers of two */
    uint64_t expected[MAX_THREADS];                            /* keys that it met the last time */
    uint8_t peer_of_shard[SHARDS];
    uint32_t n_peers;
    uint64_t starts[MAX_THREADS][MAX_PEERS + 1]; /* in its part of `order` */
} tn_key_set;

/* The places of a peer's keys on a thread, in order[*first] .. order[*last - 1]. */
static inline void keys_of(const tn_batch *batch, int thread, uint32_t peer, uint64_t *first,
                           uint64_t *last) {
    const uint64_t *starts = batch->keys->starts[thread];
    *first = batch->owners[thread].first_row + starts[peer];
    *last = batch->owners[thread].first_row + starts[peer + 1];
}

/* How many keys of a peer the threads before this one have. */
static inline uint64_t keys_before(const tn_batch *batch, int thread, uint32_t peer) {
    uint64_t n = 0;
    for (int t = 0; t < thread; t++) {
        n += batch->keys->starts[t][peer + 1] - batch->keys->starts[t][peer];
    }
    return n;
}

static inline int check_keys(const tn_batch *batch, uint32_t peer, tn_batch_state state) {
    if (state_of(batch, BATCH_OF_KEYS) < state) {
        return TN_NO_BATCH;
    }
    return peer < batch->keys->n_peers ? TN_OK : TN_BAD_VALUE;
}

/* ---- Keys of ranks ------------------------------------------------------- */

typedef struct tn_pulled {
    uint32_t *occurrences, *waits; /* per key */
    uint64_t first_key[MAX_PEERS + 1];
    uint32_t n_ranks;
    uint32_t summed, counted; /* ranks before these have pushed, or will not */
} tn_pulled;

static inline int check_rank(const tn_batch *batch, uint32_t rank, tn_batch_state state) {
    if (state_of(batch, BATCH_PULLED) < state) {
        return TN_NO_BATCH;
    }
    return rank < batch->pulled->n_ranks ? TN_OK : TN_BAD_VALUE;
}

#define FEW_KEYS 1024u /* fewer are not worth waking a thread for */

/* Runs a job on the keys of a rank: on the pool, or on this thread, part after part. */
static inline void run_on_keys(const tn_batch *batch, uint64_t keys, tn_job job, void *argument) {
    if (keys >= FEW_KEYS) {
        tn_thread_pool_run(batch->table->pool, job, argument);
        return;
    }
    for (int t = 0; t < batch->threads; t++) {
        job(argument, t, batch->threads);
    }
}

/* ---- Messages ------------------------------------------------------------ */

/* Whether an array of a message may be used where it lies. */
static inline int is_aligned(const void *array, uintptr_t bytes) {
    return (uintptr_t)array % bytes == 0;
}

/* Copies a row of floats; widths that most tables have without a call. */
TN_INLINE void copy_row(float *restrict to, const float *restrict from, uint32_t n) {
    switch (n) {
    case 8:
        memcpy(to, from, 8 * sizeof *to);
        break;
    case 9:
        memcpy(to, from, 9 * sizeof *to);
        break;
    case 17:
        memcpy(to, from, 17 * sizeof *to);
        break;
    default:
        memcpy(to, from, n * sizeof *to);
    }
}

#endif
