/* tn_text.c - blocks of delimited text: where the fields are.
 *
 * A block is read 64 bytes at a time. Each comparison with the delimiter and with '\n' gives 64
 * bits, one per byte, and the set bits are walked, so the work is per field and not per byte:
 *
 *     bytes       1 7 , 0 , a b \n 4 , 1 ...
 *     fields      0 0 1 0 1 0 0 0  0 1 0 ...       bounds of row 0: 0 2 4 7
 *     lines       0 0 0 0 0 0 0 1  0 0 0 ...
 *
 * What bits alone cannot tell (a quote, or '\r' inside of a line) makes its line odd, and odd lines
 * are read again byte by byte (read_slowly). Blocks that have neither take a copy of the loop
 * without these comparisons. */
#include "tn_text.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

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
        uint64_t inside = UINT64_MAX; /* a bit for each byte of the block */
        if (TN_UNLIKELY(size - at < 64)) {
            memcpy(last, bytes, size - at);
            bytes = last;
            inside >>= 64 - (size - at);
        }
        for (uint32_t i = 0; i < 8; i++) {
            high |= load_word(bytes + 8 * i);
        }
        uint64_t fields = equal_bytes(bytes, reader->delimiter) & inside;
        uint64_t lines = equal_bytes(bytes, '\n') & inside;
        uint64_t odds = 0;
        if (odd_ones) {
            /* A '\r' before '\n' is a line end as it should be. */
            odds = equal_bytes(bytes, '\r') & ~(lines >> 1);
            odds |= reader->quoting ? equal_bytes(bytes, reader->quote) : 0;
            odds &= inside;
        }
        while (lines != 0) {
            uint64_t line = lines & (0 - lines); /* the lowest bit */
            uint64_t preceding = line - 1;
            uint32_t end = (uint32_t)at + (uint32_t)__builtin_ctzll(lines);
            end_fields(reader, (uint32_t)at, fields & preceding);
            end_line(reader, end, odd_ones && (odd || (odds & preceding) != 0), end + 1);
            fields &= ~preceding;
            odds &= ~preceding;
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
        byte ends = 0; /* a byte counts up to 128, and keeps the vectors full */
        for (uint64_t i = start; i < end; i++) {
            ends = (byte)(ends + (at[i] == '\n'));
        }
        count += ends;
    }
    return count;
}

uint64_t tn_text_capacity(uint64_t size, uint32_t columns) {
    uint64_t least = columns < 2 ? 2 : columns; /* bytes of a row, its line end included */
    return (size / least + 2) * ((uint64_t)columns + 1) + 64;
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
