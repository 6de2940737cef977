/* tn_columns.c - columns of values to ids, ids to cells, and the order of examples. */
#include <string.h>

#include "tn_hash.h"
#include "tnctl.h"

/* ---- Hashing ------------------------------------------------------------ */

uint64_t tn_mix64(uint64_t x) {
    return mix64(x);
}

uint64_t tn_unmix64(uint64_t x) {
    /* Each step of mix64 backwards; the factors are inverses modulo 2^64. A shift of 33 or more is
     * its own inverse. */
    x ^= x >> 33;
    x *= UINT64_C(0x9cb4b2f8129337db);
    x ^= x >> 33;
    x *= UINT64_C(0x4f74430c22a54005);
    x ^= x >> 33;
    return x;
}

/* A word of 1 to 8 bytes, zero-padded. */
static inline uint64_t little_endian_word(const unsigned char *bytes, uint64_t n) {
    uint64_t word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    /* Loads of fixed sizes that overlap, for memcpy of `n` bytes is a call. */
    if (n == 8) {
        memcpy(&word, bytes, 8);
    } else if (n >= 4) {
        uint32_t first, last;
        memcpy(&first, bytes, 4);
        memcpy(&last, bytes + n - 4, 4);
        word = first | (uint64_t)last << (8 * (n - 4));
    } else {
        word = bytes[0] | (uint64_t)bytes[n / 2] << (8 * (n / 2)) |
               (uint64_t)bytes[n - 1] << (8 * (n - 1));
    }
#else
    for (uint64_t i = 0; i < n; i++) {
        word |= (uint64_t)bytes[i] << (8 * i);
    }
#endif
    return word;
}

static inline uint64_t hash_bytes(const void *bytes, uint64_t length, uint64_t seed) {
    const unsigned char *at = bytes;
    uint64_t h = seed;
    uint64_t left = length;
    for (; left >= 8; left -= 8, at += 8) {
        h = mix64(h ^ little_endian_word(at, 8));
    }
    if (left > 0) {
        h = mix64(h ^ little_endian_word(at, left));
    }
    return mix64(h ^ length);
}

uint64_t tn_hash_bytes(const void *bytes, uint64_t length, uint64_t seed) {
    return hash_bytes(bytes, length, seed);
}

uint64_t tn_group_salt(const char *name) {
    return hash_bytes(name, strlen(name), 0);
}

void tn_hash_strings32(const char *data, const int32_t *offsets, uint64_t n, uint64_t seed,
                       uint64_t *ids) {
    for (uint64_t i = 0; i < n; i++) {
        ids[i] = hash_bytes(data + offsets[i], (uint64_t)(offsets[i + 1] - offsets[i]), seed);
    }
}

void tn_hash_strings64(const char *data, const int64_t *offsets, uint64_t n, uint64_t seed,
                       uint64_t *ids) {
    for (uint64_t i = 0; i < n; i++) {
        ids[i] = hash_bytes(data + offsets[i], (uint64_t)(offsets[i + 1] - offsets[i]), seed);
    }
}

typedef struct {
    const unsigned char *const *buffers;
    const uint64_t *sizes;
    uint32_t n_buffers;
} view_buffers;

/* Where the string of a view starts, or NULL when it is not inside its buffer. */
static inline const unsigned char *string_of(const unsigned char *view, int32_t length,
                                             const view_buffers *given) {
    int32_t buffer, offset;
    if (length >= 0 && length <= 12) {
        return view + 4;
    }
    memcpy(&buffer, view + 8, sizeof buffer);
    memcpy(&offset, view + 12, sizeof offset);
    if (length < 0 || buffer < 0 || offset < 0 || (uint32_t)buffer >= given->n_buffers ||
        (uint64_t)offset + (uint64_t)length > given->sizes[buffer]) {
        return NULL;
    }
    return given->buffers[buffer] + offset;
}

int tn_hash_views(const void *views, uint64_t n, const void *const *buffers, const uint64_t *sizes,
                  uint32_t n_buffers, uint64_t seed, uint64_t *ids) {
    const view_buffers given = {(const unsigned char *const *)buffers, sizes, n_buffers};
    for (uint64_t i = 0; i < n; i++) {
        const unsigned char *view = (const unsigned char *)views + 16 * i;
        int32_t length;
        memcpy(&length, view, sizeof length);
        const unsigned char *string = string_of(view, length, &given);
        if (string == NULL) {
            return TN_BAD_VALUE;
        }
        ids[i] = hash_bytes(string, (uint64_t)length, seed);
    }
    return TN_OK;
}

/* The decimal text of `value`, ending at `end`; returns where it starts. */
static char *decimal(uint64_t value, char *end) {
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    return end;
}

void tn_hash_uint64(const uint64_t *values, uint64_t n, uint64_t seed, uint64_t *ids) {
    char text[24];
    char *end = text + sizeof text;
    for (uint64_t i = 0; i < n; i++) {
        char *start = decimal(values[i], end);
        ids[i] = hash_bytes(start, (uint64_t)(end - start), seed);
    }
}

void tn_hash_int64(const int64_t *values, uint64_t n, uint64_t seed, uint64_t *ids) {
    char text[24];
    char *end = text + sizeof text;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t size = values[i] < 0 ? 0 - (uint64_t)values[i] : (uint64_t)values[i];
        char *start = decimal(size, end);
        if (values[i] < 0) {
            *--start = '-';
        }
        ids[i] = hash_bytes(start, (uint64_t)(end - start), seed);
    }
}

/* ---- Cells -------------------------------------------------------------- */

/* Rows are handled in blocks whose cells stay in the second-level cache while every column writes
 * its part of them. */
#define BLOCK 512

/* The ids of a column in a row. */
static inline uint32_t count_of(const int32_t *offsets, uint64_t row) {
    return offsets ? (uint32_t)(offsets[row + 1] - offsets[row]) : 1;
}

static inline uint32_t spread_of(const uint32_t *spread, uint32_t column) {
    return spread ? spread[column] : 1;
}

/* Where the ids of a column start that row `row` has. */
static inline uint64_t start_of(const int32_t *offsets, uint64_t row) {
    return offsets ? (uint64_t)offsets[row] : row;
}

/* Writes where the cells of one row end, the first ids of a column one to a cell. */
static uint64_t end_cells(const int32_t *const *offsets, const uint32_t *spread, uint32_t columns,
                          uint64_t row, uint64_t at, uint32_t *ends) {
    for (uint32_t c = 0; c < columns; c++) {
        uint32_t count = count_of(offsets[c], row), cells = spread_of(spread, c);
        if (cells == 1) {
            at += count;
            *ends++ = (uint32_t)at;
            continue;
        }
        for (uint32_t i = 0; i < cells; i++) {
            at += i < count;
            *ends++ = (uint32_t)at;
        }
    }
    return at;
}

/* A column's part of some rows: `cells` of the `in_row` that each has. */
typedef struct {
    const int32_t *offsets;
    const uint32_t *out_offsets; /* from the column's first cell in row 0 on */
    uint64_t in_row;
    uint32_t cells;
} column_part;

static void place_ids(const column_part *part, uint64_t row, uint64_t end, const uint64_t *ids,
                      uint64_t *out) {
    const uint32_t *ends = part->out_offsets + row * part->in_row;
    for (; row < end; row++, ends += part->in_row) {
        const uint64_t *from = ids + start_of(part->offsets, row);
        for (uint32_t k = ends[0]; k < ends[part->cells]; k++) {
            out[k] = *from++;
        }
    }
}

static void place_weights(const column_part *part, uint64_t row, uint64_t end, const float *weights,
                          float *out) {
    const uint32_t *ends = part->out_offsets + row * part->in_row;
    for (; row < end; row++, ends += part->in_row) {
        uint64_t from = start_of(part->offsets, row);
        for (uint32_t k = ends[0]; k < ends[part->cells]; k++) {
            out[k] = weights ? weights[from++] : 1;
        }
    }
}

int tn_interleave(const uint64_t *const *ids, const int32_t *const *offsets,
                  const float *const *weights, const uint32_t *spread, uint32_t columns,
                  uint64_t rows, uint64_t *out_ids, float *out_weights, uint32_t *out_offsets) {
    uint64_t at = 0, in_row = 0;
    for (uint32_t c = 0; c < columns; c++) {
        in_row += spread_of(spread, c);
        if (spread_of(spread, c) == 0 || in_row > UINT32_MAX) {
            return TN_BAD_VALUE;
        }
    }
    out_offsets[0] = 0;
    for (uint64_t start = 0; start < rows; start += BLOCK) {
        uint64_t end = rows - start < BLOCK ? rows : start + BLOCK;
        for (uint64_t row = start; row < end; row++) {
            at = end_cells(offsets, spread, columns, row, at, out_offsets + row * in_row + 1);
            if (at > UINT32_MAX) {
                return TN_BAD_VALUE;
            }
        }
        uint64_t first = 0;
        for (uint32_t c = 0; c < columns; c++) {
            column_part part = {offsets[c], out_offsets + first, in_row, spread_of(spread, c)};
            place_ids(&part, start, end, ids[c], out_ids);
            if (out_weights != NULL) {
                place_weights(&part, start, end, weights ? weights[c] : NULL, out_weights);
            }
            first += part.cells;
        }
    }
    return TN_OK;
}

int tn_take(const uint64_t *ids, const uint32_t *offsets, const float *weights, uint32_t cells,
            const uint32_t *chosen, uint64_t n, uint64_t *out_ids, float *out_weights,
            uint64_t capacity, uint32_t *out_offsets) {
    uint64_t at = 0;
    out_offsets[0] = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t *ends = offsets + (uint64_t)chosen[i] * cells;
        uint64_t count = ends[cells] - ends[0];
        if (count > capacity - at) {
            return TN_BAD_VALUE;
        }
        memcpy(out_ids + at, ids + ends[0], count * sizeof *ids);
        if (weights != NULL) {
            memcpy(out_weights + at, weights + ends[0], count * sizeof *weights);
        }
        for (uint32_t c = 0; c < cells; c++) {
            out_offsets[i * cells + c + 1] = (uint32_t)(at + (ends[c + 1] - ends[0]));
        }
        at += count;
    }
    return TN_OK;
}

/* ---- Crosses ------------------------------------------------------------ */

/* How many combinations a row has, or something above INT32_MAX. It stops growing there, so that it
 * cannot overflow, but goes through all columns: one without ids makes the count 0. */
static uint64_t count_combinations(const int32_t *const *offsets, uint32_t columns, uint64_t row) {
    uint64_t n = 1;
    for (uint32_t c = 0; c < columns; c++) {
        n *= count_of(offsets[c], row);
        n = n > INT32_MAX ? UINT64_C(1) << 31 : n;
    }
    return n;
}

/* Writes the combinations of a row that has some. `out` holds the hashes of the combinations
 * of the columns so far; each further column expands them in place, from the last one down. */
static void combine(const uint64_t *const *ids, const int32_t *const *offsets, uint32_t columns,
                    uint64_t row, uint64_t seed, uint64_t *out) {
    uint64_t n = 1;
    out[0] = seed;
    for (uint32_t c = 0; c < columns; c++) {
        const uint64_t *from = ids[c] + start_of(offsets[c], row);
        uint64_t count = count_of(offsets[c], row);
        for (uint64_t i = n; i-- > 0;) {
            uint64_t h = out[i];
            for (uint64_t j = count; j-- > 0;) {
                out[i * count + j] = mix64(h ^ from[j]);
            }
        }
        n *= count;
    }
    for (uint64_t i = 0; i < n; i++) {
        out[i] = mix64(out[i] ^ UINT64_C(8) * columns);
    }
}

int tn_cross(const uint64_t *const *ids, const int32_t *const *offsets, uint32_t columns,
             uint64_t rows, uint64_t seed, uint64_t *out_ids, int32_t *out_offsets) {
    if (columns < 2) {
        return TN_BAD_VALUE;
    }
    uint64_t at = 0;
    out_offsets[0] = 0;
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t n = count_combinations(offsets, columns, row);
        if (n > INT32_MAX - at) {
            return TN_BAD_VALUE;
        }
        if (out_ids != NULL && n > 0) {
            combine(ids, offsets, columns, row, seed, out_ids + at);
        }
        at += n;
        out_offsets[row + 1] = (int32_t)at;
    }
    return TN_OK;
}

/* ---- Order -------------------------------------------------------------- */

void tn_permutation(uint64_t seed, uint64_t epoch, uint64_t window, uint32_t n, uint32_t *out) {
    uint64_t key = mix64(mix64(mix64(seed) ^ epoch) + window);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = i;
    }
    /* Fisher and Yates' shuffle; the bounded number is the high half of a product (bias < 2^-32).
     */
    for (uint32_t i = n; i > 1; i--) {
        uint64_t random = mix64(key + i) >> 32;
        uint32_t j = (uint32_t)(random * i >> 32);
        uint32_t kept = out[i - 1];
        out[i - 1] = out[j];
        out[j] = kept;
    }
}
