/* test_text.c - random blocks of delimited text, read field by field and byte
 * by byte as well.
 *
 *     test_text [blocks] [numbers] [first seed]
 *
 * Blocks and outputs are of exactly the size they must be, so that a sanitizer
 * sees a byte too many. */
#include "check.h"

#define MOST_BYTES 700
#define MOST_COLUMNS 5
#define MOST_MISSING 3

typedef struct {
    const char *text; /* its bytes in the block */
    uint32_t size;
} naive_field;

typedef struct {
    naive_field fields[MOST_BYTES + 1];
    uint32_t count;
} naive_line;

typedef struct {
    random_source random;
    tn_text_format format;
    const char *missing[MOST_MISSING];
    uint32_t missing_sizes[MOST_MISSING];
    char *block;
    uint32_t size;
    uint32_t *bounds;
    uint32_t sizes[MOST_COLUMNS];
    tn_text_rows rows;
} test_case;

/* ---- One line after the other ------------------------------------------- */

/* What is wrong with a line, or TN_OK. */
static int naive_read(const tn_text_format *format, const char *line, uint32_t size,
                      naive_line *out) {
    uint32_t at = 0;
    out->count = 0;
    for (;;) {
        uint32_t start = at;
        if (format->quote && at < size && line[at] == format->quote) {
            int open = 1;
            for (at++; open; at++) {
                if (at >= size) {
                    return TN_OPEN_QUOTE;
                }
                if (line[at] == format->quote) {
                    if (at + 1 < size && line[at + 1] == format->quote) {
                        at++;
                    } else {
                        open = 0;
                    }
                }
            }
        }
        for (; at < size && line[at] != format->delimiter; at++) {
            if (line[at] == '\r') {
                return TN_INNER_RETURN;
            }
        }
        out->fields[out->count++] = (naive_field){line + start, at - start};
        if (at == size) {
            return out->count == format->columns ? TN_OK : TN_OTHER_FIELDS;
        }
        at++;
    }
}

static int naive_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\v' || c == '\f' || c == '\r';
}

/* The value of a field, into `out`; returns its size. */
static uint32_t naive_value(const tn_text_format *format, naive_field field, char *out) {
    uint32_t size = 0;
    int inside = format->quote && field.size > 0 && field.text[0] == format->quote;
    for (uint32_t i = inside ? 1 : 0; i < field.size; i++) {
        if (inside && field.text[i] == format->quote) {
            if (i + 1 < field.size && field.text[i + 1] == format->quote) {
                out[size++] = field.text[++i];
            } else {
                inside = 0;
            }
        } else {
            out[size++] = field.text[i];
        }
    }
    if (format->strip) {
        while (size > 0 && naive_blank(out[size - 1])) {
            size--;
        }
        uint32_t blanks = 0;
        while (blanks < size && naive_blank(out[blanks])) {
            blanks++;
        }
        size -= blanks;
        memmove(out, out + blanks, size);
    }
    out[size] = 0;
    return size;
}

/* Whether bytes are the shortest encodings of characters that UTF-8 may encode.  */
static int naive_utf8(const unsigned char *text, uint32_t size) {
    for (uint32_t i = 0; i < size;) {
        uint32_t bytes = text[i] < 0x80 ? 1 : text[i] >> 5 == 6 ? 2 : text[i] >> 4 == 14 ? 3 : 4;
        uint32_t code = bytes == 1 ? text[i] : text[i] & (0xffu >> (bytes + 1));
        if ((bytes == 4 && text[i] >> 3 != 30) || size - i < bytes) {
            return 0;
        }
        for (uint32_t k = 1; k < bytes; k++) {
            if (text[i + k] >> 6 != 2) {
                return 0;
            }
            code = code << 6 | (text[i + k] & 63);
        }
        static const uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
        if (code < LEAST[bytes] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
            return 0;
        }
        i += bytes;
    }
    return 1;
}

static int naive_missing(const tn_text_format *format, const char *value, uint32_t size) {
    for (uint32_t i = 0; i < format->n_missing; i++) {
        if (format->missing_sizes[i] == size && memcmp(format->missing[i], value, size) == 0) {
            return 1;
        }
    }
    return 0;
}

/* ---- Random blocks ------------------------------------------------------ */

static char random_character(test_case *test) {
    static const char OFTEN[] = "0123456789.-e ab";
    static const char RARELY[] = "\r\"\t\xc3\xa9\xff\xe2\x82\xac\xf0\x9f\x98\x80\0+E";
    if (random_below(&test->random, 12) == 0) {
        return RARELY[random_below(&test->random, sizeof RARELY - 1)];
    }
    return OFTEN[random_below(&test->random, sizeof OFTEN - 1)];
}

static uint32_t random_field(test_case *test, char *out) {
    uint32_t size = 0;
    uint32_t wanted = random_below(&test->random, random_below(&test->random, 9) == 0 ? 40 : 9);
    int quoted = test->format.quote && random_below(&test->random, 4) == 0;
    if (quoted) {
        out[size++] = test->format.quote;
    }
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t digit = random_below(&test->random, 3);
        out[size++] =
            digit ? (char)('0' + random_below(&test->random, 10)) : random_character(test);
        if (quoted && random_below(&test->random, 6) == 0) {
            out[size++] = test->format.quote;
            out[size++] = random_below(&test->random, 4) ? test->format.quote : ',';
        }
    }
    if (quoted && random_below(&test->random, 12)) {
        out[size++] = test->format.quote;
    }
    return size;
}

static void random_block(test_case *test) {
    char text[2 * MOST_BYTES];
    uint32_t size = 0;
    uint32_t wanted = random_below(&test->random, MOST_BYTES - 200);
    uint32_t noise = random_below(&test->random, 3) == 0 ? 8 : 1000;
    while (size < wanted) {
        uint32_t fields = test->format.columns;
        if (random_below(&test->random, noise) == 0) {
            fields = random_below(&test->random, MOST_COLUMNS + 2);
        }
        for (uint32_t i = 0; i < fields; i++) {
            if (i > 0) {
                text[size++] = test->format.delimiter;
            }
            size += random_field(test, text + size);
        }
        while (random_below(&test->random, 8) == 0) {
            text[size++] = '\r';
        }
        do {
            text[size++] = '\n';
        } while (random_below(&test->random, 8) == 0);
    }
    if (size > 0 && random_below(&test->random, 2)) {
        size--;
    }
    test->size = size;
    test->block = test_memory(size);
    memcpy(test->block, text, size);
}

static void start_case(test_case *test, uint64_t seed) {
    static const char *const MISSING[] = {"", "0", "-1", "ab", "\"", "1e5", "99999999"};
    memset(test, 0, sizeof *test);
    test->random = (random_source){seed};
    for (uint32_t i = 0; i < random_below(&test->random, MOST_MISSING + 1); i++) {
        test->missing[i] = MISSING[random_below(&test->random, 7)];
        test->missing_sizes[i] = (uint32_t)strlen(test->missing[i]);
        test->format.n_missing++;
    }
    test->format.missing = test->missing;
    test->format.missing_sizes = test->missing_sizes;
    test->format.columns = 1 + random_below(&test->random, MOST_COLUMNS);
    test->format.delimiter = ",\t "[random_below(&test->random, 3)];
    test->format.quote = random_below(&test->random, 2) ? '"' : 0;
    test->format.strip = (int)random_below(&test->random, 2);
    random_block(test);
}

/* ---- Both ways ---------------------------------------------------------- */

/* Whether quotes stand inside of a quoted field, or values after them: numbers like that are left
 * to the caller, missing or not. */
static int quoted_in_part(const tn_text_format *format, naive_field field) {
    return format->quote && field.size > 0 && field.text[0] == format->quote &&
           memchr(field.text + 1, format->quote, field.size - 1) != field.text + field.size - 1;
}

/* Returns whether it is missing. */
static int check_number(const tn_text_column *column, uint64_t row, int mark, const char *value,
                        uint32_t size, int missing) {
    if (column->valid[row / 8] >> row % 8 & 1) {
        char *end;
        double expected = strtod(value, &end);
        CHECK(!missing);
        CHECK(size > 0 && end == value + size);
        CHECK(memcmp(&column->numbers[row], &expected, sizeof expected) == 0);
        return 0;
    }
    CHECK(column->numbers[row] == 0);
    if (!missing) {
        CHECK(mark & TN_HARD_NUMBER);
        CHECK(size == 0 || size > 19 || strspn(value, "0123456789") < size);
    }
    return missing;
}

static void check_columns(test_case *test, const uint32_t *starts, const uint32_t *sizes_of_lines,
                          const uint32_t *chosen, uint64_t rows) {
    const tn_text_format *format = &test->format;
    uint32_t n = format->columns;
    tn_text_column columns[2 * MOST_COLUMNS];
    memset(columns, 0, sizeof columns);
    for (uint32_t c = 0; c < n; c++) {
        columns[2 * c].column = columns[2 * c + 1].column = c;
        columns[2 * c].offsets = test_memory((rows + 1) * sizeof(int32_t));
        columns[2 * c].text = test_memory(test->sizes[c] + 16);
        columns[2 * c + 1].numbers = test_memory(rows * sizeof(double));
        columns[2 * c + 1].valid = test_memory((rows + 7) / 8);
    }
    uint8_t *marks = test_memory(rows);
    CHECK_OK(tn_text_columns(test->block, test->size, format, test->bounds, chosen, rows, 1,
                             columns, 2 * n, marks));
    naive_line *line = test_memory(sizeof *line);
    char value[MOST_BYTES + 1];
    uint64_t nulls[MOST_COLUMNS] = {0};
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t of_block = chosen ? chosen[row] : row;
        CHECK_OK(
            naive_read(format, test->block + starts[of_block], sizes_of_lines[of_block], line));
        int bad_text = 0;
        for (uint32_t c = 0; c < n; c++) {
            uint32_t size = naive_value(format, line->fields[c], value);
            const tn_text_column *texts = &columns[2 * c], *numbers = &columns[2 * c + 1];
            CHECK((uint32_t)(texts->offsets[row + 1] - texts->offsets[row]) == size);
            CHECK(memcmp(texts->text + texts->offsets[row], value, size) == 0);
            bad_text |= !naive_utf8((unsigned char *)value, size);
            if (quoted_in_part(format, line->fields[c])) {
                CHECK(marks[row] & TN_HARD_NUMBER);
                CHECK((numbers->valid[row / 8] >> row % 8 & 1) == 0);
            } else {
                int missing = naive_missing(format, value, size);
                nulls[c] += (uint64_t)check_number(numbers, row, marks[row], value, size, missing);
            }
        }
        CHECK((marks[row] & TN_BAD_TEXT) == (bad_text ? TN_BAD_TEXT : 0));
    }
    for (uint32_t c = 0; c < n; c++) {
        CHECK(columns[2 * c + 1].nulls == nulls[c]);
        free(columns[2 * c].offsets);
        free(columns[2 * c].text);
        free(columns[2 * c + 1].numbers);
        free(columns[2 * c + 1].valid);
    }
    free(marks);
    free(line);
}

static void check_block(test_case *test) {
    uint64_t capacity = tn_text_capacity(test->size, test->format.columns);
    test->bounds = test_memory(capacity * sizeof *test->bounds);
    CHECK_CODE(tn_text_index(test->block, test->size, &test->format, test->bounds, capacity - 1,
                             test->sizes, &test->rows),
               TN_BAD_VALUE);
    CHECK_OK(tn_text_index(test->block, test->size, &test->format, test->bounds, capacity,
                           test->sizes, &test->rows));
    uint32_t *starts = test_memory((test->size + 1) * sizeof *starts);
    uint32_t *sizes = test_memory((test->size + 1) * sizeof *sizes);
    uint32_t *chosen = test_memory((test->size + 1) * sizeof *chosen);
    naive_line *line = test_memory(sizeof *line);
    uint64_t rows = 0, bad = 0, some = 0, line_ends = 0;
    int ascii = 1;
    for (uint32_t start = 0, end; start < test->size; start = end + 1) {
        for (end = start; end < test->size && test->block[end] != '\n'; end++) {
            ascii &= (unsigned char)test->block[end] < 0x80;
        }
        line_ends += end < test->size;
        uint32_t last = end;
        while (last > start && test->block[last - 1] == '\r') {
            last--;
        }
        if (last == start) {
            continue;
        }
        int fault = naive_read(&test->format, test->block + start, last - start, line);
        if (fault != TN_OK) {
            if (bad++ == 0) {
                CHECK(test->rows.first_bad == start);
                CHECK(test->rows.first_fault == fault);
                CHECK(test->rows.first_fields == line->count);
            }
            continue;
        }
        const uint32_t *bounds = test->bounds + rows * (test->format.columns + 1);
        CHECK(bounds[0] == start);
        for (uint32_t c = 0; c < line->count; c++) {
            CHECK(test->block + bounds[c + 1] == line->fields[c].text + line->fields[c].size);
        }
        starts[rows] = start;
        sizes[rows] = last - start;
        if (random_below(&test->random, 3) == 0) {
            chosen[some++] = (uint32_t)rows;
        }
        rows++;
    }
    CHECK(test->rows.rows == rows);
    CHECK(test->rows.bad == bad);
    CHECK(test->rows.ascii == ascii);
    CHECK(tn_text_line_ends(test->block, test->size) == line_ends);
    check_columns(test, starts, sizes, NULL, rows);
    check_columns(test, starts, sizes, chosen, some);
    free(starts);
    free(sizes);
    free(chosen);
    free(line);
    free(test->bounds);
    free(test->block);
}

/* ---- Numbers ------------------------------------------------------------ */

/* A number of up to 20 digits; most near the middle of two doubles or with an exponent. */
static void random_number(random_source *random, char *out) {
    uint32_t kind = random_below(random, 4);
    const char *sign = random_below(random, 4) ? "" : "-";
    if (kind == 0) { /* between two doubles */
        uint64_t odd = (random_word(random) | UINT64_C(1) << 63) >> random_below(random, 10);
        sprintf(out, "%s%llu", sign, (unsigned long long)(odd >> 1));
        return;
    }
    uint64_t digits = random_word(random) >> random_below(random, 64);
    char text[32];
    int count = sprintf(text, "%llu", (unsigned long long)digits);
    int point = (int)random_below(random, (uint32_t)count + 1);
    int written = sprintf(out, "%s%.*s.%s", sign, point, text, text + point);
    if (kind > 1) {
        sprintf(out + written, "%c%d", random_below(random, 2) ? 'e' : 'E',
                (int)random_below(random, 64) - 32);
    }
}

static void check_numbers(uint64_t count, uint64_t seed) {
    random_source random = {seed};
    tn_text_format format = {.columns = 1, .delimiter = ','};
    uint64_t simple = 0;
    for (uint64_t i = 0; i < count; i++) {
        char text[80];
        random_number(&random, text);
        uint64_t size = strlen(text);
        char *block = test_memory(size);
        memcpy(block, text, size);
        uint32_t bounds[256];
        tn_text_rows rows;
        uint32_t all;
        CHECK_OK(tn_text_index(block, size, &format, bounds, 256, &all, &rows));
        double number;
        uint8_t valid, mark;
        tn_text_column column = {.numbers = &number, .valid = &valid};
        CHECK_OK(tn_text_columns(block, size, &format, bounds, NULL, 1, 0, &column, 1, &mark));
        double expected = strtod(text, NULL);
        CHECK(valid == (mark == 0));
        CHECK(!valid || memcmp(&number, &expected, sizeof expected) == 0);
        simple += valid;
        free(block);
    }
    CHECK(simple > count / 2); /* the rule, not the exception */
}

/* Characters that a line end, or each other, would be taken for: no byte beyond the block is read.
 */
static void check_unreadable_formats(void) {
    static const char CHARACTERS[][2] = {{'\n', 0},   {'\r', 0},   {'\n', '"'}, {'\r', '"'},
                                         {',', '\n'}, {',', '\r'}, {'"', '"'}};
    static const char *const BLOCKS[] = {"\n",       "\r",   "a\n",       "a\nb",
                                         "a\r\nb\n", "\"\n", "a,b\n1,2\n"};
    for (uint32_t k = 0; k < sizeof CHARACTERS / sizeof *CHARACTERS; k++) {
        for (uint32_t b = 0; b < sizeof BLOCKS / sizeof *BLOCKS; b++) {
            tn_text_format format = {
                .columns = 2, .delimiter = CHARACTERS[k][0], .quote = CHARACTERS[k][1]};
            uint64_t size = strlen(BLOCKS[b]), capacity = tn_text_capacity(size, 2);
            char *block = test_memory(size);
            memcpy(block, BLOCKS[b], size);
            uint32_t *bounds = test_memory(capacity * sizeof *bounds), sizes[2];
            tn_text_rows rows;
            CHECK_CODE(tn_text_index(block, size, &format, bounds, capacity, sizes, &rows),
                       TN_BAD_VALUE);
            /* What a line end as the delimiter gave: a field that ends before it starts. */
            bounds[0] = (uint32_t)size;
            bounds[1] = bounds[2] = (uint32_t)size - 1;
            int32_t offsets[2];
            char text[32];
            uint8_t mark;
            tn_text_column column = {.column = 0, .offsets = offsets, .text = text};
            CHECK_CODE(tn_text_columns(block, size, &format, bounds, NULL, 1, 1, &column, 1, &mark),
                       TN_BAD_VALUE);
            free(bounds);
            free(block);
        }
    }
}

int main(int argc, char **argv) {
    uint64_t blocks = number_argument(argc, argv, 1, 2000);
    uint64_t seed = number_argument(argc, argv, 3, 1);
    for (uint64_t i = 0; i < blocks; i++) {
        test_case test;
        start_case(&test, seed + i);
        check_block(&test);
    }
    check_numbers(number_argument(argc, argv, 2, 20000), seed);
    check_unreadable_formats();
    uint32_t bounds[2000], all;
    tn_text_rows rows;
    tn_text_format none = {.columns = 0, .delimiter = ','};
    CHECK_CODE(tn_text_index("a", 1, &none, bounds, 2000, &all, &rows), TN_BAD_VALUE);
    CHECK_CODE(tn_text_index("a", UINT64_C(1) << 31, &none, bounds, 2000, &all, &rows),
               TN_BAD_VALUE);
    return report_checks("test_text");
}
