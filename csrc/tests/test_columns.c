/* test_columns.c - columns to cells, crosses and views, in memory that ends where they must.
 *
 *     test_columns [cases] [first seed] */
#include "check.h"

#define MAX_COLUMNS 6
#define MAX_ROWS 1200 /* more than two blocks of tn_interleave */

typedef struct {
    uint32_t columns;
    uint64_t rows;
    uint64_t *ids[MAX_COLUMNS];
    int32_t *offsets[MAX_COLUMNS]; /* or NULL: one id per row */
    float *weights[MAX_COLUMNS];   /* or NULL */
    uint32_t spread[MAX_COLUMNS];
} test_columns;

static void make_columns(test_columns *given, random_source *random) {
    given->columns = 1 + random_below(random, MAX_COLUMNS);
    given->rows = random_below(random, random_below(random, 8) ? 20 : MAX_ROWS);
    for (uint32_t c = 0; c < given->columns; c++) {
        int single = random_below(random, 3) == 0;
        /* Columns may start inside their memory. */
        int32_t at = single ? 0 : (int32_t)random_below(random, 3);
        given->offsets[c] = single ? NULL : test_memory((given->rows + 1) * sizeof(int32_t));
        for (uint64_t row = 0; row <= given->rows && !single; row++) {
            given->offsets[c][row] = at;
            at += row < given->rows ? (int32_t)random_below(random, 4) : 0;
        }
        uint64_t n = single ? given->rows : (uint64_t)at;
        given->ids[c] = test_memory(n * sizeof(uint64_t));
        given->weights[c] = random_below(random, 2) ? test_memory(n * sizeof(float)) : NULL;
        for (uint64_t k = 0; k < n; k++) {
            given->ids[c][k] = random_word(random);
            if (given->weights[c] != NULL) {
                given->weights[c][k] = random_float(random);
            }
        }
        given->spread[c] = random_below(random, 2) ? 1 : 1 + random_below(random, 5);
    }
}

static void free_columns(test_columns *given) {
    for (uint32_t c = 0; c < given->columns; c++) {
        free(given->ids[c]);
        free(given->offsets[c]);
        free(given->weights[c]);
    }
}

static uint64_t first_of(const test_columns *given, uint32_t c, uint64_t row) {
    return given->offsets[c] ? (uint64_t)given->offsets[c][row] : row;
}

static uint32_t count_in(const test_columns *given, uint32_t c, uint64_t row) {
    return (uint32_t)(given->offsets[c] ? first_of(given, c, row + 1) - first_of(given, c, row)
                                        : 1);
}

/* The ids of a row that its cells keep. */
static uint32_t kept_of(const test_columns *given, const uint32_t *spread, uint32_t c,
                        uint64_t row) {
    uint32_t n = count_in(given, c, row);
    return spread && spread[c] > 1 && n > spread[c] ? spread[c] : n;
}

/* ---- Cells -------------------------------------------------------------- */

typedef struct {
    uint64_t cells, n;
    uint64_t *ids;
    uint32_t *offsets;
    float *weights;
} test_cells;

static void free_cells(test_cells *cells) {
    free(cells->ids);
    free(cells->offsets);
    free(cells->weights);
}

/* Every cell of every row, id by id. */
static void check_cells(const test_columns *given, const uint32_t *spread, int weighted,
                        const test_cells *cells) {
    uint64_t at = 0, cell = 0;
    for (uint64_t row = 0; row < given->rows; row++) {
        for (uint32_t c = 0; c < given->columns; c++) {
            uint32_t kept = kept_of(given, spread, c, row);
            uint32_t n_cells = spread ? spread[c] : 1;
            for (uint32_t i = 0; i < n_cells; i++, cell++) {
                uint32_t n = n_cells == 1 ? kept : i < kept;
                CHECK(cells->offsets[cell + 1] - cells->offsets[cell] == n);
            }
            for (uint32_t i = 0; i < kept; i++, at++) {
                uint64_t k = first_of(given, c, row) + i;
                CHECK(cells->ids[at] == given->ids[c][k]);
                float weight = weighted && given->weights[c] ? given->weights[c][k] : 1;
                CHECK(cells->weights == NULL || cells->weights[at] == weight);
            }
        }
    }
    CHECK(at == cells->n && cell == given->rows * cells->cells);
    CHECK(cells->offsets[0] == 0 && cells->offsets[cell] == at);
}

static void interleave(const test_columns *given, random_source *random, test_cells *cells) {
    const uint32_t *spread = random_below(random, 2) ? given->spread : NULL;
    int weighted = (int)random_below(random, 2), out = (int)random_below(random, 2);
    cells->cells = cells->n = 0;
    for (uint32_t c = 0; c < given->columns; c++) {
        cells->cells += spread ? spread[c] : 1;
        for (uint64_t row = 0; row < given->rows; row++) {
            cells->n += kept_of(given, spread, c, row);
        }
    }
    cells->ids = test_memory(cells->n * sizeof(uint64_t));
    cells->weights = out ? test_memory(cells->n * sizeof(float)) : NULL;
    cells->offsets = test_memory((given->rows * cells->cells + 1) * sizeof(uint32_t));
    const float *const *weights = weighted ? (const float *const *)given->weights : NULL;
    CHECK_OK(tn_interleave((const uint64_t *const *)given->ids,
                           (const int32_t *const *)given->offsets, weights, spread, given->columns,
                           given->rows, cells->ids, cells->weights, cells->offsets));
    check_cells(given, spread, weighted, cells);
}

/* Rows in any order, some twice. */
static void take(const test_columns *given, random_source *random, const test_cells *all) {
    if (given->rows == 0) {
        return;
    }
    uint32_t cells = (uint32_t)all->cells, chosen[30], n = random_below(random, 30);
    uint64_t capacity = 0;
    for (uint32_t i = 0; i < n; i++) {
        chosen[i] = random_below(random, (uint32_t)given->rows);
        capacity += all->offsets[(chosen[i] + 1) * cells] - all->offsets[chosen[i] * cells];
    }
    uint64_t *ids = test_memory(capacity * sizeof *ids);
    float *weights = all->weights ? test_memory(capacity * sizeof *weights) : NULL;
    uint32_t *offsets = test_memory((n * cells + 1) * sizeof *offsets);
    CHECK_OK(tn_take(all->ids, all->offsets, all->weights, cells, chosen, n, ids, weights, capacity,
                     offsets));
    uint64_t at = 0;
    for (uint32_t i = 0; i < n * cells; i++) {
        const uint32_t *ends = all->offsets + chosen[i / cells] * cells + i % cells;
        CHECK(offsets[i] == at && offsets[i + 1] - offsets[i] == ends[1] - ends[0]);
        for (uint32_t k = ends[0]; k < ends[1]; k++, at++) {
            CHECK(ids[at] == all->ids[k]);
            CHECK(weights == NULL || weights[at] == all->weights[k]);
        }
    }
    CHECK(at == capacity);
    if (capacity > 0) {
        CHECK_CODE(tn_take(all->ids, all->offsets, all->weights, cells, chosen, n, ids, weights,
                           capacity - 1, offsets),
                   TN_BAD_VALUE);
    }
    free(ids);
    free(weights);
    free(offsets);
}

/* ---- Crosses ------------------------------------------------------------ */

/* The id of combination `number` of a row: the digits of the number choose the ids. */
static uint64_t combination(const test_columns *given, uint64_t row, uint64_t number,
                            uint64_t seed) {
    uint64_t words[MAX_COLUMNS];
    for (uint32_t c = given->columns; c-- > 0;) {
        uint32_t n = count_in(given, c, row);
        words[c] = given->ids[c][first_of(given, c, row) + number % n];
        number /= n;
    }
    return tn_hash_bytes(words, 8 * given->columns, seed);
}

static void cross(const test_columns *given, random_source *random) {
    uint64_t seed = random_word(random), at = 0;
    const uint64_t *const *ids = (const uint64_t *const *)given->ids;
    const int32_t *const *offsets = (const int32_t *const *)given->offsets;
    int32_t *ends = test_memory((given->rows + 1) * sizeof *ends);
    if (given->columns < 2) {
        CHECK_CODE(tn_cross(ids, offsets, 1, given->rows, seed, NULL, ends), TN_BAD_VALUE);
        free(ends);
        return;
    }
    CHECK_OK(tn_cross(ids, offsets, given->columns, given->rows, seed, NULL, ends));
    uint64_t *out = test_memory((uint64_t)ends[given->rows] * sizeof *out);
    CHECK_OK(tn_cross(ids, offsets, given->columns, given->rows, seed, out, ends));
    for (uint64_t row = 0; row < given->rows; row++) {
        uint64_t n = 1;
        for (uint32_t c = 0; c < given->columns; c++) {
            n *= count_in(given, c, row);
        }
        CHECK((uint64_t)ends[row] == at && (uint64_t)ends[row + 1] == at + n);
        for (uint64_t i = 0; i < n; i++, at++) {
            CHECK(out[at] == combination(given, row, i, seed));
        }
    }
    free(out);
    free(ends);
}

/* More combinations than offsets can say, and none because of a column after them. */
static void cross_too_many(void) {
    uint64_t *many = test_memory(70000 * sizeof *many);
    const uint64_t *ids[] = {many, many, many, many, many};
    const int32_t long_row[] = {0, 70000}, no_row[] = {0, 0};
    const int32_t *offsets[] = {long_row, long_row, long_row, long_row, no_row};
    int32_t ends[2] = {7, 7};
    CHECK_CODE(tn_cross(ids, offsets, 2, 1, 0, NULL, ends), TN_BAD_VALUE);
    CHECK_CODE(tn_cross(ids, offsets, 4, 1, 0, NULL, ends), TN_BAD_VALUE);
    CHECK_OK(tn_cross(ids, offsets, 5, 1, 0, NULL, ends));
    CHECK(ends[0] == 0 && ends[1] == 0);
    free(many);
}

static void refuse_spreads(void) {
    uint64_t id = 1;
    const uint64_t *ids[] = {&id, &id};
    const int32_t *offsets[] = {NULL, NULL};
    const uint32_t zero[] = {1, 0}, huge[] = {UINT32_MAX, 1};
    CHECK_CODE(tn_interleave(ids, offsets, NULL, zero, 2, 1, NULL, NULL, NULL), TN_BAD_VALUE);
    CHECK_CODE(tn_interleave(ids, offsets, NULL, huge, 2, 1, NULL, NULL, NULL), TN_BAD_VALUE);
}

/* ---- Views -------------------------------------------------------------- */

static void write_view(unsigned char *view, int32_t length, int32_t buffer, int32_t offset) {
    memcpy(view, &length, 4);
    memset(view + 4, 0xaa, 4); /* the prefix is not looked at */
    memcpy(view + 8, &buffer, 4);
    memcpy(view + 12, &offset, 4);
}

static void hash_views(random_source *random) {
    enum { N = 60, SIZE = 200 };
    unsigned char *buffers[2] = {test_memory(SIZE), test_memory(SIZE)};
    unsigned char *views = test_memory(16 * N);
    const uint64_t sizes[2] = {SIZE, SIZE};
    uint64_t wanted[N], ids[N];
    for (int i = 0; i < 2 * SIZE; i++) {
        buffers[i / SIZE][i % SIZE] = (unsigned char)random_word(random);
    }
    for (int i = 0; i < N; i++) {
        int32_t length = i < 30 ? i : (int32_t)random_below(random, SIZE + 1);
        int32_t buffer = (int32_t)random_below(random, 2);
        int32_t offset = (int32_t)random_below(random, (uint32_t)(SIZE - length + 1));
        const unsigned char *text = buffers[buffer] + offset;
        wanted[i] = tn_hash_bytes(text, (uint64_t)length, 9);
        write_view(views + 16 * i, length, buffer, offset);
        if (length <= 12) {
            memset(views + 16 * i + 4, 0x5a, 12);
            memcpy(views + 16 * i + 4, text, (size_t)length);
        }
    }
    const void *const *given = (const void *const *)buffers;
    CHECK_OK(tn_hash_views(views, N, given, sizes, 2, 9, ids));
    CHECK(memcmp(ids, wanted, sizeof ids) == 0);
    const int32_t bad[][3] = {{-1, 0, 0},         {13, 2, 0},         {13, -1, 0},      {13, 0, -1},
                              {13, 1, SIZE - 12}, {INT32_MAX, 0, 13}, {INT32_MIN, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        write_view(views, bad[i][0], bad[i][1], bad[i][2]);
        CHECK_CODE(tn_hash_views(views, N, given, sizes, 2, 9, ids), TN_BAD_VALUE);
    }
    free(buffers[0]);
    free(buffers[1]);
    free(views);
}

int main(int argc, char **argv) {
    uint64_t cases = number_argument(argc, argv, 1, 300);
    uint64_t first = number_argument(argc, argv, 2, 1);
    cross_too_many();
    refuse_spreads();
    for (uint64_t i = 0; i < cases; i++) {
        random_source random = {first + i};
        test_columns given;
        test_cells cells;
        make_columns(&given, &random);
        interleave(&given, &random, &cells);
        take(&given, &random, &cells);
        cross(&given, &random);
        hash_views(&random);
        free_cells(&cells);
        free_columns(&given);
    }
    return report_checks("test_columns");
}
