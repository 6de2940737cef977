/* dump.c - trains some tables for a few steps and writes all their bytes to standard output.
 *
 *     dump [threads] [steps]
 *
 * Builds for different CPU levels must write the same. */
#include "cases.h"

static void write_bytes(const void *bytes, uint64_t n) {
    CHECK(fwrite(bytes, 1, n, stdout) == n);
}

static void dump_table(uint32_t layout, tn_pool *pool, uint64_t steps) {
    test_plan plan;
    random_source random = {layout};
    make_plan(&plan, &random, layout);
    tn_table *table = make_table(&plan, pool);
    tn_batch *batch = make_batch(table, &plan);
    for (uint64_t i = 0; i < steps; i++) {
        test_cells cells;
        float *gradients[MAX_TEST_SEGMENTS];
        fill_cells(&cells, &plan, &random, 100, ID_KINDS);
        make_matrices(gradients, &plan, &random, 100);
        CHECK_OK(tn_find(batch, cells.ids, cells.offsets, 100, 1));
        CHECK_OK(tn_accumulate(batch, (const float *const *)gradients, plan.strides));
        CHECK_OK(tn_gather(batch, gradients, plan.strides, 1));
        CHECK_OK(tn_apply(batch));
        for (uint32_t s = 0; s < plan.n_segments; s++) {
            write_bytes(gradients[s], (uint64_t)100 * plan.strides[s] * sizeof(float));
        }
        free_matrices(gradients, &plan);
        free_cells(&cells);
    }
    uint64_t rows = tn_table_rows(table), written, next;
    int more;
    char *records = test_memory(rows * record_size_of(&plan));
    CHECK_OK(tn_encode(table, 0, UINT64_MAX, records, rows, &written, &next, &more));
    write_bytes(records, rows * record_size_of(&plan));
    free(records);
    tn_batch_free(batch);
    tn_table_free(table);
}

static void dump_dense(uint32_t kind, tn_pool *pool, uint64_t steps) {
    enum { N = 777 };
    tn_optimizer optimizer = {kind, 0.01f, 1e-8f, 0.1f, 0.9, 0.999};
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
        CHECK_OK(tn_dense_apply(dense, &gradient, &offset, &length, 1));
    }
    write_bytes(tn_dense_weights(dense), N * sizeof(float));
    tn_dense_free(dense);
}

int main(int argc, char **argv) {
    tn_pool *pool;
    uint64_t steps = number_argument(argc, argv, 2, 10);
    CHECK_OK(tn_pool_new((int)number_argument(argc, argv, 1, 1), &pool));
    for (uint32_t layout = 0; layout < N_LAYOUTS; layout++) {
        dump_table(layout, pool, steps);
    }
    dump_dense(TN_ADAM, pool, steps);
    dump_dense(TN_ADAGRAD, pool, steps);
    tn_pool_free(pool);
    return 0;
}
