/* slots.c - serving.json: the slots */
#include <stdlib.h>
#include <string.h>

#include "description.h"
#include "fields.h"
#include "ids.h"
#include "message.h"

/* ---- Slots -------------------------------------------------------------- */

/* The hash table of a slot's words, at most half full, so that probing ends. Words of one hash
 * get an entry each, of which the first is found. */
static int make_vocabulary(slot *slot, const json_value *list, char *error) {
    vocabulary *known = &slot->vocabulary;
    uint64_t room = 16;
    if (list == NULL) {
        return refuse(error, "serving.json: a slot has no vocabulary");
    }
    while (room < 2 * (uint64_t)list->values) {
        room *= 2;
    }
    known->entries = zeros(room, sizeof *known->entries, error);
    if (known->entries == NULL) {
        return 0;
    }
    known->mask = room - 1;
    memset(known->entries, 0xff, room * sizeof *known->entries);
    for (const json_value *at = list + 1; at < json_after(list); at = json_after(at)) {
        uint64_t hash = value_id(at->text, at->length, slot->seed), place = hash;
        while (known->entries[place & known->mask].place != NONE) {
            place++;
        }
        known->entries[place & known->mask].hash = hash;
        known->entries[place & known->mask].place = known->values++;
    }
    return 1;
}

/* Reads how a slot makes ids of its values. Called once the slot is counted in `out`, so
 * description_free frees what it allocates, also after a failure. */
static int describe_ids(const description *out, slot *slot, const json_value *entry, char *error) {
    static const char *const kinds[] = {"hash",       "modulo",     "integer",
                                        "vocabulary", "boundaries", "quantiles"};
    static const char *const parts[] = {[TN_TIME_HOUR] = "hour",
                                        [TN_TIME_WEEKDAY] = "weekday",
                                        [TN_TIME_DAY_OF_MONTH] = "day_of_month",
                                        [TN_TIME_DAY] = "day"};
    uint32_t kind = word_number(text_of(entry, "ids"), kinds, 6);
    uint32_t part = word_number(text_of(entry, "ids"), parts, 4);
    if (kind == 6 && part == 4) {
        return refuse(error, "serving.json: a slot has ids that this program does not know");
    }
    slot->ids = kind < 5 ? (id_kind)kind : part < 4 ? IDS_TIME : IDS_BUCKETS;
    slot->part = (int32_t)part;
    if (!take_integer(entry, "seed", &slot->seed, error) ||
        !take_integer(entry, "size", &slot->size, error) ||
        !take_integer(entry, "oov", &slot->oov, error) ||
        !take_integer(entry, "missing_id", &slot->missing_id, error) ||
        !take_integer(entry, "padding", &slot->padding, error)) {
        return 0;
    }
    if (slot->ids == IDS_MODULO && slot->size == 0) {
        return refuse(error, "serving.json: a slot has no size");
    }
    if (slot->ids == IDS_TIME) {
        const json_value *column = text_of(entry, "column");
        return column ? describe_times(out, column, &slot->times, error)
                      : refuse(error, "serving.json: a slot of times has no column");
    }
    if (slot->ids == IDS_VOCABULARY) {
        return make_vocabulary(slot, texts_of(entry, "vocabulary"), error);
    }
    const json_value *boundaries = list_of(entry, "boundaries");
    slot->n_boundaries = items(boundaries);
    slot->boundaries = take_doubles(boundaries, slot->n_boundaries, error);
    return slot->boundaries != NULL;
}

/* Reads the entry of a slot whose name, or cross, is set already. `plain` marks slots that need
 * none of separators, weights, sequences and padding: encode_plain serves them without asking. */
static int describe_slot(description *out, slot *slot, const json_value *entry, char *error) {
    static const char *const poolings[] = {"sum", "mean", "sqrtn", "none"};
    const json_value *padding = json_get(entry, "padding");
    const json_value *column = text_of(entry, "column"), *weights = text_of(entry, "weights");
    uint32_t pooling = word_number(text_of(entry, "pooling"), poolings, 4);
    if (pooling == 4) {
        return refuse(error, "serving.json: a slot has a pooling that this program does not know");
    }
    if (column == NULL && slot->crossed == NULL) {
        return refuse(error, "serving.json: a slot has neither column nor cross");
    }
    slot->column = column ? add_column(out, column) : NONE;
    slot->weights = weights ? add_column(out, weights) : NONE;
    slot->separator = separator_of(entry);
    slot->missing_value = json_is(json_get(entry, "missing"), "value");
    slot->padded = padding != NULL && padding->kind != JSON_NULL;
    slot->keep_last = json_is(json_get(entry, "keep"), "last");
    slot->pooling = (pooling_kind)pooling;
    slot->indicator = is_true(entry, "indicator");
    slot->linear = is_true(entry, "linear");
    slot->cvm = is_true(entry, "cvm");
    slot->group = text_of(entry, "group");
    slot->at = slot->length_at = NONE;
    if (!describe_ids(out, slot, entry, error) ||
        !take_count(entry, "max_length", &slot->max_length, error) ||
        !take_count(entry, "width", &slot->width, error) ||
        !take_count(entry, "columns", &slot->columns, error)) {
        return 0;
    }
    slot->plain = column != NULL && slot->weights == NONE && slot->separator.text == NULL &&
                  slot->ids == IDS_HASH && slot->pooling != POOLING_NONE && !slot->padded;
    if (slot->pooling == POOLING_NONE && slot->max_length == 0) {
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
            slot *added = &out->slots[out->n_slots++];
            added->name = at;
            if (!describe_slot(out, added, at + 1, error)) {
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
        slot *added = &out->slots[out->n_slots++];
        *added = (slot){.name = at, .crossed = crossed, .n_crossed = n};
        if (!describe_slot(out, added, at + 1, error)) {
            return 0;
        }
    }
    return 1;
}
