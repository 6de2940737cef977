/* description.h - serving.json: what the inputs are and how raw values become them
 *
 * Texts point into the file, which is kept in memory.
 */
#ifndef DESCRIPTION_H
#define DESCRIPTION_H

#include "../../csrc/tn_time.h"
#include "json.h"
#include "raw_inputs.h"

#define NONE UINT32_MAX /* no column, no place */

typedef enum { IDS_HASH, IDS_MODULO, IDS_INTEGER, IDS_VOCABULARY, IDS_BUCKETS, IDS_TIME } id_kind;
typedef enum { POOLING_SUM, POOLING_MEAN, POOLING_SQRTN, POOLING_NONE } pooling_kind;
typedef enum { TRANSFORM_NONE, TRANSFORM_LOG1P, TRANSFORM_STANDARDIZE } transform_kind;

/* The values of a vocabulary by their hashes: open addressing, `place` NONE where nothing is. */
typedef struct {
    struct {
        uint64_t hash;
        uint32_t place;
    } *entries;
    uint64_t mask;
    uint32_t values;
} vocabulary;

/* How a text is cut into several values. */
typedef struct {
    const json_value *text; /* NULL: it is not */
    int json;               /* the text is a JSON list */
} separator;

/* How a column writes times. */
typedef struct {
    tn_time_format format;
    int32_t offset; /* seconds that the zone of its hours and days is ahead of UTC */
} time_column;

typedef struct {
    const json_value *name; /* NULL: a column of a cross that is no slot */
    uint32_t column;        /* NONE: a cross */
    uint32_t weights;       /* the column of the values' weights, or NONE */
    separator separator;
    id_kind ids;
    uint64_t seed, size, oov;
    vocabulary vocabulary;
    double *boundaries;
    uint32_t n_boundaries;
    time_column times; /* of IDS_TIME, and the part of a time that is the id: */
    int32_t part;
    int missing_value; /* missing values have an id: */
    uint64_t missing_id;
    int padded; /* this id counts as no value: */
    uint64_t padding;
    uint32_t max_length; /* 0: any */
    int keep_last;
    int plain;         /* one value, hashed, as most slots have */
    uint32_t *crossed; /* the slots that a cross is made of */
    uint32_t n_crossed;

    pooling_kind pooling;
    int linear, cvm, indicator;
    uint32_t width;          /* of the embedding */
    uint32_t columns;        /* of the embedding and its counts; of a one-hot slot its numbers */
    const json_value *group; /* NULL: no rows */
    uint32_t at;             /* the first column in x, or in sequences; NONE: not in either */
    uint32_t length_at;      /* of a sequence: the column in lengths */
} slot;

typedef struct {
    const json_value *name;
    uint32_t *columns; /* one of all `width` numbers; with several_columns one per number */
    int several_columns;
    uint32_t width;
    separator separator;
    transform_kind transform;
    int has_low, has_high, has_default;
    double low, high, value;  /* clip, default */
    double *mean, *deviation; /* [width], of standardize */
    /* With `is_age` values are times, and the numbers how long they are after another. */
    int is_age;
    double unit;           /* in microseconds */
    time_column *times;    /* [width] */
    int64_t *start;        /* [width], a fixed time */
    uint32_t since_column; /* or the column of the time that they are after; else NONE */
    time_column since_times;
    uint32_t at;
} number;

typedef struct {
    char *text;
    json_document document;
    const json_value *checkpoint; /* the checksum of the checkpoint's manifest */

    json_value *missing; /* the texts that mean a missing value */
    json_value *missing_trimmed;
    uint32_t n_missing;
    int strip;

    const json_value *times;    /* data.times; NULL when all columns have its defaults */
    const json_value **columns; /* their names */
    uint32_t n_columns;
    uint32_t *column_index; /* by hash; NONE where nothing is */
    uint64_t column_mask;

    slot *slots; /* crosses after what they are made of */
    uint32_t n_slots;
    uint32_t
        *pooled; /* the slots that have rows, those with linear weights first, in their order */
    uint32_t n_pooled;
    number *numbers;
    uint32_t n_numbers;

    packed_input packed[4]; /* without data */
    uint32_t n_packed;
    rank_columns *ranked; /* of each input in their order */
    uint32_t n_ranked;
    model_head *heads;
    uint32_t n_heads;
} description;

/* Reads serving.json of a folder. 0 and a message when it is not there or not understood; to be
 * freed in any case. `out` starts as zeros. */
int description_read(description *out, const char *folder, char error[ERROR_BYTES]);
void description_free(description *description);

/* The number of a column, or NONE. */
uint32_t column_of(const description *description, const char *name, size_t length);

/* For what reads parts of the file: adds a column, once; fills in the slots. */
uint32_t add_column(description *out, const json_value *name);
separator separator_of(const json_value *entry);
int describe_slots(description *out, const json_value *entries, char *error);
/* times.c: how a column writes times; a fixed time, in the zone of a column. 0 and a message. */
int describe_times(const description *description, const json_value *column, time_column *out,
                   char *error);
int describe_since(const json_value *text, const time_column *times, int64_t *out, char *error);

#endif
