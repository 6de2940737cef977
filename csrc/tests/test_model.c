/* test_model.c - random calls on a table and on the naive one; every byte must agree.
 *
 *     test_model [cases] [rounds] [rows] [first seed]
 *
 * `cases` tables live `rounds` random calls each; one more grows from empty to `rows`. */
#include "cases.h"

typedef struct {
    test_plan plan;
    random_source random;
    tn_thread_pool *pool, *other_pool;
    tn_table *table;
    tn_batch *batch;
    naive_table *naive;
} test_case;

static void start_case(test_case *test, uint64_t seed, uint32_t layout) {
    static const int THREADS[] = {1, 2, 5};
    test->random = (random_source){seed};
    make_plan(&test->plan, &test->random, layout);
    CHECK_OK(tn_thread_pool_new(THREADS[seed % 3], &test->pool));
    CHECK_OK(tn_thread_pool_new(THREADS[(seed + 1) % 3], &test->other_pool));
    test->table = make_table(&test->plan, test->pool);
    test->batch = make_batch(test->table, &test->plan);
    test->naive = naive_new(&test->plan);
}

static void end_case(test_case *test) {
    tn_batch_free(test->batch);
    tn_table_free(test->table);
    naive_free(test->naive);
    tn_thread_pool_free(test->pool);
    tn_thread_pool_free(test->other_pool);
}

/* ---- The calls ---------------------------------------------------------- */

static void random_cells(test_case *test, test_cells *cells) {
    uint32_t examples = random_below(&test->random, 40); /* none, too */
    uint32_t kinds = random_below(&test->random, ID_KINDS + 2);
    fill_cells(cells, &test->plan, &test->random, examples, kinds);
}

static void train(test_case *test) {
    test_cells cells;
    random_cells(test, &cells);
    CHECK_OK(find(test->batch, &cells, 1));
    naive_insert_cells(test->naive, &cells);
    check_gather(test->batch, test->naive, &cells, &test->random);
    check_update(test->batch, test->naive, &cells, &test->random);
    free_cells(&cells);
}

static void read_only(test_case *test) {
    test_cells cells;
    random_cells(test, &cells);
    float *nothing[MAX_TEST_MATRICES];
    make_matrices(nothing, &test->plan, &test->random, cells.examples);
    CHECK_OK(find(test->batch, &cells, 0));
    test->naive->inserting = 0;
    check_gather(test->batch, test->naive, &cells, &test->random);
    CHECK_CODE(accumulate(test->batch, &test->plan, nothing), TN_NO_BATCH);
    CHECK_CODE(tn_apply(test->batch, 1), TN_NO_BATCH);
    CHECK(tn_table_rows(test->table) == test->naive->n_rows);
    free_matrices(nothing);
    free_cells(&cells);
}

/* Whether a gradient reaches any id at all. */
static int meets_gradient(const test_case *test, const test_cells *cells) {
    for (uint64_t c = 0; c < (uint64_t)cells->examples * test->plan.n_slots; c++) {
        if (cells->offsets[c + 1] > cells->offsets[c] && divisor_of(&test->plan, cells, c) > 0) {
            return 1;
        }
    }
    return 0;
}

/* A gradient that is not finite changes nothing, at any position. */
static void refuse_gradient(test_case *test) {
    static const float BAD[] = {NAN, INFINITY, -INFINITY};
    test_cells cells;
    random_cells(test, &cells);
    float *gradients[MAX_TEST_MATRICES];
    make_matrices(gradients, &test->plan, &test->random, cells.examples);
    uint32_t s = random_below(&test->random, test->plan.n_segments);
    for (uint32_t m = s; m < MAX_TEST_MATRICES; m += MAX_TEST_SEGMENTS) {
        uint64_t n = (uint64_t)cells.examples * test->plan.strides[m];
        for (uint64_t i = 0; i < n; i++) {
            gradients[m][i] = BAD[i % 3];
        }
    }
    CHECK_OK(find(test->batch, &cells, 1));
    naive_insert_cells(test->naive, &cells);
    int meets = meets_gradient(test, &cells);
    CHECK_CODE(accumulate(test->batch, &test->plan, gradients), meets ? TN_NOT_FINITE : TN_OK);
    CHECK_CODE(tn_apply(test->batch, 1), meets ? TN_NO_BATCH : TN_OK);
    if (!meets) { /* the rows of the batch trained, and where all rows train, they did */
        naive_accumulate(test->naive, &cells, gradients);
        naive_gradients(test->naive);
        naive_apply(test->naive, 1);
    }
    free_matrices(gradients);
    free_cells(&cells);
}

static void look_up(test_case *test) {
    float weights[MAX_TEST_SEGMENTS * 66];
    for (int i = 0; i < 50; i++) {
        uint16_t group = test->plan.group_numbers[random_below(&test->random, test->plan.n_groups)];
        uint32_t kind = random_below(&test->random, ID_KINDS);
        uint64_t id = random_id(&test->plan, &test->random, group, kind);
        const naive_row *row = naive_find(test->naive, group, id);
        int has_row = -1;
        CHECK_OK(tn_table_lookup(test->table, group, id, weights, &has_row));
        CHECK(has_row == (row != NULL));
        const float *weight = weights;
        for (uint32_t s = 0; s < test->plan.n_segments; s++) {
            for (uint32_t j = 0; j < read_width(&test->plan, s); j++) {
                uint32_t step = test->naive->step;
                CHECK(*weight++ == (row ? naive_read(test->naive, row, s, j, step) : 0));
            }
        }
    }
}

static void set_numbers(test_case *test) {
    uint32_t s = random_below(&test->random, test->plan.n_segments);
    test->naive->optimizers[s].learning_rate = 0.001f * (float)random_below(&test->random, 100);
    CHECK_OK(tn_table_set_learning_rate(test->table, s, test->naive->optimizers[s].learning_rate));
    /* Most often a little on; now and then anywhere, even back. */
    uint32_t far = random_below(&test->random, 4) == 0;
    test->naive->step = far ? (uint32_t)random_word(&test->random)
                            : test->naive->step + random_below(&test->random, 5);
    CHECK_OK(tn_table_set_step(test->table, test->naive->step));
}

/* ---- The life of rows --------------------------------------------------- */

static void set_days(test_case *test) {
    naive_table *naive = test->naive;
    random_days(naive, &test->random);
    CHECK_OK(tn_table_set_days(test->table, naive->days, naive->first_steps, naive->n_days));
    CHECK(tn_table_day(test->table) == naive_today(naive));
    if (naive->n_days > 1 && naive->days[0] < naive->days[1]) {
        uint32_t falling[2] = {naive->days[1], naive->days[0]}, steps[2] = {1, 1};
        CHECK_CODE(tn_table_set_days(test->table, falling, steps, 2), TN_BAD_VALUE);
        CHECK_CODE(tn_table_set_days(test->table, steps, falling, 2), TN_BAD_VALUE);
        CHECK(tn_table_day(test->table) == naive_today(naive));
    }
}

/* Rows go while a batch is under way: it is none any more, unless none went. */
static void remove_rows(test_case *test, int (*remove)(tn_table *, uint64_t *),
                        uint64_t (*naive_removal)(naive_table *)) {
    test_cells cells;
    float *matrices[MAX_TEST_MATRICES], clicks[64] = {0};
    uint64_t removed = 7;
    random_cells(test, &cells);
    make_matrices(matrices, &test->plan, &test->random, cells.examples);
    int insert = (int)random_below(&test->random, 2);
    CHECK_OK(find(test->batch, &cells, insert));
    test->naive->inserting = insert;
    if (insert) {
        naive_insert_cells(test->naive, &cells);
    }
    CHECK_OK(remove(test->table, &removed));
    CHECK(removed == naive_removal(test->naive));
    if (removed == 0) {
        check_gather(test->batch, test->naive, &cells, &test->random);
    } else {
        CHECK_CODE(gather(test->batch, &test->plan, matrices, 0), TN_NO_BATCH);
        CHECK_CODE(accumulate(test->batch, &test->plan, matrices), TN_NO_BATCH);
        CHECK_CODE(tn_apply(test->batch, 1), TN_NO_BATCH);
        CHECK_CODE(tn_count(test->batch, clicks), test->plan.shows ? TN_NO_BATCH : TN_BAD_VALUE);
        check_records(test->table, test->naive);
    }
    free_matrices(matrices);
    free_cells(&cells);
}

static void evict(test_case *test) {
    remove_rows(test, tn_evict, naive_evict);
}

static void bound(test_case *test) {
    remove_rows(test, tn_evict_surplus, naive_evict_surplus);
    uint64_t again = 7;
    CHECK_OK(tn_evict_surplus(test->table, &again));
    CHECK(again == 0);
}

/* Rows that come back as records, in the memory they left, go again. */
static void evict_twice(test_case *test) {
    uint64_t n, back = 0, removed = 7, again = 7, size = record_size_of(&test->plan);
    char *records = naive_encode(test->naive, 0, UINT64_MAX, &n);
    check_removed(test->table, test->naive);
    CHECK_OK(tn_evict(test->table, &removed));
    CHECK(naive_evict(test->naive) == removed);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id;
        uint16_t group;
        memcpy(&id, records + i * size, sizeof id);
        memcpy(&group, records + i * size + 8, sizeof group);
        if (naive_find(test->naive, group, id) == NULL) {
            memmove(records + back++ * size, records + i * size, size);
        }
    }
    CHECK(back == removed);
    CHECK_OK(tn_decode(test->table, records, back));
    CHECK(tn_table_rows(test->table) == n);
    CHECK_OK(tn_evict(test->table, &again));
    CHECK(again == removed && tn_removed_keys(test->table) == 2 * removed);
    CHECK_OK(tn_take_removed(test->table, records, 2 * removed, &again));
    CHECK(again == removed); /* each key once */
    for (uint32_t g = 0; g < test->plan.n_groups; g++) {
        tn_figures figures = {.evicted = test->naive->evicted[g]};
        CHECK_OK(tn_table_set_figures(test->table, test->plan.group_numbers[g], &figures));
    }
    for (uint64_t i = 0; i < test->naive->n_removed; i++) {
        free(test->naive->removed[i]);
    }
    test->naive->n_removed = 0;
    free(records);
}

static void take_removed(test_case *test) {
    check_removed(test->table, test->naive);
}

/* Numbers that no group's rules can have. */
static void refuse_lives(test_case *test) {
    uint16_t group = test->plan.group_numbers[0];
    const tn_life none = {.admit_after = 1, .admit_probability = 1};
    tn_life wrong[10];
    for (int i = 0; i < 10; i++) {
        wrong[i] = none;
    }
    wrong[0].admit_after = 0;
    wrong[1].admit_after = 256;
    wrong[2].admit_probability = 0;
    wrong[3].show_decay = 1.5;
    wrong[4].score = NAN;
    wrong[5].nonclick = -1;
    wrong[6].click = INFINITY;
    wrong[7].show = -1;
    wrong[8].both = 1; /* without the rules */
    wrong[9].both = 2;
    for (int i = 0; i < 10; i++) {
        CHECK_CODE(tn_table_set_life(test->table, group, &wrong[i]), TN_BAD_VALUE);
    }
    CHECK_CODE(tn_table_set_life(test->table, 500, &none), TN_NO_GROUP);
    tn_life by_shows = none;
    by_shows.show = 1;
    CHECK_CODE(tn_table_set_life(test->table, group, &by_shows),
               test->plan.shows ? TN_OK : TN_BAD_VALUE);
    CHECK_OK(tn_table_set_life(test->table, group, &test->plan.lives[0]));
    CHECK_CODE(tn_table_set_shows(test->table, 1, 0), TN_BAD_VALUE); /* it has groups */
}

/* Clicks that cannot be counted, and batches that do not insert. */
static void refuse_clicks(test_case *test) {
    static const float BAD[] = {-1, NAN, INFINITY};
    test_cells cells;
    random_cells(test, &cells);
    float *clicks = test_memory((cells.examples + 1) * sizeof *clicks);
    int no_batch = test->plan.shows ? TN_NO_BATCH : TN_BAD_VALUE;
    CHECK_OK(find(test->batch, &cells, 0));
    CHECK_CODE(tn_count(test->batch, clicks), no_batch);
    CHECK_OK(find(test->batch, &cells, 1));
    naive_insert_cells(test->naive, &cells);
    if (cells.examples > 0) {
        clicks[random_below(&test->random, cells.examples)] = BAD[random_below(&test->random, 3)];
        CHECK_CODE(tn_count(test->batch, clicks), TN_BAD_VALUE);
    }
    free(clicks);
    check_update(test->batch, test->naive, &cells, &test->random);
    free_cells(&cells);
}

/* ---- Records ------------------------------------------------------------ */

/* Encodes [first, last] in pieces of `capacity` records, and counts them. */
static uint64_t encode_pieces(tn_table *table, uint64_t first, uint64_t last, uint32_t changed_from,
                              char *to, uint64_t capacity) {
    uint64_t n = 0, written, size = tn_table_record_size(table);
    for (int more = 1; more;) {
        written = UINT64_MAX;
        char *piece = test_memory(capacity * size); /* exact: the sanitizer sees a byte too many */
        uint64_t from = first;
        CHECK_OK(
            tn_encode(table, first, last, changed_from, piece, capacity, &written, &first, &more));
        CHECK(written <= capacity && (!more || (written > 0 && first > from)));
        memcpy(to + n * size, piece, written * size);
        n += written;
        free(piece);
    }
    return n;
}

static uint64_t random_end(test_case *test) {
    if (test->naive->n_rows > 0 && random_below(&test->random, 2)) {
        uint32_t n = (uint32_t)test->naive->n_rows;
        uint64_t hash = test->naive->rows[random_below(&test->random, n)]->hash;
        return hash + random_below(&test->random, 3) - 1; /* on a row, or just beside it */
    }
    return random_below(&test->random, 2) ? random_word(&test->random)
                                          : random_hash(&test->random, LAST_TAGS);
}

/* Keeps the records of rows that changed at this step or later. */
static uint64_t keep_changed(char *records, uint64_t n, uint64_t size, uint32_t changed_from) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t changed;
        memcpy(&changed, records + i * size + 12, sizeof changed);
        if (changed >= changed_from) {
            memmove(records + kept++ * size, records + i * size, size);
        }
    }
    return kept;
}

static void encode_range(test_case *test) {
    uint64_t first = random_end(test), last = random_end(test), n;
    if (first > last) {
        int more = 7;
        uint64_t unused = 7;
        CHECK_CODE(tn_encode(test->table, first, last, 0, NULL, 0, &unused, &unused, &more),
                   TN_BAD_VALUE);
        CHECK(more == 7 && unused == 7);
        uint64_t kept = first;
        first = last;
        last = kept;
    }
    uint64_t size = record_size_of(&test->plan);
    char *wanted = naive_encode(test->naive, first, last, &n);
    uint32_t delta = random_below(&test->random, 2); /* of about half the rows */
    uint32_t changed_from = delta ? test->naive->step - random_below(&test->random, 4) : 0;
    n = keep_changed(wanted, n, size, changed_from);
    char *real = test_memory(test->naive->n_rows * size);
    /* As many as may share a hash always fit. */
    uint64_t capacity = MAX_TEST_GROUPS + random_below(&test->random, 100);
    CHECK(encode_pieces(test->table, first, last, changed_from, real, capacity) == n);
    CHECK(memcmp(real, wanted, n * size) == 0);
    free(real);
    free(wanted);
}

static void check_refused(tn_table *table, const naive_table *naive, const char *records,
                          uint64_t n, int code) {
    CHECK_CODE(tn_decode(table, records, n), code);
    CHECK(tn_table_rows(table) == naive->n_rows);
}

/* Wrong records leave a table as it is. */
static void refuse_records(test_case *test, char *records, uint64_t n) {
    uint64_t size = record_size_of(&test->plan);
    tn_table *empty = make_table(&test->plan, test->pool);
    naive_table *nothing = naive_new(&test->plan);
    uint16_t unknown = 77;
    char *pair = test_memory(2 * size), *last = records + (n - 1) * size;
    memcpy(pair, last, size);
    memcpy(pair + size, last, size);
    check_refused(empty, nothing, pair, 2, TN_BAD_ORDER); /* a key twice */
    memcpy(pair + size, records, size);
    check_refused(empty, nothing, pair, 2, TN_BAD_ORDER);
    memcpy(pair + 8, &unknown, sizeof unknown);
    check_refused(empty, nothing, pair, 1, TN_NO_GROUP);
    check_refused(test->table, test->naive, records, n, TN_KEY_EXISTS);
    check_refused(test->table, test->naive, last, 1, TN_KEY_EXISTS);
    free(pair);
    naive_free(nothing);
    tn_table_free(empty);
}

/* To a table that declares its groups in another order, in one or many pieces, and trained on. */
static void copy_table(test_case *test) {
    uint64_t n, size = record_size_of(&test->plan);
    char *records = naive_encode(test->naive, 0, UINT64_MAX, &n);
    if (n > 1) {
        refuse_records(test, records, n);
    }
    tn_table *copy = NULL;
    const test_plan *plan = &test->plan;
    CHECK_OK(tn_table_new(plan->segments, plan->n_segments, ~plan->seed, test->other_pool, &copy));
    CHECK_OK(tn_table_set_shows(copy, plan->shows, plan->cvm));
    for (uint32_t g = plan->n_groups; g-- > 0;) {
        CHECK_OK(tn_table_add_group(copy, plan->group_numbers[g], plan->group_names[g],
                                    plan->initial[g]));
    }
    uint64_t pieces = 1 + random_below(&test->random, 3);
    for (uint64_t p = 0; p < pieces; p++) {
        uint64_t from = n * p / pieces, to = n * (p + 1) / pieces;
        CHECK_OK(tn_decode(copy, records + from * size, to - from));
    }
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        tn_figures figures = {.evicted = test->naive->evicted[g]};
        CHECK_OK(tn_table_set_figures(copy, plan->group_numbers[g], &figures));
    }
    check_records(copy, test->naive);
    check_counts(copy, test->naive);
    free(records);
    tn_table_free(copy);
}

/* The table becomes one read from its own records: it must go on as if nothing had happened. */
static void replace_table(test_case *test) {
    uint64_t n;
    char *records = naive_encode(test->naive, 0, UINT64_MAX, &n);
    check_removed(test->table, test->naive);
    tn_batch_free(test->batch);
    tn_table_free(test->table);
    tn_thread_pool *kept = test->pool;
    test->pool = test->other_pool;
    test->other_pool = kept;
    test->table = make_table(&test->plan, test->pool);
    test->batch = make_batch(test->table, &test->plan);
    CHECK_OK(tn_decode(test->table, records, n));
    CHECK_OK(tn_table_set_step(test->table, test->naive->step));
    CHECK_OK(tn_table_set_days(test->table, test->naive->days, test->naive->first_steps,
                               test->naive->n_days));
    for (uint32_t g = 0; g < test->plan.n_groups; g++) {
        tn_figures figures = {.evicted = test->naive->evicted[g]};
        CHECK_OK(tn_table_set_figures(test->table, test->plan.group_numbers[g], &figures));
    }
    for (uint32_t s = 0; s < test->plan.n_segments; s++) {
        CHECK_OK(
            tn_table_set_learning_rate(test->table, s, test->naive->optimizers[s].learning_rate));
    }
    free(records);
}

static void run_case(uint64_t seed, uint32_t layout, uint64_t rounds) {
    void (*const CALLS[])(test_case *) = {
        train,         train,         train,      train,       look_up,    read_only,
        encode_range,  encode_range,  train,      set_numbers, copy_table, refuse_gradient,
        replace_table, set_days,      evict,      bound,       evict,      take_removed,
        refuse_lives,  refuse_clicks, evict_twice};
    test_case test;
    start_case(&test, seed, layout);
    for (uint64_t i = 0; i < rounds; i++) {
        CALLS[random_below(&test.random, sizeof CALLS / sizeof CALLS[0])](&test);
        check_counts(test.table, test.naive);
    }
    check_records(test.table, test.naive);
    end_case(&test);
}

/* Rows that are updated so often that no bias correction of Adam is left. */
static void outlive_corrections(uint64_t seed) {
    test_case test;
    test_cells cells;
    start_case(&test, seed, 0);
    tn_optimizer adam = {
        .kind = TN_ADAM, .learning_rate = 0.01f, .epsilon = 1e-6f, .beta1 = 0.25, .beta2 = 0.5};
    test.plan.segments[1].optimizer = adam;
    tn_batch_free(test.batch);
    tn_table_free(test.table);
    naive_free(test.naive);
    test.table = make_table(&test.plan, test.pool);
    test.batch = make_batch(test.table, &test.plan);
    test.naive = naive_new(&test.plan);
    for (int i = 0; i < 150; i++) {
        fill_cells(&cells, &test.plan, &test.random, 30, FEW_IDS);
        CHECK_OK(find(test.batch, &cells, 1));
        naive_insert_cells(test.naive, &cells);
        check_update(test.batch, test.naive, &cells, &test.random);
        free_cells(&cells);
    }
    check_records(test.table, test.naive);
    uint32_t steps;
    memcpy(&steps, test.naive->rows[0]->floats + state_at(&test.plan, 1), sizeof steps);
    CHECK(steps > 53); /* 0.5^t is below half a unit of 1 */
    end_case(&test);
}

/* ---- Growth ------------------------------------------------------------- */

static void grow_table(uint64_t seed, uint64_t rows) {
    test_case test;
    test_cells cells;
    start_case(&test, seed, 0);
    /* The naive table would take hours to update so many rows in each step. */
    test.plan.all = 0;
    CHECK_OK(tn_table_set_updates(test.table, 0));
    while (test.naive->n_rows < rows) {
        fill_cells(&cells, &test.plan, &test.random, 2000, ANY_IDS);
        CHECK_OK(find(test.batch, &cells, 1));
        naive_insert_cells(test.naive, &cells);
        check_update(test.batch, test.naive, &cells, &test.random);
        /* The same again: every row is found now. */
        CHECK_OK(find(test.batch, &cells, 1));
        check_gather(test.batch, test.naive, &cells, &test.random);
        CHECK(tn_table_rows(test.table) == test.naive->n_rows);
        free_cells(&cells);
    }
    check_counts(test.table, test.naive);
    check_records(test.table, test.naive);
    copy_table(&test);
    end_case(&test);
}

/* ---- Arguments ---------------------------------------------------------- */

static void refuse_tables(const test_plan *plan, tn_thread_pool *pool) {
    tn_table *out = NULL;
    tn_segment wrong[5];
    CHECK_CODE(tn_table_new(plan->segments, 0, 1, pool, &out), TN_BAD_VALUE);
    for (int i = 0; i < 5; i++) {
        wrong[i] = plan->segments[0];
    }
    CHECK_CODE(tn_table_new(wrong, 5, 1, pool, &out), TN_BAD_VALUE);
    CHECK_CODE(tn_table_new(wrong, 1, 1, NULL, &out), TN_BAD_VALUE);
    wrong[1].width = 0;
    CHECK_CODE(tn_table_new(wrong, 2, 1, pool, &out), TN_BAD_VALUE);
    wrong[1].width = 1025;
    CHECK_CODE(tn_table_new(wrong, 2, 1, pool, &out), TN_BAD_VALUE);
    wrong[2].output = 3;
    CHECK_CODE(tn_table_new(wrong + 2, 1, 1, pool, &out), TN_BAD_VALUE);
    wrong[3].optimizer.kind = 9;
    CHECK_CODE(tn_table_new(wrong + 3, 1, 1, pool, &out), TN_BAD_VALUE);
    wrong[4].optimizer = (tn_optimizer){
        .kind = TN_ADAM, .learning_rate = 0.1f, .epsilon = 1e-8f, .beta1 = 0.9, .beta2 = 1.0};
    CHECK_CODE(tn_table_new(wrong + 4, 1, 1, pool, &out), TN_BAD_VALUE);
    wrong[4].optimizer = (tn_optimizer){.kind = TN_ADAGRAD, .learning_rate = NAN, .epsilon = 1e-8f};
    CHECK_CODE(tn_table_new(wrong + 4, 1, 1, pool, &out), TN_BAD_VALUE);
    wrong[4].optimizer = (tn_optimizer){.kind = TN_SGD, .learning_rate = 2, .decay = 1};
    CHECK_CODE(tn_table_new(wrong + 4, 1, 1, pool, &out), TN_BAD_VALUE);
    wrong[4].optimizer = (tn_optimizer){.kind = TN_SGD, .learning_rate = 1, .nesterov = 2};
    CHECK_CODE(tn_table_new(wrong + 4, 1, 1, pool, &out), TN_BAD_VALUE);
    wrong[4].optimizer = (tn_optimizer){
        .kind = TN_ADAGRAD, .learning_rate = 0.1f, .epsilon = 1e-8f, .decay = 1, .lazy_l2 = 1};
    CHECK_CODE(tn_table_new(wrong + 4, 1, 1, pool, &out), TN_BAD_VALUE);
    wrong[4].optimizer = (tn_optimizer){.kind = TN_SGD, .learning_rate = 1, .lazy_l2 = 1};
    CHECK_CODE(tn_table_new(wrong + 4, 1, 1, pool, &out), TN_BAD_VALUE);
    CHECK(out == NULL);
    tn_state states[TN_MAX_STATES];
    for (int dense = 0; dense < 2; dense++) {
        CHECK(tn_optimizer_states(&(tn_optimizer){.kind = 0}, dense, states) == 0);
        CHECK(tn_optimizer_states(&(tn_optimizer){.kind = UINT32_MAX}, dense, states) == 0);
    }
}

static void refuse_groups(const test_plan *plan, tn_table *table) {
    tn_initial wrong[MAX_TEST_SEGMENTS] = {{TN_ZEROS, 0}};
    CHECK_CODE(tn_table_add_group(table, plan->group_numbers[0], "again", plan->initial[0]),
               TN_BAD_VALUE);
    wrong[0] = (tn_initial){7, 0};
    CHECK_CODE(tn_table_add_group(table, 500, "new", wrong), TN_BAD_VALUE);
    wrong[0] = (tn_initial){TN_UNIFORM, INFINITY};
    CHECK_CODE(tn_table_add_group(table, 500, "new", wrong), TN_BAD_VALUE);
    CHECK(tn_table_group_rows(table, 500) == 0);
    CHECK_OK(tn_table_add_group(table, UINT16_MAX, "last", plan->initial[0]));
    CHECK_CODE(tn_table_set_learning_rate(table, plan->n_segments, 0.1f), TN_BAD_VALUE);
    CHECK_CODE(tn_table_set_learning_rate(table, 0, -0.1f), TN_BAD_VALUE);
    CHECK_CODE(tn_table_set_learning_rate(table, 0, NAN), TN_BAD_VALUE);
    float weights[MAX_TEST_SEGMENTS * 66];
    int has_row = 7;
    CHECK_CODE(tn_table_lookup(table, 500, 1, weights, &has_row), TN_NO_GROUP);
    CHECK(has_row == 7);
}

static void refuse_batches(const test_plan *plan, tn_table *table) {
    tn_batch *batch = NULL;
    tn_slot slot = plan->slots[0];
    CHECK_CODE(tn_batch_new(table, &slot, 0, &batch), TN_BAD_VALUE);
    slot.apart = 2;
    CHECK_CODE(tn_batch_new(table, &slot, 1, &batch), TN_BAD_VALUE);
    slot.apart = 0;
    slot.pooling = 4;
    CHECK_CODE(tn_batch_new(table, &slot, 1, &batch), TN_BAD_VALUE);
    slot.group = 501;
    CHECK_CODE(tn_batch_new(table, &slot, 1, &batch), TN_NO_GROUP);
    CHECK(batch == NULL);
}

/* The narrowest row of the matrix of cell 0 that holds a segment of every slot in it. */
static uint32_t least_stride(const test_plan *plan, uint32_t s) {
    uint32_t last = 0;
    for (uint32_t slot = 0; slot < plan->n_slots; slot++) {
        uint32_t column = plan->segments[s].output == TN_CONCAT ? plan->slots[slot].column : 0;
        int same = matrix_of(plan, slot, s) == matrix_of(plan, 0, s);
        last = same && column > last ? column : last;
    }
    return last + read_width(plan, s);
}

/* Matrices that are too narrow, or not there. */
static void refuse_matrices(const test_plan *plan, tn_batch *batch, float *const *matrices) {
    test_plan narrow = *plan;
    uint32_t s = plan->n_segments - 1;
    uint32_t *stride = &narrow.strides[matrix_of(plan, 0, s)];
    *stride = least_stride(plan, s) - 1;
    CHECK_CODE(gather(batch, &narrow, matrices, 0), TN_BAD_VALUE);
    CHECK_CODE(accumulate(batch, &narrow, matrices), TN_BAD_VALUE);
    ++*stride;
    CHECK_OK(gather(batch, &narrow, matrices, 0));
    CHECK_OK(accumulate(batch, &narrow, matrices));
    float *apart[MAX_TEST_SEGMENTS], *none[MAX_TEST_SEGMENTS] = {NULL};
    const uint32_t *strides = apart_of(plan, matrices, apart);
    if (strides != NULL && memcmp(apart, none, plan->n_segments * sizeof *none) != 0) {
        const float *const *read = (const float *const *)matrices;
        CHECK_CODE(tn_gather(batch, matrices, plan->strides, NULL, strides, 0), TN_BAD_VALUE);
        CHECK_CODE(tn_gather(batch, matrices, plan->strides, apart, NULL, 0), TN_BAD_VALUE);
        CHECK_CODE(tn_gather(batch, matrices, plan->strides, none, strides, 0), TN_BAD_VALUE);
        CHECK_CODE(tn_accumulate(batch, read, plan->strides, NULL, NULL), TN_BAD_VALUE);
    }
}

/* Ids, offsets and weights that do not fit. */
static void refuse_finds(const test_plan *plan, tn_batch *batch, test_cells *cells) {
    static const float BAD[] = {NAN, INFINITY, -INFINITY, 0x1p58f};
    float weights[] = {1, 1};
    cells->offsets[plan->n_slots] = 2;
    for (int i = 0; i < 4; i++) {
        weights[i % 2] = BAD[i];
        CHECK_CODE(tn_find(batch, cells->ids, cells->offsets, weights, 1, 1), TN_BAD_VALUE);
        weights[i % 2] = -0x1p57f;
    }
    cells->offsets[0] = 1;
    CHECK_CODE(find(batch, cells, 1), TN_BAD_VALUE);
    cells->offsets[0] = 0;
    cells->offsets[plan->n_slots - 1] = 100; /* falls at the end */
    CHECK_CODE(find(batch, cells, 1), TN_BAD_VALUE);
}

/* The calls of a step, out of their order or with cells that do not fit. */
static void refuse_calls(const test_plan *plan, tn_table *table, random_source *random) {
    tn_batch *batch = make_batch(table, plan);
    test_cells cells;
    fill_cells(&cells, plan, random, 1, ANY_IDS);
    float *matrices[MAX_TEST_MATRICES];
    make_matrices(matrices, plan, random, 1);
    CHECK_CODE(gather(batch, plan, matrices, 0), TN_NO_BATCH);
    CHECK_CODE(accumulate(batch, plan, matrices), TN_NO_BATCH);
    CHECK_OK(find(batch, &cells, 1));
    CHECK_CODE(tn_apply(batch, 1), TN_NO_BATCH); /* nothing accumulated */
    refuse_matrices(plan, batch, matrices);
    memset(cells.offsets, 0, plan->n_slots * sizeof *cells.offsets);
    refuse_finds(plan, batch, &cells);
    CHECK_CODE(gather(batch, plan, matrices, 0), TN_NO_BATCH);
    free_matrices(matrices);
    free_cells(&cells);
    tn_batch_free(batch);
}

static void refuse_arguments(uint64_t seed) {
    test_plan plan;
    random_source random = {seed};
    tn_thread_pool *pool = NULL;
    make_plan(&plan, &random, 0);
    plan.n_slots = plan.n_slots < 2 ? 2 : plan.n_slots;
    plan.slots[1] = plan.slots[0];
    CHECK_CODE(tn_thread_pool_new(0, &pool), TN_BAD_VALUE);
    CHECK_CODE(tn_thread_pool_new(65, &pool), TN_BAD_VALUE);
    CHECK_OK(tn_thread_pool_new(2, &pool));
    refuse_tables(&plan, pool);
    tn_table *table = make_table(&plan, pool);
    refuse_groups(&plan, table);
    refuse_batches(&plan, table);
    refuse_calls(&plan, table, &random);
    tn_table_free(table);
    tn_thread_pool_free(pool);
    tn_table_free(NULL);
    tn_batch_free(NULL);
    tn_dense_free(NULL);
    tn_thread_pool_free(NULL);
}

/* Keys of several groups that share one hash are written together or not at all. */
static void share_one_hash(void) {
    test_plan plan;
    random_source random = {11};
    tn_thread_pool *pool;
    do {
        make_plan(&plan, &random, 2);
    } while (plan.n_groups < 3);
    CHECK_OK(tn_thread_pool_new(1, &pool));
    tn_table *table = make_table(&plan, pool);
    uint64_t hash = UINT64_C(0x123456789abcdef0);
    char *records = test_memory(3 * record_size_of(&plan));
    naive_table *naive = naive_new(&plan);
    for (uint32_t g = 0; g < 3; g++) {
        uint64_t id = tn_unmix64(hash) ^ tn_group_salt(plan.group_names[g]);
        naive_insert(naive, plan.group_numbers[g], id);
    }
    uint64_t n, next = 0, written = 0;
    int more;
    char *all = naive_encode(naive, 0, UINT64_MAX, &n);
    CHECK_OK(tn_decode(table, all, n));
    CHECK_CODE(tn_encode(table, 0, UINT64_MAX, 0, records, 2, &written, &next, &more),
               TN_BAD_VALUE);
    CHECK_CODE(tn_encode(table, 0, UINT64_MAX, 0, records, 0, &written, &next, &more),
               TN_BAD_VALUE);
    CHECK_OK(tn_encode(table, hash, hash, 0, records, 3, &written, &next, &more));
    CHECK(written == 3 && !more && memcmp(records, all, 3 * record_size_of(&plan)) == 0);
    CHECK_OK(tn_encode(table, hash + 1, UINT64_MAX, 0, records, 0, &written, &next, &more));
    CHECK(written == 0 && !more);
    free(all);
    free(records);
    naive_free(naive);
    tn_table_free(table);
    tn_thread_pool_free(pool);
}

int main(int argc, char **argv) {
    uint64_t cases = number_argument(argc, argv, 1, 32);
    uint64_t rounds = number_argument(argc, argv, 2, 40);
    uint64_t rows = number_argument(argc, argv, 3, 200000);
    uint64_t first = number_argument(argc, argv, 4, 1);
    refuse_arguments(first);
    share_one_hash();
    outlive_corrections(first);
    for (uint64_t i = 0; i < cases; i++) {
        run_case(first + i, (uint32_t)(i % N_LAYOUTS), rounds);
    }
    grow_table(first, rows);
    return report_checks("test_model");
}
