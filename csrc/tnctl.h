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
 * The words slot, group, row, segment and table are defined in docs/design.md.
 *
 * A row, packed, its stride a multiple of 8 bytes:
 *
 *      0        8      12     14     16       20
 *     +--------+------+------+------+--------+-------------------+-------------------+
 *     | id     | uidx | grp  | flags| changed| optimizer state   | weights           |
 *     +--------+------+------+------+--------+-------------------+-------------------+
 *       u64      u32    u16    u16    u32      f32, per segment    f32, per segment
 *
 * and, where a table keeps them, show and click (f32).
 * With `linear` (1) and `embedding` (8), both row-wise AdaGrad, it is 64 bytes
 * and the embedding starts at byte 32. `uidx` has a meaning only for the batch
 * of the last tn_find that inserts: the row's place among the rows of the
 * batch, believed only if the row standing there is this row; so it is never
 * cleared. With updates of all rows tn_apply and tn_norm read it, too.
 * `changed` is the
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
 * Threads. A tn_thread_pool runs a call on several threads. Each thread owns whole
 * shards and meets its ids in the order of the batch, so weights after any
 * number of steps are the same bytes for any number of threads.
 *
 * What hurts:
 *  - One batch at a time per table: from tn_find to tn_apply no other tn_batch
 *    of the same table may insert. Each call takes the table's lock; the
 *    sequence of calls is the caller's to keep.
 *  - No call keeps a pointer it was given, except tn_thread_pool in what was built on
 *    it: free the pool last, and batches before their table.
 *  - When memory runs out in tn_find, rows inserted before the failing one
 *    stay, with their initial weights, and what the sketch counted stays
 *    counted; nothing else changes.
 *  - Weights do not depend on the CPU only while compiled without fused
 *    multiply-add and -ffast-math (setup.py sees to it).
 *
 * Every function that returns int returns TN_OK or one of the negative codes,
 * and leaves its outputs alone when it fails (but for the records of
 * tn_encode and the arrays of "Columns to ids", which may have been written
 * in part).
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
#define TN_TOO_LONG -10  /* a record of a TFRecord file is beyond TN_TFRECORD_LIMIT */
#define TN_NOT_OWNED -11 /* a key is of a shard that the table does not own */

/* The plain words for a code; never NULL. */
const char *tn_message(int code);

/* ---- Threads ------------------------------------------------------------ */

typedef struct tn_thread_pool tn_thread_pool;

/* `threads` counts the caller's own: 1 starts none. At most 64. */
int tn_thread_pool_new(int threads, tn_thread_pool **out);
void tn_thread_pool_free(tn_thread_pool *pool);
/* While held, idle threads spin instead of sleeping (unless there are more threads than CPUs): for
 * a burst of calls, to be released before anything else wants the cores. */
void tn_thread_pool_hold(tn_thread_pool *pool, int held);

/* ---- Optimizers --------------------------------------------------------- */

/* What a kind does to weights w with the gradient g, coordinate by coordinate unless it says
 * "a row", and the floats of state that it keeps, in their order. lr is the learning rate. */
#define TN_ADAGRAD 1 /* G += sum(g^2)/width; w -= lr*g/(sqrt(G)+eps). One G a row; dense: as 4 */
#define TN_ADAM 2    /* Kingma & Ba, alg. 1, lr*sqrt(1-b2^t)/(1-b1^t). t (u32) a row; m, v */
#define TN_SGD                                                                                     \
    3 /* w -= lr*g; with momentum: m = momentum*m + g; w -= lr*m, or with nesterov                 \
       * w -= lr*(g + momentum*m). m, with momentum alone */
#define TN_ADAGRAD_COORDINATE 4 /* G += g^2; w -= lr*g/(sqrt(G)+eps). G */
/* FTRL-proximal (McMahan et al. 2013, alg. 1): s = (sqrt(n+g^2)-sqrt(n))/lr; z += g - s*w;
 * n += g^2; w = 0 if |z| <= l1, else -(z - sign(z)*l1)/((beta+sqrt(n))/lr + l2). n, z. Nothing
 * moves while the learning rate is 0. */
#define TN_FTRL 5
/* TensorNet's own. AdaGrad: as TN_ADAGRAD, the squares summed in double. Dense, with the
 * decay rates beta2 (grad_decay_rate) and beta1 (mom_decay_rate), each up to 1: D = beta2*D + 1;
 * G = beta2*G + g^2; m += (g-m)*(1-beta1); w -= lr*m/(sqrt(G)/sqrt(D)+eps). D, G, m.
 * Adam: without bias correction, m, v; dense: as TN_ADAM. FTRL: its lr is 1/lr of TN_FTRL, n
 * starts at 0; not dense. */
#define TN_TENSORNET_ADAGRAD 6
#define TN_TENSORNET_ADAM 7
#define TN_TENSORNET_FTRL 8

/* Settings are finite and at least 0, those that a kind does not have too, which it ignores. What
 * every kind has (l2, decay, clip, bound, max_norm, lazy_l2) is off at 0. */
typedef struct tn_optimizer {
    uint32_t kind;
    uint32_t nesterov; /* SGD with momentum */
    float learning_rate;
    float epsilon;             /* above 0 where the kind has it */
    float initial_accumulator; /* G of AdaGrad, n of FTRL: where they start */
    float momentum;            /* SGD: below 1 */
    float l1, beta;            /* FTRL; beta, l2 or initial_accumulator must be above 0 */
    float l2;            /* FTRL's own; of other kinds: g += l2*w of each row that is updated */
    float decay;         /* of the weights, see below */
    float clip;          /* each coordinate of a summed gradient is held in [-clip, clip] */
    float bound;         /* each weight is held in [-bound, bound] after its update */
    float max_norm;      /* then a row's longer w is scaled to this L2 norm; not dense */
    float lazy_l2;       /* rows of TN_ADAGRAD without decay, see below */
    double beta1, beta2; /* Adam: each in [0, 0.9999] */
} tn_optimizer;

/* A setting of a kind: a member of tn_optimizer. */
#define TN_FLOAT 1
#define TN_DOUBLE 2
#define TN_SWITCH 3 /* 0 or 1, a uint32 */
typedef struct tn_setting {
    const char *name; /* NULL: this entry and those after it are unused */
    uint32_t type;
    uint32_t offset; /* of the member, in bytes */
    double initial;  /* what to set where nobody says otherwise */
    double highest;  /* the greatest value that is taken */
    uint32_t above_zero;
} tn_setting;

/* A state that a kind keeps beside the weights; it starts at 0 unless it is an accumulator. */
#define TN_PER_WEIGHT 1 /* a float for each weight */
#define TN_PER_ROW 2    /* one float for the segment of a row */
#define TN_STEPS 3      /* one uint32 for the segment of a row: its updates so far */
typedef struct tn_state {
    const char *name;
    uint32_t extent;
    uint32_t accumulator; /* 1: starts at initial_accumulator */
    uint32_t of_momentum; /* 1: kept only while momentum is above 0 */
} tn_state;

#define TN_MAX_SETTINGS 5
#define TN_MAX_STATES 3
/* What a kind is, beside its formulas; from the one table of optimizers, csrc/tn_optimizer.c. */
typedef struct tn_kind {
    const char *name;
    tn_setting settings[TN_MAX_SETTINGS];
    tn_state row_states[TN_MAX_STATES], dense_states[TN_MAX_STATES];
    uint32_t rows_only; /* 1: dense weights cannot have it */
} tn_kind;

/* A kind by its number; NULL when there is none. They are numbered from 1 without gaps. */
const tn_kind *tn_optimizer_kind(uint32_t kind);
/* The settings that every kind has beside its own, a list that ends with the name NULL. */
const tn_setting *tn_optimizer_extras(void);
/* The states that an optimizer keeps with its settings, in their order; returns how many, at most
 * TN_MAX_STATES, and 0 for a kind that does not exist. */
uint32_t tn_optimizer_states(const tn_optimizer *optimizer, int dense, tn_state *states);

/* In this order: the gradient is clipped, l2*w is added, it is scaled (tn_apply); the weights
 * decay, are updated, bounded, and brought to max_norm.
 *
 * Decay is not a part of the gradient. Dense: w -= lr*decay*w (AdamW). Sparse: each step of the
 * table multiplies every weight by f = 1 - learning_rate*decay, with the learning rate that the
 * table was made with: a schedule does not reach it. It is lazy: a row keeps the weights of its
 * last update (`changed`), which are what tn_encode writes, and reads as w * f^(steps since then),
 * the power taken by repeated squaring in double, rounded to float, then multiplied once. A find
 * that inserts belongs to the table's step and reads the weights as the step before left them;
 * one that does not, and tn_table_lookup, read them at the table's step.
 *
 * lazy_l2 is L2 of every row at every step, where l2 is of the rows of the batch: the same with
 * f = 1 - learning_rate*lazy_l2/(sqrt(G)+eps), at least 0, with the G of the row's last update. It
 * is what AdaGrad takes off for the gradient lazy_l2*w, so that a row that is updated rarely comes
 * to rest where its mean gradient and lazy_l2*w are equal (Carpenter, Lazy Sparse Stochastic
 * Gradient Descent for Regularized Multinomial Logistic Regression, 2008, section 3.2). */

/* factors[i] = f^counts[i], as tables read decayed weights. */
void tn_decay_factors(double f, const uint32_t *counts, uint64_t n, float *factors);
/* The same with the f of lazy_l2 for each accumulator G; `shrink` is learning_rate*lazy_l2. */
void tn_lazy_factors(double shrink, float epsilon, const float *accumulators,
                     const uint32_t *counts, uint64_t n, float *factors);

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
int tn_table_new(const tn_segment *segments, uint32_t n_segments, uint64_t seed,
                 tn_thread_pool *pool, tn_table **out);
void tn_table_free(tn_table *table);

/* Declares group `number` (any unused uint16): its name salts the hash. `initial` has one
 * entry per segment. */
int tn_table_add_group(tn_table *table, uint16_t number, const char *name,
                       const tn_initial *initial);
int tn_table_set_learning_rate(tn_table *table, uint32_t segment, float learning_rate);
int tn_table_set_step(tn_table *table, uint32_t step);
/* Which rows tn_apply updates: the rows of the batch (0), or all rows of the table (1), the others
 * with the gradient 0 (and l2*w), exactly as a dense variable trains. Adam's t of a row that
 * is inserted then starts as if the row had been there since step 1. */
int tn_table_set_updates(tn_table *table, int all);

/* The table owns `count` of the 64 shards, from `first` on; at first all. tn_find, tn_decode and
 * tn_pull refuse keys of others: TN_NOT_OWNED, and nothing changes. Its threads divide the shards
 * that it owns. To be set while the table has no row. */
int tn_table_set_shards(tn_table *table, uint32_t first, uint32_t count);

uint64_t tn_table_rows(tn_table *table);
uint64_t tn_table_group_rows(tn_table *table, uint16_t number);
/* Bytes that the index and the rows (used or not) have reserved. */
uint64_t tn_table_index_bytes(tn_table *table);
uint64_t tn_table_row_bytes(tn_table *table);
uint32_t tn_table_stride(tn_table *table);
/* Bytes of one encoded record: the row without uidx and without padding. */
uint32_t tn_table_record_size(tn_table *table);

/* ---- A row's life ------------------------------------------------------- */

/* Show and click: how often a key was in a batch, and the sum of its examples' clicks, two floats a
 * row after its weights. They are stored as of the row's last update (`changed`), which tn_encode
 * writes, and read as their product with show_decay^(days since then), the power computed as for
 * the weights' decay: a day's end touches no row.
 *
 * With `cvm` rows of a TN_CONCAT segment read two columns more, wherever rows are read (tn_gather,
 * tn_table_lookup): [weights, show, ln(click + 1) - ln(show + 1)], pooled as the weights are.
 * Gradients have these columns too, and they are ignored.
 *
 * To be set before the first group. `cvm` needs `shows`. */
int tn_table_set_shows(tn_table *table, int shows, int cvm);

/* Whether occurrences count: for admission, and for show and click. 1 at first. With 0, of examples
 * that were counted in an earlier pass over the same data, tn_find and tn_pull insert the keys that
 * the occurrences counted so far admit (those of an evicted row), tn_apply adds nothing to show and
 * click, and tn_gather leaves out what an example has counted itself (tn_leave_out). */
int tn_table_set_counting(tn_table *table, int counting);
/* Whether a tn_find with `insert`, or a tn_pull that inserts, gives rows to keys that have none. 1
 * at first. With 0 the rows that are there are trained; other keys read zeros and get no gradient.
 */
int tn_table_set_inserting(tn_table *table, int inserting);

/* The day of a step. Days are a list: day i begins with step first_steps[i], and neither ever falls
 * from one entry to the next. The day of a step is days[i] of the last i with first_steps[i] <=
 * step. A step before first_steps[0] is of the first day, days[0]: no row is older than the first
 * day. While the list is empty every step is of day 0. This is the only definition: all that needs
 * the day of a step, in C and outside, calls this function or sets a table's days. */
void tn_days_of_steps(const uint32_t *days, const uint32_t *first_steps, uint32_t n_days,
                      const uint32_t *steps, uint64_t n, uint32_t *out);
/* Sets the days of a table, all each time; TN_BAD_VALUE when an entry falls. The table's own day,
 * at which rows are read, is the last one, or 0 without. */
int tn_table_set_days(tn_table *table, const uint32_t *days, const uint32_t *first_steps,
                      uint32_t n);
uint32_t tn_table_day(tn_table *table);

/* The two columns of records, show and click times factors[i] (tn_decay_factors): columns[2 * i]
 * and columns[2 * i + 1]. */
void tn_cvm_columns(const float *show, const float *click, const float *factors, uint64_t n,
                    float *columns);

/* The rules of a group. */
typedef struct tn_life {
    /* Admission: the occurrence of an id that makes its row, 1 to 255; or the chance of each. */
    uint32_t admit_after;
    double admit_probability; /* above 0, up to 1; below 1 only with admit_after 1 */
    double show_decay;        /* what a day leaves of show and click, 0 to 1 */
    /* Eviction; a rule is off at 0. */
    uint32_t unseen_steps, unseen_days; /* rows not updated for more than that */
    double show;                        /* rows whose show is below this, as it reads */
    uint32_t both;                      /* 1: rows that `show` and an unseen rule name; 0: either */
    /* Rows whose (show - click) * nonclick + click * this `click` is below `score`. */
    double score, nonclick, click;
    uint64_t most_rows; /* most rows of a group, see tn_evict_surplus */
} tn_life;

/* Off by default. TN_BAD_VALUE for a number out of its range, rules by show or score in a table
 * without shows, and `both` without the two rules. */
int tn_table_set_life(tn_table *table, uint16_t group, const tn_life *life);

/* Removes every row that its group's rules name, at the table's step and day; most_rows is not
 * one of them. The memory of a removed row is the next inserted row's. A batch under way ends when
 * rows are removed: it needs a new tn_find. Nothing is removed when memory runs out. */
int tn_evict(tn_table *table, uint64_t *evicted);
/* Brings each group with more than most_rows down to most_rows - most_rows / 16. The least
 * valuable go: those with the lowest score as above (rounded to float), in a table without shows
 * the longest unseen; among equals lower `changed`, then lower hash. When no group has more, it
 * costs nothing. */
int tn_evict_surplus(tn_table *table, uint64_t *evicted);

/* The keys removed since the last call, at most tn_removed_keys of them, each once (with its last
 * removal), whether they came back or not: packed, id u64, group u16, step u32 (the table's step
 * when it was removed), in (hash, group) order. TN_BAD_VALUE, and nothing is lost, when `capacity`
 * is less than tn_removed_keys. */
uint64_t tn_removed_keys(tn_table *table);
int tn_take_removed(tn_table *table, void *keys, uint64_t capacity, uint64_t *n);

typedef struct tn_figures {
    uint64_t rows;
    uint64_t admitted; /* rows made ever: rows + evicted */
    int64_t waiting;   /* ids counted for admission that have no row, estimated: may be below 0 */
    uint64_t evicted;  /* rows removed ever */
} tn_figures;

int tn_table_figures(tn_table *table, uint16_t group, tn_figures *out);
/* Sets `waiting`, from 0 on, and `evicted`; the others follow. */
int tn_table_set_figures(tn_table *table, uint16_t group, const tn_figures *figures);

/* Admission. A sketch counts the occurrences of ids that have no row, in groups with such a rule,
 * in the order of the batch. The one that makes the row reads it; those before, of the same batch
 * too, read zeros and take no gradient. An id that is evicted keeps its count.
 *
 * The sketch is count-min with conservative update: for each of 64 equal ranges of the hash 4 lines
 * of bytes / 256 counters of 8 bits. A count is never too low, and it is more than e / width * N
 * too high with a probability below e^-4, N being the occurrences counted in the range. Beyond 255
 * every occurrence makes a row. By chance, occurrence n of a key does when
 * mix64(mix64(mix64(seed ^ 0x61646d6974) ^ hash) + n * 0x9e3779b97f4a7c15) < probability * 2^64. */

/* Once, and before a group gets a rule that needs it. */
int tn_table_set_sketch(tn_table *table, uint64_t bytes);
/* The counters, to be saved and filled, range after range; NULL and 0 bytes without. */
uint8_t *tn_table_sketch(tn_table *table, uint64_t *bytes);

/* ---- A batch of examples ------------------------------------------------ */

typedef struct tn_batch tn_batch;

/* A sum with weights w_i adds w_i * row_i: each product rounded, then added. */
#define TN_POOL_SUM 1
#define TN_POOL_MEAN 2  /* the sum divided once by the number of ids, or by sum(w_i) */
#define TN_POOL_SQRTN 3 /* the sum divided once by sqrtf of that number, or of sum(w_i^2) */

typedef struct tn_slot {
    uint16_t group;
    uint16_t pooling;
    uint16_t apart;  /* 1: the slot's TN_CONCAT values go to the matrices set apart; else 0 */
    uint32_t column; /* where they start in a row of their matrix */
} tn_slot;

/* A workspace for batches of the given slots, 1 to 65535. */
int tn_batch_new(tn_table *table, const tn_slot *slots, uint32_t n_slots, tn_batch **out);
void tn_batch_free(tn_batch *batch);

/* Looks up `examples` x n_slots cells, example after example: cell c has the ids
 * ids[offsets[c]] .. ids[offsets[c + 1] - 1]; zero, one or many. With `insert` a missing id gets a
 * row, once it is admitted; without, it reads zeros and nothing is written: not the table, and no
 * gradient can follow. `weights`, a float per id, weigh the pooling of this batch, of cells of one
 * id too; NULL: all are 1. They are copied, and must be finite and below 2^58. A cell whose
 * sum(w_i) or sum(w_i^2) it should be divided by is not above 0 is zeros, and no gradient goes
 * through it. */
int tn_find(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, const float *weights,
            uint32_t examples, int insert);
/* How many distinct rows the last inserting tn_find met; ids that wait have none. */
uint64_t tn_batch_rows(tn_batch *batch);

/* Writes the found rows, pooled, into outputs[s] for each segment s; row b of it starts at
 * outputs[s] + b * strides[s]. Slots set apart write their TN_CONCAT segments into apart[s] in the
 * same way; `apart` and its strides may be NULL when there are none. A sequence is made of slots
 * set apart, one per place. A TN_SUM segment is added to what its output holds when `add` is not 0
 * (a second table), and starts from 0 otherwise. Sums run in float32 in the order of the ids. */
int tn_gather(tn_batch *batch, float *const *outputs, const uint32_t *strides, float *const *apart,
              const uint32_t *apart_strides, int add);

/* Sums gradients, laid out as tn_gather's outputs, per row in the order of the batch; a weighted id
 * takes g * w_i / divisor. TN_NOT_FINITE when a sum is not finite. Nothing is applied yet. */
int tn_accumulate(tn_batch *batch, const float *const *gradients, const uint32_t *strides,
                  const float *const *apart, const uint32_t *apart_strides);

/* The sum of the squares of the gradients that tn_apply would use at scale 1: clipped, with l2*w.
 * Exact sums of the rows' own, so it depends neither on threads nor on the order of rows. */
int tn_norm(tn_batch *batch, double *squares);
/* The same before it is rounded, TN_EXACT_WORDS words (tn_exact_add): of a part of the rows. */
int tn_norm_words(tn_batch *batch, uint64_t *words);
/* Says what the examples' clicks are, one per example, before tn_gather, after a tn_find that
 * inserts or tn_keys_set_rows. Where the table does not count (tn_table_set_counting) the columns
 * of cvm that an example reads then lack what it has added itself when it was counted: of each row
 * its own occurrences, and as often its click. They stay at least 0. TN_BAD_VALUE in a table
 * without cvm, and for clicks as of tn_count. */
int tn_leave_out(tn_batch *batch, const float *clicks);
/* Counts the batch, after a tn_find that inserts: each row's occurrences, and the sum of `clicks`,
 * one per example, of those, in the order of the batch. tn_apply adds both to the row's show and
 * click. TN_BAD_VALUE in a table without shows, and for clicks that are negative or not finite. */
int tn_count(tn_batch *batch, const float *clicks);
/* Updates every row of the batch (tn_table_set_updates: of the table) once with its summed
 * gradient times `scale`, finite and at least 0. */
int tn_apply(tn_batch *batch, float scale);

/* ---- Rows of other processes -------------------------------------------- */

/* A table can be shared by up to 64 processes, each of which owns a range of its shards
 * (tn_table_set_shards). csrc/tn_exchange.h says how the calls below make a step, and what is in
 * the arrays that are sent. Arrays are used where they lie, in a message: they start at a multiple
 * of the size of what they hold, else TN_BAD_VALUE.
 *
 * Worker: a batch whose rows are in other processes. Its table says what a row consists of: it has
 * the segments, groups and settings of those that have the rows, but none of its rows is looked at.
 */

/* As tn_find, but only numbers the distinct keys of the batch, by the peer that owns them: peer p
 * owns the shards first_shards[p] .. first_shards[p + 1] - 1. first_shards has n_peers + 1 entries,
 * ascending from 0 to 64. */
int tn_keys(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, const float *weights,
            uint32_t examples, const uint32_t *first_shards, uint32_t n_peers);
/* How many distinct keys of a peer there are. */
int tn_keys_count(tn_batch *batch, uint32_t peer, uint64_t *n);
/* Writes them: ids, groups, and how often each occurs in the batch (NULL: not wanted). */
int tn_keys_write(tn_batch *batch, uint32_t peer, uint64_t *ids, uint16_t *groups,
                  uint32_t *occurrences);
/* Takes the rows, as tn_pull_read writes them: rows[p] has a row for each key of peer p. The batch
 * is then as after a tn_find, one that inserts with `training`, else one that does not. The first
 * waits[p][i] occurrences of key i read zeros and take no gradient; `waits` and waits[p] may be
 * NULL: none does. The rows must stay where they are while tn_gather is still to be called. Once
 * per tn_keys. TN_BAD_VALUE, and nothing changes, when a key waits more often than it occurs. */
int tn_keys_set_rows(tn_batch *batch, const float *const *rows, const uint32_t *const *waits,
                     int training);
/* Gradients of the batch are to be added to those of so many ranks, itself included, 1 to 64; 1 at
 * first. tn_accumulate then refuses sums beyond 2^58 / ranks, as tn_push_sums does. */
int tn_batch_set_ranks(tn_batch *batch, uint32_t ranks);
/* After tn_accumulate: the summed gradient of each key of a peer, as tn_push_sums takes it. */
int tn_keys_sums(tn_batch *batch, uint32_t peer, float *sums);
/* After tn_count: the show and click of each key of a peer, as tn_push_shows takes them. */
int tn_keys_shows(tn_batch *batch, uint32_t peer, float *counts);

/* Owner: the rows of keys that other processes have in their batches. Any workspace of the table
 * will do, whatever its slots. */

typedef struct tn_rank_keys {
    const uint64_t *ids;
    const uint16_t *groups;
    const uint32_t *occurrences; /* at least 1 each; NULL: all are 1 */
    uint64_t n;
} tn_rank_keys;

/* What tn_pull does for a key without a row. */
#define TN_PULL_READ 0   /* nothing: no push can follow */
#define TN_PULL_INSERT 1 /* makes one, once the key is admitted: its occurrences count for that */
#define TN_PULL_AGAIN 2  /* nothing: what is pushed for the key is ignored */

/* Finds the rows of the keys of 1 to 64 ranks, and inserts in the order of the ranks and of their
 * keys. A key may be in the lists of several ranks, or twice in one: it
 * has one row. Keys are copied. TN_NO_GROUP, TN_NOT_OWNED, and TN_BAD_VALUE for no occurrence:
 * nothing has changed then. */
int tn_pull(tn_batch *batch, const tn_rank_keys *ranks, uint32_t n_ranks, int missing);
/* Copies the rows of a rank's keys as they read, with cvm's columns, one after the other; zeros for
 * a key without a row. */
int tn_pull_read(tn_batch *batch, uint32_t rank, float *rows);
/* How many of the occurrences of each key came before the one that made its row. */
int tn_pull_waits(tn_batch *batch, uint32_t rank, uint32_t *waits);
/* Adds weight * sums to the sums of the rows of a rank's keys, each product rounded; weight from 0
 * to 1. Ranks push in their order, at most once each; those that do not push add nothing. Sums of
 * keys without a row are ignored. tn_apply then updates every row that was pulled once.
 * TN_NOT_FINITE for a sum that is NaN, infinite or beyond 2^58 / n_ranks: nothing was added. */
int tn_push_sums(tn_batch *batch, uint32_t rank, const float *sums, float weight);
/* Adds show and click to what tn_apply counts, in the same way. TN_BAD_VALUE in a table without
 * shows, and for counts that are negative or not finite. */
int tn_push_shows(tn_batch *batch, uint32_t rank, const float *counts);

/* ---- Rows to bytes and back --------------------------------------------- */

/* Records, little-endian and packed: id u64, group u16, flags u16, changed u32, state, weights;
 * show and click in a table that keeps them. */

/* Writes up to `capacity` records with first <= hash <= last, of rows whose `changed` is at least
 * `changed_from` (0: all), in (hash, group) order. `written` tells how many; `next` is the hash to
 * go on from, `more` 0 when the range is done. A capacity below 65536 may be too small for keys
 * that share a hash: TN_BAD_VALUE. */
int tn_encode(tn_table *table, uint64_t first, uint64_t last, uint32_t changed_from, void *records,
              uint64_t capacity, uint64_t *written, uint64_t *next, int *more);
/* Inserts `n` records, all or, when one is wrong (order, groups, keys) or memory runs out, none. */
int tn_decode(tn_table *table, const void *records, uint64_t n);
/* Makes the index as large as it will be with `rows` rows. Before many rows are decoded this must
 * be called: in the order of their hash they would crowd in the first part of a smaller one, and
 * each take a hundred times as long. */
int tn_table_reserve(tn_table *table, uint64_t rows);
/* The records that these keys would have if they were inserted now, in the order given. */
int tn_initial_records(tn_table *table, const uint16_t *groups, const uint64_t *ids, uint64_t n,
                       void *records);
/* has_row[i] becomes 1 where the table has a row of key i, else 0. */
int tn_table_contains(tn_table *table, const uint16_t *groups, const uint64_t *ids, uint64_t n,
                      uint8_t *has_row);
/* hashes[i] = mix64(ids[i] ^ salts[groups[i]]); TN_NO_GROUP for a group that is not declared[]. */
int tn_key_hashes(const uint64_t *salts, const uint8_t *declared, uint32_t n_groups,
                  const uint16_t *groups, const uint64_t *ids, uint64_t n, uint64_t *hashes);
/* Copies the weights of (group, id) out, with cvm's columns, or zeros; `has_row` says which. */
int tn_table_lookup(tn_table *table, uint16_t group, uint64_t id, float *weights, int *has_row);

/* ---- Dense table -------------------------------------------------------- */

typedef struct tn_dense tn_dense;

/* `n` floats of weights, zero, 64-byte aligned, with the optimizer's state. */
int tn_dense_new(const tn_optimizer *optimizer, uint64_t n, tn_thread_pool *pool, tn_dense **out);
void tn_dense_free(tn_dense *dense);
/* The memory itself, for variables to live in: weights, or state k in the order that the kind's
 * line says (Adam: 0 is m, 1 is v). NULL when there is no such state. */
float *tn_dense_weights(tn_dense *dense);
float *tn_dense_state(tn_dense *dense, uint32_t k);
int tn_dense_set_learning_rate(tn_dense *dense, float learning_rate);
uint64_t tn_dense_step(tn_dense *dense);
int tn_dense_set_step(tn_dense *dense, uint64_t step);
/* Gradient i covers weights offsets[i] .. offsets[i] + lengths[i] - 1. */
int tn_dense_check(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                   const uint64_t *lengths, uint32_t n);
/* As tn_norm and tn_apply. */
int tn_dense_norm(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                  const uint64_t *lengths, uint32_t n, double *squares);
/* As tn_norm_words. The sums of parts of the gradients are the sum of the whole when each part
 * starts at a multiple of TN_NORM_CHUNK floats of a whole gradient. */
int tn_dense_norm_words(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                        const uint64_t *lengths, uint32_t n, uint64_t *words);
int tn_dense_apply(tn_dense *dense, const float *const *gradients, const uint64_t *offsets,
                   const uint64_t *lengths, uint32_t n, float scale);

#define TN_NORM_CHUNK 4096
#define TN_EXACT_WORDS 4096

/* A sum of squares that several processes add up, not rounded yet: words[2 * e] and
 * words[2 * e + 1] are the lower and upper half of the integer sum of the mantissas of all terms
 * with the exponent e of a double, as it is stored. Adds n exponents with two words each;
 * TN_BAD_VALUE, with nothing added, for an exponent beyond 2047. */
int tn_exact_add(uint64_t *words, const uint16_t *exponents, const uint64_t *parts, uint64_t n);
/* The sum, rounded as tn_norm and tn_dense_norm round it. */
double tn_exact_total(const uint64_t *words);

/* Floats to bfloat16, the upper half of the bits, rounded to the nearest, ties to even; and back,
 * which is exact. Beyond the largest bfloat16 it is infinity; NaN becomes the quiet one. */
void tn_to_bfloat16(const float *values, uint64_t n, uint16_t *halves);
void tn_from_bfloat16(const uint16_t *halves, uint64_t n, float *values);

/* out[i] += weight * values[i], each product and each sum rounded: gradients of several ranks, one
 * after the other, as tn_push_sums reduces those of rows. TN_BAD_VALUE for a weight that is not
 * from 0 to 1. */
int tn_weighted_sum(float *out, const float *values, float weight, uint64_t n);

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
/* Strings as views of 16 bytes, Arrow's BinaryView and Utf8View: the length (int32), then up to 12
 * bytes themselves or, of a longer string, its first 4 bytes, the number of its buffer and its
 * offset there (int32 each). TN_BAD_VALUE when a view leaves its buffer; buffer i has sizes[i]
 * bytes. */
int tn_hash_views(const void *views, uint64_t n, const void *const *buffers, const uint64_t *sizes,
                  uint32_t n_buffers, uint64_t seed, uint64_t *ids);
/* Integers hash as their decimal text. */
void tn_hash_int64(const int64_t *values, uint64_t n, uint64_t seed, uint64_t *ids);
void tn_hash_uint64(const uint64_t *values, uint64_t n, uint64_t seed, uint64_t *ids);

/* Columns side by side to cells example after example. Column c has ids[c] and, when it does not
 * have exactly one id per row, offsets[c] of rows + 1 entries; else offsets[c] is NULL. A column is
 * one cell per row or, with spread[c] above 1, that many: its first ids one in each, the others
 * empty, and ids beyond them left out. `spread` may be NULL: all 1. weights[c] has a float for each
 * of ids[c], or is NULL: all 1; `weights` itself may be NULL, and out_weights: none.
 * With C the cells per row, out_offsets has rows * C + 1 entries, and the others as many as all
 * columns keep. TN_BAD_VALUE for a spread of 0 or 2^32 cells per row or ids. */
int tn_interleave(const uint64_t *const *ids, const int32_t *const *offsets,
                  const float *const *weights, const uint32_t *spread, uint32_t columns,
                  uint64_t rows, uint64_t *out_ids, float *out_weights, uint32_t *out_offsets);
/* The cells of the chosen examples, `cells` of each, in the order chosen; with their weights unless
 * `weights` is NULL. TN_BAD_VALUE when out_ids, which holds `capacity`, is too small. */
int tn_take(const uint64_t *ids, const uint32_t *offsets, const float *weights, uint32_t cells,
            const uint32_t *chosen, uint64_t n, uint64_t *out_ids, float *out_weights,
            uint64_t capacity, uint32_t *out_offsets);
/* A column of the combinations of 2 or more columns, as of tn_interleave: in each row one id of
 * each, the last column's changing fastest; none where a column has none. The id is the hash of the
 * ids' 8-byte little-endian words one after the other. Without out_ids it only fills out_offsets,
 * of rows + 1 entries, the last of which tells how many ids there are. TN_BAD_VALUE for fewer than
 * 2 columns or 2^31 ids. */
int tn_cross(const uint64_t *const *ids, const int32_t *const *offsets, uint32_t columns,
             uint64_t rows, uint64_t seed, uint64_t *out_ids, int32_t *out_offsets);
/* A permutation of 0 .. n - 1 that is a function of (seed, epoch, window, n) alone. */
void tn_permutation(uint64_t seed, uint64_t epoch, uint64_t window, uint32_t n, uint32_t *out);

/* ---- Checksums ---------------------------------------------------------- */

/* CRC-32C (Castagnoli) of what `crc` is the checksum of, with these bytes after it; 0 starts. */
uint32_t tn_crc32c(const void *bytes, uint64_t n, uint32_t crc);

/* A record of a TFRecord file is its length u64, the masked checksum of the length, the payload,
 * the masked checksum of the payload; masked is (crc rotated right by 15) + 0xa282ead8. */
#define TN_TFRECORD_LIMIT 16777216 /* bytes of one payload */

/* Finds up to `capacity` records in `data`: payload i is lengths[i] bytes from starts[i], and
 * whole[i] is 1 when it agrees with its checksum. `consumed` counts the bytes of the records
 * found; what follows is no whole record yet. Of a length that cannot be taken the code, with the
 * records before it: TN_BAD_VALUE when it does not agree with its checksum, TN_TOO_LONG when it
 * does and is beyond the limit. */
int tn_tfrecord_walk(const void *data, uint64_t bytes, uint64_t capacity, uint64_t *starts,
                     uint64_t *lengths, uint8_t *whole, uint64_t *records, uint64_t *consumed);

/* ---- Delimited text ----------------------------------------------------- */

/* CSV and TSV: a row is a line, its fields stand between delimiters. A field that starts with a
 * quote ends at the next one that is not doubled, and never after its line. Line ends are '\n' with
 * any number of '\r' before it, and the end of the block; an empty line is no row. TN_BAD_VALUE
 * when the delimiter or the quote is '\n' or '\r', or when they are the same. */
typedef struct tn_text_format {
    uint32_t columns; /* fields of each line */
    char delimiter;
    char quote; /* 0: none */
    int strip;  /* values lose the ASCII blanks around them */
    uint32_t n_missing;
    const char *const *missing; /* texts that mean no number */
    const uint32_t *missing_sizes;
} tn_text_format;

#define TN_OTHER_FIELDS 1 /* more or fewer fields than columns */
#define TN_OPEN_QUOTE 2   /* a quote is not closed on its line */
#define TN_INNER_RETURN 3 /* '\r' outside of quotes that does not end the line */

typedef struct tn_text_rows {
    uint64_t rows;
    uint64_t bad;          /* lines that are no rows */
    uint64_t first_bad;    /* where the first of them starts, */
    uint32_t first_fields; /* its fields, as far as they could be told, */
    int first_fault;       /* and what is wrong with it */
    int ascii;             /* whether the whole block is ASCII */
} tn_text_rows;

/* How many '\n' there are. */
uint64_t tn_text_line_ends(const void *block, uint64_t size);
/* How many bounds tn_text_index may write for a block of `size` bytes. */
uint64_t tn_text_capacity(uint64_t size, uint32_t columns);
/* Finds the fields of a block of whole lines, at most 2^31 - 1 bytes. Row r has columns + 1 bounds:
 * where it starts and where each field ends, a field starting one byte after the end of the last.
 * Bad lines have no bounds. sizes[c] becomes as many bytes as the text of column c may need. */
int tn_text_index(const void *block, uint64_t size, const tn_text_format *format, uint32_t *bounds,
                  uint64_t capacity, uint32_t *sizes, tn_text_rows *rows);

typedef struct tn_text_column {
    uint32_t column;  /* its place in the line, from 0 */
    int32_t *offsets; /* of text: rows + 1, as Arrow's */
    char *text;       /* of text: its size by tn_text_index, and 16 bytes more */
    double *numbers;  /* of numbers (NULL: text): rows */
    uint8_t *valid;   /* of numbers: a bit per row, as Arrow's, 0 where there is none */
    uint64_t nulls;   /* of numbers, set: how many are missing */
} tn_text_column;

#define TN_BAD_TEXT 1    /* the row has text that is not UTF-8 */
#define TN_HARD_NUMBER 2 /* the row has a number that is none, or no simple one */

/* Reads columns of the rows chosen (NULL: of the first `rows`); marks has a byte per row. Text is
 * checked to be UTF-8 when `check_utf8` is not 0. */
int tn_text_columns(const void *block, uint64_t size, const tn_text_format *format,
                    const uint32_t *bounds, const uint32_t *chosen, uint64_t rows, int check_utf8,
                    tn_text_column *columns, uint32_t n_columns, uint8_t *marks);

/* ---- Streaming AUC ------------------------------------------------------ */

/* Counts examples per bin of squash(logit) = logit / (1 + |logit|), by label (>= 0.5 is a click).
 * Logits that are NaN count in bin 0. */
void tn_auc_update(const float *logits, const float *labels, uint64_t n, uint64_t *clicks,
                   uint64_t *others, uint32_t bins);
/* The area under the curve of the counts, ties counting half; NaN without both classes. */
double tn_auc_result(const uint64_t *clicks, const uint64_t *others, uint32_t bins);

/* ---- Memory ------------------------------------------------------------- */

/* Zeroed memory on a 64-byte boundary (2 MiB boundary and huge pages from 2 MiB on), as TensorFlow
 * needs it to use the memory in place. NULL when there is none. */
void *tn_aligned_new(uint64_t bytes);
void tn_aligned_free(void *memory);

/* CFFI end */

#endif
