/* cases.h - random plans and batches, and the real table beside the naive one. */
#ifndef CASES_H
#define CASES_H

#include "naive.h"

/* ---- Plans -------------------------------------------------------------- */

static inline tn_optimizer random_optimizer(random_source *random) {
    tn_optimizer adagrad = {TN_ADAGRAD, 0.05f, 1e-8f, 0.1f, 0, 0};
    tn_optimizer adam = {TN_ADAM, 0.01f, 1e-8f, 0, 0.9, 0.999};
    tn_optimizer short_memory = {TN_ADAM, 0.01f, 1e-6f, 0, 0, 0.5}; /* corrections end early */
    switch (random_below(random, 4)) {
    case 0:
        return adam;
    case 1:
        return short_memory;
    default:
        return adagrad;
    }
}

/* The widths of the segments of some tables: the usual one, each single width, several. */
static const uint32_t LAYOUTS[][MAX_TEST_SEGMENTS] = {
    {1, 8}, {8}, {1}, {3}, {64}, {1, 16}, {7, 1, 3, 16}, {5, 5},
};
#define N_LAYOUTS (sizeof LAYOUTS / sizeof LAYOUTS[0])

static inline void plan_segments(test_plan *plan, random_source *random, uint32_t layout) {
    plan->n_segments = 0;
    for (uint32_t s = 0; s < MAX_TEST_SEGMENTS && LAYOUTS[layout][s] > 0; s++) {
        plan->segments[s] = (tn_segment){.width = LAYOUTS[layout][s],
                                         .output = random_below(random, 3) ? TN_CONCAT : TN_SUM,
                                         .optimizer = random_optimizer(random)};
        plan->n_segments++;
    }
}

static inline void plan_groups(test_plan *plan, random_source *random) {
    plan->n_groups = 1 + random_below(random, MAX_TEST_GROUPS);
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        /* Numbers need not be dense, nor in the order of declaration. */
        plan->group_numbers[g] = (uint16_t)(g * 37 % MAX_TEST_GROUPS * (g % 2 ? 1 : 40));
        /* Two groups of one name have the same hash for every id. */
        uint32_t name = g == 3 ? 1 : g;
        snprintf(plan->group_names[g], sizeof plan->group_names[g], "group_%u", (unsigned)name);
        for (uint32_t s = 0; s < plan->n_segments; s++) {
            plan->initial[g][s] = (tn_initial){random_below(random, 3), 0.125f * (float)(g + 1)};
        }
    }
}

static inline void plan_slots(test_plan *plan, random_source *random) {
    uint32_t widest = 0;
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        widest = plan->segments[s].width > widest ? plan->segments[s].width : widest;
    }
    plan->n_slots = 1 + random_below(random, MAX_TEST_SLOTS);
    int sums_only = random_below(random, 3) == 0; /* these take a shorter way through the code */
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        plan->slots[slot] = (tn_slot){
            .group = plan->group_numbers[random_below(random, plan->n_groups)],
            .pooling = (uint16_t)(sums_only ? TN_POOL_SUM : 1 + random_below(random, 3)),
            .column = 2 + (plan->n_slots - 1 - slot) * (widest + 1), /* gaps, right to left */
        };
    }
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        int concat = plan->segments[s].output == TN_CONCAT;
        plan->strides[s] = (concat ? 2 + plan->n_slots * (widest + 1) : widest) + s;
    }
}

static inline void make_plan(test_plan *plan, random_source *random, uint32_t layout) {
    memset(plan, 0, sizeof *plan);
    plan->seed = random_word(random);
    plan_segments(plan, random, layout);
    plan_groups(plan, random);
    plan_slots(plan, random);
}

/* ---- Ids ---------------------------------------------------------------- */

/* Where ids come from. Crafted ids share shard and tag, or sit at the end of a shard, where runs of
 * the index go round to its start; two groups may then have the same hash. */
enum { FEW_IDS, ANY_IDS, SHARED_TAGS, LAST_TAGS, ID_KINDS };

static inline uint64_t random_hash(random_source *random, uint32_t kind) {
    uint64_t shard = random_below(random, 3) * UINT64_C(31);       /* 0, 31 or 62 */
    uint64_t low = random_below(random, 40) * UINT64_C(0x1000193); /* the bits no tag shows */
    low &= (UINT64_C(1) << 26) - 1;
    if (kind == SHARED_TAGS) {
        uint64_t tag = random_below(random, 4) * UINT64_C(0x40000001);
        return shard << 58 | (tag & UINT32_MAX) << 26 | low;
    }
    uint64_t tag = UINT32_MAX - random_below(random, 4);
    if (random_below(random, 8) == 0) {
        tag = random_below(random, 2); /* met by the runs that come round */
    }
    return shard << 58 | tag << 26 | low;
}

static inline uint64_t random_id(const test_plan *plan, random_source *random, uint16_t group,
                                 uint32_t kind) {
    if (kind == FEW_IDS) {
        return random_below(random, 50) * UINT64_C(0x100000001);
    }
    if (kind == ANY_IDS) {
        return random_word(random);
    }
    uint64_t salt = tn_group_salt(plan->group_names[place_of_group(plan, group)]);
    return tn_unmix64(random_hash(random, kind)) ^ salt;
}

static inline uint32_t random_count(random_source *random) {
    uint32_t toss = random_below(random, 8);
    return toss < 5 ? 1 : toss == 5 ? 0 : 1 + random_below(random, 6);
}

static inline void fill_cells(test_cells *cells, const test_plan *plan, random_source *random,
                              uint32_t examples, uint32_t kinds) {
    uint64_t n_cells = (uint64_t)examples * plan->n_slots;
    cells->examples = examples;
    cells->offsets = test_memory((n_cells + 1) * sizeof *cells->offsets);
    cells->ids = test_memory(n_cells * 6 * sizeof *cells->ids);
    cells->n_ids = 0;
    for (uint64_t c = 0; c < n_cells; c++) {
        uint16_t group = plan->slots[c % plan->n_slots].group;
        for (uint32_t i = random_count(random); i > 0; i--) {
            uint32_t kind = kinds < ID_KINDS ? kinds : random_below(random, ID_KINDS);
            uint64_t id = random_id(plan, random, group, kind);
            int repeat = cells->n_ids > cells->offsets[c] && random_below(random, 4) == 0;
            cells->ids[cells->n_ids] = repeat ? cells->ids[cells->n_ids - 1] : id;
            cells->n_ids++;
        }
        cells->offsets[c + 1] = (uint32_t)cells->n_ids;
    }
}

static inline void free_cells(test_cells *cells) {
    free(cells->ids);
    free(cells->offsets);
}

/* ---- The real table ----------------------------------------------------- */

static inline void add_groups(tn_table *table, const test_plan *plan) {
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        CHECK_OK(tn_table_add_group(table, plan->group_numbers[g], plan->group_names[g],
                                    plan->initial[g]));
    }
}

static inline tn_table *make_table(const test_plan *plan, tn_pool *pool) {
    tn_table *table = NULL;
    CHECK_OK(tn_table_new(plan->segments, plan->n_segments, plan->seed, pool, &table));
    add_groups(table, plan);
    CHECK(tn_table_record_size(table) == record_size_of(plan));
    CHECK(tn_table_stride(table) == (record_size_of(plan) + 4 + 7) / 8 * 8);
    return table;
}

static inline tn_batch *make_batch(tn_table *table, const test_plan *plan) {
    tn_batch *batch = NULL;
    CHECK_OK(tn_batch_new(table, plan->slots, plan->n_slots, &batch));
    return batch;
}

/* One matrix per segment, filled with random numbers. */
static inline void make_matrices(float **matrices, const test_plan *plan, random_source *random,
                                 uint32_t examples) {
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        uint64_t n = (uint64_t)examples * plan->strides[s];
        matrices[s] = test_memory(n * sizeof(float));
        for (uint64_t i = 0; i < n; i++) {
            matrices[s][i] = random_float(random);
        }
    }
}

static inline void copy_matrices(float **to, float *const *from, const test_plan *plan,
                                 uint32_t examples) {
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        uint64_t bytes = (uint64_t)examples * plan->strides[s] * sizeof(float);
        to[s] = test_memory(bytes);
        memcpy(to[s], from[s], bytes);
    }
}

static inline void check_same_matrices(float *const *a, float *const *b, const test_plan *plan,
                                       uint32_t examples) {
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        CHECK(memcmp(a[s], b[s], (uint64_t)examples * plan->strides[s] * sizeof(float)) == 0);
    }
}

static inline void free_matrices(float **matrices, const test_plan *plan) {
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        free(matrices[s]);
    }
}

/* Every gathered float, and every float between that no slot owns. */
static inline void check_gather(tn_batch *batch, naive_table *naive, const test_cells *cells,
                                random_source *random) {
    const test_plan *plan = naive->plan;
    float *real[MAX_TEST_SEGMENTS], *wanted[MAX_TEST_SEGMENTS];
    int add = (int)random_below(random, 2);
    make_matrices(real, plan, random, cells->examples);
    copy_matrices(wanted, real, plan, cells->examples);
    CHECK_OK(tn_gather(batch, real, plan->strides, add));
    naive_gather(naive, cells, wanted, add);
    check_same_matrices(real, wanted, plan, cells->examples);
    free_matrices(real, plan);
    free_matrices(wanted, plan);
}

static inline void check_update(tn_batch *batch, naive_table *naive, const test_cells *cells,
                                random_source *random) {
    const test_plan *plan = naive->plan;
    float *gradients[MAX_TEST_SEGMENTS];
    make_matrices(gradients, plan, random, cells->examples);
    CHECK_OK(tn_accumulate(batch, (const float *const *)gradients, plan->strides));
    CHECK_OK(tn_apply(batch));
    CHECK_CODE(tn_apply(batch), TN_NO_BATCH); /* once for each tn_find */
    naive_accumulate(naive, cells, gradients);
    uint64_t rows = naive_apply(naive);
    CHECK(tn_batch_rows(batch) == rows);
    free_matrices(gradients, plan);
}

/* The whole table, byte for byte. */
static inline void check_records(tn_table *table, const naive_table *naive) {
    uint64_t n, written = 0, next;
    int more;
    char *wanted = naive_encode(naive, 0, UINT64_MAX, &n);
    char *real = test_memory(n * record_size_of(naive->plan));
    CHECK_OK(tn_encode(table, 0, UINT64_MAX, real, n, &written, &next, &more));
    CHECK(written == n && more == 0);
    CHECK(memcmp(real, wanted, n * record_size_of(naive->plan)) == 0);
    free(real);
    free(wanted);
}

static inline void check_counts(tn_table *table, const naive_table *naive) {
    const test_plan *plan = naive->plan;
    uint64_t counts[MAX_TEST_GROUPS] = {0};
    for (uint64_t i = 0; i < naive->n_rows; i++) {
        counts[place_of_group(plan, naive->rows[i]->group)]++;
    }
    CHECK(tn_table_rows(table) == naive->n_rows);
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        CHECK(tn_table_group_rows(table, plan->group_numbers[g]) == counts[g]);
    }
}

#endif
