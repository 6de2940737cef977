/* tn_time.c - times: texts and numbers to microseconds since 1970, and these to ids. */
#include "tn_time.h"

#include <math.h>
#include <string.h>

#define SECOND INT64_C(1000000)
#define DAY (86400 * SECOND)
#define DAYS_TO_1970 719162   /* from 0001-01-01 */
#define DAYS_TO_10000 3652059 /* from 0001-01-01 to the day after 9999-12-31 */
#define DAYS_OF_400_YEARS 146097
#define LEAST (-DAYS_TO_1970 * DAY)
#define AFTER ((DAYS_TO_10000 - DAYS_TO_1970) * DAY)

/* ---- The calendar ------------------------------------------------------- */

static int is_leap(int year) {
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static int days_of_month(int year, int month) {
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return days[month - 1] + (month == 2 && is_leap(year));
}

/* Days from 1970-01-01 to a day of the calendar, whose year is 1 or later. */
static int64_t days_of(int year, int month, int day) {
    static const int before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t past = year - 1;
    int64_t days = past * 365 + past / 4 - past / 100 + past / 400;
    return days + before[month - 1] + (month > 2 && is_leap(year)) + day - 1 - DAYS_TO_1970;
}

static int64_t floor_divided(int64_t value, int64_t by) {
    return value / by - (value % by < 0);
}

/* The day of the month of a day that is so many days after 1970-01-01. */
static uint64_t day_of_month(int64_t days) {
    /* Since a year after a multiple of 400: then a leap year is the last of its four, its hundred
     * is the last of its four hundred. */
    days += DAYS_TO_1970;
    int left = (int)(days - floor_divided(days, DAYS_OF_400_YEARS) * DAYS_OF_400_YEARS);
    int hundreds = left / 36524;
    hundreds = hundreds > 3 ? 3 : hundreds;
    left -= hundreds * 36524;
    int fours = left / 1461;
    left -= fours * 1461;
    int years = left / 365;
    years = years > 3 ? 3 : years;
    left -= years * 365;
    int year = 1 + 100 * hundreds + 4 * fours + years, month = 1;
    while (left >= days_of_month(year, month)) {
        left -= days_of_month(year, month++);
    }
    return (uint64_t)left + 1;
}

/* ---- Fields of a text --------------------------------------------------- */

typedef struct {
    const char *at, *end;
} reader;

typedef struct {
    int year, month, day, hour, minute, second;
    int microsecond;
    int half; /* of the day: 0 none, 1 a.m., 2 p.m. */
    int zone; /* seconds that the text's own zone is ahead of UTC */
    int has_zone;
} fields;

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* A number of `least` to `most` digits. */
static int take_number(reader *text, int least, int most, int *out) {
    int digits = 0, value = 0;
    for (; digits < most && text->at < text->end && is_digit(*text->at); digits++) {
        value = value * 10 + (*text->at++ - '0');
    }
    *out = value;
    return digits >= least;
}

/* 1 to 9 digits after the point of a second; what is below a microsecond is dropped. */
static int take_fraction(reader *text, int *out) {
    int digits = 0, value = 0;
    for (; digits < 9 && text->at < text->end && is_digit(*text->at); digits++, text->at++) {
        value = digits < 6 ? value * 10 + (*text->at - '0') : value;
    }
    for (int i = digits; i < 6; i++) {
        value *= 10;
    }
    *out = value;
    return digits > 0;
}

static int take(reader *text, char c) {
    int is_there = text->at < text->end && *text->at == c;
    text->at += is_there;
    return is_there;
}

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

/* One of some words of `size` letters that stand one after the other in `words`, in any case:
 * its number, or -1. */
static int take_word(reader *text, const char *words, int n, int size) {
    for (int word = 0; text->end - text->at >= size && word < n; word++) {
        int same = 0;
        while (same < size && lower(text->at[same]) == words[word * size + same]) {
            same++;
        }
        if (same == size) {
            text->at += size;
            return word;
        }
    }
    return -1;
}

/* Z, UTC, or +hh, +hhmm, +hh:mm. */
static int take_zone(reader *text, fields *out) {
    int hours, minutes = 0;
    out->has_zone = 1;
    if (take(text, 'Z') || take_word(text, "utc", 1, 3) == 0) {
        return 1;
    }
    int sign = take(text, '-') ? -1 : take(text, '+');
    if (sign == 0 || !take_number(text, 2, 2, &hours)) {
        return 0;
    }
    if ((take(text, ':') || (text->at < text->end && is_digit(*text->at))) &&
        !take_number(text, 2, 2, &minutes)) {
        return 0;
    }
    out->zone = sign * (hours * 3600 + minutes * 60);
    return hours < 24 && minutes < 60;
}

/* What the fields are together. Returns 0 for what no calendar or clock has. */
static int time_of(const tn_time_format *format, const fields *is, int64_t *out) {
    int hour = is->hour;
    if (is->half != 0) {
        if (hour < 1 || hour > 12) {
            return 0;
        }
        hour = hour % 12 + (is->half == 2 ? 12 : 0);
    }
    if (is->year < 1 || is->month < 1 || is->month > 12 || is->day < 1 ||
        is->day > days_of_month(is->year, is->month) || hour > 23 || is->minute > 59 ||
        is->second > 59) {
        return 0;
    }
    int64_t seconds = hour * 3600 + is->minute * 60 + is->second;
    *out = days_of(is->year, is->month, is->day) * DAY + seconds * SECOND + is->microsecond -
           (is->has_zone ? is->zone * SECOND : format->ahead);
    return 1;
}

/* ---- ISO 8601 ----------------------------------------------------------- */

/* hh, hh:mm or hhmm, and hh:mm:ss or hhmmss with up to nine digits of a second. */
static int take_clock(reader *text, fields *out) {
    if (!take_number(text, 2, 2, &out->hour)) {
        return 0;
    }
    int colons = take(text, ':');
    if (!colons && !(text->at < text->end && is_digit(*text->at))) {
        return 1;
    }
    if (!take_number(text, 2, 2, &out->minute)) {
        return 0;
    }
    if (colons ? !take(text, ':') : !(text->at < text->end && is_digit(*text->at))) {
        return 1;
    }
    if (!take_number(text, 2, 2, &out->second)) {
        return 0;
    }
    return !(take(text, '.') || take(text, ',')) || take_fraction(text, &out->microsecond);
}

/* A date yyyy-mm-dd or yyyymmdd; T or a blank and a clock; a zone, with or without a blank. */
static int read_iso(reader text, fields *out) {
    int dashes;
    if (!take_number(&text, 4, 4, &out->year)) {
        return 0;
    }
    dashes = take(&text, '-');
    if (!take_number(&text, 2, 2, &out->month) || (dashes && !take(&text, '-')) ||
        !take_number(&text, 2, 2, &out->day)) {
        return 0;
    }
    if (text.at == text.end) {
        return 1;
    }
    if (!(take(&text, 'T') || take(&text, ' ')) || !take_clock(&text, out)) {
        return 0;
    }
    if (text.at < text.end) {
        take(&text, ' ');
        return take_zone(&text, out) && text.at == text.end;
    }
    return 1;
}

/* ---- Patterns ----------------------------------------------------------- */

/* How many digits a directive has; 0: it is no number of a fixed length. */
static int digits_of(char directive) {
    return directive == 'Y' ? 4 : directive && strchr("ymdHIMS", directive) ? 2 : 0;
}

/* Where a directive's number goes. */
static int *field_of(fields *out, char directive) {
    switch (directive) {
    case 'Y':
    case 'y':
        return &out->year;
    case 'm':
        return &out->month;
    case 'd':
        return &out->day;
    case 'H':
    case 'I':
        return &out->hour;
    case 'M':
        return &out->minute;
    default:
        return &out->second;
    }
}

static int take_directive(reader *text, const tn_pattern_part *part, fields *out) {
    char directive = part->directive;
    int digits = digits_of(directive), number;
    if (digits != 0) {
        int *field = field_of(out, directive);
        digits -= part->padded && take(text, ' ');
        if (!take_number(text, part->shorter ? 1 : digits, digits, field)) {
            return 0;
        }
        if (directive == 'y') { /* as POSIX has it: 1969 to 2068 */
            *field += *field < 69 ? 2000 : 1900;
        }
        return 1;
    }
    switch (directive) {
    case 'b':
        number = take_word(text, "janfebmaraprmayjunjulaugsepoctnovdec", 12, 3);
        out->month = number + 1;
        return number >= 0;
    case 'a':
        return take_word(text, "montuewedthufrisatsun", 7, 3) >= 0;
    case 'p':
        out->half = take_word(text, "ampm", 2, 2) + 1;
        return out->half > 0;
    case 'f':
        return take_fraction(text, &out->microsecond);
    default:
        return take_zone(text, out);
    }
}

static int read_pattern(const tn_time_format *format, reader text, fields *out) {
    char padded[4 * TN_TIME_MOST];
    uint64_t size = (uint64_t)(text.end - text.at);
    if (format->digits > size && size > 0) {
        /* Zeros in front, which a number loses. */
        memset(padded, '0', format->digits - size);
        memcpy(padded + format->digits - size, text.at, size);
        text = (reader){padded, padded + format->digits};
    }
    for (uint32_t i = 0; i < format->n_parts; i++) {
        const tn_pattern_part *part = &format->parts[i];
        if (!(part->directive ? take_directive(&text, part, out) : take(&text, part->literal))) {
            return 0;
        }
    }
    return text.at == text.end;
}

/* Whether a part has a digit at its side: then it is not clear where a shorter number ends. */
static int has_digits(const tn_time_format *format, uint32_t part) {
    char directive = format->parts[part].directive;
    return directive ? directive == 'f' || digits_of(directive) != 0
                     : is_digit(format->parts[part].literal);
}

static int pattern_of(const char *pattern, uint64_t size, tn_time_format *out) {
    uint32_t digits = 0;
    int digits_alone = 1;
    for (uint64_t i = 0; i < size; i++) {
        char directive = 0;
        if (pattern[i] == '%') {
            if (++i == size || !strchr("YymbdaHIpMSfz%", pattern[i]) || pattern[i] == 0) {
                return 0;
            }
            directive = pattern[i] == '%' ? 0 : pattern[i];
        }
        out->parts[out->n_parts].directive = directive;
        out->parts[out->n_parts++].literal = pattern[i];
        digits += (uint32_t)digits_of(directive);
        digits_alone &= digits_of(directive) != 0;
    }
    for (uint32_t i = 0; i < out->n_parts; i++) {
        int alone = (i == 0 || !has_digits(out, i - 1)) &&
                    (i + 1 == out->n_parts || !has_digits(out, i + 1));
        char directive = out->parts[i].directive;
        out->parts[i].shorter = alone && directive != 'Y' && directive != 'y';
        out->parts[i].padded = out->parts[i].shorter && digits_of(directive) != 0 && i > 0 &&
                               out->parts[i - 1].directive == 0 && out->parts[i - 1].literal == ' ';
    }
    out->kind = TN_TIME_PATTERN;
    out->digits = digits_alone ? digits : 0;
    return out->n_parts > 0;
}

/* ---- What the headers offer --------------------------------------------- */

int tn_time_format_of(const char *format, uint64_t size, int32_t offset, tn_time_format *out) {
    static const struct {
        const char *name;
        double multiply, divide;
    } units[] = {
        {"epoch_s", 1e6, 1}, {"epoch_ms", 1e3, 1}, {"epoch_us", 1, 1}, {"epoch_ns", 1, 1e3}};
    *out = (tn_time_format){.kind = TN_TIME_ISO, .ahead = offset * SECOND};
    if (size == 3 && memcmp(format, "iso", 3) == 0) {
        return 1;
    }
    for (uint32_t i = 0; i < 4; i++) {
        if (strlen(units[i].name) == size && memcmp(format, units[i].name, size) == 0) {
            out->kind = TN_TIME_NUMBER;
            out->multiply = units[i].multiply;
            out->divide = units[i].divide;
            return 1;
        }
    }
    return size <= TN_TIME_MOST && memchr(format, '%', size) && pattern_of(format, size, out);
}

int tn_time_of_text(const tn_time_format *format, const char *text, uint64_t size, int64_t *out) {
    fields is = {0};
    reader whole = {text, text + size};
    if (format->kind == TN_TIME_NUMBER ||
        !(format->kind == TN_TIME_ISO ? read_iso(whole, &is) : read_pattern(format, whole, &is))) {
        return 0;
    }
    return time_of(format, &is, out);
}

int tn_time_of_number(const tn_time_format *format, double value, int64_t *out) {
    double time = rint(value * format->multiply / format->divide);
    if (format->kind != TN_TIME_NUMBER || !(time >= LEAST && time < AFTER)) {
        return 0;
    }
    *out = (int64_t)time;
    return 1;
}

uint64_t tn_time_part(int64_t time, int32_t part, int32_t offset) {
    time += offset * SECOND;
    int64_t days = floor_divided(time, DAY);
    switch (part) {
    case TN_TIME_HOUR:
        return (uint64_t)((time - days * DAY) / (3600 * SECOND));
    case TN_TIME_WEEKDAY: /* 1970-01-01 was a Thursday */
        return (uint64_t)(days + 3 - floor_divided(days + 3, 7) * 7);
    case TN_TIME_DAY_OF_MONTH:
        return day_of_month(days);
    default:
        return (uint64_t)days;
    }
}
