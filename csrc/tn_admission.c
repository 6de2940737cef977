/* tn_admission.c - a sketch counts the occurrences of ids that have no row yet.
 *
 * Count-min with conservative update (Cormode & Muthukrishnan 2005; Estan & Varghese 2002): a key
 * has one counter in each of its shard's lines, its count is the least of them, and an occurrence
 * raises only those that stand at the least. Shards are fixed ranges of the hash, each with one
 * thread that walks its ids in the order of the batch, so the counters are the same bytes for any
 * number of threads. */
#include "tn_admission.h"

#include <math.h>

#include "tn_table.h"

#define LINES 4u
#define STRIDE UINT64_C(0x9e3779b97f4a7c15)

/* ---- The sketch --------------------------------------------------------- */

static uint64_t sketch_bytes(const tn_table *table) {
    return table->sketch_width * LINES * SHARDS;
}

void tn_sketch_free(tn_table *table) {
    tn_large_free(table->sketch, sketch_bytes(table));
    table->sketch = NULL;
    table->sketch_width = 0;
}

static int set_sketch(tn_table *table, uint64_t bytes) {
    uint64_t width = bytes / (LINES * SHARDS);
    if (table->sketch != NULL || (bytes > 0 && width == 0) || width > UINT32_MAX) {
        return TN_BAD_VALUE;
    }
    if (bytes == 0) {
        return TN_OK;
    }
    table->sketch = tn_large_alloc(width * LINES * SHARDS);
    if (table->sketch == NULL) {
        return TN_NO_MEMORY;
    }
    table->sketch_width = width;
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
    *bytes = sketch_bytes(table);
    uint8_t *sketch = table->sketch;
    pthread_mutex_unlock(&table->lock);
    return sketch;
}

/* Where a key's counters are: each line has 32 bits of hash of its own. */
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

/* The number of this occurrence, or more; beyond UINT8_MAX once the counters are full. */
static uint32_t count_occurrence(tn_table *table, uint64_t hash) {
    uint8_t *counters[LINES];
    find_counters(table, hash, counters);
    uint32_t count = UINT8_MAX;
    for (uint32_t i = 0; i < LINES; i++) {
        count = *counters[i] < count ? *counters[i] : count;
    }
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

int tn_admit(tn_table *table, uint16_t group, uint64_t hash) {
    tn_group *of = &table->groups[group];
    if (!of->admission.counts) {
        return 1;
    }
    uint32_t occurrence = count_occurrence(table, hash);
    int admitted = makes_row(table, &of->admission, hash, occurrence);
    int64_t change = admitted ? -waited(table, &of->admission, hash, occurrence) : occurrence == 1;
    if (change != 0) {
        atomic_fetch_add_explicit(&of->waiting, change, memory_order_relaxed);
    }
    return admitted;
}
