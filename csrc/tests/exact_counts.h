/* exact_counts.h - admission, beside the naive table: exact counts in the place of a sketch. */
#ifndef EXACT_COUNTS_H
#define EXACT_COUNTS_H

#include "cases.h"

#define SKETCH_BYTES (1u << 24) /* the ids of a case do not meet in all four lines */
#define NOWHERE UINT64_C(0x5e5e5e5e00000001)

typedef struct exact_count {
    struct exact_count *next;
    uint64_t hash; /* two groups of one name count together */
    uint32_t count;
} exact_count;

typedef struct {
    exact_count *buckets[BUCKETS];
} exact_counts;

/* The rules, as the header has them. */
static inline int makes_row(const test_plan *plan, const tn_life *life, uint64_t hash, uint32_t n) {
    if (n > 255) {
        return 1;
    }
    if (life->admit_probability == 1) {
        return n >= life->admit_after;
    }
    uint64_t start = tn_mix64(tn_mix64(plan->seed ^ UINT64_C(0x61646d6974)) ^ hash);
    uint64_t draw = tn_mix64(start + n * UINT64_C(0x9e3779b97f4a7c15));
    return (double)draw < life->admit_probability * 0x1p64;
}

static inline int counts_ids(const tn_life *life) {
    return life->admit_after > 1 || life->admit_probability < 1;
}

static inline exact_count *count_of(exact_counts *counts, uint64_t hash) {
    exact_count **at = &counts->buckets[(hash >> 20) % BUCKETS];
    while (*at != NULL && (*at)->hash != hash) {
        at = &(*at)->next;
    }
    if (*at == NULL) {
        *at = test_memory(sizeof **at);
        (*at)->hash = hash;
    }
    return *at;
}

/* Whether this occurrence finds a row, or makes one. */
static inline int has_row(naive_table *naive, exact_counts *counts, uint16_t group, uint64_t id) {
    if (naive_find(naive, group, id) != NULL) {
        return 1;
    }
    const tn_life *life = &naive->plan->lives[place_of_group(naive->plan, group)];
    uint64_t hash = hash_of(naive->plan, group, id);
    if (counts_ids(life) && !makes_row(naive->plan, life, hash, ++count_of(counts, hash)->count)) {
        return 0;
    }
    naive_insert(naive, group, id);
    return 1;
}

/* Inserts what a batch inserts. For the naive table an occurrence without a row is one of an id
 * that has none. */
static inline void admit_cells(naive_table *naive, exact_counts *counts, test_cells *cells) {
    const test_plan *plan = naive->plan;
    naive->inserting = 1;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        uint16_t group = plan->slots[c % plan->n_slots].group;
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            cells->ids[k] = has_row(naive, counts, group, cells->ids[k]) ? cells->ids[k] : NOWHERE;
        }
    }
}

static inline void free_counts(exact_counts *counts) {
    for (uint32_t b = 0; b < BUCKETS; b++) {
        for (exact_count *count = counts->buckets[b], *next; count != NULL; count = next) {
            next = count->next;
            free(count);
        }
    }
}

/* Gives the groups of a plan rules of admission. */
static inline void plan_admission(test_plan *plan, random_source *random) {
    for (uint32_t g = 0; g < plan->n_groups; g++) {
        uint32_t kind = random_below(random, 3);
        plan->lives[g].admit_after = kind == 1 ? 2 + random_below(random, 3) : 1;
        plan->lives[g].admit_probability = kind == 2 ? 0.4 : 1;
    }
}

#endif
