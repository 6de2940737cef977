/* fields.h - files of JSON, and the fields of their objects */
#ifndef FIELDS_H
#define FIELDS_H

#include "json.h"

/* A file that is a JSON object; *text is what to free after `document`, in any case. NULL and a
 * message. */
const json_value *read_json_file(const char *folder, const char *name, char **text,
                                 json_document *document, char *error);

/* Memory of zeros for n things. NULL and a message. */
void *zeros(size_t n, size_t size, char *error);

/* The text, or list, of a key; NULL when it is absent or of another kind. */
const json_value *text_of(const json_value *object, const char *key);
const json_value *list_of(const json_value *object, const char *key);
int is_true(const json_value *object, const char *key);

/* A list of nothing but texts; NULL when it is not. */
const json_value *texts_of(const json_value *object, const char *key);

/* How many values a list has; NULL has none. */
uint32_t items(const json_value *list);

int same_text(const json_value *a, const json_value *b);

/* Which of some words a text is; `known`, how many there are, when it is none of them. */
uint32_t word_number(const json_value *text, const char *const *words, uint32_t known);

/* An integer, or its decimal text. Where it is null `out` stays as it is. 0 and a message. */
int take_integer(const json_value *object, const char *key, uint64_t *out, char *error);
int take_count(const json_value *object, const char *key, uint32_t *out, char *error);

/* A number; 0 when it is none. */
int take_double(const json_value *value, double *out);

/* A list of n numbers, or one number that stands for all. NULL and a message. */
double *take_doubles(const json_value *value, uint32_t n, char *error);

#endif
