/* ids.h - the hash that ids and keys are made with (docs/formats/ids.md) */
#ifndef IDS_H
#define IDS_H

#include <stddef.h>
#include <stdint.h>

static inline uint64_t mix64(uint64_t x) {
    x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

/* 8 bytes as a little-endian word; compilers make one load of it. */
static inline uint64_t word_of(const char *bytes) {
    const unsigned char *at = (const unsigned char *)bytes;
    return (uint64_t)at[0] | (uint64_t)at[1] << 8 | (uint64_t)at[2] << 16 | (uint64_t)at[3] << 24 |
           (uint64_t)at[4] << 32 | (uint64_t)at[5] << 40 | (uint64_t)at[6] << 48 |
           (uint64_t)at[7] << 56;
}

/* The id of a text (docs/formats/ids.md): eight bytes at a time, then the rest, then the length. */
static inline uint64_t value_id(const char *bytes, size_t length, uint64_t seed) {
    uint64_t h = seed;
    size_t at = 0;
    for (; length - at >= 8; at += 8) {
        h = mix64(h ^ word_of(bytes + at));
    }
    if (at < length) {
        uint64_t word = 0;
        if (length > 8) {
            word = word_of(bytes + length - 8) >> 8 * (8 - (length - at));
        } else {
            for (size_t i = 0; i < length; i++) {
                word |= (uint64_t)(unsigned char)bytes[i] << 8 * i;
            }
        }
        h = mix64(h ^ word);
    }
    return mix64(h ^ length);
}

/* Whether short texts are the same, without the call of memcmp. */
static inline int same_bytes(const char *a, const char *b, size_t length) {
    size_t at = 0;
    for (; length - at >= 8; at += 8) {
        if (word_of(a + at) != word_of(b + at)) {
            return 0;
        }
    }
    while (at < length && a[at] == b[at]) {
        at++;
    }
    return at == length;
}

#endif
