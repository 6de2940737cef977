/* test_threads.c - pools and tables under several threads at once, for the thread sanitizer.
 *
 *     test_threads [rounds]
 *
 * Whatever the threads, the tables must end as one thread leaves them. */
#include <pthread.h>

#include "tn_thread_pool.h"

#include "cases.h"

#define EXAMPLES 150

/* Finds, gathers and trains `rounds` batches that follow from the seed; the norms, summed. */
static double train(tn_table *table, const test_plan *plan, uint64_t seed, uint64_t rounds) {
    random_source random = {seed};
    tn_batch *batch = make_batch(table, plan);
    double norms = 0, squares;
    float clicks[EXAMPLES];
    for (uint64_t i = 0; i < rounds; i++) {
        test_cells cells;
        uint64_t evicted;
        uint32_t day = (uint32_t)i / 3, first_step = day * 3;
        float *matrices[MAX_TEST_MATRICES];
        fill_cells(&cells, plan, &random, EXAMPLES, ID_KINDS);
        make_matrices(matrices, plan, &random, EXAMPLES);
        CHECK_OK(tn_table_set_step(table, (uint32_t)i));
        CHECK_OK(tn_table_set_days(table, &day, &first_step, 1));
        CHECK_OK(find(batch, &cells, 1));
        if (plan->shows) {
            for (uint32_t b = 0; b < EXAMPLES; b++) {
                clicks[b] = (float)random_below(&random, 2);
            }
            CHECK_OK(tn_count(batch, clicks));
        }
        CHECK_OK(gather(batch, plan, matrices, 0));
        /* What was gathered is the gradient: every float of it reaches the weights. */
        CHECK_OK(accumulate(batch, plan, matrices));
        CHECK_OK(tn_norm(batch, &squares));
        norms += squares;
        CHECK_OK(tn_apply(batch, 0.5f));
        CHECK_OK(tn_evict_surplus(table, &evicted));
        if (i % 4 == 3) {
            CHECK_OK(tn_evict(table, &evicted));
        }
        norms += (double)tn_removed_keys(table);
        free_matrices(matrices);
        free_cells(&cells);
    }
    tn_batch_free(batch);
    return norms;
}

/* All records of a table; to be freed. */
static char *dump(tn_table *table, uint64_t *bytes) {
    uint64_t rows = tn_table_rows(table), written, next;
    int more;
    *bytes = rows * tn_table_record_size(table);
    char *records = test_memory(*bytes);
    CHECK_OK(tn_encode(table, 0, UINT64_MAX, 0, records, rows, &written, &next, &more));
    CHECK(written == rows && !more);
    return records;
}

typedef struct {
    const test_plan *plan;
    tn_table *table;
    uint64_t seed, rounds;
    atomic_int *done;
    double norms;
} task;

static void *train_task(void *argument) {
    task *t = argument;
    t->norms = train(t->table, t->plan, t->seed, t->rounds);
    atomic_fetch_add(t->done, 1);
    return NULL;
}

/* What an owner reads for an evaluation of another process: the ids of the first slot. */
static void read_as_owner(const task *t, tn_batch *pull, const test_cells *cells) {
    float rows[20 * (MAX_TEST_SEGMENTS * 66)];
    uint16_t groups[20];
    tn_rank_keys keys = {.ids = cells->ids, .groups = groups, .n = 0};
    while (keys.n < 20 && keys.n < cells->n_ids) {
        groups[keys.n++] = t->plan->slots[0].group;
    }
    CHECK_OK(tn_pull(pull, &keys, 1, 0));
    int code = tn_pull_read(pull, 0, rows);
    CHECK(code == TN_OK || code == TN_NO_BATCH); /* rows were removed since */
}

/* Reads that may run beside a step of the same table: a batch that does not insert, and all calls
 * without a batch. */
static void *read_task(void *argument) {
    const task *t = argument;
    random_source random = {~t->seed};
    tn_batch *batch = make_batch(t->table, t->plan), *pull = make_batch(t->table, t->plan);
    for (int last = 0; !last;) {
        last = atomic_load(t->done) > 0;
        test_cells cells;
        float *outputs[MAX_TEST_MATRICES], weights[MAX_TEST_SEGMENTS * 66];
        uint64_t bytes = 0;
        int has_row;
        fill_cells(&cells, t->plan, &random, 20, ID_KINDS);
        make_matrices(outputs, t->plan, &random, 20);
        CHECK_OK(find(batch, &cells, 0));
        int code = gather(batch, t->plan, outputs, 0);
        CHECK(code == TN_OK || code == TN_NO_BATCH); /* rows were removed since */
        read_as_owner(t, pull, &cells);
        CHECK_OK(tn_table_lookup(t->table, t->plan->slots[0].group, 50, weights, &has_row));
        CHECK(tn_table_index_bytes(t->table) > 0);
        bytes += tn_table_row_bytes(t->table);
        bytes += tn_table_group_rows(t->table, t->plan->slots[0].group);
        uint64_t written, next;
        int more;
        char few[8 * 1024];
        CHECK_OK(tn_encode(t->table, random_word(&random) >> 1, UINT64_MAX, 0, few, 8, &written,
                           &next, &more));
        free_matrices(outputs);
        free_cells(&cells);
    }
    tn_batch_free(batch);
    tn_batch_free(pull);
    return NULL;
}

/* Two tables on one pool, each trained by one thread and read by another. */
static void share_a_pool(uint64_t seed, uint64_t rounds, int threads) {
    test_plan plan;
    random_source random = {seed};
    tn_thread_pool *pool;
    pthread_t handles[4];
    task tasks[2];
    atomic_int done[2] = {0, 0};
    make_plan(&plan, &random, (uint32_t)(seed % 4));
    CHECK_OK(tn_thread_pool_new(threads, &pool));
    for (int i = 0; i < 2; i++) {
        tasks[i] = (task){&plan, make_table(&plan, pool), seed + (uint64_t)i, rounds, &done[i], 0};
        CHECK(pthread_create(&handles[i], NULL, train_task, &tasks[i]) == 0);
        CHECK(pthread_create(&handles[2 + i], NULL, read_task, &tasks[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_join(handles[i], NULL) == 0);
    }
    tn_thread_pool *single;
    CHECK_OK(tn_thread_pool_new(1, &single));
    for (int i = 0; i < 2; i++) {
        uint64_t bytes, bytes_alone;
        tn_table *alone = make_table(&plan, single);
        CHECK(train(alone, &plan, seed + (uint64_t)i, rounds) == tasks[i].norms);
        char *records = dump(tasks[i].table, &bytes), *records_alone = dump(alone, &bytes_alone);
        CHECK(bytes == bytes_alone && memcmp(records, records_alone, bytes) == 0);
        free(records);
        free(records_alone);
        tn_table_free(alone);
        tn_table_free(tasks[i].table);
    }
    tn_thread_pool_free(single);
    tn_thread_pool_free(pool);
}

/* ---- The pool alone ----------------------------------------------------- */

typedef struct {
    uint64_t n;
    unsigned char *visits; /* plain memory: the sanitizer sees two threads at one place */
} visit_call;

static void visit(void *argument, int thread, int threads) {
    visit_call *call = argument;
    for (uint64_t i = tn_part(call->n, thread, threads); i < tn_part(call->n, thread + 1, threads);
         i++) {
        call->visits[i]++;
    }
}

static void *visit_task(void *argument) {
    tn_thread_pool *pool = argument;
    unsigned char visits[257] = {0};
    for (uint64_t n = 0; n <= 256; n++) {
        visit_call call = {n, visits};
        tn_thread_pool_run(pool, visit, &call);
    }
    for (int i = 0; i < 257; i++) {
        CHECK(visits[i] == (unsigned char)(256 - i));
    }
    return NULL;
}

static void visit_all(int threads) {
    tn_thread_pool *pool;
    pthread_t handles[3];
    CHECK_OK(tn_thread_pool_new(threads, &pool));
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&handles[i], NULL, visit_task, pool) == 0);
    }
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_join(handles[i], NULL) == 0);
    }
    tn_thread_pool_free(pool);
    CHECK_OK(tn_thread_pool_new(threads, &pool)); /* freed before it ever ran */
    tn_thread_pool_free(pool);
}

/* ---- The dense table ---------------------------------------------------- */

static void train_dense(uint32_t kind) {
    tn_optimizer optimizer = {.kind = kind,
                              .learning_rate = 0.01f,
                              .epsilon = 1e-8f,
                              .initial_accumulator = 0.1f,
                              .beta1 = 0.9,
                              .beta2 = 0.999};
    enum { N = 1003 };
    float g[N], *weights[2];
    double squares[2];
    tn_dense *dense[2];
    tn_thread_pool *pools[2];
    random_source random = {kind};
    for (int i = 0; i < N; i++) {
        g[i] = random_float(&random);
    }
    const float *gradients[2] = {g, g};
    uint64_t offsets[2] = {0, 512}, lengths[2] = {500, N - 512};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tn_thread_pool_new(i ? 4 : 1, &pools[i]));
        CHECK_OK(tn_dense_new(&optimizer, N, pools[i], &dense[i]));
        for (int step = 0; step < 50; step++) {
            CHECK_OK(tn_dense_check(dense[i], gradients, offsets, lengths, 2));
            CHECK_OK(tn_dense_norm(dense[i], gradients, offsets, lengths, 2, &squares[i]));
            CHECK_OK(tn_dense_apply(dense[i], gradients, offsets, lengths, 2, step % 2 ? 1 : 2));
        }
        weights[i] = tn_dense_weights(dense[i]);
    }
    CHECK(memcmp(weights[0], weights[1], N * sizeof(float)) == 0);
    CHECK(squares[0] == squares[1] && squares[0] > 0);
    CHECK(weights[1][0] != 0 && weights[1][505] == 0 && weights[1][N - 1] != 0);
    for (int i = 0; i < 2; i++) {
        tn_dense_free(dense[i]);
        tn_thread_pool_free(pools[i]);
    }
}

int main(int argc, char **argv) {
    uint64_t rounds = number_argument(argc, argv, 1, 12);
    for (int threads = 1; threads <= 5; threads += 2) {
        visit_all(threads);
    }
    train_dense(TN_ADAM);
    train_dense(TN_ADAGRAD);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        share_a_pool(seed, rounds, seed % 2 ? 4 : 2);
    }
    return report_checks("test_threads");
}
