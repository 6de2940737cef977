/* tn_time_columns.c - columns of texts and numbers to times, and of times to ids. */
#include <string.h>

#include "tn_time.h"

int tn_times_of_texts(const char *data, const int64_t *offsets, uint64_t n, const char *format,
                      int32_t offset, int64_t *times, uint8_t *wrong) {
    tn_time_format read;
    if (!tn_time_format_of(format, strlen(format), offset, &read) || read.kind == TN_TIME_NUMBER) {
        return 0;
    }
    for (uint64_t i = 0; i < n; i++) {
        times[i] = 0;
        wrong[i] = !tn_time_of_text(&read, data + offsets[i],
                                    (uint64_t)(offsets[i + 1] - offsets[i]), &times[i]);
    }
    return 1;
}

int tn_times_of_numbers(const double *values, uint64_t n, const char *format, int64_t *times,
                        uint8_t *wrong) {
    tn_time_format read;
    if (!tn_time_format_of(format, strlen(format), 0, &read) || read.kind != TN_TIME_NUMBER) {
        return 0;
    }
    for (uint64_t i = 0; i < n; i++) {
        times[i] = 0;
        wrong[i] = !tn_time_of_number(&read, values[i], &times[i]);
    }
    return 1;
}

void tn_time_parts(const int64_t *times, uint64_t n, int32_t part, int32_t offset, uint64_t *ids) {
    for (uint64_t i = 0; i < n; i++) {
        ids[i] = tn_time_part(times[i], part, offset);
    }
}
