/* json.c - a small strict JSON reader */
#include "json.h"

#include <stdlib.h>
#include <string.h>

#define DEEPEST 64        /* lists and objects in each other */
#define NUMBER_BYTES 1024 /* of the text of a number */

/* The NUL at the end of the text stops every loop: it is no part of any value. */
typedef struct {
    json_document *document;
    char *at;
    int any_bytes;
    int depth;
} reader;

static int fail(reader *in, const char *problem) {
    if (in->document->problem == NULL) {
        in->document->problem = problem;
    }
    return 0;
}

static int make_room(reader *in) {
    json_document *document = in->document;
    size_t room = document->room ? 2 * document->room : 64;
    json_value *values =
        room <= UINT32_MAX ? realloc(document->values, room * sizeof *values) : NULL;
    if (values == NULL) {
        return fail(in, "there is no memory for so many values");
    }
    document->values = values;
    document->room = room;
    return 1;
}

/* A new value, or NULL. */
static inline json_value *add(reader *in, json_kind kind) {
    json_document *document = in->document;
    if (document->used == document->room && !make_room(in)) {
        return NULL;
    }
    json_value *value = &document->values[document->used++];
    value->kind = kind;
    value->values = 1;
    value->text = NULL;
    value->length = 0;
    return value;
}

static inline void skip_blanks(reader *in) {
    char *at = in->at;
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r') {
        at++;
    }
    in->at = at;
}

/* ---- Texts -------------------------------------------------------------- */

/* The four hexadecimal digits of an escape. The text ends with a 0, which is no digit, so
 * nothing behind its end is read. */
static int hexadecimal(const char *at, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) {
            return 0; /* also at the end of the text, before anything behind it is read */
        }
        *out = *out << 4 | digit;
    }
    return 1;
}

/* Writes a character as UTF-8; returns where the next one goes. */
static char *utf8(char *to, uint32_t character) {
    if (character < 0x80) {
        *to++ = (char)character;
    } else if (character < 0x800) {
        *to++ = (char)(0xc0 | character >> 6);
        *to++ = (char)(0x80 | (character & 0x3f));
    } else if (character < 0x10000) {
        *to++ = (char)(0xe0 | character >> 12);
        *to++ = (char)(0x80 | (character >> 6 & 0x3f));
        *to++ = (char)(0x80 | (character & 0x3f));
    } else {
        *to++ = (char)(0xf0 | character >> 18);
        *to++ = (char)(0x80 | (character >> 12 & 0x3f));
        *to++ = (char)(0x80 | (character >> 6 & 0x3f));
        *to++ = (char)(0x80 | (character & 0x3f));
    }
    return to;
}

/* One escape, from its backslash on; what it stands for is never longer. NULL when it is none. */
static char *unescape(reader *in, char *to) {
    static const char plain[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    uint32_t character, second;
    char letter = in->at[1];
    const char *escape = letter ? strchr(plain, letter) : NULL;
    if (escape != NULL) {
        in->at += 2;
        *to++ = meant[escape - plain];
        return to;
    }
    if (letter != 'u' || !hexadecimal(in->at + 2, &character)) {
        fail(in, "a backslash is followed by no escape");
        return NULL;
    }
    in->at += 6;
    if (character < 0xd800 || character > 0xdfff) {
        return utf8(to, character);
    }
    if (character < 0xdc00 && in->at[0] == '\\' && in->at[1] == 'u' &&
        hexadecimal(in->at + 2, &second) && second >= 0xdc00 && second <= 0xdfff) {
        in->at += 6;
        return utf8(to, 0x10000 + ((character - 0xd800) << 10) + (second - 0xdc00));
    }
    if (character >= 0xdc80 && character <= 0xdcff) {
        *to++ = (char)(character - 0xdc00);
        return to;
    }
    fail(in, "half of a surrogate pair is no character");
    return NULL;
}

/* How many bytes the character has that starts here, 0 when it is not UTF-8. */
static int bytes_of_character(const unsigned char *at) {
    unsigned char low = 0x80, high = 0xbf; /* of the second byte */
    int bytes = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    if (at[0] < 0xc2 || at[0] > 0xf4) {
        return 0;
    }
    if (at[0] == 0xe0) {
        low = 0xa0; /* shorter would do */
    } else if (at[0] == 0xed) {
        high = 0x9f; /* surrogates */
    } else if (at[0] == 0xf0) {
        low = 0x90;
    } else if (at[0] == 0xf4) {
        high = 0x8f;
    }
    if (at[1] < low || at[1] > high) {
        return 0;
    }
    for (int i = 2; i < bytes; i++) {
        if ((at[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return bytes;
}

/* Bytes that a text just goes on with. */
static inline int is_plain(unsigned char c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

/* A text, unescaped in place: the result is never longer than what it is read from, so `to`
 * never passes in->at. Ends at the 0 behind the document, which is a control character. */
static int read_text(reader *in) {
    json_value *value = add(in, JSON_TEXT);
    if (value == NULL) {
        return 0;
    }
    char *from = in->at + 1, *to = from;
    value->text = from;
    while (is_plain((unsigned char)*to)) {
        to++;
    }
    in->at = to; /* nothing was unescaped up to here */
    while (*in->at != '"') {
        unsigned char c = (unsigned char)*in->at;
        if (is_plain(c)) {
            *to++ = *in->at++;
        } else if (c == '\\') {
            to = unescape(in, to);
            if (to == NULL) {
                return 0;
            }
        } else if (c < 0x20) {
            return fail(in, "a text does not end, or has a control character in it");
        } else {
            int bytes = bytes_of_character((unsigned char *)in->at);
            if (bytes == 0 && !in->any_bytes) {
                return fail(in, "a text is not UTF-8");
            }
            for (bytes += bytes == 0; bytes > 0; bytes--) {
                *to++ = *in->at++;
            }
        }
    }
    in->at++;
    value->length = (size_t)(to - from);
    return 1;
}

/* ---- Numbers and words -------------------------------------------------- */

static char *digits(char *at) {
    while (*at >= '0' && *at <= '9') {
        at++;
    }
    return at;
}

/* A number, as the characters of the document and not converted: whether it is an id of 64 bits
 * or a float depends on who uses it. */
static int read_number(reader *in) {
    char *from = in->at, *at = from + (*from == '-'), *end = digits(at);
    json_kind kind = JSON_INTEGER;
    if (end == at || (*at == '0' && end > at + 1)) {
        return fail(in, end == at ? "a value is missing" : "a number starts with 0");
    }
    if (*end == '.') {
        at = end + 1;
        end = digits(at);
        kind = JSON_FRACTION;
        if (end == at) {
            return fail(in, "a number ends with its point");
        }
    }
    if (*end == 'e' || *end == 'E') {
        at = end + 1;
        at += *at == '+' || *at == '-';
        end = digits(at);
        kind = JSON_FRACTION;
        if (end == at) {
            return fail(in, "a number has no exponent after its e");
        }
    }
    json_value *value = add(in, kind);
    if (value == NULL) {
        return 0;
    }
    in->at = end;
    value->text = from;
    value->length = (size_t)(end - from);
    if (kind == JSON_INTEGER && value->length == 2 && from[0] == '-' && from[1] == '0') {
        value->text++; /* -0 is 0 */
        value->length--;
    }
    return 1;
}

static int read_word(reader *in, const char *word, json_kind kind) {
    size_t length = strlen(word);
    if (strncmp(in->at, word, length) != 0) {
        return fail(in, "a word is none of null, true, false and NaN");
    }
    json_value *value = add(in, kind);
    if (value != NULL && kind == JSON_CONSTANT) {
        value->text = in->at;
        value->length = length;
    }
    in->at += length;
    return value != NULL;
}

/* ---- Values ------------------------------------------------------------- */

static int read_value(reader *in);

/* A list, or an object, whose values have a key in front. */
static int read_several(reader *in, json_kind kind) {
    char end = kind == JSON_LIST ? ']' : '}';
    size_t place = in->document->used;
    if (add(in, kind) == NULL) {
        return 0;
    }
    if (++in->depth > DEEPEST) {
        return fail(in, "values are too deep in each other");
    }
    in->at++;
    skip_blanks(in);
    for (int first = 1; *in->at != end; first = 0) {
        if (!first) {
            if (*in->at != ',') {
                return fail(in, "a comma is missing");
            }
            in->at++;
            skip_blanks(in);
        }
        if (kind == JSON_OBJECT) {
            if (*in->at != '"') {
                return fail(in, "a key is missing");
            }
            if (!read_text(in)) {
                return 0;
            }
            skip_blanks(in);
            if (*in->at != ':') {
                return fail(in, "a colon is missing");
            }
            in->at++;
            skip_blanks(in);
        }
        if (!read_value(in)) {
            return 0;
        }
        skip_blanks(in);
    }
    in->at++;
    in->depth--;
    in->document->values[place].values = (uint32_t)(in->document->used - place);
    return 1;
}

/* Any value, by its first character. read_several, which it calls for lists and objects, limits
 * the depth, so that no document can exhaust the stack. */
static int read_value(reader *in) {
    switch (*in->at) {
    case '"':
        return read_text(in);
    case '{':
        return read_several(in, JSON_OBJECT);
    case '[':
        return read_several(in, JSON_LIST);
    case 'n':
        return read_word(in, "null", JSON_NULL);
    case 't':
        return read_word(in, "true", JSON_TRUE);
    case 'f':
        return read_word(in, "false", JSON_FALSE);
    case 'N':
        return read_word(in, "NaN", JSON_CONSTANT);
    case 'I':
        return read_word(in, "Infinity", JSON_CONSTANT);
    default:
        return in->at[0] == '-' && in->at[1] == 'I' ? read_word(in, "-Infinity", JSON_CONSTANT)
                                                    : read_number(in);
    }
}

const json_value *json_parse(json_document *document, char *text, size_t length, int any_bytes) {
    reader in = {.document = document, .at = text, .any_bytes = any_bytes};
    document->used = 0;
    document->problem = NULL;
    skip_blanks(&in);
    int read = read_value(&in);
    if (read) {
        skip_blanks(&in);
        read = in.at == text + length || fail(&in, "something follows the value");
    }
    document->at = (size_t)(in.at - text);
    return read ? document->values : NULL;
}

void json_free(json_document *document) {
    free(document->values);
    *document = (json_document){0};
}

/* ---- What values mean --------------------------------------------------- */

int json_is(const json_value *value, const char *text) {
    return value != NULL && value->kind == JSON_TEXT && value->length == strlen(text) &&
           memcmp(value->text, text, value->length) == 0;
}

const json_value *json_find(const json_value *object, const char *key, size_t length) {
    const json_value *value = NULL;
    if (object == NULL || object->kind != JSON_OBJECT) {
        return NULL;
    }
    for (const json_value *at = object + 1, *end = json_after(object); at < end;) {
        if (at->length == length && memcmp(at->text, key, length) == 0) {
            value = at + 1;
        }
        at = json_after(at + 1);
    }
    return value;
}

const json_value *json_get(const json_value *object, const char *key) {
    return json_find(object, key, strlen(key));
}

int json_integer(const char *text, size_t length, uint64_t *out) {
    int negative = length > 0 && text[0] == '-';
    uint64_t value = 0, most = negative ? UINT64_C(1) << 63 : UINT64_MAX;
    if (length == (size_t)negative) {
        return 0;
    }
    for (size_t i = (size_t)negative; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return 0;
        }
        uint64_t digit = (uint64_t)(text[i] - '0');
        if (value > (most - digit) / 10) {
            return 0;
        }
        value = 10 * value + digit;
    }
    *out = negative ? 0 - value : value;
    return 1;
}

static int same_word(const char *text, size_t length, const char *word) {
    for (size_t i = 0; i < length; i++) {
        if ((text[i] | 0x20) != word[i]) {
            return 0;
        }
    }
    return word[length] == 0;
}

int json_double(const char *text, size_t length, double *out) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                    1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                    1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const char *at = text, *end = text + length;
    int negative = at < end && *at == '-', digits = 0, decimals = 0, plain = 1;
    uint64_t mantissa = 0;
    at += at < end && (*at == '-' || *at == '+');
    size_t rest = (size_t)(end - at);
    if ((rest == 3 && same_word(at, rest, "nan")) || (rest == 3 && same_word(at, rest, "inf")) ||
        (rest == 8 && same_word(at, rest, "infinity"))) {
        *out = strtod((*at | 0x20) == 'n' ? "nan" : negative ? "-inf" : "inf", NULL);
        return 1;
    }
    for (int point = 0; at < end; at++) {
        if (*at >= '0' && *at <= '9') {
            mantissa = 10 * mantissa + (uint64_t)(*at - '0');
            digits++;
            decimals += point;
        } else if (*at == '.' && !point) {
            point = 1;
        } else {
            break;
        }
    }
    if (digits == 0) {
        return 0;
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        at += at < end && (*at == '+' || *at == '-');
        plain = 0;
        if (at == end) {
            return 0;
        }
        while (at < end && *at >= '0' && *at <= '9') {
            at++;
        }
        if (at[-1] < '0' || at[-1] > '9') {
            return 0;
        }
    }
    if (at < end) {
        return 0;
    }
    if (plain && digits <= 18 && mantissa <= UINT64_C(1) << 53 && decimals <= 22) {
        /* Both are exact doubles, so one division rounds once. */
        double value = (double)mantissa / powers[decimals];
        *out = negative ? -value : value;
        return 1;
    }
    char copy[NUMBER_BYTES]; /* what follows the text may look like more of it */
    if (length >= sizeof copy) {
        return 0;
    }
    memcpy(copy, text, length);
    copy[length] = 0;
    *out = strtod(copy, NULL);
    return 1;
}
