/* times.c - how columns write times, and raw values that are times (docs/formats/ids.md) */
#include <math.h>
#include <string.h>

#include "message.h"
#include "parts.h"

/* ---- serving.json ------------------------------------------------------- */

/* The entry of a column in data.times; NULL when it has none, so that the defaults apply. */
static const json_value *entry_of(const description *description, const json_value *column) {
    const json_value *times = description->times;
    if (times == NULL || times->kind != JSON_OBJECT) {
        return NULL;
    }
    for (const json_value *at = times + 1; at < json_after(times); at = json_after(at + 1)) {
        if (at->length == column->length && memcmp(at->text, column->text, at->length) == 0) {
            return at + 1;
        }
    }
    return NULL;
}

/* A zone such as +01:00 in seconds. */
static int take_offset(const json_value *text, int32_t *out) {
    if (text == NULL) {
        return 1;
    }
    const char *at = text->text;
    if (text->kind != JSON_TEXT || text->length != 6 || (at[0] != '+' && at[0] != '-') ||
        at[3] != ':') {
        return 0;
    }
    int32_t digits[] = {at[1] - '0', at[2] - '0', at[4] - '0', at[5] - '0'};
    for (int i = 0; i < 4; i++) {
        if (digits[i] < 0 || digits[i] > 9) {
            return 0;
        }
    }
    *out = (digits[0] * 10 + digits[1]) * 3600 + (digits[2] * 10 + digits[3]) * 60;
    *out = at[0] == '-' ? -*out : *out;
    return 1;
}

int describe_times(const description *description, const json_value *column, time_column *out,
                   char *error) {
    const json_value *entry = entry_of(description, column);
    const json_value *format = json_get(entry, "format");
    out->offset = 0;
    if (entry != NULL && (format == NULL || format->kind != JSON_TEXT ||
                          !take_offset(json_get(entry, "offset"), &out->offset))) {
        return refuse(error, "serving.json: data.times is not understood");
    }
    return tn_time_format_of(format ? format->text : "iso", format ? format->length : 3,
                             out->offset, &out->format) ||
           refuse(error, "serving.json: data.times has a format that this program does not know");
}

int describe_since(const json_value *text, const time_column *times, int64_t *out, char *error) {
    tn_time_format iso;
    return (tn_time_format_of("iso", 3, times->offset, &iso) &&
            tn_time_of_text(&iso, text->text, text->length, out)) ||
           refuse(error, "serving.json: since is no time");
}

/* ---- Values ------------------------------------------------------------- */

int time_of(const raw_inputs_parts *parts, uint32_t column, const time_column *times,
            const json_value *value, int several, int64_t *out, int *missing,
            char error[ERROR_BYTES]) {
    *missing = value->kind == JSON_NULL;
    if (*missing) {
        return 1;
    }
    if (times->format.kind == TN_TIME_NUMBER) {
        double number;
        if (!number_of(parts, column, value, several, &number, error)) {
            return 0;
        }
        *missing = isnan(number);
        return *missing || tn_time_of_number(&times->format, number, out) ||
               refuse_value(parts, column, value, "is not a time from year 1 to 9999", error);
    }
    if (value->kind != JSON_TEXT && value->kind != JSON_INTEGER) {
        return refuse_value(parts, column, value, "is no time, which are texts", error);
    }
    json_value text = without_blanks(*value);
    *missing = (several && text.length == 0) ||
               is_one_of(parts->description.missing_trimmed, parts->description.n_missing, &text);
    return *missing || tn_time_of_text(&times->format, text.text, text.length, out) ||
           refuse_value(parts, column, value, "is not a time in the column's format", error);
}

/* The one time of a column in the row at hand. */
static int time_of_row(raw_inputs_parts *parts, uint32_t column, const time_column *times,
                       int64_t *out, int *missing, char *error) {
    raw_values values;
    if (!cut(parts, column, (separator){NULL, 0}, 1, &parts->of_weights, &values, error)) {
        return 0;
    }
    if (values.n > 1) {
        return refuse_value(parts, column, parts->values[column], "has more than one value", error);
    }
    *missing = values.n == 0;
    return *missing || time_of(parts, column, times, values.first, 0, out, missing, error);
}

int age_of(raw_inputs_parts *parts, const number *number, uint32_t i, const json_value *value,
           double *out, char error[ERROR_BYTES]) {
    int64_t time = 0, start = number->start[i];
    int missing, no_start = 0;
    if ((number->since_column != NONE &&
         !time_of_row(parts, number->since_column, &number->since_times, &start, &no_start,
                      error)) ||
        !time_of(parts, number->columns[i], &number->times[i], value, 0, &time, &missing, error)) {
        return 0;
    }
    *out = missing || no_start ? NAN : (double)(time - start) / number->unit;
    return 1;
}
