/* rows.c - what raw_inputs makes of lines, printed: for tests against the trainer's own code
 *
 *     rows GRAPH EMBEDDINGS < rows.jsonl       ids and inputs of each line, or why there are none
 *     rows GRAPH EMBEDDINGS SEED ROUNDS < ...  damages lines, and reads and pools what is left
 *
 * With --tensornet as the first argument lines are those of TensorNet's serving demo.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ids.h"
#include "../message.h"
#include "../parts.h"
#include "../scoring.h"
#include "../tensornet_line.h"

#define BATCH 7

static int of_tensornet;

static const json_value *row_of(json_document *document, char *line, size_t length) {
    return of_tensornet ? tensornet_line(document, line, length)
                        : json_parse(document, line, length, 0);
}

static void print_ids(const raw_inputs *inputs, uint32_t row) {
    const description *description = &inputs->parts->description;
    for (uint32_t i = 0, printed = 0; i < description->n_slots; i++) {
        const uint64_t *ids;
        const float *weights;
        const json_value *name = description->slots[i].name;
        int64_t n = name ? raw_inputs_ids(inputs, row, name, &ids, &weights) : -1;
        if (n < 0) {
            continue;
        }
        printf("%s\"%.*s\": [[", printed++ ? ", " : "", (int)name->length, name->text);
        for (int64_t k = 0; k < n; k++) {
            printf("%s%llu", k ? ", " : "", (unsigned long long)ids[k]);
        }
        printf("], [");
        for (int64_t k = 0; weights && k < n; k++) {
            printf("%s%.9g", k ? ", " : "", (double)weights[k]);
        }
        printf("]]");
    }
}

static void print_batch(raw_inputs *inputs) {
    char error[ERROR_BYTES];
    if (!raw_inputs_pool(inputs, error)) {
        exit(1);
    }
    for (uint32_t row = 0; row < inputs->rows; row++) {
        printf("{\"ids\": {");
        print_ids(inputs, row);
        printf("}");
        for (uint32_t i = 0; i < inputs->n_packed; i++) {
            const packed_input *input = &inputs->packed[i];
            printf(", \"%s\": [", input->name);
            for (uint32_t j = 0; j < input->columns; j++) {
                size_t at = (size_t)row * input->columns + j;
                double value =
                    input->integers ? ((int32_t *)input->data)[at] : ((float *)input->data)[at];
                printf("%s%.9g", j ? ", " : "", value);
            }
            printf("]");
        }
        printf("}\n");
    }
    raw_inputs_clear(inputs);
}

static void print_rows(raw_inputs *inputs, line_reader *lines) {
    json_document document = {0};
    char *line, error[ERROR_BYTES];
    size_t length;
    for (line_state state; (state = lines_next(lines, &line, &length)) != ENDED;) {
        if (state == WAITING && lines_wait(lines)) {
            continue;
        }
        const json_value *row = row_of(&document, line, length);
        if (row != NULL && raw_inputs_add(inputs, row, error)) {
            if (inputs->rows == BATCH) {
                print_batch(inputs);
            }
            continue;
        }
        print_batch(inputs);
        char shown[QUOTED_BYTES];
        const char *reason = row ? error : document.problem;
        printf("{\"error\": \"%s\"}\n", row ? "a value" : quoted(shown, reason, strlen(reason)));
        fprintf(stderr, "%zu: %s\n", lines->number, reason);
    }
    print_batch(inputs);
    json_free(&document);
}

/* ---- Damage ------------------------------------------------------------- */

static uint64_t state;

static uint64_t below(uint64_t n) {
    state = mix64(state + UINT64_C(0x9e3779b97f4a7c15));
    return n ? state % n : 0;
}

/* Changes a text in place, which has room for more. */
static size_t damage(char *text, size_t length) {
    static const char *const words[] = {
        "\"",      "\\",      "[",       "]",        "{",
        "}",       ",",       "null",    "1e9",      "-",
        "\\ud83d", "\\udc80", "\xff",    "\xf0\x9f", "99999999999999999999",
        "|",       "[[",      "\\u0000", "1e999",    "nan",
        ":",       "\t",      "\x01",    "\x02",     "\t1\x01"};
    for (uint64_t n = 1 + below(3); n > 0; n--) {
        size_t at = below(length + 1), count = below(4);
        const char *word = words[below(sizeof words / sizeof *words)];
        switch (below(3)) {
        case 0: /* leave out */
            count = count > length - at ? length - at : count;
            memmove(text + at, text + at + count, length - at - count);
            length -= count;
            break;
        case 1: /* put in */
            memmove(text + at + strlen(word), text + at, length - at);
            memcpy(text + at, word, strlen(word));
            length += strlen(word);
            break;
        default: /* change */
            if (at < length) {
                text[at] = (char)below(256);
            }
        }
    }
    text[length] = 0;
    return length;
}

/* Each damaged line stands in memory of just its size, so that a sanitizer sees a step beyond. */
static void damage_rows(raw_inputs *inputs, line_reader *lines, uint64_t rounds) {
    json_document document = {0};
    char *line, error[ERROR_BYTES], *seeds[256];
    size_t length, n = 0, read = 0, added = 0;
    for (line_state state; (state = lines_next(lines, &line, &length)) != ENDED;) {
        if (state == LINE && n < 256) {
            seeds[n] = malloc(length + 1);
            memcpy(seeds[n++], line, length + 1);
        } else if (state == WAITING && !lines_wait(lines)) {
            exit(1);
        }
    }
    for (uint64_t round = 0; n && round < rounds; round++) {
        const char *seed = seeds[below(n)];
        char *room = malloc(strlen(seed) + 128);
        strcpy(room, seed);
        length = damage(room, strlen(seed));
        char *text = malloc(length + 1);
        memcpy(text, room, length + 1);
        const json_value *row = row_of(&document, text, length);
        read += row != NULL;
        added += row && raw_inputs_add(inputs, row, error);
        if (inputs->rows == BATCH) {
            raw_inputs_pool(inputs, error);
            raw_inputs_clear(inputs);
        }
        free(text);
        free(room);
    }
    printf("%zu of %llu lines were read, %zu rows\n", read, (unsigned long long)rounds, added);
    while (n > 0) {
        free(seeds[--n]);
    }
    json_free(&document);
}

int main(int argc, char **argv) {
    char error[ERROR_BYTES] = "usage: rows [--tensornet] GRAPH EMBEDDINGS [SEED ROUNDS]";
    of_tensornet = argc > 1 && strcmp(argv[1], "--tensornet") == 0;
    argc -= of_tensornet;
    argv += of_tensornet;
    raw_inputs *inputs = argc >= 3 ? raw_inputs_open(argv[1], argv[2], BATCH, error) : NULL;
    line_reader lines = {.file = 0};
    if (inputs == NULL) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    if (argc == 5) {
        state = strtoull(argv[3], NULL, 10);
        damage_rows(inputs, &lines, strtoull(argv[4], NULL, 10));
    } else {
        print_rows(inputs, &lines);
    }
    raw_inputs_close(inputs);
    free(lines.data);
    return 0;
}
