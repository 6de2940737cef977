/* tn_dictionary_index.c - making the index of a dictionary, and CRC-32.
 *
 * Records come in the order of their hashes, so lines are filled one after the other. A line notes
 * the number of its first record when the first hash at or beyond its range comes; then each of its
 * records appends its tag and moves the ends of its part and of the parts after it:
 *
 *     hashes of the line      part 0: a b   part 2: c           PARTS 8
 *     tags                    a b c . . .
 *     ends                    2 2 3 3 3 3 3 3                   part p has tags ends[p-1] ..
 * ends[p]
 *
 * A line of more records than tags says so by ends of TAGS + 1: a lookup then searches the records
 * of the line. */
#include "tn_dictionary_index.h"

const char TN_DICTIONARY_INDEX_MAGIC[8] = {'t', 'n', 'c', 't', 'l', 'i', 'd', 'x'};

/* ---- Checksums ---------------------------------------------------------- */

void tn_dictionary_fill_tables(tn_dictionary_crc_tables *tables) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
        tables->of[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = tables->of[k - 1][byte];
            tables->of[k][byte] = (crc >> 8) ^ tables->of[0][crc & 255];
        }
    }
}

uint32_t tn_dictionary_crc32(const tn_dictionary_crc_tables *tables, const uint8_t *at,
                             uint64_t n) {
    const uint32_t(*of)[256] = tables->of;
    uint32_t crc = ~0u;
    for (; n >= 8; n -= 8, at += 8) {
        uint64_t word = load64(at) ^ crc;
        crc = of[7][word & 255] ^ of[6][word >> 8 & 255] ^ of[5][word >> 16 & 255] ^
              of[4][word >> 24 & 255] ^ of[3][word >> 32 & 255] ^ of[2][word >> 40 & 255] ^
              of[1][word >> 48 & 255] ^ of[0][word >> 56];
    }
    for (; n; n--, at++)
        crc = (crc >> 8) ^ of[0][(crc ^ *at) & 255];
    return ~crc;
}

/* ---- The index ----------------------------------------------------------- */

/* One line more, in which the last one's records end. */
uint64_t tn_dictionary_index_size(uint64_t records) {
    return HEADER + LINE * (lines_of(records) + 1);
}

int tn_dictionary_index_add(void *index, uint64_t records, uint64_t first, uint64_t last_hash,
                            const uint64_t *hashes, uint64_t n) {
    if (records > MOST_RECORDS || first > records || n > records - first)
        return TN_DICTIONARY_BAD_VALUE;
    uint8_t *lines = (uint8_t *)index + HEADER;
    uint64_t parts = lines_of(records) * PARTS;
    uint64_t next = first ? scaled(last_hash, parts) / PARTS + 1 : 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t hash = hashes[i], part = scaled(hash, parts);
        uint32_t rank = (uint32_t)(first + i);
        if (rank > 0 && hash <= last_hash)
            return TN_DICTIONARY_BAD_ORDER;
        for (; next <= part / PARTS; next++)
            memcpy(lines + next * LINE + LINE_RANK, &rank, 4);
        uint8_t *line = lines + part / PARTS * LINE;
        uint32_t tag = rank - load32(line + LINE_RANK);
        if (tag < TAGS)
            line[tag] = (uint8_t)hash;
        for (uint64_t q = part % PARTS; q < PARTS; q++)
            line[LINE_ENDS + q] = (uint8_t)(tag < TAGS ? tag + 1 : TAGS + 1);
        last_hash = hash;
    }
    return TN_DICTIONARY_OK;
}

int tn_dictionary_index_finish(void *index, uint64_t records, uint64_t last, uint32_t header_crc,
                               uint32_t trailer_crc) {
    if (records > MOST_RECORDS)
        return TN_DICTIONARY_BAD_VALUE;
    uint8_t *lines = (uint8_t *)index + HEADER;
    uint32_t rank = (uint32_t)records;
    uint64_t n = lines_of(records);
    for (uint64_t next = records ? scaled(last, n * PARTS) / PARTS + 1 : 0; next <= n; next++)
        memcpy(lines + next * LINE + LINE_RANK, &rank, 4);
    index_header header = {.version = VERSION,
                           .header = HEADER,
                           .records = records,
                           .lines = n,
                           .header_crc = header_crc,
                           .trailer_crc = trailer_crc};
    tn_dictionary_crc_tables tables;
    tn_dictionary_fill_tables(&tables);
    memcpy(header.magic, TN_DICTIONARY_INDEX_MAGIC, sizeof TN_DICTIONARY_INDEX_MAGIC);
    memcpy(index, &header, HEADER);
    header.crc = tn_dictionary_crc32(&tables, index, HEADER - 4);
    memcpy(index, &header, HEADER);
    return TN_DICTIONARY_OK;
}
