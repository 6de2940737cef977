/* program.c - options, and the loop from lines of raw values to lines of scores */
#include "program.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "message.h"
#include "scoring.h"
#include "tensornet_line.h"

#define OK 0
#define FAILED 1        /* a file, the graph, or --check */
#define ASKED_WRONGLY 2 /* options, or a row that cannot be scored */

static const char usage[] =
    "usage: %s GRAPH EMBEDDINGS [--batch N] [--threads N] [--keep-going] [--tensornet]\n"
    "       %s GRAPH EMBEDDINGS --check golden.jsonl\n"
    "       %s GRAPH EMBEDDINGS --benchmark ROUNDS\n"
    "Reads rows of raw values, one JSON object a line, from standard input and prints their "
    "scores.\n"
    "GRAPH is the folder of `tnctl split-graph`, EMBEDDINGS that of `tnctl export-embeddings\n"
    "format=dictionary`.\n"
    "  --batch N     rows that are scored together, when they are there (32)\n"
    "  --threads N   threads of the graph (1)\n"
    "  --keep-going  a row that cannot be scored prints {\"error\": ...}; else it ends the "
    "program\n"
    "  --tensornet   rows are lines of TensorNet's serving demo: id, tab, slot, \\x01, sign, "
    "\\x02, "
    "...\n"
    "  --check FILE  scores the rows of golden.jsonl and compares, instead of reading rows\n"
    "  --benchmark N times rows of standard input, in N rounds, instead of printing scores\n";

typedef struct {
    const char *graph, *embeddings, *check;
    uint32_t batch, threads, rounds;
    int keep_going, tensornet, benchmark;
} options;

/* A number from 1 to 65536, or 0. */
static uint32_t count_of(const char *text) {
    uint64_t value = 0;
    return text && json_integer(text, strlen(text), &value) && value <= 65536 ? (uint32_t)value : 0;
}

/* Reads the command line; 0 when it is not one of this program. An option without its value gets
 * NULL, since argv ends with it, which count_of makes 0 and the last line refuses. */
static int read_options(int argc, char **argv, options *out) {
    *out = (options){.batch = 32, .threads = 1, .rounds = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--batch") == 0) {
            out->batch = count_of(argv[++i]); /* argv ends with NULL */
        } else if (strcmp(argv[i], "--threads") == 0) {
            out->threads = count_of(argv[++i]);
        } else if (strcmp(argv[i], "--check") == 0) {
            out->check = argv[++i];
            if (out->check == NULL) {
                return 0;
            }
        } else if (strcmp(argv[i], "--keep-going") == 0) {
            out->keep_going = 1;
        } else if (strcmp(argv[i], "--tensornet") == 0) {
            out->tensornet = 1;
        } else if (strcmp(argv[i], "--benchmark") == 0) {
            out->benchmark = 1;
            out->rounds = count_of(argv[++i]);
        } else if (argv[i][0] == '-' || out->embeddings != NULL) {
            return 0;
        } else if (out->graph == NULL) {
            out->graph = argv[i];
        } else {
            out->embeddings = argv[i];
        }
        if (i >= argc) {
            return 0;
        }
    }
    return out->embeddings != NULL && out->batch > 0 && out->threads > 0 && out->rounds > 0;
}

/* ---- Scores ------------------------------------------------------------- */

int score_batch(scorer *scorer, char error[ERROR_BYTES]) {
    return raw_inputs_pool(scorer->inputs, error) &&
           scorer->runner->run(scorer->graph, scorer->inputs, scorer->logits, scorer->predictions,
                               error);
}

static void print_score(const char *comma, const char *kind, const char *head, float score) {
    printf("%s\"%s%s%s\": ", comma, kind, head ? "_" : "", head ? head : "");
    if (isfinite(score)) {
        printf("%.9g", (double)score); /* enough to read the same float32 back */
    } else {
        printf("null"); /* JSON has no such numbers */
    }
}

/* One row, as `tnctl score` does: the main head first. */
static void print_row(const scorer *scorer, uint32_t row) {
    const raw_inputs *inputs = scorer->inputs;
    printf("{");
    for (uint32_t i = 0; i < inputs->n_heads; i++) {
        const char *head = inputs->n_heads > 1 ? inputs->heads[i].name : NULL;
        size_t at = (size_t)i * inputs->rows + row;
        print_score(i ? ", " : "", "prediction", head, scorer->predictions[at]);
        print_score(", ", "logit", head, scorer->logits[at]);
    }
    printf("}\n");
}

/* Scores the rows that have come together and prints them, in their order. */
static int print_batch(scorer *scorer, char *error) {
    if (scorer->inputs->rows == 0) {
        return 1;
    }
    if (!score_batch(scorer, error)) {
        return 0;
    }
    for (uint32_t row = 0; row < scorer->inputs->rows; row++) {
        print_row(scorer, row);
    }
    raw_inputs_clear(scorer->inputs);
    return fflush(stdout) == 0 || refuse(error, "standard output: %s", strerror(errno));
}

const json_value *read_row(const scorer *scorer, json_document *document, char *line, size_t length,
                           char error[ERROR_BYTES]) {
    const json_value *row = scorer->tensornet ? tensornet_line(document, line, length)
                                              : json_parse(document, line, length, 0);
    if (row == NULL) {
        refuse(error, "no %s: %s (character %zu)", scorer->tensornet ? "line of TensorNet" : "JSON",
               document->problem, document->at + 1);
    }
    return row;
}

static int add_line(scorer *scorer, json_document *document, char *line, size_t length,
                    char *error) {
    const json_value *row = read_row(scorer, document, line, length, error);
    return row != NULL && raw_inputs_add(scorer->inputs, row, error);
}

/* A message as a JSON text. */
static void print_error(size_t line, const char *message) {
    printf("{\"error\": \"line %zu: ", line);
    for (; *message; message++) {
        printf(*message == '"' || *message == '\\' ? "\\%c" : "%c", *message);
    }
    printf("\"}\n");
}

/* One line; rows are scored when the batch is full, and before an error is told. */
static int take_line(scorer *scorer, json_document *document, char *line, size_t length,
                     size_t number, int keep_going, char *error) {
    char reason[ERROR_BYTES];
    if (strspn(line, " \t\r") == length) {
        return OK;
    }
    int added = add_line(scorer, document, line, length, reason);
    if ((!added || scorer->inputs->rows == scorer->inputs->most_rows) &&
        !print_batch(scorer, error)) {
        return FAILED;
    }
    if (added) {
        return OK;
    }
    if (!keep_going) {
        refuse(error, "line %zu: %s", number, reason);
        return ASKED_WRONGLY;
    }
    print_error(number, reason);
    return fflush(stdout) == 0 ? OK : FAILED;
}

/* Scores lines in batches. What has come is scored before the program waits for more. */
static int score_lines(scorer *scorer, int keep_going, char *error) {
    line_reader lines = {.file = 0};
    json_document document = {0};
    int code = OK;
    for (int more = 1; more && code == OK;) {
        char *line;
        size_t length;
        line_state state = lines_next(&lines, &line, &length);
        if (state == LINE) {
            code = take_line(scorer, &document, line, length, lines.number, keep_going, error);
            continue;
        }
        more = state == WAITING;
        if (!print_batch(scorer, error)) {
            code = FAILED;
        } else if (state == BROKEN || (state == WAITING && !lines_wait(&lines))) {
            refuse(error, "standard input: %s", strerror(errno));
            code = FAILED;
        }
    }
    json_free(&document);
    free(lines.data);
    return code;
}

/* ---- The program -------------------------------------------------------- */

/* Opens the graph and embeddings and does what the options say; returns the exit code. The
 * caller frees everything in `scorer`, also after a failure in the middle. */
static int run(const options *options, scorer *scorer, char *error) {
    scorer->tensornet = options->tensornet;
    uint32_t batch = options->benchmark && options->batch < 256 ? 256 : options->batch;
    scorer->inputs = raw_inputs_open(options->graph, options->embeddings, batch, error);
    if (scorer->inputs == NULL) {
        return FAILED;
    }
    scorer->graph = scorer->runner->open(options->graph, scorer->inputs, options->threads, error);
    size_t scores = (size_t)scorer->inputs->n_heads * batch;
    scorer->logits = zeros(scores, sizeof(float), error);
    scorer->predictions = zeros(scores, sizeof(float), error);
    if (scorer->graph == NULL || scorer->logits == NULL || scorer->predictions == NULL) {
        return FAILED;
    }
    if (options->check) {
        return check_golden_rows(scorer, options->check, error);
    }
    if (options->benchmark) {
        return benchmark(scorer, options->rounds, error);
    }
    return score_lines(scorer, options->keep_going, error);
}

int score_program(int argc, char **argv, const graph_runner *runner) {
    options options;
    scorer scorer = {.runner = runner};
    char error[ERROR_BYTES] = "";
    if (!read_options(argc, argv, &options)) {
        fprintf(stderr, usage, argv[0], argv[0], argv[0]);
        return ASKED_WRONGLY;
    }
    int code = run(&options, &scorer, error);
    if (code != OK) {
        fprintf(stderr, "%s: %s\n", argv[0], error);
    }
    if (scorer.graph != NULL) {
        runner->close(scorer.graph);
    }
    raw_inputs_close(scorer.inputs);
    free(scorer.logits);
    free(scorer.predictions);
    return code;
}
