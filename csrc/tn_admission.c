/* tn_admission.c - a sketch counts the occurrences of ids that have no row yet.
 *
 * Count-min with conservative update (Cormode & Muthukrishnan 2005; Estan & Varghese 2002). A key
 * has one counter in each of its shard's lines, and shares it with whichever keys fall on it too:
 *
 *     line 0   [ 0 | 3 | 0 | 0 | 1 | 0 ]       the key's counters are 3, 2, 2 and 7
 *     line 1   [ 2 | 0 | 0 | 0 | 4 | 0 ]       its count is the least of them, 2
 *     line 2   [ 0 | 0 | 2 | 0 | 0 | 0 ]       one occurrence more makes them 3, 3, 3 and 7
 *     line 3   [ 7 | 0 | 0 | 0 | 0 | 1 ]
 *
 * A counter is never below the occurrences of any of its keys, so the least is never too low; it is
 * too high only if the key shares a counter in all four lines. Raising only the counters at the
 * least keeps both true and the others lower. An occurrence beyond 255 always makes a row: bytes
 * are enough.
 *
 * Shards share no lines, and each has one owner, which processes its ids in the order of the batch:
 * so the counters are the same bytes for any number of threads, and need no atomics. */
#include "tn_admission.h"

#include <math.h>

#define LINES 4u
#define STRIDE UINT64_C(0x9e3779b97f4a7c15)

/* ---- The sketch --------------------------------------------------------- */

/* tn_table_set_sketch under the table's lock. A table gets its sketch once: other sizes would
 * put the counters of an id in other places. The width is rounded down, so no more than `bytes`
 * are used. */
static int set_sketch(tn_table *table, uint64_t bytes) {
    uint64_t width = bytes / (LINES * SHARDS);
    if (table->sketch != NULL || (bytes > 0 && width == 0) || width > UINT32_MAX) {
        return TN_BAD_VALUE;
    }
    if (bytes == 0) {
        return TN_OK;
    }
    uint8_t *sketch = tn_large_alloc(width * LINES * SHARDS);
    if (sketch == NULL) {
        return TN_NO_MEMORY;
    }
    table->sketch = sketch;
    table->sketch_width = width;
    table->sketch_bytes = width * LINES * SHARDS;
    return TN_OK;
}

int tn_table_set_sketch(tn_table *table, uint64_t bytes) {
    pthread_mutex_lock(&table->lock);
    int code = set_sketch(table, bytes);
    pthread_mutex_unlock(&table->lock);
    return code;
}

uint8_t *tn_table_sketch(tn_table *table, uint64_t *bytes) {
    pthread_mutex_lock(&table->lock);
    *bytes = table->sketch_bytes;
    uint8_t *sketch = table->sketch;
    pthread_mutex_unlock(&table->lock);
    return sketch;
}

/* Where a key's counters are: each line takes another 32 bits of hash. */
static void find_counters(const tn_table *table, uint64_t hash, uint8_t **counters) {
    uint8_t *line = table->sketch + shard_of(hash) * LINES * table->sketch_width;
    uint64_t bits = hash;
    for (uint32_t i = 0; i < LINES; i++) {
        bits = i % 2 == 0 ? mix64(bits + STRIDE) : bits << 32 | bits >> 32;
        counters[i] = line + ((bits & UINT32_MAX) * table->sketch_width >> 32);
        line += table->sketch_width;
    }
}

void tn_admission_prefetch(const tn_table *table, uint64_t hash) {
    uint8_t *counters[LINES];
    find_counters(table, hash, counters);
    for (uint32_t i = 0; i < LINES; i++) {
        TN_PREFETCH_WRITE(counters[i]);
    }
}

static uint32_t least_of(uint8_t *const *counters) {
    uint32_t count = UINT8_MAX;
    for (uint32_t i = 0; i < LINES; i++) {
        count = *counters[i] < count ? *counters[i] : count;
    }
    return count;
}

/* The number of this occurrence, or more; beyond UINT8_MAX once the counters are full. */
static uint32_t count_occurrence(tn_table *table, uint64_t hash) {
    uint8_t *counters[LINES];
    find_counters(table, hash, counters);
    uint32_t count = least_of(counters);
    for (uint32_t i = 0; i < LINES && count < UINT8_MAX; i++) {
        if (*counters[i] == count) {
            ++*counters[i];
        }
    }
    return count + 1;
}

/* ---- The rules ---------------------------------------------------------- */

int tn_admission_of(const tn_table *table, const tn_life *life, tn_admission *out) {
    double chance = life->admit_probability;
    if (life->admit_after < 1 || life->admit_after > UINT8_MAX || !(chance > 0 && chance <= 1) ||
        (life->admit_after > 1 && chance < 1)) {
        return TN_BAD_VALUE;
    }
    tn_admission admission = {.counts = life->admit_after > 1 || chance < 1,
                              .after = life->admit_after,
                              .chance = chance < 1 ? (uint64_t)ceil(chance * 0x1p64) : 0};
    if (admission.counts && table->sketch == NULL) {
        return TN_BAD_VALUE;
    }
    *out = admission;
    return TN_OK;
}

static uint64_t draw(const tn_table *table, uint64_t hash, uint32_t occurrence) {
    return mix64(mix64(mix64(table->seed ^ UINT64_C(0x61646d6974)) ^ hash) + occurrence * STRIDE);
}

static int makes_row(const tn_table *table, const tn_admission *rule, uint64_t hash,
                     uint32_t occurrence) {
    if (occurrence > UINT8_MAX) {
        return 1;
    }
    return rule->chance > 0 ? draw(table, hash, occurrence) < rule->chance
                            : occurrence >= rule->after;
}

/* Whether a key waited until this occurrence, which makes its row: it does not when it is its
 * first, or when an earlier one made a row before, which was evicted since. */
static int waited(const tn_table *table, const tn_admission *rule, uint64_t hash,
                  uint32_t occurrence) {
    for (uint32_t earlier = 1; earlier < occurrence; earlier++) {
        if (makes_row(table, rule, hash, earlier)) {
            return 0;
        }
    }
    return occurrence > 1;
}

/* Whether one of the occurrences counted so far made a row of a key, which was evicted since. */
static int was_admitted(const tn_table *table, const tn_admission *rule, uint64_t hash) {
    uint8_t *counters[LINES];
    find_counters(table, hash, counters);
    uint32_t count = least_of(counters);
    for (uint32_t occurrence = 1; occurrence <= count; occurrence++) {
        if (makes_row(table, rule, hash, occurrence)) {
            return 1;
        }
    }
    return 0;
}

int tn_admit(tn_table *table, uint16_t group, uint64_t hash) {
    tn_group *counted = &table->groups[group];
    if (!counted->admission.counts) {
        return 1;
    }
    if (!table->counting) {
        return was_admitted(table, &counted->admission, hash);
    }
    uint32_t occurrence = count_occurrence(table, hash);
    int admitted = makes_row(table, &counted->admission, hash, occurrence);
    int64_t change =
        admitted ? -waited(table, &counted->admission, hash, occurrence) : occurrence == 1;
    if (change != 0) {
        atomic_fetch_add_explicit(&counted->waiting, change, memory_order_relaxed);
    }
    return admitted;
}
