/* tn_dictionary_format.h - the bytes of a dictionary (docs/formats/dictionary.md) and how an open
 * one is kept. Of the reader itself: users of a dictionary include tn_dictionary.h alone.
 *
 *     file     [ header 64 | records, by hash | a checksum per MiB of records | trailer 8 ]
 *     index    [ header 64 | line 64 | line 64 | ... | one line more ]
 *
 *     a line   [ tags 52 | where each of 8 parts ends, 8 bytes | number of its first record 4 ]
 *
 * A line of the index belongs to an equal range of hashes, and each eighth of the range is a part.
 * As hashes are spread evenly, a line has about 42 records, and a lookup reads one line: the part
 * says which few tags (the low 8 bits of hashes) to compare, and an equal tag which record to look
 * at. */
#ifndef TN_DICTIONARY_FORMAT_H
#define TN_DICTIONARY_FORMAT_H

#include <stddef.h>
#include <string.h>

#include "tn_dictionary.h"

#ifdef TN_MEMORY_HEADER
#include TN_MEMORY_HEADER
#else
#include <stdlib.h>
#define TN_CALLOC(count, size) calloc(count, size)
#define TN_ALIGNED_ALLOC(alignment, size) aligned_alloc(alignment, size)
#define TN_FREE(memory) free(memory)
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dictionaries are little-endian, and read as they are"
#endif

#define INLINE static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define HEADER 64
#define TRAILER 8 /* and a checksum for each block */
#define VERSION 1
#define BLOCK (1u << 20)
#define MOST_RECORDS UINT64_C(0xffffffff)
#define MOST_WIDTH 65536

/* A line of the index: tags, where each of its parts ends, and the number of its first record. */
#define LINE 64
#define PARTS 8
#define TAGS 52
#define LINE_ENDS 52
#define LINE_RANK 60
#define KEYS_A_LINE 42 /* on average: rarely more than there are tags */

typedef struct {
    char magic[8];
    uint32_t version, header;
    uint64_t records, removed, salt;
    uint32_t width;
    uint8_t linear, cvm, precision, delta;
    uint32_t stride, record, block, crc;
} file_header;

typedef struct {
    char magic[8];
    uint32_t version, header;
    uint64_t records, lines;
    uint32_t header_crc, trailer_crc;
    uint8_t zeros[20];
    uint32_t crc;
} index_header;

_Static_assert(sizeof(file_header) == HEADER, "a header has no gaps");
_Static_assert(sizeof(index_header) == HEADER, "a header has no gaps");

typedef struct {
    const uint8_t *records;
    const uint8_t *lines; /* NULL: none */
    uint64_t n;
    uint64_t parts;   /* of all lines */
    uint32_t record;  /* bytes of one */
    uint32_t payload; /* where it is in the record */
} layer;

typedef struct {
    void *memory;
    size_t bytes;
} mapping;

struct tn_dictionary {
    layer layers[TN_DICTIONARY_LAYERS]; /* newest first */
    uint32_t n_layers;
    uint32_t header_crc, trailer_crc;
    tn_dictionary_facts facts;
    const uint8_t *file, *index; /* NULL in a stack */
    mapping file_map, index_map; /* what is to be unmapped */
    void *made_index;            /* what is to be freed */
};

/* ---- Words -------------------------------------------------------------- */

INLINE uint32_t load32(const void *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return word;
}

INLINE uint64_t load64(const void *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* MurmurHash3's 64-bit finalizer. */
INLINE uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

/* floor(hash * n / 2^64) for n below 2^32. */
INLINE uint64_t scaled(uint64_t hash, uint64_t n) {
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)hash * n >> 64);
#else
    return ((hash >> 32) * n + ((hash & UINT32_MAX) * n >> 32)) >> 32;
#endif
}

INLINE uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

INLINE const uint8_t *record_at(const layer *in, uint64_t place) {
    return in->records + place * in->record;
}

#endif
