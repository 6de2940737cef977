/* cells.c - from the raw values of a row to the ids of its slots (docs/formats/ids.md) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ids.h"
#include "message.h"
#include "parts.h"

#define MOST_COMBINATIONS ((size_t)1 << 24) /* of one cross in one row */

const id_list *list_of_slot(const raw_inputs_parts *parts, const slot *slot) {
    return slot->group ? &parts->ids : &parts->aside;
}

/* Room for so many ids more. */
static int make_room(id_list *list, size_t more) {
    if (list->room - list->used >= more) {
        return 1;
    }
    size_t room = 2 * (list->used + more) + 64;
    if (room > UINT32_MAX) {
        return 0; /* cells could not tell where they are */
    }
    uint64_t *ids = realloc(list->ids, room * sizeof *ids);
    list->ids = ids ? ids : list->ids;
    float *weights = realloc(list->weights, room * sizeof *weights);
    list->weights = weights ? weights : list->weights;
    if (ids == NULL || weights == NULL) {
        return 0;
    }
    list->room = room;
    return 1;
}

/* ---- One value ---------------------------------------------------------- */

typedef enum { REFUSED, MISSING, FOUND } outcome;

/* The id of a hash: the word's place, or one of the slot's `oov` ids after the last word. Probes
 * from the hash on; ends, because make_vocabulary leaves at least half of the entries empty. */
static outcome place_in_vocabulary(const slot *slot, uint64_t hash, uint64_t *id) {
    const vocabulary *known = &slot->vocabulary;
    for (uint64_t at = hash;; at++) {
        uint32_t place = known->entries[at & known->mask].place;
        if (place == NONE) {
            break;
        }
        if (known->entries[at & known->mask].hash == hash) {
            *id = place;
            return FOUND;
        }
    }
    if (slot->oov == 0) {
        return MISSING;
    }
    *id = known->values + hash % slot->oov;
    return FOUND;
}

/* How many boundaries are at or below the number. */
static uint64_t bucket_of(const slot *slot, double value) {
    uint32_t low = 0, high = slot->n_boundaries;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (slot->boundaries[middle] <= value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The id of one value, in *id when FOUND. After MISSING *id may be anything; REFUSED comes with
 * a message that names the column. */
static outcome id_of(const raw_inputs_parts *parts, const slot *slot, const json_value *value,
                     int several, uint64_t *id, char *error) {
    if (slot->ids == IDS_BUCKETS) {
        double number;
        if (!number_of(parts, slot->column, value, several, &number, error)) {
            return REFUSED;
        }
        if (isinf(number)) {
            refuse_value(parts, slot->column, value, "is infinite", error);
            return REFUSED;
        }
        *id = bucket_of(slot, number);
        return isnan(number) ? MISSING : FOUND;
    }
    if (slot->ids == IDS_TIME) {
        int64_t time = 0;
        int missing;
        if (!time_of(parts, slot->column, &slot->times, value, several, &time, &missing, error)) {
            return REFUSED;
        }
        *id = tn_time_part(time, slot->part, slot->times.offset);
        return missing ? MISSING : FOUND;
    }
    if (value->kind != JSON_TEXT && value->kind != JSON_INTEGER && value->kind != JSON_NULL) {
        refuse_value(parts, slot->column, value, "is no id, which are texts and integers", error);
        return REFUSED;
    }
    if (is_missing(&parts->description, value, several)) {
        return MISSING;
    }
    if (slot->ids == IDS_INTEGER) {
        if (!json_integer(value->text, value->length, id)) {
            refuse_value(parts, slot->column, value, "is not an integer of 64 bits", error);
            return REFUSED;
        }
        return slot->size && *id >= slot->size ? MISSING : FOUND;
    }
    *id = value_id(value->text, value->length, slot->seed);
    if (slot->ids == IDS_VOCABULARY) {
        return place_in_vocabulary(slot, *id, id);
    }
    if (slot->ids == IDS_MODULO) {
        *id %= slot->size;
    }
    return FOUND;
}

/* ---- One slot ----------------------------------------------------------- */

/* The weight of a value, which must be a finite number where the value is not missing. */
static int weight_of(const raw_inputs_parts *parts, const slot *slot, const json_value *value,
                     int needed, float *out, char *error) {
    double number;
    /* An empty text is missing here, even if it is the only one. */
    if (!number_of(parts, slot->weights, value, 1, &number, error)) {
        return 0;
    }
    *out = (float)number;
    return !needed || isfinite(*out) ||
           refuse_value(parts, slot->weights, value, "is no weight, which are finite numbers",
                        error);
}

/* What is left of the ids from `first` on: at most max_length, at least that of missing values. */
static void finish_cell(const slot *slot, id_list *list, size_t first) {
    size_t count = list->used - first;
    if (slot->max_length != 0 && count > slot->max_length) {
        if (slot->keep_last) {
            size_t from = list->used - slot->max_length;
            memmove(list->ids + first, list->ids + from, slot->max_length * sizeof *list->ids);
            memmove(list->weights + first, list->weights + from,
                    slot->max_length * sizeof *list->weights);
        }
        list->used = first + slot->max_length;
    }
    if (count == 0 && slot->missing_value && slot->pooling != POOLING_NONE) {
        list->ids[list->used] = slot->missing_id;
        list->weights[list->used++] = 1;
    }
}

/* Values and weights must be as many. One that is null has none beside a list. */
static int pair_weights(const raw_inputs_parts *parts, const slot *slot, raw_values *values,
                        raw_values *weights, char *error) {
    if (!values->several && !weights->several) {
        return 1;
    }
    for (int i = 0; i < 2; i++) {
        raw_values *each = i ? weights : values;
        each->n = each->several || each->first->kind != JSON_NULL ? each->n : 0;
        each->several = 1;
    }
    if (values->n == weights->n) {
        return 1;
    }
    char name[QUOTED_BYTES];
    const json_value *column = parts->description.columns[slot->weights];
    return refuse(error, "column %s has %zu weights for %zu values",
                  quoted(name, column->text, column->length), weights->n, values->n);
}

/* Appends the ids of the row's cell in one slot to `list`, with a weight each. Room for all
 * values and one more is made first: finish_cell may add the id of missing values to an empty
 * cell. */
static int encode_slot(raw_inputs_parts *parts, const slot *slot, id_list *list, char *error) {
    raw_values values, weights = {NULL, 0, 0};
    size_t first = list->used;
    int weighted = slot->weights != NONE, sequence = slot->pooling == POOLING_NONE;
    int of_time_numbers = slot->ids == IDS_TIME && slot->times.format.kind == TN_TIME_NUMBER;
    int fractions = slot->ids == IDS_BUCKETS || of_time_numbers;
    if (!cut(parts, slot->column, slot->separator, fractions, &parts->of_values, &values, error)) {
        return 0;
    }
    if (weighted &&
        (!cut(parts, slot->weights, slot->separator, 1, &parts->of_weights, &weights, error) ||
         !pair_weights(parts, slot, &values, &weights, error))) {
        return 0;
    }
    if (sequence && !values.several &&
        (values.first->kind == JSON_NULL ||
         (values.first->text != NULL && is_missing(&parts->description, values.first, 0)))) {
        values.n = 0; /* missing as a whole */
    }
    if (!make_room(list, values.n + 1)) {
        return refuse(error, "there is no memory for the ids of a row");
    }
    for (size_t i = 0; i < values.n; i++) {
        uint64_t id = 0;
        float weight = 1;
        outcome result = id_of(parts, slot, &values.first[i], values.several, &id, error);
        if (result == REFUSED || (weighted && !weight_of(parts, slot, &weights.first[i],
                                                         result == FOUND, &weight, error))) {
            return 0;
        }
        if (result == MISSING) {
            if (!sequence || !slot->missing_value) {
                continue;
            }
            id = slot->missing_id;
        }
        if (slot->padded && id == slot->padding) {
            continue;
        }
        list->ids[list->used] = id;
        list->weights[list->used++] = weight;
    }
    finish_cell(slot, list, first);
    return 1;
}

/* The same of a text of a plain slot, without asking what such a slot has not. */
static inline int encode_plain(const raw_inputs_parts *parts, const slot *slot,
                               const json_value *text, id_list *list, char *error) {
    if (!make_room(list, 1)) {
        return refuse(error, "there is no memory for the ids of a row");
    }
    if (is_missing(&parts->description, text, 0)) {
        finish_cell(slot, list, list->used);
        return 1;
    }
    list->weights[list->used] = 1;
    list->ids[list->used++] = value_id(text->text, text->length, slot->seed);
    return 1;
}

/* ---- Crosses ------------------------------------------------------------ */

/* Every combination of one id of each slot, the last slot's ids changing fastest. */
static int encode_cross(raw_inputs_parts *parts, const slot *cross, const cell *cells,
                        id_list *list, char *error) {
    size_t first = list->used, n = 1;
    for (uint32_t c = 0; c < cross->n_crossed; c++) {
        size_t count = cells[cross->crossed[c]].count;
        if (count != 0 && n > MOST_COMBINATIONS / count) {
            return refuse(error, "a cross has over %zu combinations", MOST_COMBINATIONS);
        }
        n *= count;
    }
    if (!make_room(list, n + 1)) {
        return refuse(error, "there is no memory for the ids of a row");
    }
    uint64_t *out = list->ids + first;
    out[0] = cross->seed;
    size_t made = n ? 1 : 0;
    for (uint32_t c = 0; c < cross->n_crossed && made; c++) {
        const slot *other = &parts->description.slots[cross->crossed[c]];
        const cell *of = &cells[cross->crossed[c]];
        const uint64_t *ids = list_of_slot(parts, other)->ids + of->first;
        /* Hashes of the combinations so far are spread out in place, the last one first. */
        for (size_t i = made; i-- > 0;) {
            uint64_t h = out[i];
            for (size_t j = of->count; j-- > 0;) {
                out[i * of->count + j] = mix64(h ^ ids[j]);
            }
        }
        made *= of->count;
    }
    for (size_t i = 0; i < made; i++) {
        uint64_t id = mix64(out[i] ^ UINT64_C(8) * cross->n_crossed);
        id = cross->ids == IDS_MODULO ? id % cross->size : id;
        if (!cross->padded || id != cross->padding) {
            list->weights[list->used] = 1;
            list->ids[list->used++] = id;
        }
    }
    finish_cell(cross, list, first);
    return 1;
}

int encode_ids(raw_inputs_parts *parts, uint32_t row, char error[ERROR_BYTES]) {
    const description *description = &parts->description;
    cell *cells = parts->cells + (size_t)row * description->n_slots;
    parts->aside.used = 0;
    for (uint32_t i = 0; i < description->n_slots; i++) {
        const slot *slot = &description->slots[i];
        id_list *list = slot->group ? &parts->ids : &parts->aside;
        cells[i].first = (uint32_t)list->used;
        const json_value *value = slot->plain ? parts->values[slot->column] : NULL;
        if (!(value != NULL && value->kind == JSON_TEXT
                  ? encode_plain(parts, slot, value, list, error)
              : slot->crossed ? encode_cross(parts, slot, cells, list, error)
                              : encode_slot(parts, slot, list, error))) {
            return 0;
        }
        cells[i].count = (uint32_t)list->used - cells[i].first;
    }
    return 1;
}
