/* columns.c - the values of columns in a row: by key, or by a path into its objects
 *
 * The names of a path have dots between them. A name leads into an object, and through a list of
 * objects, where it is the list of this value of each. A key that has dots itself is meant first.
 */
#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "ids.h"
#include "message.h"
#include "parts.h"

#define DOT '.'
#define MOST_NAMES 32 /* of a path; a longer one is a key */

/* The names that are left to follow, text[0 .. length); NULL: none. */
typedef struct {
    const char *text;
    size_t length;
} names;

/* ---- Opening ------------------------------------------------------------ */

static int is_path(const json_value *column) {
    size_t n = 1;
    for (size_t i = 0; i < column->length; i++) {
        n += column->text[i] == DOT;
    }
    return n > 1 && n <= MOST_NAMES;
}

int find_paths(raw_inputs_parts *parts, char error[ERROR_BYTES]) {
    const description *description = &parts->description;
    parts->paths = zeros(description->n_columns, sizeof *parts->paths, error);
    for (uint32_t i = 0; parts->paths && i < description->n_columns; i++) {
        if (is_path(description->columns[i])) {
            parts->paths[parts->n_paths++].column = i;
        }
    }
    return parts->paths != NULL;
}

void free_paths(raw_inputs_parts *parts) {
    for (uint32_t i = 0; i < parts->n_paths; i++) {
        free(parts->paths[i].list);
    }
    free(parts->paths);
}

/* ---- Paths -------------------------------------------------------------- */

static size_t first_name(names of) {
    const char *dot = memchr(of.text, DOT, of.length);
    return dot ? (size_t)(dot - of.text) : of.length;
}

/* The names after the first one, of so many bytes. The last may have no byte: "user." has two. */
static names after(names of, size_t first) {
    return first < of.length ? (names){of.text + first + 1, of.length - first - 1}
                             : (names){NULL, 0};
}

/* The value that names lead to without a list on the way; with one, the list, and in *rest the
 * names that are left for what is in it. NULL: they lead nowhere. */
static const json_value *follow(const json_value *value, names of, names *rest) {
    while (of.text != NULL && value != NULL && value->kind != JSON_LIST) {
        size_t name = first_name(of);
        value = json_find(value, of.text, name);
        of = after(of, name);
    }
    *rest = of;
    return value;
}

static int append(path *path, size_t *n, json_value value) {
    if (*n == path->room) {
        size_t room = path->room ? 2 * path->room : 16;
        json_value *list = realloc(path->list, room * sizeof *list);
        if (list == NULL) {
            return 0;
        }
        path->list = list;
        path->room = room;
    }
    value.values = 1; /* of a list or an object, which is refused, only that it is one */
    path->list[(*n)++] = value;
    return 1;
}

/* Appends what names lead to in each value of a list, of lists there the values in them. A list in
 * a list is kept, and refused later. It calls itself at most once for each name, so that no row
 * can exhaust the stack. */
static int gather(path *path, size_t *n, const json_value *list, names of) {
    static const json_value nothing = {.kind = JSON_NULL};
    for (const json_value *at = list + 1; at < json_after(list); at = json_after(at)) {
        names rest = {NULL, 0};
        const json_value *value = of.text && at->kind == JSON_LIST ? at : follow(at, of, &rest);
        if (value == NULL || value->kind != JSON_LIST || value == at) {
            if (!append(path, n, value ? *value : nothing)) {
                return 0;
            }
        } else if (!gather(path, n, value, rest)) {
            return 0;
        }
    }
    return 1;
}

/* The value of a path that is no key of the row: of the longest start that is one. NULL: none. 0
 * when there is no memory. */
static int take_path(path *path, const json_value *row, const json_value *column,
                     const json_value **out) {
    names whole = {column->text, column->length}, rest;
    *out = NULL;
    for (size_t length = column->length; length-- > 0;) {
        const json_value *start =
            column->text[length] == DOT ? json_find(row, column->text, length) : NULL;
        if (start == NULL) {
            continue;
        }
        const json_value *value = follow(start, after(whole, length), &rest);
        if (value != NULL && rest.text != NULL) { /* a list on the way */
            size_t n = 0;
            if (!append(path, &n, *value) || !gather(path, &n, value, rest)) {
                return 0;
            }
            path->list[0].values = (uint32_t)n;
            value = path->list;
        }
        *out = value;
        return 1;
    }
    return 1;
}

/* ---- Rows --------------------------------------------------------------- */

/* Finds the values of the columns. Rows mostly have their keys in the same order: so the i-th key
 * is first taken for the column that it was in the row before. */
int take_values(raw_inputs_parts *parts, const json_value *row, char error[ERROR_BYTES]) {
    const description *description = &parts->description;
    uint32_t i = 0;
    memset(parts->values, 0, description->n_columns * sizeof *parts->values);
    for (const json_value *key = row + 1, *end = json_after(row); key < end;
         key = json_after(key + 1), i++) {
        uint32_t column = NONE, guess = i < description->n_columns ? parts->expected[i] : NONE;
        if (guess != NONE && description->columns[guess]->length == key->length &&
            same_bytes(description->columns[guess]->text, key->text, key->length)) {
            column = guess;
        } else {
            column = column_of(description, key->text, key->length);
            if (i < description->n_columns) {
                parts->expected[i] = column;
            }
        }
        if (column != NONE) {
            parts->values[column] = key + 1;
        }
    }
    for (uint32_t p = 0; p < parts->n_paths; p++) {
        path *path = &parts->paths[p];
        const json_value **value = &parts->values[path->column];
        if (*value == NULL && !take_path(path, row, description->columns[path->column], value)) {
            return refuse(error, "there is no memory for the values of a path");
        }
    }
    return 1;
}
