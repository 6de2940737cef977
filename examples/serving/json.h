/* json.h - a small strict JSON reader for lines of raw values and for the files that describe them
 *
 * A text becomes one array of values, each before what is inside of it. Nothing is copied: texts
 * are unescaped where they stand, and numbers are left as text until somebody wants them, for an
 * integer that is hashed never is a number.
 */
#ifndef JSON_H
#define JSON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_INTEGER,  /* a number without point and exponent, of any size; never "-0" */
    JSON_FRACTION, /* any other number */
    JSON_CONSTANT, /* NaN, Infinity or -Infinity, as Python writes them; JSON has none */
    JSON_TEXT,
    JSON_LIST,
    JSON_OBJECT /* holds key, value, key, value ... */
} json_kind;

typedef struct {
    json_kind kind;
    uint32_t values;  /* this one and all inside of it */
    const char *text; /* of a text its bytes, of a number its digits; not ended by a NUL */
    size_t length;
} json_value;

/* Where the values are; starts as zeros and is used for text after text. */
typedef struct {
    json_value *values;
    size_t used, room;
    const char *problem; /* after a failure: what is wrong, and where */
    size_t at;
} json_document;

/* Reads the whole of text[0 .. length), which it changes; text[length] must be 0. The bytes must
 * live as long as the values. NULL when it is no JSON.
 *
 * Escaped halves of surrogate pairs that stand alone are refused, but \udc80 to \udcff: they stand
 * for the bytes 80 to ff of a text that was not UTF-8, as Python's "surrogateescape" writes them.
 * With `any_bytes` such bytes may also stand as they are. */
const json_value *json_parse(json_document *document, char *text, size_t length, int any_bytes);
void json_free(json_document *document);

/* The value after this one and all that is inside of it. */
static inline const json_value *json_after(const json_value *value) {
    return value + value->values;
}

/* The value of a key (the last one of that name), or NULL: there is none, or it is no object. */
const json_value *json_find(const json_value *object, const char *key, size_t length);
const json_value *json_get(const json_value *object, const char *key); /* which a NUL ends */

int json_is(const json_value *value, const char *text);

/* The 64 bits of a decimal integer from -2^63 to 2^64 - 1, modulo 2^64; 0 when it is none. */
int json_integer(const char *text, size_t length, uint64_t *out);

/* The double nearest to a decimal number of at most 1023 characters; 0 unless it is one. It takes
 * more than JSON does: a plus sign, 1. and .5, nan, inf and infinity. */
int json_double(const char *text, size_t length, double *out);

#ifdef __cplusplus
}
#endif

#endif
