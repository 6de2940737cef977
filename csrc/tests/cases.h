/* cases.h - random plans and batches, and the real table beside the naive one. */
#ifndef CASES_H
#define CASES_H

#include "naive.h"

/* ---- Plans -------------------------------------------------------------- */

static inline tn_optimizer random_rule(random_source *random) {
    float small = 0.001f + 0.05f * (float)random_below(random, 2);
    switch (random_below(random, 12)) {
    case 0:
        return (tn_optimizer){.kind = TN_SGD, .learning_rate = 0.01f};
    case 1:
        return (tn_optimizer){.kind = TN_SGD,
                              .learning_rate = 0.01f,
                              .momentum = 0.9f,
                              .nesterov = random_below(random, 2)};
    case 2:
        return (tn_optimizer){.kind = TN_ADAGRAD_COORDINATE,
                              .learning_rate = 0.05f,
                              .epsilon = 1e-8f,
                              .initial_accumulator = 0.1f};
    case 3:
        return (tn_optimizer){.kind = TN_FTRL,
                              .learning_rate = 0.1f,
                              .initial_accumulator = small,
                              .l1 = small,
                              .l2 = small};
    case 4:
        return (tn_optimizer){
            .kind = TN_TENSORNET_FTRL, .learning_rate = 2, .beta = 1, .l1 = small, .l2 = small};
    case 5:
        return (tn_optimizer){
            .kind = TN_TENSORNET_ADAGRAD, .learning_rate = 0.05f, .epsilon = small};
    case 6:
        return (tn_optimizer){.kind = TN_TENSORNET_ADAM,
                              .learning_rate = 0.01f,
                              .epsilon = 1e-8f,
                              .beta1 = 0.9,
                              .beta2 = 0.999};
    case 7: /* corrections end early */
        return (tn_optimizer){
            .kind = TN_ADAM, .learning_rate = 0.01f, .epsilon = 1e-6f, .beta2 = 0.5};
    case 8:
    case 9:
        return (tn_optimizer){.kind = TN_ADAM,
                              .learning_rate = 0.01f,
                              .epsilon = 1e-8f,
                              .beta1 = 0.9,
                              .beta2 = 0.999};
    default:
        return (tn_optimizer){.kind = TN_ADAGRAD,
                              .learning_rate = 0.05f,
                              .epsilon = 1e-8f,
                              .initial_accumulator = 0.1f};
    }
}

static inline tn_optimizer random_optimizer(random_source *random) {
    tn_optimizer optimizer = random_rule(random);
    if (random_below(random, 2)) {
        return optimizer; /* without extras: tables of such have a shorter way through the code */
    }
    optimizer.clip = 0.5f * (float)random_below(random, 2);
    optimizer.l2 += 0.03f * (float)random_below(random, 2);
    optimizer.decay = 0.02f * (float)random_below(random, 2);
    if (optimizer.kind == TN_ADAGRAD && random_below(random, 2)) {
        optimizer.decay = 0;
        optimizer.lazy_l2 = 0.02f + (float)random_below(random, 2); /* the last: nothing is left */
    }
    optimizer.bound = 0.1f * (float)random_below(random, 2);
    optimizer.max_norm = 0.15f * (float)random_below(random, 2);
    return optimizer;
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
        widest = read_width(plan, s) > widest ? read_width(plan, s) : widest;
    }
    plan->n_slots = 1 + random_below(random, MAX_TEST_SLOTS);
    int sums_only = random_below(random, 3) == 0; /* these take a shorter way through the code */
    int some_apart = (int)random_below(random, 2);
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        plan->slots[slot] = (tn_slot){
            .group = plan->group_numbers[random_below(random, plan->n_groups)],
            .pooling = (uint16_t)(sums_only ? TN_POOL_SUM : 1 + random_below(random, 3)),
            .apart = (uint16_t)(some_apart && random_below(random, 2)),
            .column = 2 + (plan->n_slots - 1 - slot) * (widest + 1), /* gaps, right to left */
        };
    }
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        int concat = plan->segments[s].output == TN_CONCAT;
        plan->strides[s] = (concat ? 2 + plan->n_slots * (widest + 1) : widest) + s;
        plan->strides[MAX_TEST_SEGMENTS + s] = 2 + plan->n_slots * (widest + 1) + 7 * s;
    }
}

static inline double some_or_none(random_source *random, double small) {
    return random_below(random, 3) == 0 ? small : 0;
}

static inline void plan_rules(test_plan *plan, random_source *random) {
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        tn_life *life = &plan->lives[g];
        *life = (tn_life){.admit_after = 1, .admit_probability = 1, .nonclick = 0.1, .click = 1};
        life->show_decay = 1 - some_or_none(random, 0.02 + 0.9 * random_below(random, 2));
        life->unseen_steps = (uint32_t)some_or_none(random, 1 + random_below(random, 20));
        life->unseen_days = (uint32_t)some_or_none(random, 1 + random_below(random, 4));
        life->most_rows = (uint64_t)some_or_none(random, 1 + random_below(random, 300));
        if (plan->shows) {
            life->show = some_or_none(random, 2.5);
            life->score = some_or_none(random, 0.5);
            life->nonclick = 0.5 * random_below(random, 3);
        }
        life->both = life->show > 0 && (life->unseen_steps || life->unseen_days)
                         ? random_below(random, 2)
                         : 0;
    }
}

static inline void make_plan(test_plan *plan, random_source *random, uint32_t layout) {
    memset(plan, 0, sizeof *plan);
    plan->seed = random_word(random);
    plan->all = random_below(random, 4) == 0;
    plan->shows = random_below(random, 2) == 0;
    plan->cvm = plan->shows && random_below(random, 2) == 0;
    plan_segments(plan, random, layout);
    plan_groups(plan, random);
    plan_slots(plan, random);
    plan_rules(plan, random);
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

/* No weights, weights above 0, or some that are 0 or less too. */
static inline void fill_weights(test_cells *cells, random_source *random) {
    uint32_t kind = random_below(random, 3);
    cells->weights = kind == 0 ? NULL : test_memory(cells->n_ids * sizeof *cells->weights);
    for (uint64_t k = 0; k < cells->n_ids && kind > 0; k++) {
        float any = random_below(random, 8) ? random_float(random) : 0;
        cells->weights[k] = kind == 1 ? 1.25f + random_float(random) : any;
    }
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
    fill_weights(cells, random);
}

static inline void free_cells(test_cells *cells) {
    free(cells->ids);
    free(cells->offsets);
    free(cells->weights);
}

/* A day more or less, or all anew: as many as fit. */
static inline void random_days(naive_table *naive, random_source *random) {
    uint32_t toss = random_below(random, 4);
    if (toss == 0 || naive->n_days == MAX_TEST_DAYS) {
        naive->n_days = random_below(random, 20);
        uint32_t day = random_below(random, 1000), step = naive->step - random_below(random, 40);
        for (uint32_t i = 0; i < naive->n_days; i++) {
            naive->days[i] = day += random_below(random, 3);
            naive->first_steps[i] = step += random_below(random, 5);
            if (i > 0 && step < naive->first_steps[i - 1]) {
                naive->first_steps[i] = step = naive->first_steps[i - 1];
            }
        }
    } else if (naive->n_days > 0) {
        uint32_t last = naive->n_days++ - 1, next = naive->step + 1;
        naive->days[last + 1] = naive->days[last] + toss;
        naive->first_steps[last + 1] =
            next > naive->first_steps[last] ? next : naive->first_steps[last];
    }
}

/* ---- The real table ----------------------------------------------------- */

static inline void add_groups(tn_table *table, const test_plan *plan) {
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        CHECK_OK(tn_table_add_group(table, plan->group_numbers[g], plan->group_names[g],
                                    plan->initial[g]));
        CHECK_OK(tn_table_set_life(table, plan->group_numbers[g], &plan->lives[g]));
    }
}

/* Groups with rules of admission need a sketch. */
static inline tn_table *make_counting_table(const test_plan *plan, tn_thread_pool *pool,
                                            uint64_t sketch) {
    tn_table *table = NULL;
    CHECK_OK(tn_table_new(plan->segments, plan->n_segments, plan->seed, pool, &table));
    CHECK_OK(tn_table_set_shows(table, plan->shows, plan->cvm));
    CHECK_OK(tn_table_set_sketch(table, sketch));
    add_groups(table, plan);
    CHECK_OK(tn_table_set_updates(table, plan->all));
    CHECK(tn_table_record_size(table) == record_size_of(plan));
    CHECK(tn_table_stride(table) == (record_size_of(plan) + 4 + 7) / 8 * 8);
    return table;
}

static inline tn_table *make_table(const test_plan *plan, tn_thread_pool *pool) {
    return make_counting_table(plan, pool, 0);
}

static inline tn_batch *make_batch(tn_table *table, const test_plan *plan) {
    tn_batch *batch = NULL;
    CHECK_OK(tn_batch_new(table, plan->slots, plan->n_slots, &batch));
    return batch;
}

/* The matrices set apart that C takes: none for sums, none at all when no slot is apart. */
static inline const uint32_t *apart_of(const test_plan *plan, float *const *matrices,
                                       float **apart) {
    int any = 0;
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        any |= plan->slots[slot].apart;
    }
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        int concat = plan->segments[s].output == TN_CONCAT;
        apart[s] = concat ? matrices[MAX_TEST_SEGMENTS + s] : NULL;
    }
    return any ? plan->strides + MAX_TEST_SEGMENTS : NULL;
}

static inline int find(tn_batch *batch, const test_cells *cells, int insert) {
    return tn_find(batch, cells->ids, cells->offsets, cells->weights, cells->examples, insert);
}

static inline int gather(tn_batch *batch, const test_plan *plan, float *const *matrices, int add) {
    float *apart[MAX_TEST_SEGMENTS];
    const uint32_t *strides = apart_of(plan, matrices, apart);
    return tn_gather(batch, matrices, plan->strides, strides ? apart : NULL, strides, add);
}

static inline int accumulate(tn_batch *batch, const test_plan *plan, float *const *matrices) {
    float *apart[MAX_TEST_SEGMENTS];
    const uint32_t *strides = apart_of(plan, matrices, apart);
    return tn_accumulate(batch, (const float *const *)matrices, plan->strides,
                         strides ? (const float *const *)apart : NULL, strides);
}

/* A matrix per segment and one set apart, filled with random numbers. */
static inline void make_matrices(float **matrices, const test_plan *plan, random_source *random,
                                 uint32_t examples) {
    for (uint32_t m = 0; m < MAX_TEST_MATRICES; m++) {
        uint64_t n = (uint64_t)examples * plan->strides[m];
        matrices[m] = test_memory(n * sizeof(float));
        for (uint64_t i = 0; i < n; i++) {
            matrices[m][i] = random_float(random);
        }
    }
}

static inline void copy_matrices(float **to, float *const *from, const test_plan *plan,
                                 uint32_t examples) {
    for (uint32_t m = 0; m < MAX_TEST_MATRICES; m++) {
        uint64_t bytes = (uint64_t)examples * plan->strides[m] * sizeof(float);
        to[m] = test_memory(bytes);
        memcpy(to[m], from[m], bytes);
    }
}

static inline void check_same_matrices(float *const *a, float *const *b, const test_plan *plan,
                                       uint32_t examples) {
    for (uint32_t m = 0; m < MAX_TEST_MATRICES; m++) {
        CHECK(memcmp(a[m], b[m], (uint64_t)examples * plan->strides[m] * sizeof(float)) == 0);
    }
}

static inline void free_matrices(float **matrices) {
    for (uint32_t m = 0; m < MAX_TEST_MATRICES; m++) {
        free(matrices[m]);
    }
}

/* Every gathered float, and every float between that no slot owns. */
static inline void check_gather(tn_batch *batch, naive_table *naive, const test_cells *cells,
                                random_source *random) {
    const test_plan *plan = naive->plan;
    float *real[MAX_TEST_MATRICES], *wanted[MAX_TEST_MATRICES];
    int add = (int)random_below(random, 2);
    make_matrices(real, plan, random, cells->examples);
    copy_matrices(wanted, real, plan, cells->examples);
    CHECK_OK(gather(batch, plan, real, add));
    naive_gather(naive, cells, wanted, add);
    check_same_matrices(real, wanted, plan, cells->examples);
    free_matrices(real);
    free_matrices(wanted);
}

static inline void check_count(tn_batch *batch, naive_table *naive, const test_cells *cells,
                               random_source *random) {
    float *clicks = test_memory((cells->examples + 1) * sizeof *clicks);
    for (uint32_t b = 0; b < cells->examples; b++) {
        clicks[b] = random_below(random, 3) ? 0 : 1 + random_float(random);
    }
    CHECK_OK(tn_count(batch, clicks));
    naive_count(naive, cells, clicks);
    free(clicks);
}

static inline void check_update(tn_batch *batch, naive_table *naive, const test_cells *cells,
                                random_source *random) {
    const test_plan *plan = naive->plan;
    float *gradients[MAX_TEST_MATRICES];
    make_matrices(gradients, plan, random, cells->examples);
    if (plan->shows && random_below(random, 4) > 0) {
        check_count(batch, naive, cells, random);
    }
    float scale = random_below(random, 2) ? 1 : 0.5f * random_float(random) + 0.5f;
    double squares = -1;
    CHECK_CODE(tn_norm(batch, &squares), TN_NO_BATCH);
    CHECK_OK(accumulate(batch, plan, gradients));
    CHECK_OK(tn_norm(batch, &squares));
    CHECK_CODE(tn_apply(batch, -1), TN_BAD_VALUE);
    CHECK_CODE(tn_apply(batch, NAN), TN_BAD_VALUE);
    CHECK_OK(tn_apply(batch, scale));
    CHECK_CODE(tn_apply(batch, scale), TN_NO_BATCH); /* once for each tn_find */
    CHECK_CODE(tn_norm(batch, &squares), TN_NO_BATCH);
    naive_accumulate(naive, cells, gradients);
    CHECK(tn_batch_rows(batch) == naive_gradients(naive));
    double wanted = naive_norm(naive);
    CHECK(fabs(squares - wanted) <= 1e-11 * wanted);
    naive_apply(naive, scale);
    free_matrices(gradients);
}

/* The whole table, byte for byte. */
static inline void check_records(tn_table *table, const naive_table *naive) {
    uint64_t n, written = 0, next;
    int more;
    char *wanted = naive_encode(naive, 0, UINT64_MAX, &n);
    char *real = test_memory(n * record_size_of(naive->plan));
    CHECK_OK(tn_encode(table, 0, UINT64_MAX, 0, real, n, &written, &next, &more));
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
        tn_figures figures;
        CHECK(tn_table_group_rows(table, plan->group_numbers[g]) == counts[g]);
        CHECK_OK(tn_table_figures(table, plan->group_numbers[g], &figures));
        CHECK(figures.rows == counts[g] && figures.evicted == naive->evicted[g]);
        CHECK(figures.admitted == counts[g] + naive->evicted[g]);
    }
}

static inline int compare_removed(const void *left, const void *right) {
    const naive_row *a = *(naive_row *const *)left, *b = *(naive_row *const *)right;
    int order = compare_rows(left, right);
    return order != 0 ? order : (a->changed > b->changed) - (a->changed < b->changed);
}

/* The keys that were removed since the last time, each once. */
static inline void check_removed(tn_table *table, naive_table *naive) {
    uint64_t capacity = tn_removed_keys(table), n = 7, wanted = 0;
    CHECK(capacity == naive->n_removed);
    char *keys = test_memory(capacity * 14);
    if (capacity > 0) {
        CHECK_CODE(tn_take_removed(table, keys, capacity - 1, &n), TN_BAD_VALUE);
        CHECK(n == 7);
        qsort(naive->removed, naive->n_removed, sizeof *naive->removed, compare_removed);
    }
    CHECK_OK(tn_take_removed(table, keys, capacity, &n));
    for (uint64_t i = 0; i < naive->n_removed; i++) {
        naive_row *row = naive->removed[i];
        if (i + 1 == naive->n_removed || compare_rows(&row, &naive->removed[i + 1]) != 0) {
            const char *key = keys + 14 * wanted++;
            CHECK(wanted <= n && memcmp(key, &row->id, 8) == 0);
            CHECK(memcmp(key + 8, &row->group, 2) == 0 && memcmp(key + 10, &row->changed, 4) == 0);
        }
        free(row);
    }
    naive->n_removed = 0;
    CHECK(n == wanted && tn_removed_keys(table) == 0);
    free(keys);
}

#endif
