/* tn_text.c - blocks of delimited text: where the fields are, and columns of them. */
#include <float.h>
#include <string.h>

#include "tn_cpu.h"
#include "tnctl.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef unsigned char byte;

static inline uint64_t load_word(const byte *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

#define EACH_BYTE UINT64_C(0x0101010101010101)
#define HIGH_BITS UINT64_C(0x8080808080808080)
#define LOW_BITS UINT64_C(0x7f7f7f7f7f7f7f7f)
#define DIGIT_ZERO UINT64_C(0x3030303030303030)
#define DIGIT_TO_HIGH UINT64_C(0x7676767676767676) /* added to 10 or more, it sets the high bit */
#define PAIRS UINT64_C(0x000000ff000000ff)

/* ---- Where the fields are ----------------------------------------------- */

/* Bit i tells whether byte i of the 64 is `c`. */
#if defined(__SSE2__) && !defined(TN_NO_CLONES)
TN_INLINE uint64_t equal_bytes(const byte *at, byte c) {
    const __m128i pattern = _mm_set1_epi8((char)c);
    uint64_t bits = 0;
    for (uint32_t i = 0; i < 4; i++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(at + 16 * i));
        uint32_t equal = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(bytes, pattern));
        bits |= (uint64_t)equal << (16 * i);
    }
    return bits;
}
#else
TN_INLINE uint64_t equal_bytes(const byte *at, byte c) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < 8; i++) {
        uint64_t x = load_word(at + 8 * i) ^ c * EACH_BYTE;
        /* 1 in the lowest bit of each byte that is 0; the product gathers them in the highest. */
        uint64_t zero = ~(((x & LOW_BITS) + LOW_BITS) | x | LOW_BITS) >> 7;
        bits |= (zero * UINT64_C(0x0102040810204080) >> 56) << (8 * i);
    }
    return bits;
}
#endif

typedef struct {
    const byte *block;
    byte delimiter, quote;
    int quoting;
    uint32_t columns;
    uint32_t *row;  /* the bounds of the row that is being read */
    uint32_t field; /* how many of its fields have ended */
    uint32_t *sizes;
    tn_text_rows rows;
} line_reader;

/* The bounds of one line, byte by byte: a line with quotes, with '\r' inside, or a bad one. Returns
 * TN_OK when it is a row, else what is wrong, and sets how many fields it has, as far as read. */
static int read_slowly(line_reader *reader, uint32_t start, uint32_t end, uint32_t *fields) {
    const byte *block = reader->block;
    uint32_t at = start;
    for (*fields = 0;;) {
        if (reader->quoting && at < end && block[at] == reader->quote) {
            for (at++;; at++) {
                if (at == end) {
                    return TN_OPEN_QUOTE;
                }
                if (block[at] == reader->quote) {
                    at++;
                    if (at == end || block[at] != reader->quote) {
                        break;
                    }
                }
            }
        }
        while (at < end && block[at] != reader->delimiter) {
            if (block[at] == '\r') {
                return TN_INNER_RETURN;
            }
            at++;
        }
        *fields += 1;
        if (*fields <= reader->columns) {
            reader->row[*fields] = at;
        }
        if (at == end) {
            return *fields == reader->columns ? TN_OK : TN_OTHER_FIELDS;
        }
        at++;
    }
}

static void bad_line(line_reader *reader, uint32_t start, uint32_t end) {
    if (reader->rows.bad++ == 0) {
        reader->rows.first_bad = start;
        reader->rows.first_fault = read_slowly(reader, start, end, &reader->rows.first_fields);
    }
}

/* A line has ended before `end`, where '\n' or the block's end is. */
TN_INLINE void end_line(line_reader *reader, uint32_t end, int odd, uint32_t next) {
    uint32_t start = reader->row[0];
    while (end > start && reader->block[end - 1] == '\r') {
        end--;
    }
    if (end > start) {
        int whole;
        uint32_t fields;
        if (TN_UNLIKELY(odd)) {
            whole = read_slowly(reader, start, end, &fields) == TN_OK;
        } else {
            whole = reader->field + 1 == reader->columns;
            reader->row[reader->columns] = end;
        }
        if (TN_LIKELY(whole)) {
            for (uint32_t c = 0; c < reader->columns; c++) {
                reader->sizes[c] += reader->row[c + 1] - reader->row[c];
            }
            reader->row += reader->columns + 1;
            reader->rows.rows++;
        } else {
            bad_line(reader, start, end);
        }
    }
    reader->row[0] = next;
    reader->field = 0;
}

/* Takes note of the delimiters of a line. A line of too many fields keeps one too many: what is
 * written beyond the row's own bounds, at most 64 of them, is written again by the next rows. */
TN_INLINE void end_fields(line_reader *reader, uint32_t at, uint64_t bits) {
    uint32_t *bounds = reader->row + reader->field + 1;
    for (; bits != 0; bits &= bits - 1) {
        *bounds++ = at + (uint32_t)__builtin_ctzll(bits);
    }
    reader->field = (uint32_t)(bounds - reader->row) - 1;
    if (reader->field > reader->columns) {
        reader->field = reader->columns;
    }
}

/* `odd` tells whether the block has any quote or '\r' to look for. */
TN_INLINE void read_lines(line_reader *reader, uint32_t size, int odd_ones) {
    uint64_t high = 0;
    int odd = 0;
    for (uint64_t at = 0; at < size; at += 64) {
        const byte *bytes = reader->block + at;
        byte last[64] = {0};
        uint64_t here = UINT64_MAX;
        if (TN_UNLIKELY(size - at < 64)) {
            memcpy(last, bytes, size - at);
            bytes = last;
            here >>= 64 - (size - at);
        }
        for (uint32_t i = 0; i < 8; i++) {
            high |= load_word(bytes + 8 * i);
        }
        uint64_t fields = equal_bytes(bytes, reader->delimiter) & here;
        uint64_t lines = equal_bytes(bytes, '\n') & here;
        uint64_t odds = 0;
        if (odd_ones) {
            /* A '\r' before '\n' is a line end as it should be. */
            odds = equal_bytes(bytes, '\r') & ~(lines >> 1);
            odds |= reader->quoting ? equal_bytes(bytes, reader->quote) : 0;
            odds &= here;
        }
        while (lines != 0) {
            uint64_t line = lines & (0 - lines); /* the lowest bit */
            uint64_t before = line - 1;
            uint32_t end = (uint32_t)at + (uint32_t)__builtin_ctzll(lines);
            end_fields(reader, (uint32_t)at, fields & before);
            end_line(reader, end, odd_ones && (odd || (odds & before) != 0), end + 1);
            fields &= ~before;
            odds &= ~before;
            lines ^= line;
            odd = 0;
        }
        end_fields(reader, (uint32_t)at, fields);
        odd |= odds != 0;
    }
    end_line(reader, size, odd, size);
    reader->rows.ascii = (high & HIGH_BITS) == 0;
}

/* Two copies, so that the common block pays for no more than it has. */
static void read_plain_lines(line_reader *reader, uint32_t size) {
    read_lines(reader, size, 0);
}

static void read_odd_lines(line_reader *reader, uint32_t size) {
    read_lines(reader, size, 1);
}

TN_CLONES uint64_t tn_text_line_ends(const void *block, uint64_t size) {
    const byte *at = block;
    uint64_t count = 0;
    for (uint64_t start = 0; start < size; start += 128) {
        uint64_t end = size - start < 128 ? size : start + 128;
        byte here = 0; /* a byte keeps the vectors full */
        for (uint64_t i = start; i < end; i++) {
            here = (byte)(here + (at[i] == '\n'));
        }
        count += here;
    }
    return count;
}

uint64_t tn_text_capacity(uint64_t size, uint32_t columns) {
    uint64_t least = columns < 2 ? 2 : columns; /* bytes of a row, its line end included */
    return (size / least + 2) * ((uint64_t)columns + 1) + 64;
}

/* Whether the two characters can be told from line ends and from each other. */
static int is_readable(const tn_text_format *format) {
    return format->delimiter != '\n' && format->delimiter != '\r' && format->quote != '\n' &&
           format->quote != '\r' && format->quote != format->delimiter;
}

int tn_text_index(const void *block, uint64_t size, const tn_text_format *format, uint32_t *bounds,
                  uint64_t capacity, uint32_t *sizes, tn_text_rows *rows) {
    if (size > INT32_MAX || format->columns == 0 || format->columns > INT32_MAX ||
        !is_readable(format) || capacity < tn_text_capacity(size, format->columns)) {
        return TN_BAD_VALUE;
    }
    line_reader reader = {.block = block,
                          .delimiter = (byte)format->delimiter,
                          .quote = (byte)format->quote,
                          .quoting = format->quote != 0,
                          .columns = format->columns,
                          .row = bounds,
                          .sizes = sizes};
    memset(sizes, 0, format->columns * sizeof *sizes);
    bounds[0] = 0;
    if (memchr(block, '\r', size) != NULL ||
        (reader.quoting && memchr(block, reader.quote, size) != NULL)) {
        read_odd_lines(&reader, (uint32_t)size);
    } else {
        read_plain_lines(&reader, (uint32_t)size);
    }
    *rows = reader.rows;
    return TN_OK;
}

/* ---- Values ------------------------------------------------------------- */

typedef struct {
    const byte *start;
    uint64_t size;
} span;

static inline int is_blank(byte c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static inline int is_digit(byte c) {
    return (byte)(c - '0') < 10;
}

TN_INLINE span trimmed(span value) {
    while (value.size > 0 && is_blank(value.start[0])) {
        value.start++;
        value.size--;
    }
    while (value.size > 0 && is_blank(value.start[value.size - 1])) {
        value.size--;
    }
    return value;
}

/* Without its quotes; what follows the closing one belongs to the value, as Arrow has it. Writes to
 * `out`, never more bytes than the field has, and returns how many. */
static uint64_t unquote(span field, byte quote, byte *out) {
    byte *at = out;
    uint64_t i = 1;
    for (; i < field.size; i++) {
        if (field.start[i] == quote) {
            i++;
            if (i == field.size || field.start[i] != quote) {
                break;
            }
        }
        *at++ = field.start[i];
    }
    for (; i < field.size; i++) {
        *at++ = field.start[i];
    }
    return (uint64_t)(at - out);
}

static int continues(byte c) {
    return (c & 0xc0) == 0x80;
}

/* The bytes of one character that is not ASCII, 0 when it is not UTF-8 (RFC 3629, section 4). */
static uint64_t character(const byte *at, uint64_t left) {
    byte first = at[0];
    if (first < 0xc2 || first > 0xf4 || left < 2 || !continues(at[1])) {
        return 0;
    }
    if (first < 0xe0) {
        return 2;
    }
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xed && at[1] > 0x9f) ||
        (first == 0xf0 && at[1] < 0x90) || (first == 0xf4 && at[1] > 0x8f)) {
        return 0;
    }
    if (left < 3 || !continues(at[2])) {
        return 0;
    }
    if (first < 0xf0) {
        return 3;
    }
    return left < 4 || !continues(at[3]) ? 0 : 4;
}

static int is_utf8(const byte *at, uint64_t size) {
    uint64_t i = 0;
    while (i < size) {
        if (size - i >= 8 && (load_word(at + i) & HIGH_BITS) == 0) {
            i += 8;
        } else if (at[i] < 0x80) {
            i++;
        } else {
            uint64_t bytes = character(at + i, size - i);
            if (bytes == 0) {
                return 0;
            }
            i += bytes;
        }
    }
    return 1;
}

/* ---- Numbers ------------------------------------------------------------ */

#define EXACT_POWER 22 /* the largest power of ten that a double holds */
static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

#if LDBL_MANT_DIG == 64
#define LONG_POWER 27 /* the largest power of ten that 64 bits of mantissa hold */
static const long double LONG_POWERS[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,
                                          1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
                                          1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L,
                                          1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};

/* One operation rounds to 64 bits; rounding those to 53 is right unless the 11 that go are next to
 * the half of one, where the first rounding may have tipped the second. */
static int rounded_twice(uint64_t digits, int32_t power, double *out) {
    if (power < -LONG_POWER || power > LONG_POWER) {
        return 0;
    }
    long double value = (long double)digits;
    value = power < 0 ? value / LONG_POWERS[-power] : value * LONG_POWERS[power];
    uint64_t mantissa;
    memcpy(&mantissa, &value, sizeof mantissa);
    uint64_t gone = mantissa & 0x7ff;
    if (gone - 0x3ff <= 2) {
        return 0;
    }
    *out = (double)value;
    return 1;
}
#else
static int rounded_twice(uint64_t digits, int32_t power, double *out) {
    (void)digits, (void)power, (void)out;
    return 0;
}
#endif

/* 1 to 8 digits in the bytes of a word, without a branch on how many there are. */
TN_INLINE int short_integer(uint64_t word, uint64_t size, double *out) {
    uint64_t shift = 64 - 8 * size;
    /* Zeros in front, then each byte its digit. */
    word = ((word ^ DIGIT_ZERO) << shift);
    if (((word + DIGIT_TO_HIGH) | word) & HIGH_BITS) {
        return 0;
    }
    word = word * 10 + (word >> 8); /* pairs of digits in every other byte */
    word = ((word & PAIRS) * UINT64_C(0x000f424000000064) +
            (word >> 16 & PAIRS) * UINT64_C(0x0000271000000001)) >>
           32;
    *out = (double)(uint32_t)word;
    return 1;
}

/* The double nearest to a decimal number. Returns 0 when the text is none, or one that needs more
 * care than this. */
static int simple_number(const byte *at, uint64_t size, double *out) {
    const byte *end = at + size;
    int negative = at < end && *at == '-';
    at += negative;
    uint64_t digits = 0;
    const byte *start = at;
    for (; at < end && is_digit(*at); at++) {
        digits = digits * 10 + (byte)(*at - '0');
    }
    int64_t count = at - start;
    int32_t power = 0;
    if (at < end && *at == '.') {
        start = ++at;
        for (; at < end && is_digit(*at); at++) {
            digits = digits * 10 + (byte)(*at - '0');
        }
        count += at - start;
        power = at - start > 19 ? 0 : -(int32_t)(at - start);
    }
    /* 19 digits fit into 64 bits, whatever they are. */
    if (count == 0 || count > 19) {
        return 0;
    }
    if (at < end && (*at | 0x20) == 'e') {
        at++;
        int down = at < end && *at == '-';
        at += at < end && (*at == '-' || *at == '+');
        int32_t exponent = 0;
        start = at;
        for (; at < end && at - start < 4 && is_digit(*at); at++) {
            exponent = exponent * 10 + (*at - '0');
        }
        if (at == start) {
            return 0;
        }
        power += down ? -exponent : exponent;
    }
    if (at != end) {
        return 0;
    }
    double value;
    if (power == 0) {
        value = (double)digits;
    } else if (digits <= UINT64_C(1) << 53 && power >= -EXACT_POWER && power <= EXACT_POWER) {
        value = (double)digits;
        value = power < 0 ? value / POWERS[-power] : value * POWERS[power];
    } else if (!rounded_twice(digits, power, &value)) {
        return 0;
    }
    *out = negative ? -value : value;
    return 1;
}

/* ---- Columns ------------------------------------------------------------ */

/* Rows are handled in groups whose text stays in the cache while every column takes its part. */
#define GROUP 256

typedef struct {
    const byte *block;
    const byte *end;
    const tn_text_format *format;
    const uint32_t *bounds;
    const uint32_t *chosen;
    int check_utf8;
    uint64_t missing_sizes; /* bit n: a missing text of n bytes; bit 63: of 63 or more */
    uint8_t *marks;
} column_reader;

TN_INLINE span field_of(const column_reader *reader, uint64_t row, uint32_t column) {
    uint64_t number = reader->chosen != NULL ? reader->chosen[row] : row;
    const uint32_t *bounds = reader->bounds + number * ((uint64_t)reader->format->columns + 1);
    uint32_t start = bounds[column] + (column > 0);
    return (span){reader->block + start, bounds[column + 1] - start};
}

TN_INLINE int is_quoted(const column_reader *reader, span field) {
    return reader->format->quote != 0 && field.size > 0 &&
           field.start[0] == (byte)reader->format->quote;
}

static int is_missing(const column_reader *reader, span value) {
    uint64_t bit = value.size < 63 ? value.size : 63;
    if ((reader->missing_sizes >> bit & 1) == 0) {
        return 0;
    }
    const tn_text_format *format = reader->format;
    for (uint32_t i = 0; i < format->n_missing; i++) {
        if (format->missing_sizes[i] == value.size &&
            memcmp(format->missing[i], value.start, value.size) == 0) {
            return 1;
        }
    }
    return 0;
}

static void read_texts(const column_reader *reader, tn_text_column *column, uint64_t first,
                       uint64_t last) {
    int strip = reader->format->strip;
    for (uint64_t row = first; row < last; row++) {
        span field = field_of(reader, row, column->column);
        byte *out = (byte *)column->text + column->offsets[row];
        int moved = is_quoted(reader, field);
        if (moved) {
            field.size = unquote(field, (byte)reader->format->quote, out);
            field.start = out;
        }
        if (strip) {
            field = trimmed(field);
        }
        if (!moved && field.size <= 16 && reader->end - field.start >= 16) {
            memcpy(out, field.start, 16); /* cheaper than to copy as many as there are */
        } else {
            memmove(out, field.start, field.size);
        }
        column->offsets[row + 1] = column->offsets[row] + (int32_t)field.size;
        if (reader->check_utf8 && !is_utf8(out, field.size)) {
            reader->marks[row] |= TN_BAD_TEXT;
        }
    }
}

static void read_numbers(const column_reader *reader, tn_text_column *column, uint64_t first,
                         uint64_t last) {
    int strip = reader->format->strip;
    memset(column->valid + first / 8, 0, (last - first + 7) / 8);
    for (uint64_t row = first; row < last; row++) {
        span value = field_of(reader, row, column->column);
        column->numbers[row] = 0;
        if (is_quoted(reader, value)) {
            byte quote = (byte)reader->format->quote;
            const byte *closing = memchr(value.start + 1, quote, value.size - 1);
            if (closing != value.start + value.size - 1) {
                reader->marks[row] |= TN_HARD_NUMBER;
                continue;
            }
            value = (span){value.start + 1, value.size - 2};
        }
        if (strip) {
            value = trimmed(value);
        }
        if (is_missing(reader, value)) {
            column->nulls++;
        } else if (TN_LIKELY(
                       value.size - 1 < 8 && reader->end - value.start >= 8 &&
                       short_integer(load_word(value.start), value.size, &column->numbers[row]))) {
            column->valid[row / 8] |= (uint8_t)(1 << row % 8);
        } else if (simple_number(value.start, value.size, &column->numbers[row])) {
            column->valid[row / 8] |= (uint8_t)(1 << row % 8);
        } else {
            reader->marks[row] |= TN_HARD_NUMBER;
        }
    }
}

int tn_text_columns(const void *block, uint64_t size, const tn_text_format *format,
                    const uint32_t *bounds, const uint32_t *chosen, uint64_t rows, int check_utf8,
                    tn_text_column *columns, uint32_t n_columns, uint8_t *marks) {
    column_reader reader = {.block = block,
                            .end = (const byte *)block + size,
                            .format = format,
                            .bounds = bounds,
                            .chosen = chosen,
                            .check_utf8 = check_utf8,
                            .marks = marks};
    if (size > INT32_MAX || !is_readable(format)) {
        return TN_BAD_VALUE;
    }
    for (uint32_t i = 0; i < format->n_missing; i++) {
        uint64_t bytes = format->missing_sizes[i];
        reader.missing_sizes |= UINT64_C(1) << (bytes < 63 ? bytes : 63);
    }
    for (uint32_t c = 0; c < n_columns; c++) {
        if (columns[c].column >= format->columns) {
            return TN_BAD_VALUE;
        }
        columns[c].nulls = 0;
        if (columns[c].numbers == NULL) {
            columns[c].offsets[0] = 0;
        }
    }
    memset(marks, 0, rows);
    for (uint64_t first = 0; first < rows; first += GROUP) {
        uint64_t last = rows - first < GROUP ? rows : first + GROUP;
        for (uint32_t c = 0; c < n_columns; c++) {
            if (columns[c].numbers != NULL) {
                read_numbers(&reader, &columns[c], first, last);
            } else {
                read_texts(&reader, &columns[c], first, last);
            }
        }
    }
    return TN_OK;
}
