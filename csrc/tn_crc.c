/* tn_crc.c - CRC-32C, eight bytes at a time by eight tables, and the framing of TFRecord files. */
#include <pthread.h>
#include <string.h>

#include "tnctl.h"

/* Castagnoli's polynomial, its bits reversed. */
#define POLYNOMIAL 0x82f63b78u

static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void fill_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (POLYNOMIAL & (0u - (crc & 1)));
        tables[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 255];
}

uint32_t tn_crc32c(const void *bytes, uint64_t n, uint32_t crc) {
    pthread_once(&tables_once, fill_tables);
    const unsigned char *at = bytes;
    crc = ~crc;
    for (; n >= 8; n -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        word ^= crc;
        crc = tables[7][word & 255] ^ tables[6][word >> 8 & 255] ^ tables[5][word >> 16 & 255] ^
              tables[4][word >> 24 & 255] ^ tables[3][word >> 32 & 255] ^
              tables[2][word >> 40 & 255] ^ tables[1][word >> 48 & 255] ^ tables[0][word >> 56];
    }
    for (; n; n--, at++)
        crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 255];
    return ~crc;
}

/* Whether the four bytes at `stored` are the masked checksum of the bytes at `at`. */
static int agrees(const unsigned char *at, uint64_t n, const unsigned char *stored) {
    uint32_t crc = tn_crc32c(at, n, 0), masked;
    memcpy(&masked, stored, 4);
    return masked == ((crc >> 15 | crc << 17) + 0xa282ead8u);
}

int tn_tfrecord_walk(const void *data, uint64_t bytes, uint64_t capacity, uint64_t *starts,
                     uint64_t *lengths, uint8_t *whole, uint64_t *records, uint64_t *consumed) {
    const unsigned char *at = data;
    uint64_t left = bytes, n = 0;
    int code = TN_OK;
    while (n < capacity && left >= 12) {
        uint64_t length;
        memcpy(&length, at, 8);
        if (!agrees(at, 8, at + 8)) {
            code = TN_BAD_VALUE;
            break;
        }
        if (length > TN_TFRECORD_LIMIT) {
            code = TN_TOO_LONG;
            break;
        }
        if (left - 12 < length + 4)
            break;
        starts[n] = bytes - left + 12;
        lengths[n] = length;
        whole[n++] = (uint8_t)agrees(at + 12, length, at + 12 + length);
        at += length + 16;
        left -= length + 16;
    }
    *records = n;
    *consumed = bytes - left;
    return code;
}
