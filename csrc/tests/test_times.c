/* test_times.c - random times, printed and read again, with a calendar that counts day by day; and
 * damaged texts and formats.
 *
 *     test_times [times] [first seed]
 *
 * Texts are of exactly the size of what is in them, so that a sanitizer sees a byte too many. */
#include "check.h"
#include "tn_time.h"

#define MOST_BYTES 80
#define SECOND INT64_C(1000000)
#define DAY (86400 * SECOND)
#define LEAST (-719162 * DAY)
#define AFTER (2932897 * DAY)

typedef struct {
    int year, month, day, hour, minute, second, microsecond, weekday;
    int64_t days;
} naive_time;

static int naive_days(int year, int month) {
    int leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    return month == 2 ? 28 + leap : month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

static int naive_days_of_year(int year) {
    return naive_days(year, 2) == 29 ? 366 : 365;
}

/* From 1970-01-01, a Thursday, a year at a time and then a month at a time. */
static naive_time naive(int64_t time) {
    naive_time is = {.year = 1970, .month = 1};
    int64_t rest = time % DAY + (time % DAY < 0 ? DAY : 0);
    int64_t left = is.days = (time - rest) / DAY;
    is.weekday = (int)(((left + 3) % 7 + 7) % 7);
    while (left < 0) {
        left += naive_days_of_year(--is.year);
    }
    while (left >= naive_days_of_year(is.year)) {
        left -= naive_days_of_year(is.year++);
    }
    while (left >= naive_days(is.year, is.month)) {
        left -= naive_days(is.year, is.month++);
    }
    is.day = (int)left + 1;
    is.hour = (int)(rest / (3600 * SECOND));
    is.minute = (int)(rest / (60 * SECOND) % 60);
    is.second = (int)(rest / SECOND % 60);
    is.microsecond = (int)(rest % SECOND);
    return is;
}

static int64_t random_time(random_source *random) {
    if (random_below(random, 4) == 0) { /* about a turn of day */
        int64_t day = LEAST / DAY + (int64_t)(random_word(random) % 3652059);
        int64_t time = day * DAY + (int64_t)random_below(random, 3) - 1;
        return time < LEAST ? LEAST : time;
    }
    return LEAST + (int64_t)(random_word(random) % (uint64_t)(AFTER - LEAST));
}

/* A text of its own memory, of its own size. */
static char *alone(const char *text, uint64_t size) {
    char *copy = malloc(size ? size : 1);
    CHECK(copy != NULL);
    memcpy(copy, text, size);
    return copy;
}

static int read_alone(const tn_time_format *format, const char *text, uint64_t size, int64_t *out) {
    char *copy = alone(text, size);
    int done = tn_time_of_text(format, copy, size, out);
    free(copy);
    return done;
}

static const char *const FORMATS[] = {
    "iso",          "%Y-%m-%d %H:%M:%S.%f", "%d/%b/%Y:%H:%M:%S.%f %z", "%a %m/%d/%Y %I:%M:%S %p %f",
    "%Y%m%d%H%M%S", "%a %b %d %H:%M:%S %Y",
};

/* The time in a format, to the microsecond or to the second; returns the unit. */
static int64_t print(char *text, uint32_t format, naive_time is, int64_t *ahead) {
    static const char *const months[] = {"Jan", "feb", "MAR", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    static const char *const days[] = {"Mon", "TUE", "wed", "Thu", "Fri", "Sat", "Sun"};
    *ahead = 0;
    switch (format) {
    case 0:
        snprintf(text, MOST_BYTES, "%04d-%02d-%02dT%02d:%02d:%02d.%06d", is.year, is.month, is.day,
                 is.hour, is.minute, is.second, is.microsecond);
        return 1;
    case 1:
        snprintf(text, MOST_BYTES, "%04d-%d-%02d %d:%02d:%02d.%06d999", is.year, is.month, is.day,
                 is.hour, is.minute, is.second, is.microsecond);
        return 1;
    case 2:
        snprintf(text, MOST_BYTES, "%02d/%s/%04d:%02d:%02d:%02d.%06d -0130", is.day,
                 months[is.month - 1], is.year, is.hour, is.minute, is.second, is.microsecond);
        *ahead = -5400 * SECOND;
        return 1;
    case 3:
        snprintf(text, MOST_BYTES, "%s %d/%d/%04d %d:%02d:%02d %s %06d", days[is.weekday], is.month,
                 is.day, is.year, is.hour % 12 ? is.hour % 12 : 12, is.minute, is.second,
                 is.hour < 12 ? "am" : "PM", is.microsecond);
        return 1;
    case 5:
        snprintf(text, MOST_BYTES, "%s %s %2d %02d:%02d:%02d %04d", days[is.weekday],
                 months[is.month - 1], is.day, is.hour, is.minute, is.second, is.year);
        return SECOND;
    default:
        snprintf(text, MOST_BYTES, "%d%02d%02d%02d%02d%02d", is.year, is.month, is.day, is.hour,
                 is.minute, is.second);
        return SECOND;
    }
}

static void test_time(random_source *random) {
    int64_t time = random_time(random), received = 0, ahead;
    naive_time is = naive(time);
    CHECK(tn_time_part(time, TN_TIME_HOUR, 0) == (uint64_t)is.hour);
    CHECK(tn_time_part(time, TN_TIME_WEEKDAY, 0) == (uint64_t)is.weekday);
    CHECK(tn_time_part(time, TN_TIME_DAY_OF_MONTH, 0) == (uint64_t)is.day);
    CHECK(tn_time_part(time, TN_TIME_DAY, 0) == (uint64_t)is.days);
    int32_t offset = (int32_t)random_below(random, 172800) - 86400;
    naive_time local = naive(time + offset * SECOND);
    CHECK(tn_time_part(time, TN_TIME_HOUR, offset) == (uint64_t)local.hour);
    CHECK(tn_time_part(time, TN_TIME_DAY_OF_MONTH, offset) == (uint64_t)local.day);
    for (uint32_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        tn_time_format format;
        char text[MOST_BYTES];
        CHECK(tn_time_format_of(FORMATS[i], strlen(FORMATS[i]), offset, &format));
        int64_t unit = print(text, i, is, &ahead);
        int64_t expected = time - (time % unit + (time % unit < 0 ? unit : 0));
        expected -= i == 2 ? ahead : offset * SECOND;
        CHECK(read_alone(&format, text, strlen(text), &received));
        CHECK(received == expected);
        /* Damaged, it is refused, or a time of the calendar. */
        uint64_t size = random_below(random, (uint32_t)strlen(text) + 1);
        read_alone(&format, text, size, &received);
        text[random_below(random, (uint32_t)strlen(text))] = (char)random_word(random);
        received = 0;
        if (read_alone(&format, text, strlen(text), &received)) {
            CHECK(received >= LEAST - 2 * DAY && received < AFTER + 2 * DAY);
        }
    }
}

static void test_numbers(random_source *random) {
    static const char *const units[] = {"epoch_s", "epoch_ms", "epoch_us"};
    static const int64_t in_unit[] = {1000000, 1000, 1};
    for (int i = 0; i < 3; i++) {
        tn_time_format format;
        CHECK(tn_time_format_of(units[i], strlen(units[i]), 0, &format));
        /* As a double has them exactly. */
        int64_t value = random_time(random) / 64 / in_unit[i], received = 0;
        CHECK(tn_time_of_number(&format, (double)value, &received));
        CHECK(received == value * in_unit[i]);
        CHECK(!tn_time_of_text(&format, "0", 1, &received));
    }
}

/* Any bytes as a format, and any bytes as a text of it. */
static void test_format(random_source *random) {
    static const char signs[] = "%%%%%YymbdaHIpMSfz-: T019";
    char pattern[MOST_BYTES], text[MOST_BYTES];
    uint32_t size = random_below(random, MOST_BYTES), bytes = random_below(random, MOST_BYTES);
    for (uint32_t i = 0; i < size; i++) {
        pattern[i] = signs[random_below(random, sizeof signs - 1)];
    }
    for (uint32_t i = 0; i < bytes; i++) {
        text[i] = "0123456789-+:Z amp"[random_below(random, 18)];
    }
    tn_time_format format;
    char *copy = alone(pattern, size);
    int is_format = tn_time_format_of(copy, size, 0, &format);
    free(copy);
    if (is_format) {
        int64_t received;
        CHECK(size <= TN_TIME_MOST && format.n_parts > 0 && format.n_parts <= TN_TIME_MOST);
        if (read_alone(&format, text, bytes, &received)) {
            CHECK(received >= LEAST - 2 * DAY && received < AFTER + 2 * DAY);
        }
    }
}

int main(int argc, char **argv) {
    uint64_t times = number_argument(argc, argv, 1, 1000);
    random_source random = {number_argument(argc, argv, 2, 1)};
    for (uint64_t i = 0; i < times; i++) {
        test_time(&random);
        test_numbers(&random);
        for (int k = 0; k < 10; k++) {
            test_format(&random);
        }
    }
    return report_checks("test_times");
}
