/* test_exchange.c - tables of 1 to 4 processes that train as one, beside the naive table.
 *
 *     test_exchange [cases] [rounds] [first seed]
 *
 * Each rank has cells of its own; the keys, rows and sums of each pair of a rank and an owner are
 * in arrays of exactly their size. The naive table gets the batches of the ranks in their order,
 * and sums that are reduced in this order. With one rank, a table that is trained without an
 * exchange must hold the same bytes, its sketch too, and without admission have its rows in the
 * same order. */
#include "exact_counts.h"
#include "tn_table.h"

#define MAX_RANKS 4

/* What a rank and an owner send each other in a step. */
typedef struct {
    uint64_t n;
    uint64_t *ids;
    uint16_t *groups;
    uint32_t *occurrences, *waits;
    float *rows, *sums, *counts;
} message;

typedef struct {
    test_plan plan;
    random_source random;
    uint32_t ranks, first_shards[MAX_RANKS + 1], read_floats;
    tn_thread_pool *pools[2];     /* of the workers, of the owners */
    tn_table *layouts[MAX_RANKS]; /* of the workers: the rank's own rows, or none */
    tn_table *tables[MAX_RANKS];  /* of the owners */
    tn_batch *batches[MAX_RANKS], *pulls[MAX_RANKS];
    message messages[MAX_RANKS][MAX_RANKS]; /* of a rank to an owner */
    tn_table *local;                        /* with one rank: trained without an exchange */
    tn_batch *local_batch;
    naive_table *naive;
    int admits; /* ids are counted before they get a row */
    exact_counts counts;
} world;

/* ---- A world ------------------------------------------------------------- */

static void divide_shards(world *w) {
    for (uint32_t r = 0; r < w->ranks; r++) {
        w->first_shards[r] = 64 * r / w->ranks;
    }
    if (w->ranks == 3 && random_below(&w->random, 2)) {
        w->first_shards[1] = 31; /* an owner of one shard, of which crafted ids are */
        w->first_shards[2] = 32;
    }
    w->first_shards[w->ranks] = 64;
}

static world *start_world(uint64_t seed) {
    static const int THREADS[] = {1, 2, 3, 4};
    world *w = test_memory(sizeof *w);
    w->random = (random_source){seed};
    test_plan *plan = &w->plan;
    make_plan(plan, &w->random, (uint32_t)(seed % N_LAYOUTS));
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        plan->lives[g].most_rows = 0; /* owners bound the rows that each has */
    }
    w->admits = random_below(&w->random, 2) == 0;
    if (w->admits) {
        plan_admission(plan, &w->random);
        /* Two groups of one name would count together, in the order of the batch. */
        for (uint32_t g = 0; g < plan->n_groups; g++) {
            snprintf(plan->group_names[g], sizeof plan->group_names[g], "admitted_%u", (unsigned)g);
        }
    }
    uint64_t sketch = w->admits ? SKETCH_BYTES : 0;
    w->ranks = 1 + (uint32_t)(seed / 2 % MAX_RANKS);
    divide_shards(w);
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        w->read_floats += read_width(plan, s);
    }
    for (uint64_t i = 0; i < 2; i++) {
        CHECK_OK(tn_thread_pool_new(THREADS[(seed + i * (1 + seed / 4)) % 4], &w->pools[i]));
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        w->tables[r] = make_counting_table(plan, w->pools[1], sketch);
        CHECK_OK(tn_table_set_shards(w->tables[r], w->first_shards[r],
                                     w->first_shards[r + 1] - w->first_shards[r]));
        w->layouts[r] =
            seed % 3 == 0 ? w->tables[r] : make_counting_table(plan, w->pools[0], sketch);
        w->batches[r] = make_batch(w->layouts[r], plan);
        w->pulls[r] = make_batch(w->tables[r], plan);
        CHECK_OK(tn_batch_set_ranks(w->batches[r], w->ranks));
    }
    if (w->ranks == 1) {
        w->local = make_counting_table(plan, w->pools[0], sketch);
        w->local_batch = make_batch(w->local, plan);
    }
    w->naive = naive_new(plan);
    return w;
}

static void end_world(world *w) {
    for (uint32_t r = 0; r < w->ranks; r++) {
        tn_batch_free(w->batches[r]);
        tn_batch_free(w->pulls[r]);
        if (w->layouts[r] != w->tables[r]) {
            CHECK(tn_table_rows(w->layouts[r]) == 0);
            tn_table_free(w->layouts[r]);
        }
        tn_table_free(w->tables[r]);
    }
    tn_batch_free(w->local_batch);
    tn_table_free(w->local);
    tn_thread_pool_free(w->pools[0]);
    tn_thread_pool_free(w->pools[1]);
    naive_free(w->naive);
    free_counts(&w->counts);
    free(w);
}

/* ---- Messages ------------------------------------------------------------ */

static void check_distinct(const world *w, const message *m, uint32_t owner) {
    for (uint64_t i = 0; i < m->n; i++) {
        uint64_t shard = hash_of(&w->plan, m->groups[i], m->ids[i]) >> 58;
        CHECK(shard >= w->first_shards[owner] && shard < w->first_shards[owner + 1]);
        for (uint64_t j = 0; j < i && i < 200; j++) {
            CHECK(m->ids[i] != m->ids[j] || m->groups[i] != m->groups[j]);
        }
    }
}

static void send_keys(world *w, uint32_t r, const test_cells *cells) {
    uint64_t occurrences = 0, distinct = 0;
    CHECK_OK(tn_keys(w->batches[r], cells->ids, cells->offsets, cells->weights, cells->examples,
                     w->first_shards, w->ranks));
    for (uint32_t o = 0; o < w->ranks; o++) {
        message *m = &w->messages[r][o];
        CHECK_OK(tn_keys_count(w->batches[r], o, &m->n));
        m->ids = test_memory(m->n * sizeof *m->ids);
        m->groups = test_memory(m->n * sizeof *m->groups);
        m->occurrences = test_memory(m->n * sizeof *m->occurrences);
        m->waits = test_memory(m->n * sizeof *m->waits);
        m->rows = test_memory(m->n * w->read_floats * sizeof *m->rows);
        m->sums = test_memory(m->n * weights_of(&w->plan) * sizeof *m->sums);
        m->counts = test_memory(2 * m->n * sizeof *m->counts);
        CHECK_OK(tn_keys_write(w->batches[r], o, m->ids, m->groups, NULL));
        CHECK_OK(tn_keys_write(w->batches[r], o, m->ids, m->groups, m->occurrences));
        check_distinct(w, m, o);
        distinct += m->n;
        for (uint64_t i = 0; i < m->n; i++) {
            occurrences += m->occurrences[i];
        }
    }
    CHECK(occurrences == cells->n_ids && distinct == tn_batch_rows(w->batches[r]));
    CHECK_CODE(tn_keys_sums(w->batches[r], 0, w->messages[r][0].sums), TN_NO_BATCH);
    CHECK_CODE(tn_apply(w->batches[r], 1), TN_NO_BATCH);
}

static void free_messages(world *w) {
    for (uint32_t r = 0; r < w->ranks; r++) {
        for (uint32_t o = 0; o < w->ranks; o++) {
            message *m = &w->messages[r][o];
            free(m->ids);
            free(m->groups);
            free(m->occurrences);
            free(m->waits);
            free(m->rows);
            free(m->sums);
            free(m->counts);
        }
    }
}

static void answer(world *w, uint32_t o, int insert) {
    tn_rank_keys ranks[MAX_RANKS];
    for (uint32_t r = 0; r < w->ranks; r++) {
        const message *m = &w->messages[r][o];
        ranks[r] = (tn_rank_keys){m->ids, m->groups, m->occurrences, m->n};
    }
    CHECK_OK(tn_pull(w->pulls[o], ranks, w->ranks, insert));
    for (uint32_t r = 0; r < w->ranks; r++) {
        CHECK_OK(tn_pull_read(w->pulls[o], r, w->messages[r][o].rows));
        CHECK_OK(tn_pull_waits(w->pulls[o], r, w->messages[r][o].waits));
    }
}

static void receive(world *w, uint32_t r, int training) {
    const float *rows[MAX_RANKS];
    const uint32_t *waits[MAX_RANKS];
    for (uint32_t o = 0; o < w->ranks; o++) {
        rows[o] = w->messages[r][o].rows;
        waits[o] = w->messages[r][o].waits;
    }
    message *m = &w->messages[r][random_below(&w->random, w->ranks)];
    if (m->n > 0) {
        uint32_t kept = m->waits[m->n - 1];
        m->waits[m->n - 1] = m->occurrences[m->n - 1] + 1;
        CHECK_CODE(tn_keys_set_rows(w->batches[r], rows, waits, training), TN_BAD_VALUE);
        m->waits[m->n - 1] = kept;
    }
    CHECK_OK(tn_keys_set_rows(w->batches[r], rows, training ? waits : NULL, training));
    CHECK_CODE(tn_keys_set_rows(w->batches[r], rows, waits, training), TN_NO_BATCH);
}

/* ---- A step -------------------------------------------------------------- */

/* Adds what the naive table summed for one rank, times its weight, to what it will apply. */
static void reduce(naive_table *naive, float **totals, float *total_counts, float weight) {
    uint32_t weights = weights_of(naive->plan);
    for (uint64_t i = 0; i < naive->n_rows; i++) {
        naive_row *row = naive->rows[i];
        for (uint32_t j = 0; row->gradient != NULL && j < weights; j++) {
            totals[i][j] += weight * row->gradient[j];
            row->gradient[j] = 0;
        }
        total_counts[2 * i] += row->counts[0];
        total_counts[2 * i + 1] += row->counts[1];
        row->counts[0] = row->counts[1] = 0;
    }
}

static void count_naively(naive_table *naive, const test_cells *cells, const float *clicks) {
    const test_plan *plan = naive->plan;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            naive_row *row = naive_find(naive, slot_of(plan, c)->group, cells->ids[k]);
            if (row != NULL) {
                row->counts[0] += 1;
                row->counts[1] += clicks[c / plan->n_slots];
            }
        }
    }
}

typedef struct {
    test_cells cells[MAX_RANKS]; /* ids that wait are NOWHERE */
    float *gradients[MAX_RANKS][MAX_TEST_MATRICES];
    float *clicks[MAX_RANKS];
    float weights[MAX_RANKS];
    int counted;
} step;

static void make_gradients(world *w, step *s) {
    uint32_t examples = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        examples += s->cells[r].examples;
    }
    s->counted = w->plan.shows && random_below(&w->random, 4) > 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        uint32_t n = s->cells[r].examples;
        make_matrices(s->gradients[r], &w->plan, &w->random, n);
        s->clicks[r] = test_memory((n + 1) * sizeof(float));
        for (uint32_t b = 0; b < n; b++) {
            s->clicks[r][b] = random_below(&w->random, 3) ? 0 : 1 + random_float(&w->random);
        }
        s->weights[r] = examples ? (float)n / (float)examples : 0;
    }
}

static void apply_naively(world *w, const step *s, double squares) {
    naive_table *naive = w->naive;
    uint64_t n = naive->n_rows;
    float **totals = test_memory(n * sizeof *totals), *counts = test_memory(2 * n * sizeof *counts);
    for (uint64_t i = 0; i < n; i++) {
        totals[i] = test_memory(weights_of(&w->plan) * sizeof(float));
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        naive_accumulate(naive, &s->cells[r], s->gradients[r]);
        if (s->counted) {
            count_naively(naive, &s->cells[r], s->clicks[r]);
        }
        reduce(naive, totals, counts, s->weights[r]);
    }
    uint64_t distinct = 0;
    for (uint32_t o = 0; o < w->ranks; o++) {
        distinct += tn_batch_rows(w->pulls[o]);
    }
    CHECK(distinct == naive_gradients(naive));
    for (uint64_t i = 0; i < n; i++) {
        naive_row *row = naive->rows[i];
        if (row->gradient != NULL) {
            memcpy(row->gradient, totals[i], weights_of(&w->plan) * sizeof(float));
            memcpy(row->counts, counts + 2 * i, sizeof row->counts);
        }
        free(totals[i]);
    }
    double wanted = naive_norm(naive);
    CHECK(fabs(squares - wanted) <= 1e-11 * wanted);
    naive_apply(naive, 1);
    free(totals);
    free(counts);
}

static void push(world *w, const step *s) {
    for (uint32_t r = 0; r < w->ranks; r++) {
        CHECK_OK(accumulate(w->batches[r], &w->plan, s->gradients[r]));
        if (s->counted) {
            CHECK_OK(tn_count(w->batches[r], s->clicks[r]));
        }
        for (uint32_t o = 0; o < w->ranks; o++) {
            message *m = &w->messages[r][o];
            CHECK_OK(tn_keys_sums(w->batches[r], o, m->sums));
            CHECK_OK(tn_push_sums(w->pulls[o], r, m->sums, s->weights[r]));
            CHECK_CODE(tn_push_sums(w->pulls[o], r, m->sums, 1), TN_BAD_VALUE);
            if (s->counted) {
                CHECK_OK(tn_keys_shows(w->batches[r], o, m->counts));
                CHECK_OK(tn_push_shows(w->pulls[o], r, m->counts));
            }
        }
    }
}

static double apply(world *w) {
    double sum = 0, squares;
    for (uint32_t o = 0; o < w->ranks; o++) {
        CHECK_OK(tn_norm(w->pulls[o], &squares));
        CHECK_OK(tn_apply(w->pulls[o], 1));
        CHECK_CODE(tn_apply(w->pulls[o], 1), TN_NO_BATCH);
        sum += squares;
    }
    return sum;
}

static void apply_locally(world *w, const step *s) {
    if (s->counted) {
        CHECK_OK(tn_count(w->local_batch, s->clicks[0]));
    }
    CHECK_OK(accumulate(w->local_batch, &w->plan, s->gradients[0]));
    CHECK_OK(tn_apply(w->local_batch, 1));
}

static void set_clocks(world *w) {
    naive_table *naive = w->naive;
    naive->step++;
    for (uint32_t o = 0; o <= w->ranks; o++) {
        tn_table *table = o < w->ranks ? w->tables[o] : w->local;
        if (table != NULL) {
            CHECK_OK(tn_table_set_step(table, naive->step));
            CHECK_OK(tn_table_set_days(table, naive->days, naive->first_steps, naive->n_days));
        }
    }
}

static void train(world *w) {
    step s;
    memset(&s, 0, sizeof s);
    set_clocks(w);
    for (uint32_t r = 0; r < w->ranks; r++) {
        /* Keys that share all counters of the sketch count together, in the order of the batch. */
        uint32_t kinds = w->admits ? ANY_IDS : ID_KINDS;
        kinds = random_below(&w->random, 2) ? FEW_IDS : kinds;
        /* One step is large enough for all calls to use threads. */
        uint32_t examples = w->naive->step == 1 ? 500 : random_below(&w->random, 30);
        fill_cells(&s.cells[r], &w->plan, &w->random, examples, kinds);
        send_keys(w, r, &s.cells[r]);
    }
    if (w->local != NULL) {
        CHECK_OK(find(w->local_batch, &s.cells[0], 1));
    }
    for (uint32_t o = 0; o < w->ranks; o++) {
        answer(w, o, 1);
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        admit_cells(w->naive, &w->counts, &s.cells[r]);
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        receive(w, r, 1);
        check_gather(w->batches[r], w->naive, &s.cells[r], &w->random);
    }
    make_gradients(w, &s);
    push(w, &s);
    apply_naively(w, &s, apply(w));
    if (w->local != NULL) {
        apply_locally(w, &s);
    }
    free_messages(w);
    for (uint32_t r = 0; r < w->ranks; r++) {
        free_matrices(s.gradients[r]);
        free_cells(&s.cells[r]);
        free(s.clicks[r]);
    }
}

/* An evaluation: rows are read and nothing is written. */
static void read_only(world *w) {
    test_cells cells[MAX_RANKS];
    uint64_t rows = w->naive->n_rows;
    w->naive->inserting = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        fill_cells(&cells[r], &w->plan, &w->random, random_below(&w->random, 30), ID_KINDS);
        send_keys(w, r, &cells[r]);
    }
    for (uint32_t o = 0; o < w->ranks; o++) {
        answer(w, o, 0);
        CHECK_CODE(tn_push_sums(w->pulls[o], 0, w->messages[0][o].sums, 1), TN_NO_BATCH);
        rows -= tn_table_rows(w->tables[o]);
    }
    CHECK(rows == 0);
    for (uint32_t r = 0; r < w->ranks; r++) {
        receive(w, r, 0);
        check_gather(w->batches[r], w->naive, &cells[r], &w->random);
        float *gradients[MAX_TEST_MATRICES];
        make_matrices(gradients, &w->plan, &w->random, cells[r].examples);
        CHECK_CODE(accumulate(w->batches[r], &w->plan, gradients), TN_NO_BATCH);
        free_matrices(gradients);
        free_cells(&cells[r]);
    }
    free_messages(w);
}

/* Rows go where their owners are; what was pulled before is no batch any more. */
static void evict(world *w) {
    uint64_t total = 0, evicted;
    for (uint32_t o = 0; o < w->ranks; o++) {
        tn_rank_keys none = {0};
        CHECK_OK(tn_pull(w->pulls[o], &none, 1, 1));
        CHECK_OK(tn_evict(w->tables[o], &evicted));
        CHECK_CODE(tn_push_sums(w->pulls[o], 0, NULL, 1), evicted > 0 ? TN_NO_BATCH : TN_OK);
        total += evicted;
    }
    if (w->local != NULL) {
        CHECK_OK(tn_evict(w->local, &evicted));
        CHECK(evicted == total);
    }
    CHECK(naive_evict(w->naive) == total);
}

/* ---- What is left -------------------------------------------------------- */

/* Of the shards that a table owns every thread gets as many as any other, or one more or less. */
static void check_threads(const tn_table *table, uint32_t first, uint32_t count) {
    for (int threads = 1; threads <= 64; threads++) {
        uint32_t shards[64] = {0};
        int last = 0;
        for (uint32_t shard = 0; shard < SHARDS; shard++) {
            int owner = owner_of(table, shard, threads);
            if (shard < first || shard >= first + count) {
                CHECK(owner == threads);
                continue;
            }
            CHECK(owner >= last && owner < threads);
            last = owner < threads ? owner : 0;
            shards[last]++;
        }
        uint32_t least = count / (uint32_t)threads;
        for (int t = 0; t < threads; t++) {
            CHECK(shards[t] >= least && shards[t] <= least + 1);
        }
    }
}

/* The records of the owners, one after the other, are those of one table. */
static void check_owners(const world *w) {
    uint64_t n, written, next, at = 0, size = record_size_of(&w->plan);
    int more;
    char *wanted = naive_encode(w->naive, 0, UINT64_MAX, &n), *real = test_memory(n * size);
    for (uint32_t o = 0; o < w->ranks; o++) {
        CHECK_OK(tn_encode(w->tables[o], 0, UINT64_MAX, 0, real + at * size, n - at, &written,
                           &next, &more));
        at += written;
        CHECK(more == 0);
        char *keys = test_memory(written * size);
        memcpy(keys, real + (at - written) * size, written * size);
        tn_table *other = make_counting_table(&w->plan, w->pools[0], SKETCH_BYTES);
        uint32_t shard = w->first_shards[(o + 1) % w->ranks];
        CHECK_OK(tn_table_set_shards(other, shard, 1));
        if (written > 0 && w->ranks > 1) {
            CHECK_CODE(tn_decode(other, keys, written), TN_NOT_OWNED);
            CHECK(tn_table_rows(other) == 0);
        }
        uint32_t first = w->first_shards[o], shards = w->first_shards[o + 1] - first;
        CHECK_OK(tn_table_set_shards(other, first, shards));
        check_threads(other, first, shards);
        CHECK_OK(tn_table_reserve(other, written));
        CHECK_OK(tn_decode(other, keys, written));
        CHECK_CODE(tn_table_set_shards(other, 0, 64), written > 0 ? TN_BAD_VALUE : TN_OK);
        tn_table_free(other);
        free(keys);
    }
    CHECK(at == n && memcmp(real, wanted, n * size) == 0);
    free(real);
    free(wanted);
}

static void check_local(const world *w) {
    uint64_t bytes[2];
    tn_table *tables[2] = {w->local, w->tables[0]};
    uint8_t *sketches[2] = {tn_table_sketch(tables[0], &bytes[0]),
                            tn_table_sketch(tables[1], &bytes[1])};
    CHECK(bytes[0] == bytes[1] &&
          (bytes[0] == 0 || memcmp(sketches[0], sketches[1], bytes[0]) == 0));
    check_records(w->local, w->naive);
    /* A key that waited has its row at a later occurrence in the batch, so behind others. */
    for (uint32_t i = 0; i < SHARDS && bytes[0] == 0; i++) {
        const tn_shard *a = &tables[0]->shards[i], *b = &tables[1]->shards[i];
        CHECK(a->next_row == b->next_row && a->free_rows == b->free_rows);
        for (uint32_t number = 0; number < a->next_row; number++) {
            const tn_row *left = row_at(tables[0], a, number),
                         *right = row_at(tables[1], b, number);
            CHECK(left->id == right->id && left->group == right->group);
        }
    }
}

static void run_case(uint64_t seed, uint64_t rounds) {
    world *w = start_world(seed);
    for (uint64_t i = 0; i < rounds; i++) {
        train(w);
        if (i % 3 == 2) {
            read_only(w);
        }
        if (i % 5 == 4) {
            evict(w);
            random_days(w->naive, &w->random);
        }
    }
    check_owners(w);
    if (w->local != NULL) {
        check_local(w);
    }
    end_world(w);
}

int main(int argc, char **argv) {
    uint64_t cases = number_argument(argc, argv, 1, 48);
    uint64_t rounds = number_argument(argc, argv, 2, 20);
    uint64_t first = number_argument(argc, argv, 3, 1);
    for (uint64_t i = 0; i < cases; i++) {
        run_case(first + i, rounds);
    }
    return report_checks("test_exchange");
}
