/* dictionary.c - times lookups in a dictionary; benchmarks/dictionary.py builds and runs it.
 *
 *     dictionary FILE INDEX HITS MISSES PLACES ROUNDS
 *
 * HITS and MISSES are files of ids (u64), PLACES of the hits' numbers in the file (u64). Prints,
 * for each round and way, a line of its name and its lookups per second. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tn_dictionary.h"

#define BATCH 26
#define MOST_COLUMNS 1024

typedef struct {
    uint64_t *items, n;
} numbers;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void stop(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(1);
}

static numbers read_numbers(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0)
        stop(path);
    numbers read = {NULL, (uint64_t)ftell(file) / 8};
    read.items = calloc(read.n + 1, 8);
    rewind(file);
    if (read.items == NULL || fread(read.items, 8, read.n, file) != read.n)
        stop(path);
    fclose(file);
    return read;
}

static tn_dictionary *opened(const char *path, const char *index) {
    tn_dictionary *dictionary;
    int code = tn_dictionary_open(path, index, &dictionary);
    if (code != TN_DICTIONARY_OK)
        stop(tn_dictionary_message(code));
    return dictionary;
}

static float rows[BATCH * MOST_COLUMNS];
static uint8_t states[BATCH];

static uint64_t singly(const tn_dictionary *dictionary, const numbers *ids) {
    uint64_t known = 0;
    for (uint64_t i = 0; i < ids->n; i++)
        known += tn_dictionary_find(dictionary, ids->items[i], rows) == TN_DICTIONARY_KNOWN;
    return known;
}

static uint64_t in_batches(const tn_dictionary *dictionary, const numbers *ids) {
    uint64_t known = 0;
    for (uint64_t i = 0; i + BATCH <= ids->n; i += BATCH) {
        tn_dictionary_lookup(dictionary, ids->items + i, BATCH, rows, states);
        for (int k = 0; k < BATCH; k++)
            known += states[k] == TN_DICTIONARY_KNOWN;
    }
    return known;
}

/* Each id with its own dictionary, as the slots of an example are. */
static uint64_t by_slot(const tn_dictionary *dictionary, const numbers *ids) {
    const tn_dictionary *dictionaries[BATCH];
    float *each[BATCH];
    uint64_t known = 0;
    tn_dictionary_facts facts;
    tn_dictionary_about(dictionary, &facts);
    for (int k = 0; k < BATCH; k++) {
        dictionaries[k] = dictionary;
        each[k] = rows + (uint64_t)k * facts.columns;
    }
    for (uint64_t i = 0; i + BATCH <= ids->n; i += BATCH) {
        tn_dictionary_lookup_each(dictionaries, ids->items + i, BATCH, each, states);
        for (int k = 0; k < BATCH; k++)
            known += states[k] == TN_DICTIONARY_KNOWN;
    }
    return known;
}

/* What memory alone takes: the payloads of records whose places are known. */
static uint64_t known_places(const tn_dictionary *dictionary, const numbers *places) {
    for (uint64_t i = 0; i < places->n; i++)
        tn_dictionary_records(dictionary, places->items[i], 1, NULL, NULL, rows);
    return places->n;
}

typedef uint64_t way(const tn_dictionary *, const numbers *);

static void measure(const char *name, way *run, const tn_dictionary *dictionary, const numbers *ids,
                    uint64_t expected) {
    double start = now();
    uint64_t known = run(dictionary, ids);
    printf("%s\t%.0f\n", name, (double)ids->n / (now() - start));
    if (known != expected)
        stop("not the rows that were expected");
}

int main(int argc, char **argv) {
    if (argc != 7)
        stop("dictionary FILE INDEX HITS MISSES PLACES ROUNDS");
    double start = now();
    tn_dictionary *dictionary = opened(argv[1], argv[2]);
    printf("open\t%.1f\n", 1e6 * (now() - start));
    tn_dictionary *bare = opened(argv[1], NULL);
    numbers hits = read_numbers(argv[3]), misses = read_numbers(argv[4]);
    numbers places = read_numbers(argv[5]);
    uint64_t whole = hits.n / BATCH * BATCH;
    if (tn_dictionary_verify(dictionary, NULL) != TN_DICTIONARY_OK) /* and every page is warm */
        stop("the dictionary is damaged");
    for (int round = atoi(argv[6]); round > 0; round--) {
        measure("memory alone", known_places, dictionary, &places, places.n);
        measure("one by one, known", singly, dictionary, &hits, hits.n);
        measure("one by one, unknown", singly, dictionary, &misses, 0);
        measure("26 at once, known", in_batches, dictionary, &hits, whole);
        measure("26 at once, unknown", in_batches, dictionary, &misses, 0);
        measure("26 slots at once, known", by_slot, dictionary, &hits, whole);
        measure("without index, one by one", singly, bare, &hits, hits.n);
    }
    tn_dictionary_close(dictionary);
    tn_dictionary_close(bare);
    free(hits.items);
    free(misses.items);
    free(places.items);
    return 0;
}
