/* tnctl.h - sparse and dense tables for click-through-rate models
 *
 * A sparse table maps (group, 64-bit feature id) to a row of float weights and
 * optimizer state, and grows as ids arrive. A step of training is four calls:
 *
 *     tn_find        ids -> rows, each distinct id once; missing ids are inserted
 *     tn_gather      rows -> pooled values, written into the model's input
 *     tn_accumulate  gradients of that input -> one summed gradient per row
 *     tn_apply       the optimizer of each segment, in place
 *
 * Words (slot, group, row, segment, table) are those of docs/design.md.
 *
 * A row, packed, its stride a multiple of 8 bytes:
 *
 *      0        8      12     14     16       20
 *     +--------+------+------+------+--------+-------------------+-------------------+
 *     | id     | uidx | grp  | flags| changed| optimizer state   | weights           |
 *     +--------+------+------+------+--------+-------------------+-------------------+
 *       u64      u32    u16    u16    u32      f32, per segment    f32, per segment
 *
 * With `linear` (1) and `embedding` (8), both row-wise AdaGrad, it is 64 bytes
 * and the embedding starts at byte 32. `uidx` has a meaning only inside one
 * tn_find: the row's place among the rows of the batch, believed only if the
 * row standing there is this row; so it is never cleared. `changed` is the
 * table's step (tn_table_set_step) at the row's last insertion or update.
 *
 * Order. The hash of a key is mix64(id ^ salt of its group), a bijection per
 * group. The top 6 bits choose one of 64 shards, the next 32 are the tag:
 *
 *     63    58 57                          26 25                    0
 *     +-------+------------------------------+-----------------------+
 *     | shard | tag                          | only in the row's id  |
 *     +-------+------------------------------+-----------------------+
 *
 * The index of a shard is an array of 8-byte entries (tag, row number) with
 * linear probing, the home of an entry being tag * capacity / 2^32: entries
 * stand in the order of the hash, so growing is one streaming pass that reads
 * no row, and tn_encode walks a table in (hash, group) order.
 *
 * Threads. A tn_pool runs a call on several threads. Each thread owns whole
 * shards and meets its ids in the order of the batch, so weights after any
 * number of steps are the same bytes for any number of threads.
 *
 * What hurts:
 *  - One batch at a time per table: from tn_find to tn_apply no other tn_batch
 *    of the same table may insert. Each call takes the table's lock; the
 *    sequence of calls is the caller's to keep.
 *  - No call keeps a pointer it was given, except tn_pool in what was built on
 *    it: free the pool last, and batches before their table.
 *  - When memory runs out in tn_find, rows inserted before the failing one
 *    stay, with their initial weights; nothing else changes.
 *  - Weights do not depend on the CPU only while compiled without fused
 *    multiply-add and -ffast-math (setup.py sees to it).
 *
 * Every function that returns int returns TN_OK or one of the negative codes,
 * and leaves its outputs alone when it fails (but for the records of
 * tn_encode, which may have been written in part).
 */
#ifndef TNCTL_H
#define TNCTL_H

#include <stddef.h>
#include <stdint.h>

/* CFFI begin */

/* ---- Codes -------------------------------------------------------------- */

#define TN_OK 0
#define TN_NO_MEMORY -1  /* an allocation failed */
#define TN_BAD_VALUE -2  /* an argument is out of its range */
#define TN_NO_GROUP -3   /* a slot or a record names a group the table lacks */
#define TN_NOT_FINITE -4 /* a gradient is NaN, infinite or beyond 2^58; nothing was applied */
#define TN_BAD_ORDER -5  /* records are not in ascending (hash, group) order */
#define TN_KEY_EXISTS -6 /* a record's key is already in the table */
#define TN_NO_BATCH -7   /* gather, accumulate or apply before a fitting tn_find */
#define TN_NO_THREAD -8  /* a thread could not be started */
#define TN_TABLE_FULL -9 /* a shard has no row numbers left */

/* The plain words for a code; never NULL. */
const char *tn_message(int code);

/* ---- Threads ------------------------------------------------------------ */

typedef struct tn_pool tn_pool;

/* `threads` counts the caller's own: 1 starts none. At most 64. */
int tn_pool_new(int threads, tn_pool **out);
void tn_pool_free(tn_pool *pool);
/* While held, idle threads spin instead of sleeping (unless there are more threads than CPUs): for
 * a burst of calls, to be released before anything else wants the cores. */
void tn_pool_hold(tn_pool *pool, int held);

/* ---- Optimizers --------------------------------------------------------- */

#define TN_ADAGRAD 1 /* G += sum(g^2)/width; w -= lr*g/(sqrt(G)+eps); one G a row */
#define TN_ADAM 2    /* Kingma & Ba, alg. 1, lr*sqrt(1-b2^t)/(1-b1^t); t per row */

typedef struct tn_optimizer {
    uint32_t kind;
    float learning_rate;
    float epsilon;             /* above 0 */
    float initial_accumulator; /* AdaGrad: G of a new row */
    double beta1, beta2;       /* Adam: each in [0, 0.9999] */
} tn_optimizer;

/* ---- Sparse table ------------------------------------------------------- */

typedef struct tn_table tn_table;

#define TN_CONCAT 1 /* pooled per slot into that slot's columns */
#define TN_SUM 2    /* pooled per slot, then added over the slots in their order */

typedef struct tn_segment {
    uint32_t width;  /* floats per row, 1 to 1024 */
    uint32_t output; /* TN_CONCAT or TN_SUM */
    tn_optimizer optimizer;
} tn_segment;

#define TN_ZEROS 0
#define TN_UNIFORM 1 /* in [-scale, scale) */
#define TN_NORMAL 2  /* four uniforms summed: mean 0, standard deviation `scale` */

typedef struct tn_initial {
    uint32_t kind;
    float scale;
} tn_initial;

/* A table of rows with 1 to 4 segments. Initial weights are a function of
 * (seed, group name, id, segment, coordinate) and of nothing else. */
int tn_table_new(const tn_segment *segments, uint32_t n_segments, uint64_t seed, tn_pool *pool,
                 tn_table **out);
void tn_table_free(tn_table *table);

/* Declares group `number` (any unused uint16): its name salts the hash. `initial` has one
 * entry per segment. */
int tn_table_add_group(tn_table *table, uint16_t number, const char *name,
                       const tn_initial *initial);
int tn_table_set_learning_rate(tn_table *table, uint32_t segment, float learning_rate);
int tn_table_set_step(tn_table *table, uint32_t step);

uint64_t tn_table_rows(tn_table *table);
uint64_t tn_table_group_rows(tn_table *table, uint16_t number);
/* Bytes that the index and the rows (used or not) have reserved. */
uint64_t tn_table_index_bytes(tn_table *table);
uint64_t tn_table_row_bytes(tn_table *table);
uint32_t tn_table_stride(tn_table *table);
/* Bytes of one encoded record: the row without uidx and without padding. */
uint32_t tn_table_record_size(tn_table *table);

/* ---- A batch of examples ------------------------------------------------ */

typedef struct tn_batch tn_batch;

#define TN_POOL_SUM 1
#define TN_POOL_MEAN 2  /* the sum divided once by the number of ids */
#define TN_POOL_SQRTN 3 /* the sum divided once by sqrtf of that number */

typedef struct tn_slot {
    uint16_t group;
    uint16_t pooling;
    uint32_t column; /* where the slot's TN_CONCAT values start in an output row */
} tn_slot;

/* A workspace for batches of the given slots, 1 to 65535. */
int tn_batch_new(tn_table *table, const tn_slot *slots, uint32_t n_slots, tn_batch **out);
void tn_batch_free(tn_batch *batch);

/* Looks up `examples` x n_slots cells, example after example: cell c has the ids
 * ids[offsets[c]] .. ids[offsets[c + 1] - 1]; zero, one or many. With `insert` a missing id gets a
 * row; without, it reads zeros and nothing is written: not the table, and no gradient can follow.
 */
int tn_find(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, uint32_t examples,
            int insert);
/* How many distinct rows the last inserting tn_find met. */
uint64_t tn_batch_rows(tn_batch *batch);

/* Writes the found rows, pooled, into outputs[s] for each segment s; row b of it starts at
 * outputs[s] + b * strides[s]. A TN_SUM segment is added to what its output holds when `add` is
 * not 0 (a second table), and starts from 0 otherwise. Sums run in float32 in the order of the
 * ids. */
int tn_gather(tn_batch *batch, float *const *outputs, const uint32_t *strides, int add);

/* Sums gradients, laid out as tn_gather's outputs, per row in the order of the batch.
 * TN_NOT_FINITE when a sum is not finite. Nothing is applied yet. */
int tn_accumulate(tn_batch *batch, const float *const *gradients, const uint32_t *strides);

/* Updates every row of the batch once with its summed gradient. */
int tn_apply(tn_batch *batch);

/* ---- Rows to bytes and back --------------------------------------------- */

/* Records, little-endian and packed: id u64, group u16, flags u16, changed u32, state, weights. */

/* Writes up to `capacity` records with first <= hash <= last in (hash, group) order. `written`
 * tells how many; `next` is the hash to go on from, `more` 0 when the range is done. A capacity
 * below 65536 may be too small for keys that share a hash: TN_BAD_VALUE. */
int tn_encode(tn_table *table, uint64_t first, uint64_t last, void *records, uint64_t capacity,
              uint64_t *written, uint64_t *next, int *more);
/* Inserts `n` records. All are checked (order, groups, keys) before the first goes in. */
int tn_decode(tn_table *table, const void *records, uint64_t n);
/* Copies the weights of (group, id) out, or zeros; `found` tells. */
int tn_table_lookup(tn_table *table, uint16_t group, uint64_t id, float *weights, int *found);

/* ---- Dense table -------------------------------------------------------- */

typedef struct tn_dense tn_dense;

/* `n` floats of weights, zero, 64-byte aligned, with the optimizer's state. */
int tn_dense_new(const tn_optimizer *optimizer, uint64_t n, tn_pool *pool, tn_dense **out);
void tn_dense_free(tn_dense *dense);
/* The memory itself, for variables to live in: weights, or state k (Adam: 0 is m, 1 is v; AdaGrad,
 * which keeps one G a coordinate here: 0). NULL when there is no such state. */
float *tn_dense_weights(tn_dense *dense);
float *tn_dense_state(tn_dense *dense, uint32_t k);
int tn_dense_set_learning_rate(tn_dense *dense, float learning_rate);
uint64_t tn_dense_step(tn_dense *dense);
int tn_dense_set_step(tn_dense *dense, uint64_t step);
/* Gradient i covers weights offsets[i] .. offsets[i] + lengths[i] - 1. */
int tn_dense_check(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                   const uint64_t *lengths, uint32_t n);
int tn_dense_apply(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                   const uint64_t *lengths, uint32_t n);

/* ---- Columns to ids ----------------------------------------------------- */

/* h = seed; for each 8-byte little-endian word w, zero-padded: h = mix64(h ^ w);
 * id = mix64(h ^ length). mix64 is MurmurHash3's 64-bit finalizer. */
uint64_t tn_hash_bytes(const void *bytes, uint64_t length, uint64_t seed);
uint64_t tn_mix64(uint64_t x);
uint64_t tn_unmix64(uint64_t x);
/* The salt of a group's hash: hash = mix64(id ^ salt). */
uint64_t tn_group_salt(const char *name);

/* String i is data[offsets[i]] .. data[offsets[i + 1] - 1], as in Arrow's buffers. */
void tn_hash_strings32(const char *data, const int32_t *offsets, uint64_t n, uint64_t seed,
                       uint64_t *ids);
void tn_hash_strings64(const char *data, const int64_t *offsets, uint64_t n, uint64_t seed,
                       uint64_t *ids);
/* Integers hash as their decimal text. */
void tn_hash_int64(const int64_t *values, uint64_t n, uint64_t seed, uint64_t *ids);
void tn_hash_uint64(const uint64_t *values, uint64_t n, uint64_t seed, uint64_t *ids);

/* Columns side by side to cells example after example. Column c has ids[c] and, when it does not
 * have exactly one id per row, offsets[c] of rows + 1 entries; else offsets[c] is NULL.
 * out_offsets has rows * columns + 1 entries, out_ids as many as all columns together. */
void tn_interleave(const uint64_t *const *ids, const int32_t *const *offsets, uint32_t columns,
                   uint64_t rows, uint64_t *out_ids, uint32_t *out_offsets);
/* The cells of the chosen examples, in the order chosen. TN_BAD_VALUE when out_ids, which holds
 * `capacity`, is too small. */
int tn_take(const uint64_t *ids, const uint32_t *offsets, uint32_t columns, const uint32_t *chosen,
            uint64_t n, uint64_t *out_ids, uint64_t capacity, uint32_t *out_offsets);
/* A permutation of 0 .. n - 1 that is a function of (seed, epoch, window, n) alone. */
void tn_permutation(uint64_t seed, uint64_t epoch, uint64_t window, uint32_t n, uint32_t *out);

/* ---- Streaming AUC ------------------------------------------------------ */

/* Counts examples per bin of squash(logit) = logit / (1 + |logit|), by label (>= 0.5 is a click).
 * Logits that are NaN count in bin 0. */
void tn_auc_update(const float *logits, const float *labels, uint64_t n, uint64_t *clicks,
                   uint64_t *others, uint32_t bins);
/* The area under the curve of the counts, ties counting half; 0.5 without both classes. */
double tn_auc_result(const uint64_t *clicks, const uint64_t *others, uint32_t bins);

/* ---- Memory ------------------------------------------------------------- */

/* Zeroed memory on a 64-byte boundary (2 MiB and huge pages from 4 MiB on), as TensorFlow needs it
 * to use the memory in place. NULL when there is none. */
void *tn_aligned_new(uint64_t bytes);
void tn_aligned_free(void *memory);

/* CFFI end */

#endif
