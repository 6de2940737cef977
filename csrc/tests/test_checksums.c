/* test_checksums.c - CRC-32C bit by bit as well, and damaged TFRecord files.
 *
 *     test_checksums [files] [first seed]
 *
 * Buffers are of exactly the size of what is in them, so that a sanitizer sees a byte too many. */
#include "check.h"

#define MOST_RECORDS 8
#define MOST_BYTES 40

static uint32_t naive_crc(const unsigned char *bytes, uint64_t n) {
    uint32_t crc = ~0u;
    for (uint64_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static void put_masked(unsigned char *out, const unsigned char *bytes, uint64_t n) {
    uint32_t crc = naive_crc(bytes, n), masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    memcpy(out, &masked, 4);
}

static int naive_agrees(const unsigned char *bytes, uint64_t n) {
    unsigned char masked[4];
    put_masked(masked, bytes, n);
    return memcmp(masked, bytes + n, 4) == 0;
}

static void test_crc(random_source *random) {
    uint64_t n = random_word(random) % 100, cut = n ? random_word(random) % n : 0;
    unsigned char *bytes = test_memory(n);
    for (uint64_t i = 0; i < n; i++)
        bytes[i] = (unsigned char)random_word(random);
    CHECK(tn_crc32c(bytes, n, 0) == naive_crc(bytes, n));
    CHECK(tn_crc32c(bytes + cut, n - cut, tn_crc32c(bytes, cut, 0)) == naive_crc(bytes, n));
    free(bytes);
}

/* Some records with a few bytes changed, and the end cut off now and then. */
static unsigned char *damaged_file(random_source *random, uint64_t *size) {
    unsigned char file[MOST_RECORDS * (MOST_BYTES + 16)];
    uint64_t n = 0, records = random_word(random) % (MOST_RECORDS + 1);
    for (uint64_t r = 0; r < records; r++) {
        uint64_t length = random_word(random) % MOST_BYTES;
        memcpy(file + n, &length, 8);
        put_masked(file + n + 8, file + n, 8);
        for (uint64_t i = 0; i < length; i++)
            file[n + 12 + i] = (unsigned char)random_word(random);
        put_masked(file + n + 12 + length, file + n + 12, length);
        n += length + 16;
    }
    for (uint64_t k = random_word(random) % 3; n && k; k--)
        file[random_word(random) % n] ^= (unsigned char)(1u << random_word(random) % 8);
    if (n && random_word(random) % 2)
        n -= random_word(random) % n;
    unsigned char *copy = test_memory(n);
    memcpy(copy, file, n);
    *size = n;
    return copy;
}

static void test_walk(random_source *random) {
    uint64_t size, capacity = random_word(random) % (MOST_RECORDS + 2);
    unsigned char *file = damaged_file(random, &size);
    uint64_t *starts = test_memory(capacity * 8), *lengths = test_memory(capacity * 8);
    uint8_t *whole = test_memory(capacity);
    uint64_t n_records, consumed, at = 0;
    int code =
        tn_tfrecord_walk(file, size, capacity, starts, lengths, whole, &n_records, &consumed);
    for (uint64_t r = 0; r < n_records; r++) {
        uint64_t length;
        memcpy(&length, file + at, 8);
        CHECK(naive_agrees(file + at, 8));
        CHECK(starts[r] == at + 12 && lengths[r] == length);
        CHECK(whole[r] == naive_agrees(file + at + 12, length));
        at += length + 16;
    }
    CHECK(consumed == at && at <= size && n_records <= capacity);
    if (code == TN_BAD_VALUE) {
        CHECK(size - at >= 12 && !naive_agrees(file + at, 8));
    } else if (code == TN_TOO_LONG) {
        uint64_t length;
        CHECK(size - at >= 12 && naive_agrees(file + at, 8));
        memcpy(&length, file + at, 8);
        CHECK(length > TN_TFRECORD_LIMIT);
    } else {
        CHECK_CODE(code, TN_OK);
        uint64_t length = 0;
        if (size - at >= 12)
            memcpy(&length, file + at, 8);
        CHECK(n_records == capacity || size - at < 12 || size - at < length + 16);
    }
    free(file);
    free(starts);
    free(lengths);
    free(whole);
}

/* A length that agrees with its checksum and is beyond the limit. */
static void test_limit(void) {
    uint64_t lengths[] = {TN_TFRECORD_LIMIT, TN_TFRECORD_LIMIT + 1, UINT64_MAX, UINT64_MAX - 15};
    for (int k = 0; k < 4; k++) {
        unsigned char *file = test_memory(12);
        uint64_t start, length, n_records, consumed;
        uint8_t whole;
        memcpy(file, &lengths[k], 8);
        put_masked(file + 8, file, 8);
        CHECK_CODE(tn_tfrecord_walk(file, 12, 1, &start, &length, &whole, &n_records, &consumed),
                   k == 0 ? TN_OK : TN_TOO_LONG);
        CHECK(n_records == 0 && consumed == 0);
        free(file);
    }
}

int main(int argc, char **argv) {
    uint64_t files = number_argument(argc, argv, 1, 2000);
    uint64_t seed = number_argument(argc, argv, 2, 1);
    test_limit();
    for (uint64_t k = 0; k < files; k++) {
        random_source random = {seed + k};
        test_crc(&random);
        test_walk(&random);
    }
    return report_checks("test_checksums");
}
