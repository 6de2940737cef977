/* parts.h - the inside of raw_inputs */
#ifndef PARTS_H
#define PARTS_H

#include "description.h"
#include "embeddings.h"
#include "ids.h"
#include "raw_inputs.h"

/* Ids one after the other, each with a weight where its slot has weights. */
typedef struct {
    uint64_t *ids;
    float *weights;
    size_t used, room;
} id_list;

/* The ids of one slot in one row. */
typedef struct {
    uint32_t first, count;
} cell;

/* Room for the values of a text that is cut. */
typedef struct {
    json_value *values;
    size_t room;
    json_document document;
    char *text; /* a copy of a JSON list: reading it changes it, and several slots may */
    size_t text_room;
} scissors;

/* A column that may be a path into the objects of a row. */
typedef struct {
    uint32_t column;
    json_value *list; /* the values that the path has in a list of objects */
    size_t room;
} path;

#define SMALL_NUMBERS 256

typedef struct raw_inputs_parts {
    description description;
    embeddings embeddings;
    const json_value **values; /* [columns], of the row at hand; NULL: absent */
    uint32_t *expected;        /* [columns]: the column that the i-th key of the last row was */
    path *paths;
    uint32_t n_paths;
    scissors of_values, of_weights;
    id_list ids;     /* of slots with rows, in all rows of the batch */
    id_list aside;   /* of the others, in the row at hand */
    cell *cells;     /* [most_rows, slots] */
    double *sums;    /* [columns of the widest one-hot slot] */
    uint8_t *filled; /* [x_columns] */

    float log1p_of[SMALL_NUMBERS]; /* many numbers are small counts */

    float *x, *linear, *sequences; /* [most_rows, ...]; NULL when the graph has no such input */
    int32_t *lengths;
    size_t x_columns, sequences_columns, lengths_columns;

    float *floats; /* the rows of all ids of some examples */
    size_t floats_room;
    /* What is looked up: ids, their dictionaries, and where their rows go. */
    uint64_t *wanted;
    const tn_dictionary **dictionaries;
    float **targets;
    size_t wanted_room, dictionaries_room, targets_room;
} raw_inputs_parts;

/* columns.c: which columns may be paths. 0 and a message. */
int find_paths(raw_inputs_parts *parts, char error[ERROR_BYTES]);
void free_paths(raw_inputs_parts *parts);

/* columns.c: finds the values of the columns in an object; those of a path through a list live
 * until the next row. 0 and a message. */
int take_values(raw_inputs_parts *parts, const json_value *row, char error[ERROR_BYTES]);

/* cells.c: the ids of row number `row`, whose raw values are in `values`. 0 and a message. */
int encode_ids(raw_inputs_parts *parts, uint32_t row, char error[ERROR_BYTES]);
const id_list *list_of_slot(const raw_inputs_parts *parts, const slot *slot);

/* numbers.c: the logarithms of parts->log1p_of. */
void fill_log1p(float of[SMALL_NUMBERS]);

/* numbers.c: its numbers, into x. 0 and a message. */
int encode_numbers(raw_inputs_parts *parts, uint32_t row, char error[ERROR_BYTES]);

#define SURE_DIGITS 19 /* an integer of no more characters has 64 bits */

/* The values that a raw value has: itself, the elements of a list, or what a text is cut into. */
typedef struct {
    const json_value *first;
    size_t n;
    int several; /* a list or a text that is cut, whose empty parts are missing */
} raw_values;

/* values.c: those of a column. With `fractions` they are to be numbers, not ids: integers of any
 * size, and in a JSON list numbers with a point. 0 and a message. */
int cut_apart(raw_inputs_parts *parts, uint32_t column, separator by, int fractions, scissors *with,
              raw_values *out, char error[ERROR_BYTES]);

/* The same; what is one value is taken here, for most are. */
static inline int cut(raw_inputs_parts *parts, uint32_t column, separator by, int fractions,
                      scissors *with, raw_values *out, char error[ERROR_BYTES]) {
    const json_value *value = parts->values[column];
    if (value != NULL && by.text == NULL &&
        (value->kind == JSON_TEXT || (value->kind < JSON_TEXT && value->length <= SURE_DIGITS))) {
        *out = (raw_values){value, 1, 0};
        return 1;
    }
    return cut_apart(parts, column, by, fractions, with, out, error);
}

/* Whether it is one of the texts. */
static inline int is_one_of(const json_value *texts, uint32_t n, const json_value *value) {
    for (uint32_t i = 0; i < n; i++) {
        if (texts[i].length == value->length &&
            same_bytes(texts[i].text, value->text, value->length)) {
            return 1;
        }
    }
    return 0;
}

/* Whether a text, or the decimal text of an integer, means a missing value. */
static inline int is_missing(const description *description, const json_value *value, int several) {
    return value->kind == JSON_NULL || (several && value->length == 0) ||
           is_one_of(description->missing, description->n_missing, value);
}

/* One value as a number, NaN where it is missing. 0 and a message. */
int number_of(const raw_inputs_parts *parts, uint32_t column, const json_value *value, int several,
              double *out, char error[ERROR_BYTES]);

/* values.c: a text without the blanks around it. */
json_value without_blanks(json_value text);

/* times.c: the time of one value of a column, in microseconds; or it is missing. 0 and a message.
 */
int time_of(const raw_inputs_parts *parts, uint32_t column, const time_column *times,
            const json_value *value, int several, int64_t *out, int *missing,
            char error[ERROR_BYTES]);

/* times.c: how long value `i` of a numeric input is after its `since`, NaN where one of them is
 * missing. 0 and a message. */
int age_of(raw_inputs_parts *parts, const number *number, uint32_t i, const json_value *value,
           double *out, char error[ERROR_BYTES]);

/* "column 'age': 'x' is not a number"; returns 0. */
int refuse_value(const raw_inputs_parts *parts, uint32_t column, const json_value *value,
                 const char *what, char error[ERROR_BYTES]);

#endif
