/* test_oom.c - one allocation in twenty fails; the table must stay what the naive one says.
 *
 *     test_oom [cases] [rounds] [first seed]
 *
 * Compiled with -DTN_MEMORY_HEADER='"tests/failing_memory.h"', sources and all. */
#define _DEFAULT_SOURCE
#include <sys/mman.h>

#include "cases.h"
#include "failing_memory.h"
#include "tn_thread_pool.h"

/* ---- The allocator ------------------------------------------------------ */

static atomic_int failing;           /* off: every call succeeds */
static atomic_ulong calls, failures; /* since the start */
static atomic_long live;             /* allocations not yet freed */
static uint64_t failing_seed;

static int fails_now(void) {
    uint64_t call = atomic_fetch_add(&calls, 1);
    int fails = atomic_load(&failing) && tn_mix64(call ^ failing_seed) % 20 == 0;
    atomic_fetch_add(&failures, fails);
    return fails;
}

static void *counted(void *memory) {
    atomic_fetch_add(&live, memory != NULL);
    return memory;
}

void *failing_calloc(size_t count, size_t size) {
    return fails_now() ? NULL : counted(calloc(count, size));
}

void *failing_realloc(void *memory, size_t size) {
    if (fails_now()) {
        return NULL;
    }
    void *larger = realloc(memory, size);
    atomic_fetch_add(&live, memory == NULL && larger != NULL);
    return larger;
}

/* Filled with what nobody may rely on. */
void *failing_aligned_alloc(size_t alignment, size_t size) {
    void *memory = fails_now() ? NULL : counted(aligned_alloc(alignment, size));
    if (memory != NULL && size <= 65536) {
        memset(memory, 0xa5, size);
    }
    return memory;
}

void failing_free(void *memory) {
    atomic_fetch_sub(&live, memory != NULL);
    free(memory);
}

void *failing_map(size_t size) {
    if (fails_now()) {
        return MAP_FAILED;
    }
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    atomic_fetch_add(&live, memory != MAP_FAILED);
    return memory;
}

void failing_unmap(void *memory, size_t size) {
    atomic_fetch_sub(&live, 1);
    munmap(memory, size);
}

static int may_fail(int code) {
    CHECK(code == TN_OK || code == TN_NO_MEMORY);
    return code == TN_OK;
}

/* ---- Making things ------------------------------------------------------ */

/* A table is about seventy allocations: most attempts fail, somewhere. */
static tn_table *table_at_last(const test_plan *plan, tn_thread_pool *pool) {
    tn_table *table = NULL;
    long live_before = atomic_load(&live);
    for (int attempt = 0; attempt < 20 && table == NULL; attempt++) {
        if (!may_fail(tn_table_new(plan->segments, plan->n_segments, plan->seed, pool, &table))) {
            CHECK(table == NULL && atomic_load(&live) == live_before);
        }
    }
    atomic_store(&failing, 0);
    if (table == NULL) {
        CHECK_OK(tn_table_new(plan->segments, plan->n_segments, plan->seed, pool, &table));
    }
    atomic_store(&failing, 1);
    CHECK_OK(tn_table_set_updates(table, plan->all));
    while (!may_fail(tn_table_set_shows(table, plan->shows, plan->cvm))) {
    }
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        while (!may_fail(tn_table_add_group(table, plan->group_numbers[g], plan->group_names[g],
                                            plan->initial[g]))) {
        }
        CHECK_OK(tn_table_set_life(table, plan->group_numbers[g], &plan->lives[g]));
    }
    return table;
}

static tn_batch *batch_at_last(tn_table *table, const test_plan *plan) {
    tn_batch *batch = NULL;
    while (!may_fail(tn_batch_new(table, plan->slots, plan->n_slots, &batch))) {
        CHECK(batch == NULL);
    }
    return batch;
}

static void no_job(void *argument, int thread, int threads) {
    (void)argument, (void)thread, (void)threads;
}

static tn_thread_pool *pool_at_last(int threads) {
    tn_thread_pool *pool = NULL;
    while (!may_fail(tn_thread_pool_new(threads, &pool))) {
        CHECK(pool == NULL && atomic_load(&live) == 0);
    }
    tn_thread_pool_run(pool, no_job, NULL); /* now each thread has freed what it was started with */
    return pool;
}

/* ---- A table ------------------------------------------------------------ */

typedef struct {
    test_plan plan;
    random_source random;
    tn_thread_pool *pool;
    tn_table *table;
    tn_batch *batch;
    naive_table *naive;
} oom_case;

static int is_there(tn_table *table, uint16_t group, uint64_t id) {
    float weights[MAX_TEST_SEGMENTS * 66];
    int has_row;
    CHECK_OK(tn_table_lookup(table, group, id, weights, &has_row));
    return has_row;
}

/* The naive table learns which new rows a failed tn_find left. With one thread they are the rows
 * of the ids before the failing one. */
static void learn_rows(oom_case *test, const test_cells *cells, int one_thread) {
    int ended = 0;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * test->plan.n_slots; c++) {
        uint16_t group = test->plan.slots[c % test->plan.n_slots].group;
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            if (naive_find(test->naive, group, cells->ids[k]) != NULL) {
                continue;
            }
            if (is_there(test->table, group, cells->ids[k])) {
                CHECK(!one_thread || !ended);
                naive_insert(test->naive, group, cells->ids[k]);
            } else {
                ended = 1;
            }
        }
    }
    CHECK(tn_table_rows(test->table) == test->naive->n_rows);
}

/* The rows of a batch by an exchange with the same table. A pull that fails is made again: rows
 * that it inserted stay, and the others follow. */
static void exchange(oom_case *test, const test_cells *cells, tn_batch *batch, tn_batch *pull) {
    static const uint32_t ALL[2] = {0, 64};
    uint64_t n = 0;
    uint32_t weights = weights_of(&test->plan), read = 0;
    for (uint32_t s = 0; s < test->plan.n_segments; s++) {
        read += read_width(&test->plan, s);
    }
    while (!may_fail(
        tn_keys(batch, cells->ids, cells->offsets, cells->weights, cells->examples, ALL, 1))) {
        CHECK_CODE(tn_keys_count(batch, 0, &n), TN_NO_BATCH);
    }
    CHECK_OK(tn_keys_count(batch, 0, &n));
    uint64_t *ids = test_memory(n * sizeof *ids);
    uint16_t *groups = test_memory(n * sizeof *groups);
    float *rows = test_memory(n * read * sizeof *rows), *sums = test_memory(n * weights * 4);
    float *gradients[MAX_TEST_MATRICES];
    CHECK_OK(tn_keys_write(batch, 0, ids, groups, NULL));
    tn_rank_keys keys = {ids, groups, NULL, n};
    while (!may_fail(tn_pull(pull, &keys, 1, 1))) {
        CHECK_CODE(tn_pull_read(pull, 0, rows), TN_NO_BATCH);
    }
    naive_insert_cells(test->naive, cells);
    CHECK_OK(tn_pull_read(pull, 0, rows));
    CHECK_OK(tn_keys_set_rows(batch, (const float *const *)&rows, NULL, 1));
    check_gather(batch, test->naive, cells, &test->random);
    make_matrices(gradients, &test->plan, &test->random, cells->examples);
    CHECK_OK(accumulate(batch, &test->plan, gradients));
    CHECK_OK(tn_keys_sums(batch, 0, sums));
    CHECK_OK(tn_push_sums(pull, 0, sums, 1));
    CHECK_OK(tn_apply(pull, 1));
    naive_accumulate(test->naive, cells, gradients);
    CHECK(tn_batch_rows(pull) == naive_gradients(test->naive));
    naive_apply(test->naive, 1);
    free_matrices(gradients);
    free(ids);
    free(groups);
    free(rows);
    free(sums);
}

static void train_by_exchange(oom_case *test) {
    test_cells cells;
    tn_batch *batch = batch_at_last(test->table, &test->plan);
    tn_batch *pull = batch_at_last(test->table, &test->plan);
    for (int i = 0; i < 2; i++) {
        fill_cells(&cells, &test->plan, &test->random, 100u << i, ID_KINDS);
        test->naive->step++;
        CHECK_OK(tn_table_set_step(test->table, test->naive->step));
        exchange(test, &cells, batch, pull);
        free_cells(&cells);
    }
    tn_batch_free(batch);
    tn_batch_free(pull);
}

static void train(oom_case *test, int one_thread) {
    test_cells cells;
    fill_cells(&cells, &test->plan, &test->random, random_below(&test->random, 200), ID_KINDS);
    test->naive->step++;
    CHECK_OK(tn_table_set_step(test->table, test->naive->step));
    if (may_fail(find(test->batch, &cells, 1))) {
        naive_insert_cells(test->naive, &cells);
        check_gather(test->batch, test->naive, &cells, &test->random);
        check_update(test->batch, test->naive, &cells, &test->random);
    } else {
        float *outputs[MAX_TEST_MATRICES];
        make_matrices(outputs, &test->plan, &test->random, cells.examples);
        learn_rows(test, &cells, one_thread);
        CHECK_CODE(gather(test->batch, &test->plan, outputs, 0), TN_NO_BATCH);
        CHECK_CODE(tn_apply(test->batch, 1), TN_NO_BATCH);
        free_matrices(outputs);
    }
    free_cells(&cells);
}

static void read_only(oom_case *test) {
    test_cells cells;
    fill_cells(&cells, &test->plan, &test->random, random_below(&test->random, 300), ID_KINDS);
    if (may_fail(find(test->batch, &cells, 0))) {
        test->naive->inserting = 0;
        check_gather(test->batch, test->naive, &cells, &test->random);
    }
    free_cells(&cells);
}

static void encode(oom_case *test) {
    uint64_t n, written = 7, next = 7, size = record_size_of(&test->plan);
    int more = 7;
    char *wanted = naive_encode(test->naive, 0, UINT64_MAX, &n);
    char *real = test_memory(n * size);
    if (may_fail(tn_encode(test->table, 0, UINT64_MAX, 0, real, n, &written, &next, &more))) {
        CHECK(written == n && more == 0 && memcmp(real, wanted, n * size) == 0);
    } else {
        CHECK(written == 7 && next == 7 && more == 7);
    }
    free(real);
    free(wanted);
}

static void set_days(oom_case *test) {
    while (!may_fail(tn_table_set_days(test->table, test->naive->days, test->naive->first_steps,
                                       test->naive->n_days))) {
    }
}

/* Rows go all at once or not at all. */
static void remove_rows(oom_case *test) {
    uint64_t evicted = 7;
    if (may_fail(tn_evict(test->table, &evicted))) {
        CHECK(naive_evict(test->naive) == evicted);
    } else {
        CHECK(evicted == 7);
    }
    evicted = 7;
    if (may_fail(tn_evict_surplus(test->table, &evicted))) {
        CHECK(naive_evict_surplus(test->naive) == evicted);
    } else {
        CHECK(evicted == 7);
    }
    check_counts(test->table, test->naive);
}

/* Records of keys that stay out of the table. */
static void start_rows(oom_case *test) {
    uint16_t groups[3];
    uint64_t ids[3], size = record_size_of(&test->plan), rows = tn_table_rows(test->table);
    char *records = test_memory(3 * size);
    for (uint64_t i = 0; i < 3; i++) {
        groups[i] = test->plan.group_numbers[0];
        ids[i] = random_word(&test->random);
    }
    if (may_fail(tn_initial_records(test->table, groups, ids, 3, records))) {
        CHECK(memcmp(records + 2 * size, &ids[2], sizeof ids[2]) == 0);
    }
    CHECK(tn_table_rows(test->table) == rows);
    free(records);
}

/* A sketch comes whole or not at all. */
static void add_sketch(oom_case *test) {
    uint64_t bytes;
    int there = may_fail(tn_table_set_sketch(test->table, 1 << 20));
    CHECK((tn_table_sketch(test->table, &bytes) != NULL) == there && (bytes > 0) == there);
}

/* A decode that fails leaves no record; it is tried again. */
static void replace_table(oom_case *test) {
    uint64_t n;
    char *records = naive_encode(test->naive, 0, UINT64_MAX, &n);
    tn_table *copy = table_at_last(&test->plan, test->pool);
    while (!may_fail(tn_decode(copy, records, n))) {
        CHECK(tn_table_rows(copy) == 0);
    }
    check_removed(test->table, test->naive);
    tn_batch_free(test->batch);
    tn_table_free(test->table);
    test->table = copy;
    for (uint32_t g = 0; g < test->plan.n_groups; g++) {
        tn_figures figures = {.evicted = test->naive->evicted[g]};
        CHECK_OK(tn_table_set_figures(copy, test->plan.group_numbers[g], &figures));
    }
    set_days(test);
    test->batch = batch_at_last(copy, &test->plan);
    free(records);
}

static void run_case(uint64_t seed, uint64_t rounds) {
    oom_case test = {.random = {seed}};
    int threads = seed % 3 == 0 ? 3 : 1;
    make_plan(&test.plan, &test.random, (uint32_t)(seed % N_LAYOUTS));
    failing_seed = random_word(&test.random);
    atomic_store(&failing, 1);
    test.pool = pool_at_last(threads);
    test.table = table_at_last(&test.plan, test.pool);
    test.batch = batch_at_last(test.table, &test.plan);
    test.naive = naive_new(&test.plan);
    for (uint64_t i = 0; i < rounds; i++) {
        train(&test, threads == 1);
        read_only(&test);
        if (i % 4 == 2) {
            train_by_exchange(&test);
        }
        encode(&test);
        if (i % 4 == 3) {
            remove_rows(&test);
            random_days(test.naive, &test.random);
            set_days(&test);
        }
        start_rows(&test);
        if (i % 8 == 7) {
            replace_table(&test);
            add_sketch(&test);
        }
    }
    atomic_store(&failing, 0);
    check_records(test.table, test.naive);
    check_counts(test.table, test.naive);
    tn_batch_free(test.batch);
    tn_table_free(test.table);
    tn_thread_pool_free(test.pool);
    naive_free(test.naive);
    CHECK(atomic_load(&live) == 0);
}

/* ---- The rest ----------------------------------------------------------- */

static void make_dense(uint64_t seed) {
    tn_optimizer adam = {
        .kind = TN_ADAM, .learning_rate = 0.01f, .epsilon = 1e-8f, .beta1 = 0.9, .beta2 = 0.999};
    tn_dense *dense = NULL;
    failing_seed = seed;
    atomic_store(&failing, 1);
    tn_thread_pool *pool = pool_at_last(2);
    for (int i = 0; i < 30; i++) {
        if (may_fail(tn_dense_new(&adam, 1000, pool, &dense))) {
            CHECK(tn_dense_weights(dense)[999] == 0 && tn_dense_state(dense, 1)[999] == 0);
            tn_dense_free(dense);
            dense = NULL;
        }
        CHECK(dense == NULL);
        tn_aligned_free(tn_aligned_new(100));
    }
    tn_thread_pool_free(pool);
    CHECK(atomic_load(&live) == 0);
}

int main(int argc, char **argv) {
    uint64_t cases = number_argument(argc, argv, 1, 24);
    uint64_t rounds = number_argument(argc, argv, 2, 24);
    uint64_t first = number_argument(argc, argv, 3, 1);
    for (uint64_t i = 0; i < cases; i++) {
        run_case(first + i, rounds);
        make_dense(first + i);
    }
    CHECK(atomic_load(&failures) > cases);
    return report_checks("test_oom");
}
