/* description.c - serving.json: columns, numbers, and where inputs stand */
#include "description.h"

#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "ids.h"
#include "message.h"

#define NEWEST_VERSION 4 /* of serving.json */
#define RANK_VERSION 4   /* the first with this form of signature rank */

/* ---- Columns ------------------------------------------------------------ */

uint32_t column_of(const description *description, const char *name, size_t length) {
    uint64_t at = value_id(name, length, 0);
    for (;; at++) {
        uint32_t place = description->column_index[at & description->column_mask];
        if (place == NONE) {
            return NONE;
        }
        const json_value *column = description->columns[place];
        if (column->length == length && memcmp(column->text, name, length) == 0) {
            return place;
        }
    }
}

/* Room for the columns: there are fewer than values in the file. */
static int make_columns(description *out, char *error) {
    uint64_t room = 64;
    while (room < 2 * out->document.used) {
        room *= 2;
    }
    out->columns = zeros(out->document.used, sizeof *out->columns, error);
    out->column_index = zeros(room, sizeof *out->column_index, error);
    if (out->columns == NULL || out->column_index == NULL) {
        return 0;
    }
    memset(out->column_index, 0xff, room * sizeof *out->column_index);
    out->column_mask = room - 1;
    return 1;
}

uint32_t add_column(description *out, const json_value *name) {
    uint32_t place = column_of(out, name->text, name->length);
    if (place != NONE) {
        return place;
    }
    uint64_t at = value_id(name->text, name->length, 0);
    while (out->column_index[at & out->column_mask] != NONE) {
        at++;
    }
    out->columns[out->n_columns] = name;
    out->column_index[at & out->column_mask] = out->n_columns;
    return out->n_columns++;
}

separator separator_of(const json_value *entry) {
    const json_value *text = text_of(entry, "separator");
    return (separator){text && text->length ? text : NULL, json_is(text, "json")};
}

/* ---- Numbers ------------------------------------------------------------ */

/* Reads what makes numbers of times: the columns are known already. */
static int describe_age(description *out, number *number, const json_value *entry, char *error) {
    static const char *const units[] = {"second", "minute", "hour", "day"};
    static const double seconds[] = {1, 60, 3600, 86400};
    const json_value *since = text_of(entry, "since"), *column = text_of(entry, "since_column");
    uint32_t unit = word_number(text_of(entry, "unit"), units, 4);
    number->since_column = column ? add_column(out, column) : NONE;
    if (since == NULL && column == NULL) {
        return 1;
    }
    if (unit == 4) {
        return refuse(error, "serving.json: a number has a unit that this program does not know");
    }
    if (!number->several_columns && number->width != 1) {
        return refuse(error, "serving.json: a number of times is one per column");
    }
    number->is_age = number->several_columns = 1;
    number->unit = seconds[unit] * 1e6;
    number->times = zeros(number->width, sizeof *number->times, error);
    number->start = zeros(number->width, sizeof *number->start, error);
    if (number->times == NULL || number->start == NULL ||
        (column && !describe_times(out, column, &number->since_times, error))) {
        return 0;
    }
    for (uint32_t i = 0; i < number->width; i++) {
        const json_value *of = out->columns[number->columns[i]];
        if (!describe_times(out, of, &number->times[i], error) ||
            (since && !describe_since(since, &number->times[i], &number->start[i], error))) {
            return 0;
        }
    }
    return 1;
}

/* Reads the entry of one number into `number`, whose fields are zeros before. Also after a
 * failure description_free frees what it allocated, since the number is counted in `out`
 * already. */
static int describe_number(description *out, number *number, const json_value *entry, char *error) {
    static const char *const transforms[] = {"none", "log1p", "standardize"};
    const json_value *columns = texts_of(entry, "columns"), *column = text_of(entry, "column");
    const json_value *clip = list_of(entry, "clip");
    uint32_t transform = word_number(text_of(entry, "transform"), transforms, 3);
    if (transform == 3 || (columns == NULL && column == NULL)) {
        return refuse(error, "serving.json: a number has no column, or a transform that this "
                             "program does not know");
    }
    uint32_t n_columns = columns ? items(columns) : 1;
    number->several_columns = columns != NULL;
    number->at = NONE;
    number->columns = zeros(n_columns, sizeof *number->columns, error);
    if (number->columns == NULL) {
        return 0;
    }
    for (uint32_t i = 0; i < n_columns; i++) {
        number->columns[i] = add_column(out, columns ? columns + 1 + i : column);
    }
    if (!take_count(entry, "width", &number->width, error)) {
        return 0;
    }
    if (number->width == 0 || (columns && number->width != n_columns)) {
        return refuse(error, "serving.json: a number has another width than columns");
    }
    number->separator = separator_of(entry);
    if (!describe_age(out, number, entry, error)) {
        return 0;
    }
    number->transform = (transform_kind)transform;
    number->has_low = items(clip) == 2 && take_double(clip + 1, &number->low);
    number->has_high = items(clip) == 2 && take_double(clip + 2, &number->high);
    number->has_default = take_double(json_get(entry, "default"), &number->value);
    if (number->transform == TRANSFORM_STANDARDIZE) {
        number->mean = take_doubles(json_get(entry, "mean"), number->width, error);
        number->deviation = take_doubles(json_get(entry, "deviation"), number->width, error);
        return number->mean != NULL && number->deviation != NULL;
    }
    return 1;
}

/* Reads all numbers. Each points into the document of `out`, which lives as long as they do. */
static int describe_numbers(description *out, const json_value *entries, char *error) {
    uint32_t room = entries ? entries->values : 0;
    out->numbers = zeros(room, sizeof *out->numbers, error);
    if (out->numbers == NULL) {
        return 0;
    }
    for (const json_value *at = entries + 1; room && at < json_after(entries);
         at = json_after(at + 1)) {
        number *number = &out->numbers[out->n_numbers++];
        number->name = at;
        if (!describe_number(out, number, at + 1, error)) {
            return 0;
        }
    }
    return 1;
}

/* A text of the file with a NUL behind it, where its quote was. */
static const char *ended(const json_value *text) {
    char *name = (char *)text->text;
    name[text->length] = 0;
    return name;
}

/* ---- Places ------------------------------------------------------------- */

/* Tells a slot or number of one input of `by_slot` where in `packed` it stands. */
static int place_input(description *out, const json_value *input, char *error) {
    const json_value *name = text_of(input, "name"), *source = text_of(input, "source");
    uint32_t at = 0, columns = 0;
    if (name == NULL || !take_count(input, "at", &at, error) ||
        !take_count(input, "columns", &columns, error)) {
        return refuse(error, "serving.json: an input of by_slot is not understood");
    }
    /* Signature packed, which is what runs here, has their sum. */
    if (json_is(source, "linears")) {
        return 1;
    }
    int is_length = json_is(source, "lengths");
    json_value of = *name;
    of.length -= is_length ? sizeof "_length" - 1 : 0;
    for (uint32_t i = 0; i < out->n_slots; i++) {
        slot *slot = &out->slots[i];
        if (!same_text(slot->name, &of)) {
            continue;
        }
        if (is_length) {
            slot->length_at = at;
            return 1;
        }
        slot->at = at;
        uint32_t expected = slot->columns;
        expected *= slot->pooling == POOLING_NONE ? slot->max_length : 1;
        return columns == expected || refuse(error,
                                             "serving.json: %.*s has another width in "
                                             "signatures",
                                             (int)of.length, of.text);
    }
    for (uint32_t i = 0; i < out->n_numbers; i++) {
        if (same_text(out->numbers[i].name, name)) {
            out->numbers[i].at = at;
            return columns == out->numbers[i].width || refuse(error, "serving.json: a number has "
                                                                     "another width in signatures");
        }
    }
    return json_is(name, "linear") || refuse(error, "serving.json: signature by_slot has an input "
                                                    "that is neither slot nor number");
}

/* Reads both signatures. Called after the slots and numbers are described, which by_slot places;
 * an input of packed that this program does not know is refused, for nothing would fill it. */
static int describe_signatures(description *out, const json_value *signatures, char *error) {
    static const char *const names[] = {"x", "linear", "sequences", "lengths"};
    const json_value *by_slot = list_of(signatures, "by_slot");
    const json_value *packed = list_of(signatures, "packed");
    if (by_slot == NULL || packed == NULL) {
        return refuse(error, "serving.json has no signatures by_slot and packed");
    }
    for (const json_value *at = by_slot + 1; at < json_after(by_slot); at = json_after(at)) {
        if (!place_input(out, at, error)) {
            return 0;
        }
    }
    for (const json_value *at = packed + 1; at < json_after(packed); at = json_after(at)) {
        uint32_t name = word_number(text_of(at, "name"), names, 4);
        packed_input *input = &out->packed[out->n_packed];
        if (name == 4 || out->n_packed == 4 || !take_count(at, "columns", &input->columns, error)) {
            return refuse(error, "serving.json: an input of packed is not understood");
        }
        input->name = names[name];
        input->integers = name == 3;
        out->n_packed++;
    }
    return 1;
}

/* The columns of packed that signature rank takes, the user's once and the others of each item:
 * those that by_slot has, and `linear`. Before RANK_VERSION rank had other inputs; it is not used.
 */
static int describe_rank(description *out, const json_value *signatures, uint32_t version,
                         char *error) {
    const json_value *by_slot = list_of(signatures, "by_slot");
    const json_value *users = texts_of(signatures, "rank");
    if (users == NULL || version < RANK_VERSION) {
        return 1;
    }
    out->ranked = zeros(by_slot->values + 1, sizeof *out->ranked, error);
    if (out->ranked == NULL) {
        return 0;
    }
    for (uint32_t i = 0; i < out->n_packed; i++) {
        uint32_t end = 0;
        if (strcmp(out->packed[i].name, "linear") == 0) {
            out->ranked[out->n_ranked++] = (rank_columns){i, 0, out->packed[i].columns, 0};
            continue;
        }
        for (const json_value *at = by_slot + 1; at < json_after(by_slot); at = json_after(at)) {
            rank_columns *columns = &out->ranked[out->n_ranked];
            if (!json_is(text_of(at, "source"), out->packed[i].name)) {
                continue;
            }
            if (!take_count(at, "at", &columns->at, error) ||
                !take_count(at, "columns", &columns->columns, error) || columns->at < end ||
                (size_t)columns->at + columns->columns > out->packed[i].columns) {
                return refuse(error, "serving.json: an input of by_slot is not understood");
            }
            end = columns->at + columns->columns;
            columns->packed = i;
            for (const json_value *user = users + 1; user < json_after(users); user++) {
                columns->of_user |= same_text(user, text_of(at, "name"));
            }
            out->n_ranked++;
        }
    }
    return 1;
}

static int is_ordered(const description *out, uint32_t slot) {
    uint32_t i = 0;
    while (i < out->n_pooled && out->pooled[i] != slot) {
        i++;
    }
    return i < out->n_pooled;
}

/* The slots that have rows: linear weights are added in the order of linear.adds. */
static int order_slots(description *out, const json_value *adds, char *error) {
    if (adds == NULL) {
        return refuse(error, "serving.json does not say in which order linear is added up");
    }
    out->pooled = zeros(out->n_slots, sizeof *out->pooled, error);
    if (out->pooled == NULL) {
        return 0;
    }
    for (const json_value *name = adds + 1; name < json_after(adds); name++) {
        for (uint32_t i = 0; i < out->n_slots; i++) {
            const slot *slot = &out->slots[i];
            if (same_text(slot->name, name) && slot->group && !is_ordered(out, i)) {
                out->pooled[out->n_pooled++] = i;
            }
        }
    }
    for (uint32_t i = 0; i < out->n_slots; i++) {
        if (out->slots[i].group && !is_ordered(out, i)) {
            out->pooled[out->n_pooled++] = i;
        }
    }
    return 1;
}

/* ---- The rest ----------------------------------------------------------- */

/* The heads, and which outputs are theirs; the main one also has outputs without its name. */
static int describe_heads(description *out, const json_value *heads, const json_value *outputs,
                          char *error) {
    out->n_heads = items(heads);
    out->heads = zeros(out->n_heads, sizeof *out->heads, error);
    if (out->heads == NULL || out->n_heads == 0) {
        return refuse(error, "serving.json has no heads, so this graph gives no scores");
    }
    for (uint32_t i = 0; i < out->n_heads; i++) {
        const json_value *head = heads + 1 + i;
        model_head *out_head = &out->heads[i];
        for (const json_value *at = outputs + 1; outputs && at < json_after(outputs);
             at = json_after(at)) {
            const json_value *kind = text_of(at, "kind"), *name = text_of(at, "name");
            if (name == NULL || !same_text(text_of(at, "head"), head)) {
                continue;
            }
            if (json_is(kind, "logits") && out_head->logits == NULL) {
                out_head->logits = ended(name);
            } else if (json_is(kind, "predictions") && out_head->predictions == NULL) {
                out_head->predictions = ended(name);
            }
        }
        out_head->name = ended(head);
        if (out_head->logits == NULL || out_head->predictions == NULL) {
            return refuse(error, "serving.json: head %s has no outputs", out_head->name);
        }
    }
    return 1;
}

static int is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Reads the texts that mean a missing value, as they are and without the blanks around them.
 * Both lists point into the document. */
static int describe_missing(description *out, const json_value *data, char *error) {
    const json_value *list = texts_of(data, "missing");
    out->strip = is_true(data, "strip");
    out->n_missing = items(list);
    out->missing = zeros(out->n_missing, sizeof *out->missing, error);
    out->missing_trimmed = zeros(out->n_missing, sizeof *out->missing_trimmed, error);
    if (list == NULL || out->missing == NULL || out->missing_trimmed == NULL) {
        return refuse(error, "serving.json has no list of missing texts");
    }
    for (uint32_t i = 0; i < out->n_missing; i++) {
        json_value text = list[1 + i];
        out->missing[i] = text;
        for (; text.length && is_blank(text.text[0]); text.length--) {
            text.text++;
        }
        for (; text.length && is_blank(text.text[text.length - 1]);) {
            text.length--;
        }
        out->missing_trimmed[i] = text;
    }
    return 1;
}

int description_read(description *out, const char *folder, char error[ERROR_BYTES]) {
    const json_value *top =
        read_json_file(folder, "serving.json", &out->text, &out->document, error);
    if (top == NULL) {
        return 0;
    }
    if (!json_is(json_get(top, "format"), "tnctl graph")) {
        return refuse(error, "%s is no split graph", folder);
    }
    uint32_t version = 0;
    if (!take_count(top, "version", &version, error) || version > NEWEST_VERSION) {
        return refuse(error, "serving.json has version %u, and this program knows %d", version,
                      NEWEST_VERSION);
    }
    if (json_get(top, "rows") != NULL) {
        return refuse(error, "the graph has the rows inside, and this program looks rows up. Split "
                             "it without rows=inside");
    }
    out->times = json_get(json_get(top, "data"), "times");
    out->checkpoint = text_of(json_get(top, "checkpoint"), "sha256");
    return make_columns(out, error) && describe_missing(out, json_get(top, "data"), error) &&
           describe_slots(out, json_get(top, "slots"), error) &&
           describe_numbers(out, json_get(top, "numeric"), error) &&
           describe_signatures(out, json_get(top, "signatures"), error) &&
           describe_rank(out, json_get(top, "signatures"), version, error) &&
           order_slots(out, texts_of(json_get(top, "linear"), "adds"), error) &&
           describe_heads(out, texts_of(top, "heads"), list_of(top, "outputs"), error);
}

void description_free(description *description) {
    for (uint32_t i = 0; i < description->n_slots; i++) {
        free(description->slots[i].vocabulary.entries);
        free(description->slots[i].boundaries);
        free(description->slots[i].crossed);
    }
    for (uint32_t i = 0; i < description->n_numbers; i++) {
        free(description->numbers[i].columns);
        free(description->numbers[i].mean);
        free(description->numbers[i].deviation);
        free(description->numbers[i].times);
        free(description->numbers[i].start);
    }
    free(description->slots);
    free(description->numbers);
    free(description->ranked);
    free(description->heads);
    free(description->pooled);
    free(description->missing);
    free(description->missing_trimmed);
    free(description->columns);
    free(description->column_index);
    json_free(&description->document);
    free(description->text);
}
