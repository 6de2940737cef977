/* values.c - raw values: cutting them into several, what is missing, numbers */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"
#include "parts.h"

static const json_value nothing = {.kind = JSON_NULL, .values = 1};

int refuse_value(const raw_inputs_parts *parts, uint32_t column, const json_value *value,
                 const char *what, char error[ERROR_BYTES]) {
    static const char *const words[] = {[JSON_NULL] = "null",
                                        [JSON_FALSE] = "false",
                                        [JSON_TRUE] = "true",
                                        [JSON_LIST] = "a list",
                                        [JSON_OBJECT] = "an object"};
    char name[QUOTED_BYTES], shown[QUOTED_BYTES];
    const json_value *of = parts->description.columns[column];
    return refuse(error, "column %s: %s %s", quoted(name, of->text, of->length),
                  value->text ? quoted(shown, value->text, value->length) : words[value->kind],
                  what);
}

/* ---- Several values ----------------------------------------------------- */

static int is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

json_value without_blanks(json_value text) {
    for (; text.length && is_blank(text.text[0]); text.length--) {
        text.text++;
    }
    while (text.length && is_blank(text.text[text.length - 1])) {
        text.length--;
    }
    return text;
}

static int add_part(scissors *with, size_t n, json_value part) {
    if (n == with->room) {
        size_t room = with->room ? 2 * with->room : 64;
        json_value *values = realloc(with->values, room * sizeof *values);
        if (values == NULL) {
            return 0;
        }
        with->values = values;
        with->room = room;
    }
    with->values[n] = part;
    return 1;
}

/* A text at every occurrence of the separator. */
static int cut_text(const json_value *text, const json_value *by, int strip, scissors *with,
                    raw_values *out) {
    const char *from = text->text, *end = from + text->length;
    size_t n = 0;
    for (const char *at = from;; at++) {
        at = memchr(at, by->text[0], (size_t)(end - at));
        if (at != NULL &&
            ((size_t)(end - at) < by->length || memcmp(at, by->text, by->length) != 0)) {
            continue;
        }
        json_value part = {JSON_TEXT, 1, from, (size_t)((at ? at : end) - from)};
        if (!add_part(with, n++, strip ? without_blanks(part) : part)) {
            return 0;
        }
        if (at == NULL) {
            break;
        }
        from = at + by->length;
        at = from - 1;
    }
    *out = (raw_values){with->values, n, 1};
    return 1;
}

/* A JSON list of texts, integers and nulls, and with `fractions` other numbers. */
static int cut_json(const json_value *text, int fractions, scissors *with, raw_values *out) {
    if (text->length >= with->text_room) {
        char *copy = realloc(with->text, 2 * text->length + 64);
        if (copy == NULL) {
            return 0;
        }
        with->text = copy;
        with->text_room = 2 * text->length + 64;
    }
    memcpy(with->text, text->text, text->length);
    with->text[text->length] = 0;
    const json_value *list = json_parse(&with->document, with->text, text->length, 1);
    if (list == NULL || (list->kind != JSON_LIST && list->kind != JSON_NULL)) {
        return 0;
    }
    *out = (raw_values){list + 1, list->values - 1u, 1};
    for (size_t i = 0; i < out->n; i++) {
        json_kind kind = out->first[i].kind;
        if (kind != JSON_TEXT && kind != JSON_INTEGER && kind != JSON_NULL &&
            !(kind == JSON_FRACTION && fractions)) {
            return 0;
        }
    }
    return 1;
}

/* Whether a value is an integer of 2^64 or more, or of -2^64 or less: no id. */
static int is_beyond(const json_value *value) {
    static const char least[] = "18446744073709551616";
    if (value->kind != JSON_INTEGER) {
        return 0;
    }
    size_t sign = value->text[0] == '-', length = value->length - sign;
    return length > sizeof least - 1 ||
           (length == sizeof least - 1 && memcmp(value->text + sign, least, length) >= 0);
}

static int refuse_beyond(const raw_inputs_parts *parts, uint32_t column, const json_value *value,
                         char *error) {
    return refuse_value(parts, column, value, "has more than 64 bits. Write it as text", error);
}

int cut_apart(raw_inputs_parts *parts, uint32_t column, separator by, int fractions, scissors *with,
              raw_values *out, char error[ERROR_BYTES]) {
    const json_value *value = parts->values[column] ? parts->values[column] : &nothing;
    *out = (raw_values){value, 1, 0};
    if (value->kind == JSON_OBJECT) {
        return refuse_value(parts, column, value, "is no value", error);
    }
    if (value->kind == JSON_LIST) {
        *out = (raw_values){value + 1, value->values - 1u, 1};
        for (size_t i = 0; i < out->n; i++) {
            if (out->first[i].kind >= JSON_LIST) {
                return refuse_value(parts, column, &out->first[i], "is in a list", error);
            }
            if (!fractions && is_beyond(&out->first[i])) {
                return refuse_beyond(parts, column, &out->first[i], error);
            }
        }
        return 1;
    }
    if (!fractions && is_beyond(value)) {
        return refuse_beyond(parts, column, value, error);
    }
    if (by.text == NULL || (value->kind != JSON_TEXT && value->kind != JSON_NULL)) {
        return 1;
    }
    if (value->kind == JSON_NULL || is_missing(&parts->description, value, 0)) {
        *out = (raw_values){NULL, 0, 1};
        return 1;
    }
    if (by.json) {
        return cut_json(value, fractions, with, out) ||
               refuse_value(parts, column, value,
                            fractions ? "is not a JSON list of texts and numbers"
                                      : "is not a JSON list of texts and integers",
                            error);
    }
    return cut_text(value, by.text, parts->description.strip, with, out) ||
           refuse(error, "there is no memory for the parts of a text");
}

/* ---- Numbers ------------------------------------------------------------ */

int number_of(const raw_inputs_parts *parts, uint32_t column, const json_value *value, int several,
              double *out, char error[ERROR_BYTES]) {
    const description *description = &parts->description;
    json_value text;
    switch (value->kind) {
    case JSON_NULL:
        *out = NAN;
        return 1;
    case JSON_FALSE:
    case JSON_TRUE:
        *out = value->kind == JSON_TRUE;
        return 1;
    case JSON_FRACTION:
    case JSON_CONSTANT:
        text = *value;
        break;
    default:
        text = without_blanks(*value); /* of an integer there is nothing to trim */
        if ((several && text.length == 0) ||
            is_one_of(description->missing_trimmed, description->n_missing, &text)) {
            *out = NAN;
            return 1;
        }
    }
    if (!json_double(text.text, text.length, out)) {
        return refuse_value(parts, column, value, "is not a number", error);
    }
    return 1;
}
