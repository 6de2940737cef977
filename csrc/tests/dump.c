/* dump.c - trains some tables for a few steps and writes all their bytes to standard output.
 *
 *     dump [threads] [steps]
 *
 * Builds for different CPU levels must write the same. */
#include "cases.h"

static void write_bytes(const void *bytes, uint64_t n) {
    CHECK(fwrite(bytes, 1, n, stdout) == n);
}

static void dump_table(uint32_t seed, tn_thread_pool *pool, uint64_t steps) {
    test_plan plan;
    random_source random = {seed};
    make_plan(&plan, &random, seed % N_LAYOUTS);
    tn_table *table = make_table(&plan, pool);
    tn_batch *batch = make_batch(table, &plan);
    static const uint32_t days[3] = {3, 4, 6}, first_steps[3] = {2, 4, 5};
    for (uint64_t i = 0; i < steps; i++) {
        test_cells cells;
        float *gradients[MAX_TEST_MATRICES];
        fill_cells(&cells, &plan, &random, 100, ID_KINDS);
        make_matrices(gradients, &plan, &random, 100);
        CHECK_OK(find(batch, &cells, 1));
        CHECK_OK(accumulate(batch, &plan, gradients));
        CHECK_OK(gather(batch, &plan, gradients, 1));
        double squares;
        CHECK_OK(tn_norm(batch, &squares));
        write_bytes(&squares, sizeof squares);
        CHECK_OK(tn_table_set_step(table, (uint32_t)i + 1));
        if (plan.shows) {
            float clicks[100];
            for (uint32_t b = 0; b < 100; b++) {
                clicks[b] = 1 + random_float(&random);
            }
            CHECK_OK(tn_count(batch, clicks));
        }
        CHECK_OK(tn_apply(batch, i % 2 ? 1 : 0.5f));
        for (uint32_t m = 0; m < MAX_TEST_MATRICES; m++) {
            write_bytes(gradients[m], (uint64_t)100 * plan.strides[m] * sizeof(float));
        }
        uint64_t evicted[2];
        CHECK_OK(tn_table_set_days(table, days, first_steps, 1 + (uint32_t)i % 3));
        CHECK_OK(tn_evict(table, &evicted[0]));
        CHECK_OK(tn_evict_surplus(table, &evicted[1]));
        write_bytes(evicted, sizeof evicted);
        free_matrices(gradients);
        free_cells(&cells);
    }
    uint64_t keys = tn_removed_keys(table);
    char *removed = test_memory(14 * keys);
    CHECK_OK(tn_take_removed(table, removed, keys, &keys));
    write_bytes(removed, 14 * keys);
    free(removed);
    uint64_t rows = tn_table_rows(table), written, next;
    int more;
    char *records = test_memory(rows * record_size_of(&plan));
    CHECK_OK(tn_encode(table, 0, UINT64_MAX, 0, records, rows, &written, &next, &more));
    write_bytes(records, rows * record_size_of(&plan));
    free(records);
    tn_batch_free(batch);
    tn_table_free(table);
}

static void dump_dense(uint32_t kind, int extras, tn_thread_pool *pool, uint64_t steps) {
    enum { N = 777 };
    tn_optimizer optimizer = {.kind = kind,
                              .learning_rate = 0.01f,
                              .epsilon = 1e-8f,
                              .initial_accumulator = 0.1f,
                              .l1 = 0.01f,
                              .beta1 = 0.9,
                              .beta2 = 0.999};
    if (extras) {
        optimizer.momentum = 0.9f;
        optimizer.l2 = 0.1f;
        optimizer.decay = 0.1f;
        optimizer.clip = 0.5f;
        optimizer.bound = 0.05f;
    }
    tn_dense *dense;
    random_source random = {kind};
    uint64_t offset = 0, length = N;
    CHECK_OK(tn_dense_new(&optimizer, N, pool, &dense));
    for (uint64_t i = 0; i < steps; i++) {
        float g[N];
        for (int j = 0; j < N; j++) {
            g[j] = random_float(&random);
        }
        const float *gradient = g;
        double squares;
        CHECK_OK(tn_dense_norm(dense, &gradient, &offset, &length, 1, &squares));
        write_bytes(&squares, sizeof squares);
        CHECK_OK(tn_dense_apply(dense, &gradient, &offset, &length, 1, extras ? 0.5f : 1));
    }
    write_bytes(tn_dense_weights(dense), N * sizeof(float));
    tn_dense_free(dense);
}

int main(int argc, char **argv) {
    tn_thread_pool *pool;
    uint64_t steps = number_argument(argc, argv, 2, 10);
    CHECK_OK(tn_thread_pool_new((int)number_argument(argc, argv, 1, 1), &pool));
    for (uint32_t seed = 0; seed < 5 * N_LAYOUTS; seed++) { /* all optimizers */
        dump_table(seed, pool, steps);
    }
    for (uint32_t kind = TN_ADAGRAD; kind < TN_TENSORNET_FTRL; kind++) {
        dump_dense(kind, 0, pool, steps);
        dump_dense(kind, 1, pool, steps);
    }
    tn_thread_pool_free(pool);
    return 0;
}
