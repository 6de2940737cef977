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

static inline uint64_t little_endian_word(const unsigned char *bytes, uint64_t n) {
    uint64_t word = 0;
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    memcpy(&word, bytes, n);
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

void tn_interleave(const uint64_t *const *ids, const int32_t *const *offsets, uint32_t columns,
                   uint64_t rows, uint64_t *out_ids, uint32_t *out_offsets) {
    uint32_t at = 0;
    out_offsets[0] = 0;
    for (uint64_t start = 0; start < rows; start += BLOCK) {
        uint64_t end = rows - start < BLOCK ? rows : start + BLOCK;
        for (uint64_t row = start; row < end; row++) {
            for (uint32_t c = 0; c < columns; c++) {
                at += offsets[c] ? (uint32_t)(offsets[c][row + 1] - offsets[c][row]) : 1;
                out_offsets[row * columns + c + 1] = at;
            }
        }
        for (uint32_t c = 0; c < columns; c++) {
            for (uint64_t row = start; row < end; row++) {
                uint64_t *cell = out_ids + out_offsets[row * columns + c];
                if (offsets[c] == NULL) {
                    *cell = ids[c][row];
                    continue;
                }
                for (int32_t k = offsets[c][row]; k < offsets[c][row + 1]; k++) {
                    *cell++ = ids[c][k];
                }
            }
        }
    }
}

int tn_take(const uint64_t *ids, const uint32_t *offsets, uint32_t columns, const uint32_t *chosen,
            uint64_t n, uint64_t *out_ids, uint64_t capacity, uint32_t *out_offsets) {
    uint64_t at = 0;
    out_offsets[0] = 0;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t *cells = offsets + (uint64_t)chosen[i] * columns;
        uint64_t count = cells[columns] - cells[0];
        if (count > capacity - at) {
            return TN_BAD_VALUE;
        }
        memcpy(out_ids + at, ids + cells[0], count * sizeof *ids);
        for (uint32_t c = 0; c < columns; c++) {
            out_offsets[i * columns + c + 1] = (uint32_t)(at + (cells[c + 1] - cells[0]));
        }
        at += count;
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
