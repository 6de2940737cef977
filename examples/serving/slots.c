/* slots.c - serving.json: the slots */
#include <stdlib.h>
#include <string.h>

#include "description.h"
#include "fields.h"
#include "ids.h"
#include "message.h"

/* ---- Slots -------------------------------------------------------------- */

static int make_vocabulary(slot *one, const json_value *list, char *error) {
    vocabulary *found = &one->vocabulary;
    uint64_t room = 16;
    if (list == NULL) {
        return refuse(error, "serving.json: a slot has no vocabulary");
    }
    while (room < 2 * (uint64_t)list->values) {
        room *= 2;
    }
    found->entries = zeros(room, sizeof *found->entries, error);
    if (found->entries == NULL) {
        return 0;
    }
    found->mask = room - 1;
    memset(found->entries, 0xff, room * sizeof *found->entries);
    for (const json_value *at = list + 1; at < json_after(list); at = json_after(at)) {
        uint64_t hash = value_id(at->text, at->length, one->seed), place = hash;
        while (found->entries[place & found->mask].place != NONE) {
            place++;
        }
        found->entries[place & found->mask].hash = hash;
        found->entries[place & found->mask].place = found->values++;
    }
    return 1;
}

static int describe_ids(slot *one, const json_value *entry, char *error) {
    static const char *const kinds[] = {"hash",       "modulo",     "integer",
                                        "vocabulary", "boundaries", "quantiles"};
    uint32_t kind = word_number(text_of(entry, "ids"), kinds, 6);
    if (kind == 6) {
        return refuse(error, "serving.json: a slot has ids that this program does not know");
    }
    one->ids = kind < 5 ? (id_kind)kind : IDS_BUCKETS;
    if (!take_integer(entry, "seed", &one->seed, error) ||
        !take_integer(entry, "size", &one->size, error) ||
        !take_integer(entry, "oov", &one->oov, error) ||
        !take_integer(entry, "missing_id", &one->missing_id, error) ||
        !take_integer(entry, "padding", &one->padding, error)) {
        return 0;
    }
    if (one->ids == IDS_MODULO && one->size == 0) {
        return refuse(error, "serving.json: a slot has no size");
    }
    if (one->ids == IDS_VOCABULARY) {
        return make_vocabulary(one, texts_of(entry, "vocabulary"), error);
    }
    const json_value *boundaries = list_of(entry, "boundaries");
    one->n_boundaries = items(boundaries);
    one->boundaries = take_doubles(boundaries, one->n_boundaries, error);
    return one->boundaries != NULL;
}

static int describe_slot(description *out, slot *one, const json_value *entry, char *error) {
    static const char *const poolings[] = {"sum", "mean", "sqrtn", "none"};
    const json_value *padding = json_get(entry, "padding");
    const json_value *column = text_of(entry, "column"), *weights = text_of(entry, "weights");
    uint32_t pooling = word_number(text_of(entry, "pooling"), poolings, 4);
    if (pooling == 4) {
        return refuse(error, "serving.json: a slot has a pooling that this program does not know");
    }
    if (column == NULL && one->crossed == NULL) {
        return refuse(error, "serving.json: a slot has neither column nor cross");
    }
    one->column = column ? add_column(out, column) : NONE;
    one->weights = weights ? add_column(out, weights) : NONE;
    one->separator = separator_of(entry);
    one->missing_value = json_is(json_get(entry, "missing"), "value");
    one->padded = padding != NULL && padding->kind != JSON_NULL;
    one->keep_last = json_is(json_get(entry, "keep"), "last");
    one->pooling = (pooling_kind)pooling;
    one->indicator = is_true(entry, "indicator");
    one->linear = is_true(entry, "linear");
    one->cvm = is_true(entry, "cvm");
    one->group = text_of(entry, "group");
    one->at = one->length_at = NONE;
    if (!describe_ids(one, entry, error) ||
        !take_count(entry, "max_length", &one->max_length, error) ||
        !take_count(entry, "width", &one->width, error) ||
        !take_count(entry, "columns", &one->columns, error)) {
        return 0;
    }
    one->plain = column != NULL && one->weights == NONE && one->separator.text == NULL &&
                 one->ids == IDS_HASH && one->pooling != POOLING_NONE && !one->padded;
    if (one->pooling == POOLING_NONE && one->max_length == 0) {
        return refuse(error, "serving.json: a sequence has no max_length");
    }
    return 1;
}

/* The slot of a name; a column that is no slot becomes one, with the settings that all have. */
static uint32_t crossed_slot(description *out, const json_value *name) {
    for (uint32_t i = 0; i < out->n_slots; i++) {
        if (same_text(out->slots[i].name, name)) {
            return i;
        }
    }
    slot *column = &out->slots[out->n_slots];
    column->column = add_column(out, name);
    column->weights = column->at = column->length_at = NONE;
    column->missing_id = value_id("", 0, 0);
    return out->n_slots++;
}

/* All slots: those with a column, then the crosses, each after the columns that only it reads. */
int describe_slots(description *out, const json_value *entries, char *error) {
    if (entries == NULL || entries->kind != JSON_OBJECT) {
        return refuse(error, "serving.json has no slots");
    }
    out->slots = zeros(entries->values, sizeof *out->slots, error);
    if (out->slots == NULL) {
        return 0;
    }
    const json_value *end = json_after(entries);
    for (const json_value *at = entries + 1; at < end; at = json_after(at + 1)) {
        if (texts_of(at + 1, "cross") == NULL) {
            slot *one = &out->slots[out->n_slots++];
            one->name = at;
            if (!describe_slot(out, one, at + 1, error)) {
                return 0;
            }
        }
    }
    for (const json_value *at = entries + 1; at < end; at = json_after(at + 1)) {
        const json_value *cross = texts_of(at + 1, "cross");
        if (cross == NULL) {
            continue;
        }
        uint32_t *crossed = zeros(items(cross), sizeof *crossed, error), n = 0;
        if (crossed == NULL) {
            return 0;
        }
        for (const json_value *name = cross + 1; name < json_after(cross); name++) {
            crossed[n++] = crossed_slot(out, name);
        }
        slot *one = &out->slots[out->n_slots++];
        *one = (slot){.name = at, .crossed = crossed, .n_crossed = n};
        if (!describe_slot(out, one, at + 1, error)) {
            return 0;
        }
    }
    return 1;
}
