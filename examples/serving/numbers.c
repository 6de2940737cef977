/* numbers.c - numeric inputs and one-hot slots, into x (docs/formats/graph.md) */
#include <math.h>
#include <string.h>

#include "message.h"
#include "parts.h"

void fill_log1p(float of[SMALL_NUMBERS]) {
    for (uint32_t i = 0; i < SMALL_NUMBERS; i++) {
        of[i] = (float)log1p(i);
    }
}

/* One number in float64, then rounded to float32; NaN is missing. */
static float transformed(const raw_inputs_parts *parts, const number *number, uint32_t i,
                         double v) {
    if (isnan(v)) {
        if (!number->has_default) {
            return 0;
        }
        v = number->value;
    }
    switch (number->transform) {
    case TRANSFORM_LOG1P:
        if (v >= 0 && v < SMALL_NUMBERS && v == (uint32_t)v) {
            return parts->log1p_of[(uint32_t)v];
        }
        return (float)(((v > 0) - (v < 0)) * log1p(fabs(v)));
    case TRANSFORM_STANDARDIZE:
        return (float)((v - number->mean[i]) / number->deviation[i]);
    default:
        return (float)v;
    }
}

static double clipped(const number *number, double v) {
    if (number->has_low && v < number->low) {
        v = number->low;
    }
    if (number->has_high && v > number->high) {
        v = number->high;
    }
    return v;
}

/* Writes number i of an input to to[i]. It is clipped before it is checked: infinity may be
 * clipped to a bound. 0 and a message for what float32 cannot hold. */
static int put_number(raw_inputs_parts *parts, const number *number, uint32_t column, uint32_t i,
                      const json_value *value, int several, float *to, char *error) {
    double v;
    if (!(number->is_age ? age_of(parts, number, i, value, &v, error)
                         : number_of(parts, column, value, several, &v, error))) {
        return 0;
    }
    v = clipped(number, v);
    if (isinf(v)) {
        return refuse_value(parts, column, value, "is infinite", error);
    }
    if (number->transform == TRANSFORM_STANDARDIZE && isinf((float)v)) {
        return refuse_value(parts, column, value, "is too large for float32", error);
    }
    to[i] = transformed(parts, number, i, v);
    return !isinf(to[i]) || refuse_value(parts, column, value, "is too large for float32", error);
}

/* The values of one column, side by side: as many as the input has, or none. */
static int put_vector(raw_inputs_parts *parts, const number *number, float *to, char *error) {
    static const json_value nothing = {.kind = JSON_NULL, .values = 1};
    raw_values values;
    uint32_t column = number->columns[0];
    if (!cut(parts, column, number->separator, 1, &parts->of_values, &values, error)) {
        return 0;
    }
    int absent = values.n == 0 || (!values.several && values.first->kind == JSON_NULL);
    if (!absent && values.n != number->width) {
        char name[QUOTED_BYTES];
        const json_value *of = parts->description.columns[column];
        return refuse(error, "column %s has %zu numbers and must have %u",
                      quoted(name, of->text, of->length), values.n, number->width);
    }
    for (uint32_t i = 0; i < number->width; i++) {
        const json_value *value = absent ? &nothing : &values.first[i];
        if (!put_number(parts, number, column, i, value, values.several, to, error)) {
            return 0;
        }
    }
    return 1;
}

/* One value of each of several columns; a list may have one element. */
static int put_columns(raw_inputs_parts *parts, const number *number, float *to, char *error) {
    static const json_value nothing = {.kind = JSON_NULL, .values = 1};
    for (uint32_t i = 0; i < number->width; i++) {
        raw_values values;
        if (!cut(parts, number->columns[i], (separator){NULL, 0}, 1, &parts->of_values, &values,
                 error)) {
            return 0;
        }
        if (values.n > 1) {
            return refuse_value(parts, number->columns[i], parts->values[number->columns[i]],
                                "has more than one value", error);
        }
        const json_value *value = values.n ? values.first : &nothing;
        if (!put_number(parts, number, number->columns[i], i, value, 0, to, error)) {
            return 0;
        }
    }
    return 1;
}

/* How often each id is there, or the sum of its weights. */
static void put_counts(const raw_inputs_parts *parts, const slot *slot, const cell *of, float *to) {
    const id_list *list = list_of_slot(parts, slot);
    memset(parts->sums, 0, slot->columns * sizeof *parts->sums);
    for (size_t k = of->first; k < of->first + of->count; k++) {
        if (list->ids[k] < slot->columns) {
            parts->sums[list->ids[k]] += list->weights[k];
        }
    }
    for (uint32_t i = 0; i < slot->columns; i++) {
        to[i] = (float)parts->sums[i];
    }
}

int encode_numbers(raw_inputs_parts *parts, uint32_t row, char error[ERROR_BYTES]) {
    const description *description = &parts->description;
    if (parts->x == NULL) {
        return 1;
    }
    float *x = parts->x + row * parts->x_columns;
    for (uint32_t i = 0; i < description->n_numbers; i++) {
        const number *input = &description->numbers[i];
        if (!(input->several_columns ? put_columns : put_vector)(parts, input, x + input->at,
                                                                 error)) {
            return 0;
        }
    }
    for (uint32_t i = 0; i < description->n_slots; i++) {
        const slot *input = &description->slots[i];
        if (input->indicator) {
            put_counts(parts, input, &parts->cells[(size_t)row * description->n_slots + i],
                       x + input->at);
        }
    }
    return 1;
}
