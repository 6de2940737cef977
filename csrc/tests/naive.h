/* naive.h - the sparse table again, as slow and plain as it can be.
 *
 * It computes float32 in the order that tnctl.h fixes, so tests compare bytes, not tolerances. Its
 * parts know nothing of shards, tags, threads or blocks. */
#ifndef NAIVE_H
#define NAIVE_H

#include <math.h>

#include "check.h"

#define MAX_TEST_SEGMENTS 4
#define MAX_TEST_GROUPS 8
#define MAX_TEST_SLOTS 12
#define BUCKETS 65536u

/* What a table and its batches are made of; the same for the real and the naive one. */
typedef struct {
    uint32_t n_segments, n_groups, n_slots;
    tn_segment segments[MAX_TEST_SEGMENTS];
    uint16_t group_numbers[MAX_TEST_GROUPS];
    char group_names[MAX_TEST_GROUPS][24];
    tn_initial initial[MAX_TEST_GROUPS][MAX_TEST_SEGMENTS];
    tn_slot slots[MAX_TEST_SLOTS];
    uint32_t strides[MAX_TEST_SEGMENTS]; /* of the outputs */
    uint64_t seed;
} test_plan;

/* The cells of a batch. */
typedef struct {
    uint32_t examples;
    uint64_t n_ids;
    uint64_t *ids;
    uint32_t *offsets;
} test_cells;

typedef struct naive_row {
    struct naive_row *next_in_bucket;
    uint64_t hash, id;
    uint16_t group, flags;
    uint32_t changed;
    float *floats;   /* state of all segments, then weights */
    float *gradient; /* of the step under way, or NULL */
    double power1[MAX_TEST_SEGMENTS], power2[MAX_TEST_SEGMENTS]; /* Adam: beta^t */
} naive_row;

typedef struct {
    const test_plan *plan;
    tn_optimizer optimizers[MAX_TEST_SEGMENTS]; /* learning rates change */
    uint32_t step;
    naive_row *buckets[BUCKETS];
    naive_row **rows; /* in the order of their insertion */
    uint64_t n_rows, room;
    naive_row **touched; /* rows that have a gradient */
    uint64_t n_touched, touched_room;
} naive_table;

/* ---- Layout ------------------------------------------------------------- */

static inline uint32_t state_floats(const tn_segment *segment) {
    return segment->optimizer.kind == TN_ADAGRAD ? 1 : 1 + 2 * segment->width;
}
static inline uint32_t state_at(const test_plan *plan, uint32_t s) {
    uint32_t at = 0;
    for (uint32_t i = 0; i < s; i++) {
        at += state_floats(&plan->segments[i]);
    }
    return at;
}
static inline uint32_t weights_at(const test_plan *plan, uint32_t s) {
    uint32_t at = state_at(plan, plan->n_segments);
    for (uint32_t i = 0; i < s; i++) {
        at += plan->segments[i].width;
    }
    return at;
}
static inline uint32_t row_floats_of(const test_plan *plan) {
    return weights_at(plan, plan->n_segments);
}
static inline uint32_t weights_of(const test_plan *plan) {
    return row_floats_of(plan) - weights_at(plan, 0);
}
static inline uint32_t record_size_of(const test_plan *plan) {
    return 16 + 4 * row_floats_of(plan);
}

static inline uint32_t place_of_group(const test_plan *plan, uint16_t number) {
    uint32_t place = 0;
    while (plan->group_numbers[place] != number) {
        place++;
    }
    return place;
}
static inline uint64_t hash_of(const test_plan *plan, uint16_t group, uint64_t id) {
    return tn_mix64(id ^ tn_group_salt(plan->group_names[place_of_group(plan, group)]));
}

/* ---- Rows --------------------------------------------------------------- */

static inline naive_table *naive_new(const test_plan *plan) {
    naive_table *naive = test_memory(sizeof *naive);
    naive->plan = plan;
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        naive->optimizers[s] = plan->segments[s].optimizer;
    }
    return naive;
}

static inline void naive_free(naive_table *naive) {
    for (uint64_t i = 0; i < naive->n_rows; i++) {
        free(naive->rows[i]->floats);
        free(naive->rows[i]->gradient);
        free(naive->rows[i]);
    }
    free(naive->rows);
    free(naive->touched);
    free(naive);
}

static inline naive_row **bucket_of(naive_table *naive, uint16_t group, uint64_t id) {
    return &naive->buckets[(tn_mix64(id + group) >> 7) % BUCKETS];
}

static inline naive_row *naive_find(naive_table *naive, uint16_t group, uint64_t id) {
    naive_row *row = *bucket_of(naive, group, id);
    while (row != NULL && (row->id != id || row->group != group)) {
        row = row->next_in_bucket;
    }
    return row;
}

static inline void push_row(naive_row ***rows, uint64_t *n, uint64_t *room, naive_row *row) {
    if (*n == *room) {
        *room = *room ? *room * 2 : 64;
        *rows = realloc(*rows, *room * sizeof **rows);
        CHECK(*rows != NULL);
    }
    (*rows)[(*n)++] = row;
}

static inline float initial_weight(const tn_initial *initial, uint64_t z) {
    if (initial->kind == TN_UNIFORM) {
        return initial->scale * ((float)(z >> 40) / 8388608.0f - 1.0f);
    }
    if (initial->kind == TN_NORMAL) {
        int32_t sum = 0;
        for (int piece = 0; piece < 4; piece++) {
            sum += 2 * (int32_t)(z >> (16 * piece) & 0xffff) - 65535;
        }
        return initial->scale * ((float)sum * (0.8660254f / 65535.0f));
    }
    return 0;
}

static inline void start_floats(const naive_table *naive, naive_row *row) {
    const test_plan *plan = naive->plan;
    uint32_t place = place_of_group(plan, row->group);
    uint64_t salt = tn_group_salt(plan->group_names[place]);
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        uint64_t seed = tn_mix64(tn_mix64(tn_mix64(plan->seed ^ salt) + s) ^ row->hash);
        float *weights = row->floats + weights_at(plan, s);
        for (uint32_t j = 0; j < plan->segments[s].width; j++) {
            uint64_t z = tn_mix64(seed + j * UINT64_C(0x9e3779b97f4a7c15));
            weights[j] = initial_weight(&plan->initial[place][s], z);
        }
        if (plan->segments[s].optimizer.kind == TN_ADAGRAD) {
            row->floats[state_at(plan, s)] = plan->segments[s].optimizer.initial_accumulator;
        }
        row->power1[s] = row->power2[s] = 1;
    }
}

static inline naive_row *naive_insert(naive_table *naive, uint16_t group, uint64_t id) {
    naive_row *row = test_memory(sizeof *row);
    row->id = id;
    row->group = group;
    row->hash = hash_of(naive->plan, group, id);
    row->changed = naive->step;
    row->floats = test_memory(row_floats_of(naive->plan) * sizeof(float));
    start_floats(naive, row);
    naive_row **bucket = bucket_of(naive, group, id);
    row->next_in_bucket = *bucket;
    *bucket = row;
    push_row(&naive->rows, &naive->n_rows, &naive->room, row);
    return row;
}

static inline void naive_insert_cells(naive_table *naive, const test_cells *cells) {
    const test_plan *plan = naive->plan;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        uint16_t group = plan->slots[c % plan->n_slots].group;
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            if (naive_find(naive, group, cells->ids[k]) == NULL) {
                naive_insert(naive, group, cells->ids[k]);
            }
        }
    }
}

/* ---- Pooling ------------------------------------------------------------ */

static inline float pool_divisor(uint16_t pooling, uint32_t n) {
    if (pooling == TN_POOL_SUM || n < 2) {
        return 1;
    }
    return pooling == TN_POOL_MEAN ? (float)n : sqrtf((float)n);
}

/* Pools coordinate j of a segment over the ids of cell c; an id without a row reads 0. */
static inline float naive_pool(naive_table *naive, const test_cells *cells, uint64_t c, uint32_t s,
                               uint32_t j) {
    const tn_slot *slot = &naive->plan->slots[c % naive->plan->n_slots];
    uint32_t n = cells->offsets[c + 1] - cells->offsets[c];
    float sum = 0;
    for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
        const naive_row *row = naive_find(naive, slot->group, cells->ids[k]);
        sum += row ? row->floats[weights_at(naive->plan, s) + j] : 0;
    }
    return sum / pool_divisor(slot->pooling, n);
}

static inline void naive_gather(naive_table *naive, const test_cells *cells, float *const *outputs,
                                int add) {
    const test_plan *plan = naive->plan;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        uint64_t example = c / plan->n_slots, slot = c % plan->n_slots;
        for (uint32_t s = 0; s < plan->n_segments; s++) {
            float *output = outputs[s] + example * plan->strides[s];
            for (uint32_t j = 0; j < plan->segments[s].width; j++) {
                float pooled = naive_pool(naive, cells, c, s, j);
                if (plan->segments[s].output == TN_CONCAT) {
                    output[plan->slots[slot].column + j] = pooled;
                } else {
                    output[j] = (slot == 0 && !add ? 0 : output[j]) + pooled;
                }
            }
        }
    }
}

/* ---- Updates ------------------------------------------------------------ */

static inline float *gradient_of(naive_table *naive, naive_row *row) {
    if (row->gradient == NULL) {
        row->gradient = test_memory(weights_of(naive->plan) * sizeof(float));
        push_row(&naive->touched, &naive->n_touched, &naive->touched_room, row);
    }
    return row->gradient;
}

static inline void naive_accumulate(naive_table *naive, const test_cells *cells,
                                    float *const *gradients) {
    const test_plan *plan = naive->plan;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        const tn_slot *slot = &plan->slots[c % plan->n_slots];
        uint32_t n = cells->offsets[c + 1] - cells->offsets[c];
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            float *sums = gradient_of(naive, naive_find(naive, slot->group, cells->ids[k]));
            for (uint32_t s = 0; s < plan->n_segments; s++) {
                const float *from = gradients[s] + c / plan->n_slots * plan->strides[s];
                from += plan->segments[s].output == TN_CONCAT ? slot->column : 0;
                for (uint32_t j = 0; j < plan->segments[s].width; j++) {
                    *sums++ += from[j] / pool_divisor(slot->pooling, n);
                }
            }
        }
    }
}

static inline void naive_adagrad(const tn_optimizer *o, float *sum_of_squares, float *w,
                                 const float *g, uint32_t width) {
    float squares = 0;
    for (uint32_t j = 0; j < width; j++) {
        squares += g[j] * g[j];
    }
    *sum_of_squares += squares / (float)width;
    for (uint32_t j = 0; j < width; j++) {
        w[j] -= o->learning_rate / (sqrtf(*sum_of_squares) + o->epsilon) * g[j];
    }
}

static inline void naive_adam(const tn_optimizer *o, double *power1, double *power2, float *state,
                              float *w, const float *g, uint32_t width) {
    uint32_t steps;
    memcpy(&steps, state, sizeof steps);
    steps++;
    memcpy(state, &steps, sizeof steps);
    *power1 *= o->beta1;
    *power2 *= o->beta2;
    float rate = (float)(o->learning_rate * (sqrt(1 - *power2) / (1 - *power1)));
    float *m = state + 1, *v = state + 1 + width;
    for (uint32_t j = 0; j < width; j++) {
        m[j] += (1 - (float)o->beta1) * (g[j] - m[j]);
        v[j] += (1 - (float)o->beta2) * (g[j] * g[j] - v[j]);
        w[j] -= rate * m[j] / (sqrtf(v[j]) + o->epsilon);
    }
}

static inline void naive_update(naive_table *naive, naive_row *row) {
    const test_plan *plan = naive->plan;
    const float *g = row->gradient;
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        float *state = row->floats + state_at(plan, s), *w = row->floats + weights_at(plan, s);
        uint32_t width = plan->segments[s].width;
        if (naive->optimizers[s].kind == TN_ADAGRAD) {
            naive_adagrad(&naive->optimizers[s], state, w, g, width);
        } else {
            naive_adam(&naive->optimizers[s], &row->power1[s], &row->power2[s], state, w, g, width);
        }
        g += width;
    }
    row->changed = naive->step;
}

/* Updates the touched rows; returns how many there were. */
static inline uint64_t naive_apply(naive_table *naive) {
    uint64_t n = naive->n_touched;
    for (uint64_t i = 0; i < n; i++) {
        naive_update(naive, naive->touched[i]);
        free(naive->touched[i]->gradient);
        naive->touched[i]->gradient = NULL;
    }
    naive->n_touched = 0;
    return n;
}

/* ---- Records ------------------------------------------------------------ */

static inline int compare_rows(const void *left, const void *right) {
    const naive_row *a = *(naive_row *const *)left, *b = *(naive_row *const *)right;
    if (a->hash != b->hash) {
        return a->hash < b->hash ? -1 : 1;
    }
    return (a->group > b->group) - (a->group < b->group);
}

/* All rows in (hash, group) order; to be freed. */
static inline naive_row **naive_sorted(const naive_table *naive) {
    naive_row **sorted = test_memory(naive->n_rows * sizeof *sorted);
    if (naive->n_rows > 0) {
        memcpy(sorted, naive->rows, naive->n_rows * sizeof *sorted);
        qsort(sorted, naive->n_rows, sizeof *sorted, compare_rows);
    }
    return sorted;
}

static inline void naive_record(const test_plan *plan, const naive_row *row, char *to) {
    memcpy(to, &row->id, 8);
    memcpy(to + 8, &row->group, 2);
    memcpy(to + 10, &row->flags, 2);
    memcpy(to + 12, &row->changed, 4);
    memcpy(to + 16, row->floats, row_floats_of(plan) * sizeof(float));
}

/* Everything that tn_encode should write for this range; to be freed. */
static inline char *naive_encode(const naive_table *naive, uint64_t first, uint64_t last,
                                 uint64_t *n) {
    uint32_t size = record_size_of(naive->plan);
    char *records = test_memory(naive->n_rows * size);
    naive_row **sorted = naive_sorted(naive);
    *n = 0;
    for (uint64_t i = 0; i < naive->n_rows; i++) {
        if (sorted[i]->hash >= first && sorted[i]->hash <= last) {
            naive_record(naive->plan, sorted[i], records + (*n)++ * size);
        }
    }
    free(sorted);
    return records;
}

#endif
