/* golden_check.c - --check: compares with golden.jsonl, the rows and scores of a checkpoint
 *
 * ids and inputs must be the same bits, logits within 2e-5 (1 + |logit|) (docs/formats/golden.md).
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fields.h"
#include "message.h"
#include "scoring.h"

#define TOLERANCE 2e-5

/* The rows of a batch as the file has them, and what was found. */
typedef struct {
    scorer *scorer;
    json_document *documents; /* [most_rows] */
    char **texts;
    uint32_t *lines;
    size_t rows, ids, wrong;
    double worst; /* deviation of a logit, as a multiple of what is allowed */
} golden_check;

/* Prints one difference. */
static void differs(golden_check *check, uint32_t row, const char *what, const char *detail) {
    if (check->wrong++ < 10) {
        fprintf(stderr, "line %u: %s differs%s%s\n", check->lines[row], what, detail ? ": " : "",
                detail ? detail : "");
    }
}

/* The same float32; 0 and -0 count as equal. */
static int is_float(const json_value *value, float actual) {
    double expected;
    return take_double(value, &expected) && (float)expected == actual;
}

/* The value of a key that is a text of another object; NULL when there is none. */
static const json_value *value_of(const json_value *object, const json_value *key) {
    if (object == NULL || object->kind != JSON_OBJECT) {
        return NULL;
    }
    for (const json_value *at = object + 1; at < json_after(object); at = json_after(at + 1)) {
        if (same_text(at, key)) {
            return at + 1;
        }
    }
    return NULL;
}

static int same_ids(const json_value *expected, const uint64_t *ids, int64_t n) {
    int same = items(expected) == n;
    for (int64_t i = 0; same && i < n; i++) {
        const json_value *id = expected + 1 + i;
        uint64_t value;
        same = id->text && json_integer(id->text, id->length, &value) && value == ids[i];
    }
    return same;
}

/* `expected` is NULL, as `weights` is, for slots without. */
static int same_weights(const json_value *expected, const float *weights, int64_t n) {
    int same = (expected == NULL) == (weights == NULL) && (!weights || items(expected) == n);
    for (int64_t i = 0; same && weights && i < n; i++) {
        same = is_float(expected + 1 + i, weights[i]);
    }
    return same;
}

/* Compares the ids and weights of every slot of a golden row that the graph reads, bit by bit. */
static void compare_ids(golden_check *check, uint32_t row, const json_value *golden) {
    const json_value *slots = json_get(golden, "ids"), *of_weights = json_get(golden, "weights");
    if (slots == NULL || slots->kind != JSON_OBJECT) {
        differs(check, row, "ids", "none are given");
        return;
    }
    for (const json_value *slot = slots + 1; slot < json_after(slots);
         slot = json_after(slot + 1)) {
        const uint64_t *ids;
        const float *weights;
        char name[QUOTED_BYTES];
        int64_t n = raw_inputs_ids(check->scorer->inputs, row, slot, &ids, &weights);
        if (n < 0) {
            continue; /* of a slot that this graph, which is a part of the model, does not read */
        }
        check->ids += (size_t)n;
        if (!same_ids(slot + 1, ids, n) || !same_weights(value_of(of_weights, slot), weights, n)) {
            differs(check, row, "ids of slot", quoted(name, slot->text, slot->length));
        }
    }
}

/* Compares the inputs of the graph with the golden ones, bit by bit. Columns of x that no slot
 * or number of this graph fills are skipped: they may hold anything. */
static void compare_inputs(golden_check *check, uint32_t row, const json_value *golden) {
    const raw_inputs *inputs = check->scorer->inputs;
    for (uint32_t i = 0; i < inputs->n_packed; i++) {
        const packed_input *input = &inputs->packed[i];
        const json_value *expected = json_get(golden, input->name);
        const uint8_t *filled = raw_inputs_filled(inputs, input->name);
        int is_list = expected != NULL && expected->kind == JSON_LIST;
        int same = expected != NULL && (is_list ? items(expected) : 1) == input->columns;
        for (uint32_t j = 0; same && j < input->columns; j++) {
            const json_value *value = is_list ? expected + 1 + j : expected;
            size_t at = (size_t)row * input->columns + j;
            if (filled != NULL && !filled[j]) {
                continue;
            }
            if (input->integers) {
                uint64_t length;
                same = value->text && json_integer(value->text, value->length, &length) &&
                       (int32_t)length == ((const int32_t *)input->data)[at];
            } else {
                same = is_float(value, ((const float *)input->data)[at]);
            }
        }
        if (!same) {
            differs(check, row, input->name, NULL);
        }
    }
}

/* Compares the logit of each head, with a tolerance that grows with the logit: another library
 * may add up a layer's products in another order. NaN is never within it. */
static void compare_logits(golden_check *check, uint32_t row, const json_value *golden) {
    const raw_inputs *inputs = check->scorer->inputs;
    const json_value *logits = json_get(golden, "logits");
    for (uint32_t head = 0; head < inputs->n_heads; head++) {
        double expected, actual = check->scorer->logits[(size_t)head * inputs->rows + row];
        const json_value *value = json_get(logits, inputs->heads[head].name);
        if (!take_double(value, &expected)) {
            differs(check, row, "logit", "none is given");
            continue;
        }
        double deviation = fabs(actual - expected) / (TOLERANCE * (1 + fabs(expected)));
        if (!(deviation <= 1)) {
            char detail[ERROR_BYTES];
            refuse(detail, "%.9g, not %.9g", actual, expected);
            differs(check, row, "logit", detail);
        }
        check->worst = deviation > check->worst ? deviation : check->worst;
    }
}

/* Scores the rows collected so far, compares each with its golden line, and begins the next
 * batch. 0 and a message when scoring fails; differences are only counted. */
static int compare_batch(golden_check *check, char *error) {
    raw_inputs *inputs = check->scorer->inputs;
    if (inputs->rows > 0 && !score_batch(check->scorer, error)) {
        return 0;
    }
    for (uint32_t row = 0; row < inputs->rows; row++) {
        const json_value *golden = check->documents[row].values;
        compare_ids(check, row, golden);
        compare_inputs(check, row, golden);
        compare_logits(check, row, golden);
    }
    check->rows += inputs->rows;
    raw_inputs_clear(inputs);
    return 1;
}

/* Adds a golden line to the batch, and compares the batch when it is full. The line is copied,
 * because its values point into it until then and the reader's buffer moves. */
static int take_line(golden_check *check, const char *line, size_t length, size_t number,
                     char *error) {
    uint32_t at = check->scorer->inputs->rows;
    char reason[ERROR_BYTES];
    char *copy = realloc(check->texts[at], length + 1);
    if (copy == NULL) {
        return refuse(error, "there is no memory for line %zu", number);
    }
    check->texts[at] = memcpy(copy, line, length);
    copy[length] = 0;
    check->lines[at] = (uint32_t)number;
    const json_value *golden = json_parse(&check->documents[at], copy, length, 0);
    const json_value *row = json_get(golden, "row");
    if (row == NULL) {
        return refuse(error, "line %zu is none of a golden.jsonl", number);
    }
    if (!raw_inputs_add(check->scorer->inputs, row, reason)) {
        return refuse(error, "line %zu: %s", number, reason);
    }
    return at + 1 < check->scorer->inputs->most_rows || compare_batch(check, error);
}

/* Compares all lines of the file; the last, smaller batch at the end. Closes the file on all
 * ways. */
static int compare_file(golden_check *check, const char *path, char *error) {
    line_reader lines = {.file = open(path, O_RDONLY)};
    line_state state = BROKEN;
    int compared = 1;
    if (lines.file < 0) {
        return refuse(error, "%.300s: %s", path, strerror(errno));
    }
    do {
        char *line;
        size_t length;
        state = lines_next(&lines, &line, &length);
        if (state == LINE) {
            compared = take_line(check, line, length, lines.number, error);
        }
    } while (compared && (state == LINE || (state == WAITING && lines_wait(&lines))));
    if (compared && state != ENDED) {
        compared = refuse(error, "%.300s: %s", path, strerror(errno));
    }
    close(lines.file);
    free(lines.data);
    return compared && compare_batch(check, error);
}

int check_golden_rows(scorer *scorer, const char *path, char error[ERROR_BYTES]) {
    uint32_t most = scorer->inputs->most_rows;
    golden_check check = {.scorer = scorer,
                          .documents = zeros(most, sizeof *check.documents, error),
                          .texts = zeros(most, sizeof *check.texts, error),
                          .lines = zeros(most, sizeof *check.lines, error)};
    int compared =
        check.documents && check.texts && check.lines && compare_file(&check, path, error);
    if (compared && check.rows == 0) {
        compared = refuse(error, "%.300s has no rows", path);
    } else if (compared && check.wrong > 0) {
        compared = refuse(error,
                          "%.300s: %zu differences in %zu rows. Rows of lower precision, or a "
                          "filter? Then take golden.jsonl of the export",
                          path, check.wrong, check.rows);
    } else if (compared) {
        printf("%s: %zu rows: %zu ids and all inputs are equal, logits within %.1e of %.0e "
               "(1 + |logit|)\n",
               path, check.rows, check.ids, check.worst * TOLERANCE, TOLERANCE);
    }
    for (uint32_t i = 0; i < most; i++) {
        if (check.documents) {
            json_free(&check.documents[i]);
        }
        if (check.texts) {
            free(check.texts[i]);
        }
    }
    free(check.documents);
    free(check.texts);
    free(check.lines);
    return compared ? 0 : 1;
}
