/* test_dictionary.c - random dictionaries, looked up record by record as well, and damaged ones.
 *
 *     test_dictionary [dictionaries] [damages of each] [first seed]
 *
 * Files are in memory of exactly their size, so that a sanitizer sees a byte too many. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"
#include "tn_dictionary.h"

#define HEADER 64
#define BLOCK (1u << 20)
#define THREADS 4

typedef struct {
    uint32_t linear, width, cvm, precision, delta, stride, columns, record;
    uint64_t salt;
} shape;

typedef struct {
    shape shape;
    uint64_t n, removed;
    uint64_t *hashes; /* one more than n */
    uint8_t *flags;
    uint8_t *file, *index;
    uint64_t bytes, index_bytes;
} dictionary_case;

/* ---- Bytes, written one after the other --------------------------------- */

static uint32_t naive_crc(const uint8_t *bytes, uint64_t n) {
    uint32_t crc = ~0u;
    for (uint64_t i = 0; i < n; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? (crc >> 1) ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

static void put(uint8_t *at, uint64_t number, int bytes) {
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(number >> 8 * i);
}

static uint64_t get(const uint8_t *at, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (uint64_t)at[i] << 8 * i;
    return number;
}

/* All checksums of a file and of its index (if any), made to fit what is in them. */
static void fit_checksums(uint8_t *file, uint64_t bytes, uint8_t *index) {
    uint64_t records = get(file + 16, 8), record = get(file + 52, 4);
    put(file + 60, naive_crc(file, 60), 4);
    if (record == 0 || records > (bytes - HEADER) / record)
        return;
    uint64_t body = records * record, blocks = (body + BLOCK - 1) / BLOCK;
    if (HEADER + 4 * blocks + 8 > bytes)
        return;
    uint8_t *sums = file + bytes - 8 - 4 * blocks; /* wherever that is, when the size is wrong */
    for (uint64_t b = 0; b < blocks && HEADER + body + 4 * blocks + 8 == bytes; b++) {
        uint64_t size = body - b * BLOCK < BLOCK ? body - b * BLOCK : BLOCK;
        put(sums + 4 * b, naive_crc(file + HEADER + b * BLOCK, size), 4);
    }
    put(file + bytes - 8, get(file + 60, 4), 4);
    put(file + bytes - 4, naive_crc(sums, 4 * blocks + 4), 4);
    if (index != NULL) {
        put(index + 32, get(file + 60, 4), 4);
        put(index + 36, get(file + bytes - 4, 4), 4);
        put(index + 60, naive_crc(index, 60), 4);
    }
}

static void write_file(dictionary_case *test, random_source *random) {
    const shape *of = &test->shape;
    uint64_t body = test->n * of->record;
    test->bytes = HEADER + body + 4 * ((body + BLOCK - 1) / BLOCK) + 8;
    test->file = test_memory(test->bytes);
    memcpy(test->file, "tnctldic", 8);
    put(test->file + 8, 1, 4);
    put(test->file + 12, HEADER, 4);
    put(test->file + 16, test->n, 8);
    put(test->file + 24, test->removed, 8);
    put(test->file + 32, of->salt, 8);
    put(test->file + 40, of->width, 4);
    test->file[44] = (uint8_t)of->linear;
    test->file[45] = (uint8_t)of->cvm;
    test->file[46] = (uint8_t)of->precision;
    test->file[47] = (uint8_t)of->delta;
    put(test->file + 48, of->stride, 4);
    put(test->file + 52, of->record, 4);
    put(test->file + 56, BLOCK, 4);
    for (uint64_t i = 0; i < test->n; i++) {
        uint8_t *at = test->file + HEADER + i * of->record;
        put(at, test->hashes[i], 8);
        if (of->delta)
            put(at + 8, test->flags[i], 4);
        for (uint32_t k = 0; k < of->stride && !test->flags[i]; k++)
            at[8 + 4 * of->delta + k] = (uint8_t)random_word(random);
    }
    fit_checksums(test->file, test->bytes, NULL);
}

static void write_index(dictionary_case *test, random_source *random) {
    test->index_bytes = tn_dictionary_index_size(test->n);
    test->index = test_memory(test->index_bytes);
    for (uint64_t first = 0; first < test->n;) {
        uint64_t n = 1 + random_word(random) % (test->n - first);
        uint64_t last_hash = first ? test->hashes[first - 1] : random_word(random);
        CHECK_OK(tn_dictionary_index_add(test->index, test->n, first, last_hash,
                                         test->hashes + first, n));
        first += n;
    }
    CHECK_OK(tn_dictionary_index_finish(
        test->index, test->n, test->n ? test->hashes[test->n - 1] : 0,
        (uint32_t)get(test->file + 60, 4), (uint32_t)get(test->file + test->bytes - 4, 4)));
}

/* As its document says: line after line, and part after part. */
static void naive_index(const dictionary_case *test, uint8_t *index) {
    uint64_t lines = test->n / 42 + 1, i = 0;
    memcpy(index, "tnctlidx", 8);
    put(index + 8, 1, 4);
    put(index + 12, HEADER, 4);
    put(index + 16, test->n, 8);
    put(index + 24, lines, 8);
    put(index + 32, get(test->file + 60, 4), 4);
    put(index + 36, get(test->file + test->bytes - 4, 4), 4);
    put(index + 60, naive_crc(index, 60), 4);
    for (uint64_t line = 0; line <= lines; line++) {
        uint8_t *at = index + HEADER + 64 * line;
        uint64_t in_line = 0;
        put(at + 60, i, 4);
        for (uint64_t part = 0; part < 8 && line < lines; part++) {
            __extension__ typedef unsigned __int128 wide;
            for (; i < test->n; i++, in_line++) {
                if ((uint64_t)((wide)test->hashes[i] * (8 * lines) >> 64) != 8 * line + part)
                    break;
                if (in_line < 52)
                    at[in_line] = (uint8_t)test->hashes[i];
            }
            at[52 + part] = (uint8_t)(in_line < 53 ? in_line : 53);
        }
    }
}

/* ---- Random dictionaries ------------------------------------------------ */

static shape random_shape(random_source *random) {
    shape of = {0};
    of.linear = random_below(random, 2);
    of.width = random_below(random, 8) == 0 ? random_below(random, 70) : random_below(random, 12);
    of.cvm = random_below(random, 2);
    of.precision = random_below(random, 3);
    of.salt = random_word(random);
    of.columns = of.linear + of.width + 2 * of.cvm;
    of.stride = 4 * (of.linear + 2 * of.cvm);
    if (of.precision == TN_DICTIONARY_FLOAT32)
        of.stride += 4 * of.width;
    if (of.precision == TN_DICTIONARY_FLOAT16)
        of.stride += (2 * of.width + 3) / 4 * 4;
    if (of.precision == TN_DICTIONARY_INT8)
        of.stride += (of.width ? 4 : 0) + (of.width + 3) / 4 * 4;
    return of;
}

static int by_value(const void *a, const void *b) {
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    return (x > y) - (x < y);
}

/* Spread evenly, or in heaps that overflow lines of the index, with tags that are mostly equal; of
 * a universe of so many hashes, unless it is 0. */
static void random_hashes(dictionary_case *test, random_source *random, uint64_t most,
                          uint64_t universe) {
    uint64_t n =
        random_below(random, 5) == 0 ? random_word(random) % 4 : random_word(random) % most;
    uint64_t heap = random_below(random, 3) == 0 ? random_word(random) : 0;
    uint64_t tags = random_below(random, 4) == 0 ? 0x3 : 0xff;
    test->hashes = test_memory(8 * (n + 1));
    for (uint64_t i = 0; i < n; i++) {
        uint64_t hash = random_word(random);
        hash = (hash & ~UINT64_C(255)) | (hash & tags);
        if (universe)
            hash = tn_mix64(hash % universe);
        test->hashes[i] = heap && random_below(random, 4) ? heap + (hash & 0xffffff) : hash;
    }
    if (n > 2 && random_below(random, 3) == 0) {
        test->hashes[0] = 0;
        test->hashes[1] = UINT64_MAX;
    }
    qsort(test->hashes, n, 8, by_value);
    for (uint64_t i = 0; i < n; i++)
        if (test->n == 0 || test->hashes[i] != test->hashes[test->n - 1])
            test->hashes[test->n++] = test->hashes[i];
}

static void make_case(dictionary_case *test, const shape *of, random_source *random, uint64_t most,
                      uint64_t universe) {
    memset(test, 0, sizeof *test);
    test->shape = *of;
    test->shape.record = 8 + 4 * of->delta + of->stride;
    random_hashes(test, random, most, universe);
    test->flags = test_memory(test->n);
    for (uint64_t i = 0; i < test->n; i++) {
        test->flags[i] = of->delta && random_below(random, 3) == 0;
        test->removed += test->flags[i];
    }
    write_file(test, random);
    write_index(test, random);
    uint8_t *index = test_memory(test->index_bytes);
    naive_index(test, index);
    CHECK(memcmp(index, test->index, test->index_bytes) == 0);
    free(index);
}

static void free_case(dictionary_case *test) {
    free(test->hashes);
    free(test->flags);
    free(test->file);
    free(test->index);
}

static tn_dictionary *opened(const dictionary_case *test, int with_index) {
    tn_dictionary *dictionary = NULL;
    CHECK(tn_dictionary_of_memory(test->file, test->bytes, with_index ? test->index : NULL,
                                  with_index ? test->index_bytes : 0,
                                  &dictionary) == TN_DICTIONARY_OK);
    return dictionary;
}

/* An id that is there, mostly, or one that may be. */
static uint64_t random_id(const dictionary_case *test, random_source *random) {
    uint64_t hash = random_word(random);
    if (test->n && random_below(random, 4))
        hash = test->hashes[random_word(random) % test->n];
    if (random_below(random, 4) == 0)
        hash += random_below(random, 3) - UINT64_C(1);
    return tn_unmix64(hash) ^ test->shape.salt;
}

/* ---- Looking up, the slow way ------------------------------------------- */

static float naive_half(uint32_t half) {
    int exponent = (int)(half >> 10 & 31);
    float fraction = (float)(half & 1023), value;
    if (exponent == 31) { /* infinite, or not a number */
        uint32_t bits = (half & 0x8000u) << 16 | 0x7f800000u | (half & 1023) << 13;
        memcpy(&value, &bits, 4);
        return value;
    }
    value = exponent ? ldexpf(1024 + fraction, exponent - 25) : ldexpf(fraction, -24);
    return half & 0x8000 ? -value : value;
}

static void naive_row(const shape *of, const uint8_t *payload, float *row) {
    float *counts = row + of->linear + of->width, scale = 0;
    memcpy(row, payload, 4 * of->linear);
    payload += 4 * of->linear;
    row += of->linear;
    if (of->precision != TN_DICTIONARY_FLOAT32) {
        memcpy(counts, payload, 8 * of->cvm);
        payload += 8 * of->cvm;
    }
    if (of->precision == TN_DICTIONARY_INT8 && of->width) {
        memcpy(&scale, payload, 4);
        payload += 4;
    }
    for (uint32_t i = 0; i < of->width; i++) {
        if (of->precision == TN_DICTIONARY_FLOAT16)
            row[i] = naive_half((uint32_t)get(payload + 2 * i, 2));
        else if (of->precision == TN_DICTIONARY_INT8)
            row[i] = scale * (float)(payload[i] < 128 ? payload[i] : payload[i] - 256);
        else
            memcpy(row + i, payload + 4 * i, 4);
    }
    if (of->precision == TN_DICTIONARY_FLOAT32)
        memcpy(counts, payload + 4 * of->width, 8 * of->cvm);
}

/* In dictionaries, newest first. */
static int naive_find(const dictionary_case *tests, uint32_t n, uint64_t id, float *row) {
    uint64_t hash = tn_mix64(id ^ tests->shape.salt);
    memset(row, 0, 4 * tests->shape.columns);
    for (uint32_t k = 0; k < n; k++) {
        const dictionary_case *test = &tests[k];
        for (uint64_t i = 0; i < test->n; i++) {
            if (test->hashes[i] != hash)
                continue;
            if (test->flags[i])
                return TN_DICTIONARY_REMOVED;
            uint32_t record = test->shape.record;
            naive_row(&test->shape, test->file + HEADER + (i + 1) * record - test->shape.stride,
                      row);
            return TN_DICTIONARY_KNOWN;
        }
    }
    return TN_DICTIONARY_UNKNOWN;
}

/* NaNs of any kind are one: what a multiplication makes of them is the processor's affair. */
static int same_rows(const float *a, const float *b, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return 0;
    return 1;
}

static void check_lookups(const tn_dictionary *dictionary, const dictionary_case *tests,
                          uint32_t n_tests, random_source *random) {
    uint32_t columns = tests->shape.columns;
    uint64_t n = random_below(random, 100);
    uint64_t *ids = test_memory(8 * n);
    float *expected = test_memory(4 * n * columns), *rows = test_memory(4 * n * columns);
    uint8_t *words = test_memory(n), *states = test_memory(n);
    const tn_dictionary **each = test_memory(n * sizeof *each);
    float **each_row = test_memory(n * sizeof *each_row);
    for (uint64_t i = 0; i < n; i++) {
        ids[i] = random_id(&tests[random_below(random, n_tests)], random);
        words[i] = (uint8_t)naive_find(tests, n_tests, ids[i], expected + i * columns);
        each[i] = dictionary;
        each_row[i] = rows + (n - 1 - i) * columns;
    }
    memset(rows, 0xa5, 4 * n * columns);
    tn_dictionary_lookup(dictionary, ids, n, rows, states);
    CHECK(memcmp(states, words, n) == 0 && same_rows(rows, expected, n * columns));
    memset(rows, 0xa5, 4 * n * columns);
    tn_dictionary_lookup_each(each, ids, n, each_row, random_below(random, 2) ? states : NULL);
    CHECK(memcmp(states, words, n) == 0);
    for (uint64_t i = 0; i < n; i++)
        CHECK(same_rows(each_row[i], expected + i * columns, columns));
    memset(rows, 0xa5, 4 * n * columns);
    for (uint64_t i = 0; i < n; i++)
        CHECK(tn_dictionary_find(dictionary, ids[i], rows + i * columns) == words[i]);
    CHECK(same_rows(rows, expected, n * columns));
    free(ids);
    free(expected);
    free(rows);
    free(words);
    free(states);
    free((void *)each);
    free(each_row);
}

static void check_records(const tn_dictionary *dictionary, const dictionary_case *test,
                          random_source *random) {
    uint64_t first = random_word(random) % (test->n + 1);
    uint64_t n = random_word(random) % (test->n - first + 1);
    const shape *of = &test->shape;
    uint64_t *hashes = test_memory(8 * n);
    uint8_t *removed = test_memory(n), *payloads = test_memory(n * of->stride);
    CHECK(tn_dictionary_records(dictionary, first, n, hashes, removed, payloads) ==
          TN_DICTIONARY_OK);
    CHECK(memcmp(hashes, test->hashes + first, 8 * n) == 0);
    CHECK(memcmp(removed, test->flags + first, n) == 0);
    for (uint64_t i = 0; i < n; i++)
        CHECK(memcmp(payloads + i * of->stride,
                     test->file + HEADER + (first + i + 1) * of->record - of->stride,
                     of->stride) == 0);
    CHECK(tn_dictionary_records(dictionary, first, test->n - first + 1, NULL, NULL, NULL) ==
          TN_DICTIONARY_BAD_VALUE);
    CHECK(tn_dictionary_records(dictionary, test->n + 1, 0, NULL, NULL, NULL) ==
          TN_DICTIONARY_BAD_VALUE);
    free(hashes);
    free(removed);
    free(payloads);
}

static void check_facts(const tn_dictionary *dictionary, const dictionary_case *test) {
    tn_dictionary_facts facts;
    const shape *of = &test->shape;
    tn_dictionary_about(dictionary, &facts);
    CHECK(facts.records == test->n && facts.removed == test->removed && facts.salt == of->salt);
    CHECK(facts.columns == of->columns && facts.linear == of->linear && facts.width == of->width);
    CHECK(facts.cvm == of->cvm && facts.precision == of->precision && facts.delta == of->delta);
    CHECK(facts.stride == of->stride);
}

static void check_case(const dictionary_case *test, random_source *random) {
    tn_dictionary *dictionary = opened(test, 1), *bare = opened(test, 0);
    check_facts(dictionary, test);
    check_records(dictionary, test, random);
    check_lookups(dictionary, test, 1, random);
    check_lookups(bare, test, 1, random);
    CHECK(tn_dictionary_verify(dictionary, NULL) == TN_DICTIONARY_OK);
    CHECK(tn_dictionary_verify(bare, NULL) == TN_DICTIONARY_OK);
    CHECK(tn_dictionary_make_index(bare) == TN_DICTIONARY_OK);
    CHECK(tn_dictionary_verify(bare, NULL) == TN_DICTIONARY_OK);
    check_lookups(bare, test, 1, random);
    tn_dictionary_close(dictionary);
    tn_dictionary_close(bare);
}

/* ---- Stacks ------------------------------------------------------------- */

static void test_stack(random_source *random, uint64_t most) {
    dictionary_case tests[TN_DICTIONARY_LAYERS];
    tn_dictionary *layers[TN_DICTIONARY_LAYERS + 1], *stack = NULL;
    const tn_dictionary *const *given = (const tn_dictionary *const *)layers;
    uint32_t n = 1 + random_below(random, TN_DICTIONARY_LAYERS);
    shape of = random_shape(random);
    for (uint32_t k = 0; k < n; k++) {
        of.delta = k + 1 < n;
        make_case(&tests[k], &of, random, most, 2 * most);
        layers[k] = opened(&tests[k], (int)random_below(random, 4));
    }
    CHECK(tn_dictionary_stack(given, n, &stack) == TN_DICTIONARY_OK);
    check_lookups(stack, tests, n, random);
    check_lookups(stack, tests, n, random);
    CHECK(tn_dictionary_verify(stack, NULL) == TN_DICTIONARY_BAD_VALUE);
    CHECK(tn_dictionary_make_index(stack) == TN_DICTIONARY_BAD_VALUE);
    CHECK(tn_dictionary_records(stack, 0, 0, NULL, NULL, NULL) == TN_DICTIONARY_BAD_VALUE);
    const tn_dictionary *of_stack[] = {stack};
    tn_dictionary *other = NULL;
    CHECK(tn_dictionary_stack(of_stack, 1, &other) == TN_DICTIONARY_BAD_STACK);
    CHECK(tn_dictionary_stack(given, 0, &other) == TN_DICTIONARY_BAD_STACK);
    CHECK(tn_dictionary_stack(given, TN_DICTIONARY_LAYERS + 1, &other) == TN_DICTIONARY_BAD_STACK);
    if (n > 1) { /* the full one is not the last */
        tn_dictionary *full = layers[n - 1];
        layers[n - 1] = layers[0];
        layers[0] = full;
        CHECK(tn_dictionary_stack(given, n, &other) == TN_DICTIONARY_BAD_STACK);
    }
    CHECK(other == NULL);
    tn_dictionary_close(stack);
    for (uint32_t k = 0; k < n; k++) {
        tn_dictionary_close(layers[k]);
        free_case(&tests[k]);
    }
}

/* ---- Damage ------------------------------------------------------------- */

/* Whatever it is that was opened, nothing outside of it is read. */
static void use(tn_dictionary *dictionary, const dictionary_case *test, random_source *random) {
    tn_dictionary_facts facts;
    tn_dictionary_about(dictionary, &facts);
    uint64_t ids[40], hash;
    const tn_dictionary *single_layer[] = {dictionary};
    tn_dictionary *stack = NULL;
    uint8_t states[40];
    float *rows = test_memory(4 * 40 * facts.columns);
    CHECK(tn_dictionary_stack(single_layer, 1, &stack) == TN_DICTIONARY_OK);
    for (int i = 0; i < 40; i++) {
        ids[i] = random_id(test, random);
        if (facts.records && random_below(random, 2)) {
            CHECK(tn_dictionary_records(dictionary, random_word(random) % facts.records, 1, &hash,
                                        NULL, rows) == TN_DICTIONARY_OK);
            ids[i] = tn_unmix64(hash) ^ facts.salt;
        }
        CHECK((unsigned)tn_dictionary_find(dictionary, ids[i], rows) <= TN_DICTIONARY_REMOVED);
    }
    tn_dictionary_lookup(dictionary, ids, 40, rows, states);
    tn_dictionary_lookup(stack, ids, 40, rows, NULL);
    tn_dictionary_close(stack);
    free(rows);
}

static uint8_t *copy_of(const uint8_t *bytes, uint64_t n, uint64_t size) {
    uint8_t *copy = test_memory(size);
    memcpy(copy, bytes, n < size ? n : size);
    return copy;
}

static void flip(uint8_t *bytes, uint64_t n, random_source *random) {
    if (n == 0)
        return;
    uint64_t at = random_below(random, 3) ? random_word(random) % n : random_word(random) % 64 % n;
    if (random_below(random, 2))
        bytes[at] ^= (uint8_t)(1u << random_below(random, 8));
    else
        bytes[at] = "\0\1\x7f\xff"[random_below(random, 4)];
}

static uint64_t other_size(uint64_t n, random_source *random) {
    switch (random_below(random, 8)) {
    case 0:
        return random_word(random) % (n + 1);
    case 1:
        return n + 1 + random_below(random, 70);
    default:
        return n;
    }
}

static void test_damage(const dictionary_case *test, random_source *random) {
    uint64_t bytes = other_size(test->bytes, random);
    uint64_t index_bytes = other_size(test->index_bytes, random);
    uint8_t *file = copy_of(test->file, test->bytes, bytes);
    uint8_t *index = copy_of(test->index, test->index_bytes, index_bytes);
    for (uint32_t k = random_below(random, 4); k > 0; k--)
        flip(file, bytes, random);
    for (uint32_t k = random_below(random, 4); k > 0; k--)
        flip(index, index_bytes, random);
    if (index_bytes > HEADER && random_below(random, 8) == 0)
        for (uint64_t k = HEADER; k < index_bytes; k++)
            index[k] = (uint8_t)random_word(random);
    int same = bytes == test->bytes && memcmp(file, test->file, bytes) == 0;
    int same_index =
        index_bytes == test->index_bytes && memcmp(index, test->index, index_bytes) == 0;
    int fitted = bytes > HEADER && index_bytes >= HEADER && random_below(random, 4);
    if (fitted)
        fit_checksums(file, bytes, index);
    int with_index = random_below(random, 4) > 0;
    tn_dictionary *dictionary = NULL;
    int code = tn_dictionary_of_memory(file, bytes, with_index ? index : NULL,
                                       with_index ? index_bytes : 0, &dictionary);
    CHECK((code == TN_DICTIONARY_OK) == (dictionary != NULL));
    if (same && (same_index || !with_index))
        CHECK(code == TN_DICTIONARY_OK);
    if (dictionary != NULL) {
        use(dictionary, test, random);
        uint64_t place = UINT64_MAX;
        int right = tn_dictionary_verify(dictionary, &place) == TN_DICTIONARY_OK;
        CHECK(right || place < bytes);
        if (same && (same_index || !with_index))
            CHECK(right);
        if (!fitted && !same)
            CHECK(!right);
        if (same && with_index && !same_index && memcmp(index, test->index, index_bytes) != 0)
            CHECK(!right);
        if (!with_index && tn_dictionary_make_index(dictionary) == TN_DICTIONARY_OK)
            use(dictionary, test, random);
        tn_dictionary_close(dictionary);
    }
    free(file);
    free(index);
}

/* Each byte of a dictionary and of its index, changed. */
static void test_every_byte(dictionary_case *test) {
    for (uint64_t at = 0; at < test->bytes + test->index_bytes; at++) {
        uint8_t *byte = at < test->bytes ? test->file + at : test->index + (at - test->bytes);
        tn_dictionary *dictionary = NULL;
        *byte ^= (uint8_t)(1u << at % 8);
        int code = tn_dictionary_of_memory(test->file, test->bytes, test->index, test->index_bytes,
                                           &dictionary);
        CHECK(at >= HEADER || code != TN_DICTIONARY_OK);
        CHECK(code != TN_DICTIONARY_OK ||
              tn_dictionary_verify(dictionary, NULL) != TN_DICTIONARY_OK);
        tn_dictionary_close(dictionary);
        *byte ^= (uint8_t)(1u << at % 8);
    }
}

/* What checksums do not tell: an order that is none, and a count that is not true. */
static void test_made_to_fit(random_source *random) {
    dictionary_case test;
    shape of = random_shape(random);
    of.delta = 1;
    do {
        make_case(&test, &of, random, 100, 0);
        if (test.n < 2)
            free_case(&test);
    } while (test.n < 2);
    uint32_t record = test.shape.record;
    uint8_t *first = test.file + HEADER, *second = first + record;
    uint64_t place;
    for (int equal = 0; equal < 2; equal++) {
        put(first, test.hashes[equal ? 0 : 1], 8);
        put(second, test.hashes[0], 8);
        fit_checksums(test.file, test.bytes, test.index);
        tn_dictionary *dictionary = opened(&test, 0);
        CHECK(tn_dictionary_verify(dictionary, &place) == TN_DICTIONARY_DAMAGED);
        CHECK(place == HEADER + record);
        CHECK(tn_dictionary_make_index(dictionary) == TN_DICTIONARY_DAMAGED);
        tn_dictionary_close(dictionary);
    }
    put(first, test.hashes[0], 8);
    put(second, test.hashes[1], 8);
    put(test.file + 24, test.removed ? test.removed - 1 : 1, 8);
    fit_checksums(test.file, test.bytes, test.index);
    tn_dictionary *dictionary = opened(&test, 1);
    CHECK(tn_dictionary_verify(dictionary, NULL) == TN_DICTIONARY_DAMAGED);
    tn_dictionary_close(dictionary);
    put(test.file + 24, test.removed, 8);
    if (test.shape.stride) { /* the first one removed, with something in its payload */
        put(test.file + 24, test.removed + !test.flags[0], 8);
        put(first + 8, 1, 4);
        first[record - 1] = 7;
        fit_checksums(test.file, test.bytes, test.index);
        dictionary = opened(&test, 1);
        CHECK(tn_dictionary_verify(dictionary, &place) == TN_DICTIONARY_DAMAGED);
        CHECK(place == HEADER);
        tn_dictionary_close(dictionary);
    }
    put(test.file + 8, 2, 4);
    fit_checksums(test.file, test.bytes, test.index);
    CHECK(tn_dictionary_of_memory(test.file, test.bytes, NULL, 0, &dictionary) ==
          TN_DICTIONARY_VERSION);
    CHECK(tn_dictionary_of_memory("tnctl", 5, NULL, 0, &dictionary) == TN_DICTIONARY_NOT_ONE);
    CHECK(tn_dictionary_of_memory(NULL, 0, NULL, 0, &dictionary) == TN_DICTIONARY_NOT_ONE);
    uint64_t wrong[] = {3, 3};
    CHECK(tn_dictionary_index_add(test.index, test.n, 0, 0, wrong, 2) == TN_DICTIONARY_BAD_ORDER);
    CHECK(tn_dictionary_index_add(test.index, test.n, 1, 4, wrong, 1) == TN_DICTIONARY_BAD_ORDER);
    CHECK(tn_dictionary_index_add(test.index, test.n, test.n, 0, wrong, 1) ==
          TN_DICTIONARY_BAD_VALUE);
    free_case(&test);
}

/* A dictionary without records, whose index says that there are some; and a width whose payload is
 * too long for 32 bits. */
static void test_nothing(void) {
    dictionary_case test = {.n = 0};
    random_source random = {1};
    test.shape = (shape){.width = 40, .stride = 160, .columns = 40, .record = 168};
    write_file(&test, &random);
    write_index(&test, &random);
    uint64_t hash = get(test.file + HEADER, 8); /* where the first record would be */
    memset(test.index + HEADER, (int)(hash & 255), 64);
    float row[40];
    tn_dictionary *dictionary = opened(&test, 1);
    for (uint64_t part = 0; part < 8; part++) {
        for (uint64_t other = 0; other < 8; other++)
            test.index[HEADER + 52 + other] = other < part ? 0 : 16;
        CHECK(tn_dictionary_find(dictionary, tn_unmix64(hash), row) == TN_DICTIONARY_UNKNOWN);
    }
    tn_dictionary_close(dictionary);
    put(test.file + 40, 1u << 30, 4);
    put(test.file + 48, 0, 4);
    put(test.file + 52, 8, 4);
    fit_checksums(test.file, test.bytes, NULL);
    CHECK(tn_dictionary_of_memory(test.file, test.bytes, NULL, 0, &dictionary) ==
          TN_DICTIONARY_DAMAGED);
    free(test.file);
    free(test.index);
}

/* An index goes with one dictionary alone, however alike another one is. */
static void test_foreign_index(random_source *random) {
    dictionary_case test;
    shape of = random_shape(random);
    of.width++;
    of.precision = TN_DICTIONARY_FLOAT32;
    of.columns = of.linear + of.width + 2 * of.cvm;
    of.stride = 4 * of.columns;
    do {
        make_case(&test, &of, random, 300, 0);
        if (test.n == 0)
            free_case(&test);
    } while (test.n == 0);
    test.file[HEADER + test.shape.record - 1] ^= 1;
    fit_checksums(test.file, test.bytes, NULL);
    tn_dictionary *dictionary;
    CHECK(tn_dictionary_of_memory(test.file, test.bytes, test.index, test.index_bytes,
                                  &dictionary) == TN_DICTIONARY_BAD_INDEX);
    free_case(&test);
}

/* ---- Files -------------------------------------------------------------- */

static void write_to(const char *path, const uint8_t *bytes, uint64_t n) {
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL);
    CHECK(fwrite(bytes, 1, n, file) == n);
    CHECK(fclose(file) == 0);
}

static void test_files(random_source *random) {
    char folder[] = "test_dictionary_XXXXXX", path[64], index[64], none[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/rows.dictionary", folder);
    snprintf(index, sizeof index, "%s/rows.index", folder);
    snprintf(none, sizeof none, "%s/none", folder);
    dictionary_case test;
    shape of = random_shape(random);
    make_case(&test, &of, random, 3000, 0);
    write_to(path, test.file, test.bytes);
    write_to(index, test.index, test.index_bytes);
    tn_dictionary *dictionary = NULL;
    CHECK(tn_dictionary_open(path, index, &dictionary) == TN_DICTIONARY_OK);
    check_lookups(dictionary, &test, 1, random);
    CHECK(tn_dictionary_verify(dictionary, NULL) == TN_DICTIONARY_OK);
    tn_dictionary_close(dictionary);
    CHECK(tn_dictionary_open(path, NULL, &dictionary) == TN_DICTIONARY_OK);
    check_lookups(dictionary, &test, 1, random);
    tn_dictionary_close(dictionary);
    CHECK(tn_dictionary_open(none, index, &dictionary) == TN_DICTIONARY_NO_FILE);
    CHECK(errno == ENOENT);
    CHECK(tn_dictionary_open(folder, NULL, &dictionary) == TN_DICTIONARY_NO_FILE);
    CHECK(errno == EISDIR);
    CHECK(tn_dictionary_open(path, none, &dictionary) == TN_DICTIONARY_NO_INDEX);
    CHECK(tn_dictionary_open(path, path, &dictionary) == TN_DICTIONARY_BAD_INDEX);
    CHECK(tn_dictionary_open(index, NULL, &dictionary) == TN_DICTIONARY_NOT_ONE);
    write_to(none, test.file, 0);
    CHECK(tn_dictionary_open(none, NULL, &dictionary) == TN_DICTIONARY_NOT_ONE);
    CHECK(tn_dictionary_open(path, none, &dictionary) == TN_DICTIONARY_BAD_INDEX);
    CHECK(unlink(path) == 0 && unlink(index) == 0 && unlink(none) == 0 && rmdir(folder) == 0);
    free_case(&test);
}

/* ---- Threads ------------------------------------------------------------ */

typedef struct {
    const tn_dictionary *dictionary;
    const dictionary_case *test;
    random_source random;
} reader;

static void *read_much(void *argument) {
    reader *thread = argument;
    for (int k = 0; k < 50; k++)
        check_lookups(thread->dictionary, thread->test, 1, &thread->random);
    CHECK(tn_dictionary_verify(thread->dictionary, NULL) == TN_DICTIONARY_OK);
    return NULL;
}

static void test_readers(random_source *random) {
    dictionary_case test;
    shape of = random_shape(random);
    make_case(&test, &of, random, 500, 0);
    tn_dictionary *dictionary = opened(&test, 1);
    pthread_t threads[THREADS];
    reader readers[THREADS];
    for (int k = 0; k < THREADS; k++) {
        readers[k] = (reader){dictionary, &test, {random_word(random)}};
        CHECK(pthread_create(&threads[k], NULL, read_much, &readers[k]) == 0);
    }
    for (int k = 0; k < THREADS; k++)
        CHECK(pthread_join(threads[k], NULL) == 0);
    tn_dictionary_close(dictionary);
    free_case(&test);
}

/* Every half there is. */
static void test_halves(void) {
    for (uint32_t half = 0; half < 65536; half++) {
        dictionary_case test = {.n = 1};
        uint64_t hash = 5;
        uint8_t flag = 0;
        float row[1], expected = naive_half(half);
        random_source random = {half};
        test.shape = (shape){.width = 1, .precision = 1, .stride = 4, .columns = 1, .record = 12};
        test.hashes = &hash;
        test.flags = &flag;
        write_file(&test, &random);
        put(test.file + HEADER + 8, half, 4);
        fit_checksums(test.file, test.bytes, NULL);
        tn_dictionary *dictionary = opened(&test, 0);
        CHECK(tn_dictionary_find(dictionary, tn_unmix64(5), row) == TN_DICTIONARY_KNOWN);
        CHECK(memcmp(row, &expected, 4) == 0);
        tn_dictionary_close(dictionary);
        free(test.file);
    }
}

int main(int argc, char **argv) {
    uint64_t dictionaries = number_argument(argc, argv, 1, 100);
    uint64_t damages = number_argument(argc, argv, 2, 30);
    uint64_t seed = number_argument(argc, argv, 3, 1);
    CHECK(tn_dictionary_abi() == TN_DICTIONARY_ABI);
    for (int code = 1; code > -12; code--)
        CHECK(strlen(tn_dictionary_message(code)) > 0);
    test_halves();
    test_nothing();
    for (uint64_t k = 0; k < dictionaries; k++) {
        random_source random = {seed + k};
        uint64_t most = k % 8 == 0 ? 3000 : 200;
        shape of = random_shape(&random);
        of.delta = random_below(&random, 2);
        dictionary_case test;
        make_case(&test, &of, &random, most, 0);
        check_case(&test, &random);
        for (uint64_t d = 0; d < damages; d++)
            test_damage(&test, &random);
        if (k % 16 == 1)
            test_every_byte(&test);
        free_case(&test);
        test_stack(&random, most);
        test_made_to_fit(&random);
        test_foreign_index(&random);
    }
    random_source random = {seed};
    test_files(&random);
    test_readers(&random);
    return report_checks("test_dictionary");
}
