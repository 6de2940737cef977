/* tn_dictionary_index.h - what making an index and checking a file share. The functions that make
 * an index are in tn_dictionary.h. */
#ifndef TN_DICTIONARY_INDEX_H
#define TN_DICTIONARY_INDEX_H

#include "tn_dictionary_format.h"

/* Of CRC-32 as zlib and PNG have it. Filling them takes 5 microseconds: each caller has its own, so
 * nothing is shared between threads and nothing has to be initialized. */
typedef struct {
    uint32_t of[8][256];
} tn_dictionary_crc_tables;

void tn_dictionary_fill_tables(tn_dictionary_crc_tables *tables);
uint32_t tn_dictionary_crc32(const tn_dictionary_crc_tables *tables, const uint8_t *at, uint64_t n);

/* Lines of the index of so many records, without the last one, in which the last records end. */
INLINE uint64_t lines_of(uint64_t records) {
    return records / KEYS_A_LINE + 1;
}

extern const char TN_DICTIONARY_INDEX_MAGIC[8];

#endif
