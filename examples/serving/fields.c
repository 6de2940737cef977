/* fields.c - files of JSON, and the fields of their objects */
#include "fields.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "message.h"

/* ---- Files -------------------------------------------------------------- */

/* A whole file, which the caller frees, with a 0 behind it for the parser; NULL when it cannot
 * be read. The size is found by reading, so the file need not be one that can be sought in. */
static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return NULL;
    }
    char *text = NULL;
    size_t used = 0, room = 0;
    do {
        room = room ? 2 * room : 1 << 16;
        char *more = realloc(text, room);
        if (more == NULL) {
            break;
        }
        text = more;
        used += fread(text + used, 1, room - used - 1, file);
    } while (used == room - 1);
    int failed = ferror(file) || !feof(file);
    fclose(file);
    if (failed) {
        free(text);
        return NULL;
    }
    text[used] = 0;
    *length = used;
    return text;
}

const json_value *read_json_file(const char *folder, const char *name, char **text,
                                 json_document *document, char *error) {
    char path[4096];
    size_t length;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path) {
        refuse(error, "the name %.200s... is too long", folder);
        return NULL;
    }
    *text = read_file(path, &length);
    if (*text == NULL) {
        refuse(error, "%s: %s", path, strerror(errno));
        return NULL;
    }
    const json_value *value = json_parse(document, *text, length, 0);
    if (value == NULL || value->kind != JSON_OBJECT) {
        refuse(error, "%s is no JSON object: %s", path,
               document->problem ? document->problem : "another value");
        return NULL;
    }
    return value;
}

/* ---- Values of the file ------------------------------------------------- */

void *zeros(size_t n, size_t size, char *error) {
    void *memory = calloc(n ? n : 1, size);
    if (memory == NULL) {
        refuse(error, "there is no memory");
    }
    return memory;
}

const json_value *text_of(const json_value *object, const char *key) {
    const json_value *value = json_get(object, key);
    return value != NULL && value->kind == JSON_TEXT ? value : NULL;
}

const json_value *list_of(const json_value *object, const char *key) {
    const json_value *value = json_get(object, key);
    return value != NULL && value->kind == JSON_LIST ? value : NULL;
}

const json_value *texts_of(const json_value *object, const char *key) {
    const json_value *list = list_of(object, key);
    for (const json_value *at = list + 1; list && at < json_after(list); at = json_after(at)) {
        if (at->kind != JSON_TEXT) {
            return NULL;
        }
    }
    return list;
}

uint32_t items(const json_value *list) {
    uint32_t n = 0;
    for (const json_value *at = list + 1; list != NULL && at < json_after(list);
         at = json_after(at)) {
        n++;
    }
    return n;
}

int is_true(const json_value *object, const char *key) {
    const json_value *value = json_get(object, key);
    return value != NULL && value->kind == JSON_TRUE;
}

int take_integer(const json_value *object, const char *key, uint64_t *out, char *error) {
    const json_value *value = json_get(object, key);
    if (value == NULL || value->kind == JSON_NULL) {
        return 1;
    }
    if ((value->kind != JSON_INTEGER && value->kind != JSON_TEXT) ||
        !json_integer(value->text, value->length, out)) {
        return refuse(error, "serving.json: %s is no integer", key);
    }
    return 1;
}

int take_count(const json_value *object, const char *key, uint32_t *out, char *error) {
    uint64_t value = *out;
    if (!take_integer(object, key, &value, error)) {
        return 0;
    }
    if (value > INT32_MAX) {
        return refuse(error, "serving.json: %s is too large", key);
    }
    *out = (uint32_t)value;
    return 1;
}

static int is_number(const json_value *value) {
    return value != NULL && (value->kind == JSON_INTEGER || value->kind == JSON_FRACTION);
}

int take_double(const json_value *value, double *out) {
    return is_number(value) && json_double(value->text, value->length, out);
}

double *take_doubles(const json_value *value, uint32_t n, char *error) {
    double *numbers = zeros(n, sizeof *numbers, error);
    const json_value *at = value != NULL && value->kind == JSON_LIST ? value + 1 : value;
    for (uint32_t i = 0; numbers != NULL && i < n; i++) {
        if (!take_double(at, &numbers[i])) {
            refuse(error, "serving.json: a list has something else than numbers");
            free(numbers);
            return NULL;
        }
        at += at != value;
    }
    return numbers;
}

uint32_t word_number(const json_value *text, const char *const *words, uint32_t known) {
    uint32_t i = 0;
    while (i < known && !json_is(text, words[i])) {
        i++;
    }
    return i;
}

int same_text(const json_value *a, const json_value *b) {
    return a != NULL && b != NULL && a->length == b->length &&
           memcmp(a->text, b->text, a->length) == 0;
}
