/* tensornet_line.c - lines of TensorNet's serving demo as rows of raw values */
#include "tensornet_line.h"

#include <stdlib.h>
#include <string.h>

#define OF_SIGNS '\x01'  /* between a slot and its signs */
#define NEXT_SIGN '\x02' /* between signs */
#define NEXT_SLOT '\t'

static const json_value *fail(json_document *document, const char *problem, size_t at) {
    document->problem = problem;
    document->at = at;
    return NULL;
}

/* Room for all values that a line can have: the row, and for each separator at most two, the name
 * of a slot and its list, or a sign. */
static int make_room(json_document *document, const char *line, size_t length) {
    size_t room = 1;
    for (size_t i = 0; i < length; i++) {
        char c = line[i];
        room += c == NEXT_SLOT ? 2 : c == OF_SIGNS || c == NEXT_SIGN;
    }
    if (room <= document->room) {
        return 1;
    }
    json_value *values =
        room <= UINT32_MAX ? realloc(document->values, room * sizeof *values) : NULL;
    if (values == NULL) {
        return 0;
    }
    document->values = values;
    document->room = room;
    return 1;
}

/* Where the next `separator` is, or the end. */
static const char *until(const char *from, const char *end, char separator) {
    const char *at = memchr(from, separator, (size_t)(end - from));
    return at ? at : end;
}

/* Whether a text is an integer of 64 bits, with or without a sign, as it is written in one way. */
static int is_sign(const char *text, size_t length) {
    uint64_t value;
    size_t minus = length > 0 && text[0] == '-';
    int leading_zero = length > minus && text[minus] == '0' && length > 1;
    return !leading_zero && json_integer(text, length, &value);
}

/* Adds the signs of a slot, text[from .. end). The list is the last value; it gets their number. */
static int add_signs(json_document *document, const char *line, const char *from, const char *end) {
    json_value *list = &document->values[document->used - 1];
    for (int more = 1; more;) {
        const char *next = until(from, end, NEXT_SIGN);
        size_t length = (size_t)(next - from);
        if (!is_sign(from, length)) {
            fail(document, "a sign is no integer of 64 bits", (size_t)(from - line));
            return 0;
        }
        document->values[document->used++] = (json_value){JSON_INTEGER, 1, from, length};
        list->values++;
        more = next < end;
        from = next + more;
    }
    return 1;
}

const json_value *tensornet_line(json_document *document, const char *line, size_t length) {
    if (length > 0 && line[length - 1] == '\r') {
        length--; /* a line of Windows */
    }
    document->problem = NULL;
    if (!make_room(document, line, length)) {
        return fail(document, "there is no memory for so many values", 0);
    }
    document->used = 1;
    const char *end = line + length, *at = until(line, end, NEXT_SLOT); /* behind the id */
    while (at < end) {
        const char *slot = at + 1;
        at = until(slot, end, NEXT_SLOT);
        const char *signs = until(slot, at, OF_SIGNS);
        if (signs == slot || signs == at) {
            return fail(document, "a tab is not followed by a slot, the byte 1 and its signs",
                        (size_t)(slot - line));
        }
        document->values[document->used++] =
            (json_value){JSON_TEXT, 1, slot, (size_t)(signs - slot)};
        document->values[document->used++] = (json_value){JSON_LIST, 1, NULL, 0};
        if (!add_signs(document, line, signs + 1, at)) {
            return NULL;
        }
    }
    document->values[0] = (json_value){JSON_OBJECT, (uint32_t)document->used, NULL, 0};
    return document->values;
}
