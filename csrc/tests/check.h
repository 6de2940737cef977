/* check.h - what every C test needs: a check that names its place, and random numbers. */
#ifndef CHECK_H
#define CHECK_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tnctl.h"

static atomic_ulong checks_done;

#define CHECK(condition) check_that((condition) != 0, #condition, __FILE__, __LINE__)
#define CHECK_OK(call) check_code((call), TN_OK, #call, __FILE__, __LINE__)
#define CHECK_CODE(call, code) check_code((call), (code), #call, __FILE__, __LINE__)

static inline void check_that(int holds, const char *what, const char *file, int line) {
    atomic_fetch_add(&checks_done, 1);
    if (!holds) {
        fprintf(stderr, "%s:%d: not so: %s\n", file, line, what);
        exit(1);
    }
}

static inline void check_code(int code, int wanted, const char *what, const char *file, int line) {
    atomic_fetch_add(&checks_done, 1);
    if (code != wanted) {
        fprintf(stderr, "%s:%d: %s: %s, not %s\n", file, line, what, tn_message(code),
                tn_message(wanted));
        exit(1);
    }
}

static inline int report_checks(const char *name) {
    printf("%s: %lu checks\n", name, (unsigned long)atomic_load(&checks_done));
    return 0;
}

/* Argument `place` of the command line as a number, or `otherwise` where it is absent. */
static inline uint64_t number_argument(int argc, char **argv, int place, uint64_t otherwise) {
    return argc > place ? strtoull(argv[place], NULL, 10) : otherwise;
}

/* Memory of the tests themselves; they stop without it. */
static inline void *test_memory(uint64_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    CHECK(memory != NULL);
    return memory;
}

/* SplitMix64: one word of state, so a test case is its seed. */
typedef struct {
    uint64_t state;
} random_source;

static inline uint64_t random_word(random_source *source) {
    return tn_mix64(source->state += UINT64_C(0x9e3779b97f4a7c15));
}
static inline uint32_t random_below(random_source *source, uint32_t n) {
    return (uint32_t)((random_word(source) >> 32) * n >> 32);
}
static inline float random_float(random_source *source) { /* in [-1, 1) */
    return (float)(int64_t)(random_word(source) >> 40) * 0x1p-23f - 1;
}

#endif
