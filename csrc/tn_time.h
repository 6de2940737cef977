/* tn_time.h - times: texts and numbers to microseconds since 1970, and these to ids.
 *
 * docs/formats/ids.md describes the formats and the ids. Online services use this header and
 * tn_time.c without the rest of the library.
 *
 * A time is a whole number of microseconds since 1970-01-01 00:00:00 UTC in the proleptic Gregorian
 * calendar, without leap seconds, from year 1 to 9999. */
#ifndef TN_TIME_H
#define TN_TIME_H

#include <stdint.h>

#define TN_TIME_MOST 64 /* bytes of a format, at most */

typedef enum { TN_TIME_ISO, TN_TIME_PATTERN, TN_TIME_NUMBER } tn_time_kind;

typedef struct {
    char directive; /* 0: the byte `literal` */
    char literal;
    char shorter; /* a number that may have fewer digits, because no digit is beside it */
    char padded;  /* such a number after a blank: a second blank may stand for its first digit */
} tn_pattern_part;

/* A format, read once. */
typedef struct {
    tn_time_kind kind;
    int64_t ahead; /* microseconds by which the zone of values without one is ahead of UTC */
    /* TN_TIME_NUMBER: microseconds are number * multiply / divide. */
    double multiply, divide;
    /* TN_TIME_PATTERN: directives by their letters, and bytes that stand for themselves. */
    tn_pattern_part parts[TN_TIME_MOST];
    uint32_t n_parts;
    uint32_t digits; /* of a pattern that is digits alone, how many they are; else 0 */
} tn_time_format;

/* Reads a format: "iso", "epoch_s", "epoch_ms", "epoch_us", "epoch_ns", or a pattern with the
 * directives %Y %y %m %b %d %a %H %I %p %M %S %f %z and %%. Values without a zone are in the one
 * that is `offset` seconds ahead of UTC. Returns 0 for a format that is none of these. */
int tn_time_format_of(const char *format, uint64_t size, int32_t offset, tn_time_format *out);

/* The time of a text without blanks around it. Returns 0, with `out` untouched, when it is not in
 * the format, or when that is of numbers. */
int tn_time_of_text(const tn_time_format *format, const char *text, uint64_t size, int64_t *out);

/* The time of a number, rounded to microseconds. Returns 0, with `out` untouched, for a number
 * outside of year 1 to 9999, and when the format is not of numbers. */
int tn_time_of_number(const tn_time_format *format, double value, int64_t *out);

/* CFFI begin */
#define TN_TIME_HOUR 0         /* 0 to 23 */
#define TN_TIME_WEEKDAY 1      /* Monday 0 to Sunday 6 */
#define TN_TIME_DAY_OF_MONTH 2 /* 1 to 31 */
#define TN_TIME_DAY 3          /* days since 1970-01-01, negative ones modulo 2^64 */

/* A part of a time, in the zone that is `offset` seconds ahead of UTC. */
uint64_t tn_time_part(int64_t time, int32_t part, int32_t offset);

/* The times of n texts: text i is data[offsets[i]] to data[offsets[i + 1]], of `format`, which ends
 * in a NUL. wrong[i] is 1, and times[i] is 0, where a text is not in the format. Returns 0 for
 * a format that is none, or is of numbers. */
int tn_times_of_texts(const char *data, const int64_t *offsets, uint64_t n, const char *format,
                      int32_t offset, int64_t *times, uint8_t *wrong);

/* The same of n numbers; returns 0 for a format that is not of numbers. */
int tn_times_of_numbers(const double *values, uint64_t n, const char *format, int64_t *times,
                        uint8_t *wrong);

/* tn_time_part of n times. */
void tn_time_parts(const int64_t *times, uint64_t n, int32_t part, int32_t offset, uint64_t *ids);
/* CFFI end */

#endif
