/* test_admission.c - rows that wait for their occurrence, beside exact counts and the naive table.
 *
 *     test_admission [cases] [rounds] [first seed]
 *
 * Two tables, of other numbers of threads, live the same life: their sketches must be the same. */
#include "exact_counts.h"

typedef struct {
    test_plan plan;
    random_source random;
    tn_thread_pool *pools[2];
    tn_table *tables[2];
    tn_batch *batches[2];
    naive_table *naive;
    exact_counts counts;
} test_case;

/* ---- A case ------------------------------------------------------------- */

static void start_case(test_case *test, uint64_t seed) {
    static const int THREADS[] = {1, 2, 5};
    memset(test, 0, sizeof *test);
    test->random = (random_source){seed};
    make_plan(&test->plan, &test->random, (uint32_t)(seed % N_LAYOUTS));
    for (uint32_t g = 0; g < test->plan.n_groups; g++) {
        test->plan.lives[g] = (tn_life){.show_decay = 1};
    }
    plan_admission(&test->plan, &test->random);
    test->naive = naive_new(&test->plan);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tn_thread_pool_new(THREADS[(seed + (uint64_t)i) % 3], &test->pools[i]));
        test->tables[i] = make_counting_table(&test->plan, test->pools[i], SKETCH_BYTES);
        test->batches[i] = make_batch(test->tables[i], &test->plan);
    }
}

static void end_case(test_case *test) {
    for (int i = 0; i < 2; i++) {
        tn_batch_free(test->batches[i]);
        tn_table_free(test->tables[i]);
        tn_thread_pool_free(test->pools[i]);
    }
    naive_free(test->naive);
    free_counts(&test->counts);
}

static void train(test_case *test) {
    test_cells cells;
    uint32_t kinds = random_below(&test->random, 2) ? FEW_IDS : ID_KINDS;
    fill_cells(&cells, &test->plan, &test->random, random_below(&test->random, 30), kinds);
    test->naive->step++;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tn_table_set_step(test->tables[i], test->naive->step));
        CHECK_OK(find(test->batches[i], &cells, 1));
    }
    admit_cells(test->naive, &test->counts, &cells);
    check_gather(test->batches[0], test->naive, &cells, &test->random);
    float *gradients[MAX_TEST_MATRICES];
    make_matrices(gradients, &test->plan, &test->random, cells.examples);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(accumulate(test->batches[i], &test->plan, gradients));
        CHECK_OK(tn_apply(test->batches[i], 1));
    }
    naive_accumulate(test->naive, &cells, gradients);
    CHECK(tn_batch_rows(test->batches[0]) == naive_gradients(test->naive));
    naive_apply(test->naive, 1);
    free_matrices(gradients);
    free_cells(&cells);
}

static void check_sketches(test_case *test) {
    uint64_t bytes[2];
    uint8_t *sketches[2];
    for (int i = 0; i < 2; i++) {
        sketches[i] = tn_table_sketch(test->tables[i], &bytes[i]);
    }
    CHECK(bytes[0] == SKETCH_BYTES && bytes[1] == SKETCH_BYTES);
    CHECK(memcmp(sketches[0], sketches[1], SKETCH_BYTES) == 0);
}

static void run_case(uint64_t seed, uint64_t rounds) {
    test_case *test = test_memory(sizeof *test);
    start_case(test, seed);
    for (uint64_t i = 0; i < rounds; i++) {
        train(test);
        check_counts(test->tables[0], test->naive);
    }
    for (int i = 0; i < 2; i++) {
        check_records(test->tables[i], test->naive);
    }
    check_sketches(test);
    end_case(test);
    free(test);
}

int main(int argc, char **argv) {
    uint64_t cases = number_argument(argc, argv, 1, 24);
    uint64_t rounds = number_argument(argc, argv, 2, 30);
    uint64_t first = number_argument(argc, argv, 3, 1);
    for (uint64_t i = 0; i < cases; i++) {
        run_case(first + i, rounds);
    }
    return report_checks("test_admission");
}
