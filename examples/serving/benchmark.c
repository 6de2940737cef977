/* benchmark.c - --benchmark: what raw values cost beside the graph alone
 *
 * Three ways of scoring take turns: the graph alone, its inputs being ready; from raw values in
 * memory, as a server has them that has read a request; from lines. Medians of the rounds are
 * printed as JSON.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "message.h"
#include "scoring.h"

#define ROUND_SECONDS 0.03
#define MOST_ROUNDS 1000
#define MOST_BATCH 256

typedef struct {
    scorer *scorer;
    uint32_t rounds;
    char **lines;
    size_t *lengths;
    size_t n, next;
    /* Of a batch: a copy of each line, for reading changes it, and its values. */
    char *copies[MOST_BATCH];
    json_document rows[MOST_BATCH];
} workload;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- The three ways ----------------------------------------------------- */

static int read_line(workload *load, uint32_t i, char *error) {
    size_t line = load->next++ % load->n;
    memcpy(load->copies[i], load->lines[line], load->lengths[line] + 1);
    char reason[ERROR_BYTES];
    return read_row(load->scorer, &load->rows[i], load->copies[i], load->lengths[line], reason) ||
           refuse(error, "line %zu: %.400s", line + 1, reason);
}

static int nothing(workload *load, uint32_t batch, char *error) {
    (void)load;
    (void)batch;
    (void)error;
    return 1;
}

static int read_batch(workload *load, uint32_t batch, char *error) {
    int read = 1;
    for (uint32_t i = 0; i < batch && read; i++) {
        read = read_line(load, i, error);
    }
    return read;
}

static int graph_alone(workload *load, uint32_t batch, char *error) {
    scorer *scorer = load->scorer;
    (void)batch;
    return scorer->runner->run(scorer->graph, scorer->inputs, scorer->logits, scorer->predictions,
                               error);
}

static int from_values(workload *load, uint32_t batch, char *error) {
    raw_inputs_clear(load->scorer->inputs);
    for (uint32_t i = 0; i < batch; i++) {
        if (!raw_inputs_add(load->scorer->inputs, load->rows[i].values, error)) {
            return 0;
        }
    }
    return score_batch(load->scorer, error);
}

static int from_lines(workload *load, uint32_t batch, char *error) {
    raw_inputs_clear(load->scorer->inputs);
    for (uint32_t i = 0; i < batch; i++) {
        if (!read_line(load, 0, error) ||
            !raw_inputs_add(load->scorer->inputs, load->rows[0].values, error)) {
            return 0;
        }
    }
    return score_batch(load->scorer, error);
}

/* What is done before the clock starts, and what it times. */
static const struct {
    const char *name;
    int (*prepare)(workload *load, uint32_t batch, char *error);
    int (*score)(workload *load, uint32_t batch, char *error);
} ways[] = {{"graph", nothing, graph_alone},
            {"values", read_batch, from_values},
            {"lines", nothing, from_lines}};

#define WAYS 3

/* ---- Times -------------------------------------------------------------- */

static int compare_doubles(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, uint32_t n) {
    qsort(values, n, sizeof *values, compare_doubles);
    return values[n / 2];
}

/* Seconds per batch of one way in one round; below 0 and a message when it fails. */
static double time_round(workload *load, int way, uint32_t batch, char *error) {
    size_t runs = 0;
    double seconds = 0;
    for (; seconds < ROUND_SECONDS; runs++) {
        if (!ways[way].prepare(load, batch, error)) {
            return -1;
        }
        double start = now();
        if (!ways[way].score(load, batch, error)) {
            return -1;
        }
        seconds += now() - start;
    }
    return seconds / (double)runs;
}

/* Times all ways with one batch size and prints a line of JSON. The ways take turns in every
 * round, so that a machine that becomes slower in between does so for all; each ratio is of
 * times of one round. */
static int time_batch(workload *load, uint32_t batch, char *error) {
    static double seconds[WAYS][MOST_ROUNDS], ratios[WAYS][MOST_ROUNDS];
    if (!read_batch(load, batch, error) || !from_values(load, batch, error)) {
        return 0;
    }
    for (uint32_t round = 0; round <= load->rounds; round++) {
        uint32_t at = round ? round - 1 : 0; /* the first one warms up */
        for (int i = 0; i < WAYS; i++) {
            seconds[i][at] = time_round(load, i, batch, error);
            if (seconds[i][at] < 0) {
                return 0;
            }
            ratios[i][at] = seconds[i][at] / seconds[0][at];
        }
    }
    printf("{\"batch\": %u, ", batch);
    for (int i = 0; i < WAYS; i++) {
        printf("\"%s_us\": %.2f, ", ways[i].name, 1e6 * median(seconds[i], load->rounds));
        printf("\"%s_ratio\": %.3f%s", ways[i].name, median(ratios[i], load->rounds),
               i + 1 < WAYS ? ", " : "}\n");
    }
    return fflush(stdout) == 0;
}

/* ---- Rows --------------------------------------------------------------- */

/* Keeps a copy of a line with the 0 behind it. The arrays grow to twice their size whenever the
 * number of lines is a power of two; the caller frees them, also after a failure. */
static int keep_line(workload *load, const char *line, size_t length) {
    size_t n = load->n;
    if ((n & (n - 1)) == 0) { /* room for twice as many */
        char **lines = realloc(load->lines, 2 * (n + 1) * sizeof *lines);
        load->lines = lines ? lines : load->lines;
        size_t *lengths = realloc(load->lengths, 2 * (n + 1) * sizeof *lengths);
        load->lengths = lengths ? lengths : load->lengths;
        if (lines == NULL || lengths == NULL) {
            return 0;
        }
    }
    load->lines[n] = malloc(length + 1);
    if (load->lines[n] == NULL) {
        return 0;
    }
    memcpy(load->lines[n], line, length + 1);
    load->lengths[load->n++] = length;
    return 1;
}

/* Standard input as a whole, and room for a batch of its lines. */
static int read_lines(workload *load, char *error) {
    line_reader lines = {.file = 0};
    line_state state;
    size_t length, longest = 0;
    int kept = 1;
    do {
        char *line;
        state = lines_next(&lines, &line, &length);
        if (state == LINE) {
            longest = length > longest ? length : longest;
            kept = keep_line(load, line, length);
        }
    } while (kept && (state == LINE || (state == WAITING && lines_wait(&lines))));
    free(lines.data);
    for (int i = 0; i < MOST_BATCH; i++) {
        load->copies[i] = malloc(longest + 1);
        kept = kept && load->copies[i] != NULL;
    }
    if (!kept || load->n == 0 || state != ENDED) {
        return refuse(error, !kept            ? "there is no memory for the rows"
                             : state != ENDED ? "standard input cannot be read"
                                              : "there are no rows to time");
    }
    return 1;
}

int benchmark(scorer *scorer, uint32_t rounds, char error[ERROR_BYTES]) {
    static const uint32_t batches[] = {1, 32, MOST_BATCH};
    workload load = {.scorer = scorer, .rounds = rounds < MOST_ROUNDS ? rounds : MOST_ROUNDS};
    int timed = read_lines(&load, error);
    for (size_t i = 0; timed && i < sizeof batches / sizeof *batches; i++) {
        timed = time_batch(&load, batches[i], error);
    }
    for (size_t i = 0; i < load.n; i++) {
        free(load.lines[i]);
    }
    for (int i = 0; i < MOST_BATCH; i++) {
        free(load.copies[i]);
        json_free(&load.rows[i]);
    }
    free(load.lines);
    free(load.lengths);
    return timed ? 0 : 1;
}
