/* tn_text_columns.c - columns of text and numbers from the fields that tn_text.c found. */
#include "tn_decimal.h"
#include "tn_text.h"

/* ---- Values ------------------------------------------------------------- */

typedef struct {
    const byte *start;
    uint64_t size;
} span;

static inline int is_blank(byte c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
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

/* Whether a text is UTF-8. Eight ASCII bytes are passed over at a time where so many are left;
 * no byte after the text is read. */
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

/* Whether a value is one of the texts that mean a missing number. The bit of its size rules out
 * nearly every value without a comparison. */
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

/* Rows first .. last - 1 of a column of text, one after the other in Arrow's layout. Called for
 * rows in order: each starts where the offset of the one before ends. The 16 bytes copied at
 * once may pass the end of the value: the next value overwrites them, and `text` has 16 bytes
 * more than all values need (tnctl.h). */
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

/* Rows first .. last - 1 of a column of numbers. `first` is a multiple of 8, so bits of `valid`
 * that other rows have set are not cleared. What only a slower reader can decide (quotes within
 * quotes, long or unusual numbers) is marked TN_HARD_NUMBER and left to the caller. */
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
        } else if (tn_simple_number(value.start, value.size, &column->numbers[row])) {
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
