/* test_admission.c - rows that wait for their occurrence, beside exact counts and the naive table.
 *
 *     test_admission [cases] [rounds] [first seed]
 *
 * Two tables, of other numbers of threads, live the same life: their sketches must be the same. */
#include "cases.h"

#define SKETCH_BYTES (1u << 24) /* the ids of a case do not meet in all four lines */
#define NOWHERE UINT64_C(0x5e5e5e5e00000001)

typedef struct exact_count {
    struct exact_count *next;
    uint64_t hash; /* two groups of one name count together */
    uint32_t count;
} exact_count;

typedef struct {
    test_plan plan;
    random_source random;
    tn_life lives[MAX_TEST_GROUPS];
    tn_thread_pool *pools[2];
    tn_table *tables[2];
    tn_batch *batches[2];
    naive_table *naive;
    exact_count *counts[BUCKETS];
} test_case;

/* ---- The rules, as the header has them ---------------------------------- */

static int makes_row(const test_plan *plan, const tn_life *life, uint64_t hash, uint32_t n) {
    if (n > 255) {
        return 1;
    }
    if (life->admit_probability == 1) {
        return n >= life->admit_after;
    }
    uint64_t start = tn_mix64(tn_mix64(plan->seed ^ UINT64_C(0x61646d6974)) ^ hash);
    uint64_t draw = tn_mix64(start + n * UINT64_C(0x9e3779b97f4a7c15));
    return (double)draw < life->admit_probability * 0x1p64;
}

static int counts_ids(const tn_life *life) {
    return life->admit_after > 1 || life->admit_probability < 1;
}

static exact_count *count_of(test_case *test, uint64_t hash) {
    exact_count **at = &test->counts[(hash >> 20) % BUCKETS];
    while (*at != NULL && (*at)->hash != hash) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        *at = test_memory(sizeof **at);
        (*at)->hash = hash;
    }
    return *at;
}

/* Whether this occurrence finds a row, or makes one. */
static int has_row(test_case *test, uint16_t group, uint64_t id) {
    if (naive_find(test->naive, group, id) != NULL) {
        return 1;
    }
    const tn_life *life = &test->lives[place_of_group(&test->plan, group)];
    uint64_t hash = hash_of(&test->plan, group, id);
    if (counts_ids(life) && !makes_row(&test->plan, life, hash, ++count_of(test, hash)->count)) {
        return 0;
    }
    naive_insert(test->naive, group, id);
    return 1;
}

/* ---- A case ------------------------------------------------------------- */

static void plan_lives(test_case *test) {
    for (uint32_t g = 0; g < test->plan.n_groups; g++) {
        uint32_t kind = random_below(&test->random, 3);
        test->lives[g] = (tn_life){
            .admit_after = kind == 1 ? 2 + random_below(&test->random, 3) : 1,
            .admit_probability = kind == 2 ? 0.4 : 1,
            .show_decay = 1,
        };
    }
}

static void start_case(test_case *test, uint64_t seed) {
    static const int THREADS[] = {1, 2, 5};
    memset(test, 0, sizeof *test);
    test->random = (random_source){seed};
    make_plan(&test->plan, &test->random, (uint32_t)(seed % N_LAYOUTS));
    plan_lives(test);
    test->naive = naive_new(&test->plan);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tn_thread_pool_new(THREADS[(seed + (uint64_t)i) % 3], &test->pools[i]));
        test->tables[i] = make_table(&test->plan, test->pools[i]);
        CHECK_OK(tn_table_set_sketch(test->tables[i], SKETCH_BYTES));
        for (uint32_t g = 0; g < test->plan.n_groups; g++) {
            CHECK_OK(
                tn_table_set_life(test->tables[i], test->plan.group_numbers[g], &test->lives[g]));
        }
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
    for (uint32_t b = 0; b < BUCKETS; b++) {
        for (exact_count *count = test->counts[b], *next; count != NULL; count = next) {
            next = count->next;
            free(count);
        }
    }
}

/* Trains on a batch. For the naive table an occurrence without a row is one of an id that has
 * none. */
static void train(test_case *test) {
    test_cells cells;
    uint32_t kinds = random_below(&test->random, 2) ? FEW_IDS : ID_KINDS;
    fill_cells(&cells, &test->plan, &test->random, random_below(&test->random, 30), kinds);
    test->naive->step++;
    test->naive->inserting = 1;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(tn_table_set_step(test->tables[i], test->naive->step));
        CHECK_OK(find(test->batches[i], &cells, 1));
    }
    for (uint64_t c = 0; c < (uint64_t)cells.examples * test->plan.n_slots; c++) {
        uint16_t group = test->plan.slots[c % test->plan.n_slots].group;
        for (uint32_t k = cells.offsets[c]; k < cells.offsets[c + 1]; k++) {
            cells.ids[k] = has_row(test, group, cells.ids[k]) ? cells.ids[k] : NOWHERE;
        }
    }
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
