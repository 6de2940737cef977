/* naive.h - the sparse table again, as slow and plain as it can be.
 *
 * It computes float32 in the order that tnctl.h fixes, so tests compare bytes, not tolerances. Its
 * parts know nothing of shards, tags, threads or blocks. */
#ifndef NAIVE_H
#define NAIVE_H

#include <math.h>

#include "check.h"
#include "tn_optimizer.h" /* tn_beta */

#define MAX_TEST_SEGMENTS 4
#define MAX_TEST_GROUPS 8
#define MAX_TEST_SLOTS 12
#define MAX_TEST_MATRICES (2 * MAX_TEST_SEGMENTS) /* one a segment, then those set apart */
#define MAX_TEST_DAYS 64
#define BUCKETS 65536u

/* What a table and its batches are made of; the same for the real and the naive one. */
typedef struct {
    uint32_t n_segments, n_groups, n_slots;
    tn_segment segments[MAX_TEST_SEGMENTS];
    uint16_t group_numbers[MAX_TEST_GROUPS];
    char group_names[MAX_TEST_GROUPS][24];
    tn_initial initial[MAX_TEST_GROUPS][MAX_TEST_SEGMENTS];
    tn_slot slots[MAX_TEST_SLOTS];
    uint32_t strides[MAX_TEST_MATRICES];
    uint64_t seed;
    int all; /* every row is updated */
    int shows, cvm;
    tn_life lives[MAX_TEST_GROUPS];
} test_plan;

/* The cells of a batch. */
typedef struct {
    uint32_t examples;
    uint64_t n_ids;
    uint64_t *ids;
    uint32_t *offsets;
    float *weights; /* or NULL */
} test_cells;

typedef struct naive_row {
    struct naive_row *next_in_bucket;
    uint64_t hash, id;
    uint16_t group, flags;
    uint32_t changed;
    float *floats;   /* state of all segments, then weights, then show and click */
    float counts[2]; /* of the step under way */
    float *gradient; /* of the step under way, or NULL */
    double power1[MAX_TEST_SEGMENTS], power2[MAX_TEST_SEGMENTS]; /* Adam: beta^t */
} naive_row;

typedef struct {
    const test_plan *plan;
    tn_optimizer optimizers[MAX_TEST_SEGMENTS]; /* learning rates change */
    uint32_t last_start[MAX_TEST_SEGMENTS];     /* the steps that rows last started at, and */
    double start1[MAX_TEST_SEGMENTS], start2[MAX_TEST_SEGMENTS]; /* the powers there */
    uint32_t step;
    int inserting; /* the last find */
    naive_row *buckets[BUCKETS];
    naive_row **rows; /* in the order of their insertion */
    uint64_t n_rows, room;
    naive_row **touched; /* rows that have a gradient */
    uint64_t n_touched, touched_room;
    uint32_t days[MAX_TEST_DAYS], first_steps[MAX_TEST_DAYS], n_days;
    naive_row **removed; /* in the order of their removal; `changed` is the step of it */
    uint64_t n_removed, removed_room;
    uint64_t evicted[MAX_TEST_GROUPS];
} naive_table;

/* ---- Layout ------------------------------------------------------------- */

static inline uint32_t state_floats(const tn_segment *segment) {
    switch (segment->optimizer.kind) {
    case TN_ADAGRAD:
    case TN_TENSORNET_ADAGRAD:
        return 1;
    case TN_ADAM:
        return 1 + 2 * segment->width;
    case TN_SGD:
        return segment->optimizer.momentum > 0 ? segment->width : 0;
    case TN_ADAGRAD_COORDINATE:
        return segment->width;
    default:
        return 2 * segment->width;
    }
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
    return weights_at(plan, plan->n_segments) + (plan->shows ? 2 : 0);
}
static inline uint32_t weights_of(const test_plan *plan) {
    return weights_at(plan, plan->n_segments) - weights_at(plan, 0);
}
/* What is read of a segment: its weights, and cvm's columns. */
static inline uint32_t read_width(const test_plan *plan, uint32_t s) {
    int cvm = plan->cvm && plan->segments[s].output == TN_CONCAT;
    return plan->segments[s].width + (cvm ? 2 : 0);
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
    for (uint64_t i = 0; i < naive->n_removed; i++) {
        free(naive->removed[i]);
    }
    free(naive->rows);
    free(naive->touched);
    free(naive->removed);
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

/* Adam's powers after that many steps; they take long, and most rows start where others did. */
static inline void start_powers(naive_table *naive, naive_row *row, uint32_t s, uint32_t steps) {
    const tn_optimizer *o = &naive->plan->segments[s].optimizer;
    if (naive->start1[s] == 0 || naive->last_start[s] != steps) {
        naive->last_start[s] = steps;
        naive->start1[s] = naive->start2[s] = 1;
        for (; steps > 0 && naive->start1[s] + naive->start2[s] > 1e-20; steps--) {
            naive->start1[s] *= tn_beta(o->beta1);
            naive->start2[s] *= tn_beta(o->beta2);
        }
    }
    row->power1[s] = naive->start1[s];
    row->power2[s] = naive->start2[s];
}

static inline void start_state(naive_table *naive, naive_row *row, uint32_t s) {
    const tn_segment *segment = &naive->plan->segments[s];
    const tn_optimizer *o = &segment->optimizer;
    float *state = row->floats + state_at(naive->plan, s);
    uint32_t steps = naive->plan->all && naive->step > 0 ? naive->step - 1 : 0;
    if (o->kind == TN_ADAM) {
        memcpy(state, &steps, sizeof steps);
        start_powers(naive, row, s, steps);
    } else if (o->kind == TN_ADAGRAD || o->kind == TN_TENSORNET_ADAGRAD) {
        state[0] = o->initial_accumulator;
    } else if (o->kind == TN_ADAGRAD_COORDINATE || o->kind == TN_FTRL) {
        for (uint32_t j = 0; j < segment->width; j++) {
            state[j] = o->initial_accumulator;
        }
    }
}

static inline void start_floats(naive_table *naive, naive_row *row) {
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
        start_state(naive, row, s);
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
    naive->inserting = 1;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        uint16_t group = plan->slots[c % plan->n_slots].group;
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            if (naive_find(naive, group, cells->ids[k]) == NULL) {
                naive_insert(naive, group, cells->ids[k]);
            }
        }
    }
}

/* ---- Decay -------------------------------------------------------------- */

/* What a step leaves of a weight: of the learning rate that the table was made with. */
static inline double naive_keep(const test_plan *plan, uint32_t s, const naive_row *row) {
    const tn_optimizer *o = &plan->segments[s].optimizer;
    if (o->lazy_l2 > 0) {
        double root = (double)(sqrtf(row->floats[state_at(plan, s)]) + o->epsilon);
        double left = 1 - (double)o->learning_rate * (double)o->lazy_l2 / root;
        return left > 0 ? left : 0;
    }
    return 1 - (double)o->learning_rate * (double)o->decay;
}

static inline float naive_kept(const test_plan *plan, uint32_t s, const naive_row *row,
                               uint32_t step) {
    double square = naive_keep(plan, s, row), power = 1;
    uint32_t steps = square < 1 && row->changed < step ? step - row->changed : 0;
    for (uint32_t n = steps; n > 0; n /= 2) {
        if (n % 2 == 1) {
            power *= square;
        }
        square *= square;
    }
    return (float)power;
}

/* Coordinate j of a segment, read at a step. */
static inline float naive_weight(const test_plan *plan, const naive_row *row, uint32_t s,
                                 uint32_t j, uint32_t step) {
    return row->floats[weights_at(plan, s) + j] * naive_kept(plan, s, row, step);
}

/* ---- Show and click ----------------------------------------------------- */

static inline uint32_t naive_day(const naive_table *naive, uint32_t step) {
    uint32_t day = naive->n_days > 0 ? naive->days[0] : 0;
    for (uint32_t i = 0; i < naive->n_days; i++) {
        if (naive->first_steps[i] <= step) {
            day = naive->days[i];
        }
    }
    return day;
}
static inline uint32_t naive_today(const naive_table *naive) {
    return naive->n_days > 0 ? naive->days[naive->n_days - 1] : 0;
}
static inline const tn_life *life_of(const naive_table *naive, const naive_row *row) {
    return &naive->plan->lives[place_of_group(naive->plan, row->group)];
}

/* What is left on a day. */
static inline float naive_shows_kept(const naive_table *naive, const naive_row *row, uint32_t day) {
    uint32_t then = naive_day(naive, row->changed);
    uint32_t days = then < day ? day - then : 0;
    double square = life_of(naive, row)->show_decay, power = 1;
    for (; days > 0; days /= 2) {
        if (days % 2 == 1) {
            power *= square;
        }
        square *= square;
    }
    return (float)power;
}

/* Show (0) or click (1) as they read. */
static inline float naive_show(const naive_table *naive, const naive_row *row, uint32_t which) {
    const float *shows = row->floats + weights_at(naive->plan, naive->plan->n_segments);
    return shows[which] * naive_shows_kept(naive, row, naive_today(naive));
}

static inline void naive_count(naive_table *naive, const test_cells *cells, const float *clicks) {
    const test_plan *plan = naive->plan;
    for (uint64_t i = 0; i < naive->n_rows; i++) {
        naive->rows[i]->counts[0] = naive->rows[i]->counts[1] = 0;
    }
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            uint16_t group = plan->slots[c % plan->n_slots].group;
            naive_row *row = naive_find(naive, group, cells->ids[k]);
            row->counts[0] += 1;
            row->counts[1] += clicks[c / plan->n_slots];
        }
    }
}

/* Before `changed` is set. */
static inline void naive_add_counts(const naive_table *naive, naive_row *row) {
    if (naive->plan->shows) {
        float *shows = row->floats + weights_at(naive->plan, naive->plan->n_segments);
        float kept = naive_shows_kept(naive, row, naive_day(naive, naive->step));
        for (int i = 0; i < 2; i++) {
            shows[i] = shows[i] * kept + row->counts[i];
            row->counts[i] = 0;
        }
    }
}

/* ---- Reading ------------------------------------------------------------ */

/* Coordinate j of what is read of a segment, the weights as at a step. */
static inline float naive_read(const naive_table *naive, const naive_row *row, uint32_t s,
                               uint32_t j, uint32_t step) {
    const test_plan *plan = naive->plan;
    if (j < plan->segments[s].width) {
        return naive_weight(plan, row, s, j, step);
    }
    float show = naive_show(naive, row, 0), click = naive_show(naive, row, 1), columns[2], unit = 1;
    tn_cvm_columns(&show, &click, &unit, 1, columns);
    return columns[j - plan->segments[s].width];
}

/* The step whose weights a step under way reads, or a reader. */
static inline uint32_t naive_read_step(const naive_table *naive) {
    return naive->step - (naive->inserting && naive->step > 0);
}

/* ---- Pooling ------------------------------------------------------------ */

static inline const tn_slot *slot_of(const test_plan *plan, uint64_t c) {
    return &plan->slots[c % plan->n_slots];
}

static inline float weight_of(const test_cells *cells, uint32_t k) {
    return cells->weights ? cells->weights[k] : 1;
}

/* What cell c is divided by, or 0 when it is nothing. */
static inline float divisor_of(const test_plan *plan, const test_cells *cells, uint64_t c) {
    uint16_t pooling = slot_of(plan, c)->pooling;
    if (pooling == TN_POOL_SUM) {
        return 1;
    }
    float sum = 0;
    for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
        float weight = weight_of(cells, k);
        sum += pooling == TN_POOL_MEAN ? weight : weight * weight;
    }
    if (!(sum > 0)) {
        return 0;
    }
    return pooling == TN_POOL_MEAN ? sum : sqrtf(sum);
}

/* Which matrix of a segment has the values of cell c, and at which column. */
static inline uint32_t matrix_of(const test_plan *plan, uint64_t c, uint32_t s) {
    int apart = plan->segments[s].output == TN_CONCAT && slot_of(plan, c)->apart;
    return s + (apart ? MAX_TEST_SEGMENTS : 0);
}
static inline uint64_t place_of(const test_plan *plan, uint64_t c, uint32_t s) {
    uint32_t column = plan->segments[s].output == TN_CONCAT ? slot_of(plan, c)->column : 0;
    return c / plan->n_slots * plan->strides[matrix_of(plan, c, s)] + column;
}

/* Pools coordinate j of a segment over the ids of cell c; an id without a row reads 0. */
static inline float naive_pool(naive_table *naive, const test_cells *cells, uint64_t c, uint32_t s,
                               uint32_t j) {
    const test_plan *plan = naive->plan;
    float sum = 0, by = divisor_of(plan, cells, c);
    for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
        const naive_row *row = naive_find(naive, slot_of(plan, c)->group, cells->ids[k]);
        float weight = row ? naive_read(naive, row, s, j, naive_read_step(naive)) : 0;
        /* One id keeps its sign: decay makes -0. */
        int alone = cells->weights == NULL && cells->offsets[c + 1] - cells->offsets[c] == 1;
        sum = alone ? weight : sum + weight_of(cells, k) * weight;
    }
    return by > 0 ? sum / by : 0;
}

static inline void naive_gather(naive_table *naive, const test_cells *cells, float *const *outputs,
                                int add) {
    const test_plan *plan = naive->plan;
    for (uint64_t c = 0; c < (uint64_t)cells->examples * plan->n_slots; c++) {
        for (uint32_t s = 0; s < plan->n_segments; s++) {
            float *output = outputs[matrix_of(plan, c, s)] + place_of(plan, c, s);
            for (uint32_t j = 0; j < read_width(plan, s); j++) {
                float pooled = naive_pool(naive, cells, c, s, j);
                if (plan->segments[s].output == TN_CONCAT) {
                    output[j] = pooled;
                } else {
                    output[j] = (c % plan->n_slots == 0 && !add ? 0 : output[j]) + pooled;
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
        uint16_t group = slot_of(plan, c)->group;
        float by = divisor_of(plan, cells, c);
        for (uint32_t k = cells->offsets[c]; k < cells->offsets[c + 1]; k++) {
            naive_row *row = naive_find(naive, group, cells->ids[k]);
            if (row == NULL) { /* not admitted yet */
                continue;
            }
            float *sums = gradient_of(naive, row);
            for (uint32_t s = 0; s < plan->n_segments; s++) {
                const float *from = gradients[matrix_of(plan, c, s)] + place_of(plan, c, s);
                for (uint32_t j = 0; j < plan->segments[s].width; j++) {
                    *sums++ += by > 0 ? from[j] * weight_of(cells, k) / by : 0;
                }
            }
        }
    }
}

static inline int naive_is_ftrl(const tn_optimizer *o) {
    return o->kind == TN_FTRL || o->kind == TN_TENSORNET_FTRL;
}

/* One accumulator a row; TensorNet sums the squares in double and divides in another order. */
static inline void naive_adagrad(const tn_optimizer *o, float *sum_of_squares, float *w,
                                 const float *g, uint32_t width) {
    float squares = 0;
    double wide_squares = 0;
    for (uint32_t j = 0; j < width; j++) {
        squares += g[j] * g[j];
        wide_squares += (double)(g[j] * g[j]);
    }
    int tensornet = o->kind == TN_TENSORNET_ADAGRAD;
    *sum_of_squares = tensornet ? (float)((double)*sum_of_squares + wide_squares / width)
                                : *sum_of_squares + squares / (float)width;
    float root = sqrtf(*sum_of_squares) + o->epsilon;
    for (uint32_t j = 0; j < width; j++) {
        w[j] -= tensornet ? o->learning_rate * g[j] / root : o->learning_rate / root * g[j];
    }
}

static inline float naive_adam_rate(const tn_optimizer *o, double *power1, double *power2,
                                    float *state) {
    uint32_t steps;
    memcpy(&steps, state, sizeof steps);
    steps += steps < UINT32_MAX;
    memcpy(state, &steps, sizeof steps);
    *power1 *= tn_beta(o->beta1);
    *power2 *= tn_beta(o->beta2);
    return (float)(o->learning_rate * (sqrt(1 - *power2) / (1 - *power1)));
}

static inline void naive_adam(const tn_optimizer *o, float rate, float *m, float *v, float *w,
                              float g) {
    *m += (float)(1 - o->beta1) * (g - *m);
    *v += (float)(1 - o->beta2) * (g * g - *v);
    *w -= rate * *m / (sqrtf(*v) + o->epsilon);
}

static inline void naive_sgd(const tn_optimizer *o, float *m, float *w, float g) {
    if (o->momentum == 0) {
        *w -= o->learning_rate * g;
        return;
    }
    *m = o->momentum * *m + g;
    *w -= o->learning_rate * (o->nesterov ? g + o->momentum * *m : *m);
}

static inline void naive_ftrl(const tn_optimizer *o, float *n, float *z, float *w, float g) {
    if (o->learning_rate == 0) {
        return;
    }
    float slope = o->kind == TN_FTRL ? 1 / o->learning_rate : o->learning_rate;
    float old_root = sqrtf(*n), new_root = sqrtf(*n + g * g), roots = new_root + old_root;
    *n += g * g;
    *z += g - (roots > 0 ? g * g / roots : 0) * slope * *w;
    float over = fabsf(*z) - o->l1, sign = *z > 0 ? -1 : 1;
    *w = over > 0 ? sign * over / ((o->beta + new_root) * slope + o->l2) : 0;
}

static inline void naive_rule(const tn_optimizer *o, naive_row *row, uint32_t s, float *state,
                              float *w, const float *g, uint32_t width) {
    float rate = 0;
    if (o->kind == TN_ADAGRAD || o->kind == TN_TENSORNET_ADAGRAD) {
        naive_adagrad(o, state, w, g, width);
        return;
    }
    if (o->kind == TN_ADAM) {
        rate = naive_adam_rate(o, &row->power1[s], &row->power2[s], state++);
    } else if (o->kind == TN_TENSORNET_ADAM) {
        rate = o->learning_rate;
    }
    for (uint32_t j = 0; j < width; j++) {
        if (rate > 0 || o->kind == TN_ADAM || o->kind == TN_TENSORNET_ADAM) {
            naive_adam(o, rate, state + j, state + width + j, w + j, g[j]);
        } else if (naive_is_ftrl(o)) {
            naive_ftrl(o, state + j, state + width + j, w + j, g[j]);
        } else if (o->kind == TN_SGD) {
            naive_sgd(o, o->momentum > 0 ? state + j : NULL, w + j, g[j]);
        } else {
            state[j] += g[j] * g[j];
            w[j] -= o->learning_rate * g[j] / (sqrtf(state[j]) + o->epsilon);
        }
    }
}

/* The gradient of one coordinate as the rule takes it, at scale 1. */
static inline float naive_final(const tn_optimizer *o, float g, float w) {
    if (o->clip > 0) {
        g = g > o->clip ? o->clip : g < -o->clip ? -o->clip : g;
    }
    return o->l2 > 0 && !naive_is_ftrl(o) ? g + o->l2 * w : g;
}

static inline void naive_hold(const tn_optimizer *o, float *w, uint32_t width) {
    float squares = 0;
    for (uint32_t j = 0; j < width; j++) {
        if (o->bound > 0) {
            w[j] = w[j] > o->bound ? o->bound : w[j] < -o->bound ? -o->bound : w[j];
        }
        squares += w[j] * w[j];
    }
    for (uint32_t j = 0; o->max_norm > 0 && sqrtf(squares) > o->max_norm && j < width; j++) {
        w[j] *= o->max_norm / sqrtf(squares);
    }
}

static inline void naive_update(naive_table *naive, naive_row *row, float scale) {
    const test_plan *plan = naive->plan;
    const float *sums = row->gradient;
    uint32_t last = naive->step - (naive->step > 0);
    naive_add_counts(naive, row);
    for (uint32_t s = 0; s < plan->n_segments; s++) {
        const tn_optimizer *o = &naive->optimizers[s];
        float *state = row->floats + state_at(plan, s), *w = row->floats + weights_at(plan, s);
        float g[64];
        for (uint32_t j = 0; j < plan->segments[s].width; j++) {
            w[j] = naive_weight(plan, row, s, j, last);
            g[j] = naive_final(o, *sums++, w[j]) * scale;
            if (plan->all || row->changed < naive->step) {
                w[j] *= (float)naive_keep(plan, s, row);
            }
        }
        naive_rule(o, row, s, state, w, g, plan->segments[s].width);
        naive_hold(o, w, plan->segments[s].width);
    }
    row->changed = naive->step;
}

/* Where all rows train, those outside the batch have the gradient 0. Returns the batch's. */
static inline uint64_t naive_gradients(naive_table *naive) {
    uint64_t n = naive->n_touched;
    for (uint64_t i = 0; naive->plan->all && i < naive->n_rows; i++) {
        gradient_of(naive, naive->rows[i]);
    }
    return n;
}

/* The sum of squares over all rows that have a gradient. In long double: half a million squares of
 * the same clipped gradient round to the same side, which 1e-11 of a double does not forgive. */
static inline double naive_norm(const naive_table *naive) {
    const test_plan *plan = naive->plan;
    long double squares = 0;
    for (uint64_t i = 0; i < naive->n_touched; i++) {
        const naive_row *row = naive->touched[i];
        const float *sums = row->gradient;
        for (uint32_t s = 0; s < plan->n_segments; s++) {
            for (uint32_t j = 0; j < plan->segments[s].width; j++) {
                float w = naive_weight(plan, row, s, j, naive->step - (naive->step > 0));
                long double g = (long double)naive_final(&naive->optimizers[s], *sums++, w);
                squares += g * g;
            }
        }
    }
    return (double)squares;
}

/* Updates the rows that have a gradient. */
static inline void naive_apply(naive_table *naive, float scale) {
    for (uint64_t i = 0; i < naive->n_touched; i++) {
        naive_update(naive, naive->touched[i], scale);
        free(naive->touched[i]->gradient);
        naive->touched[i]->gradient = NULL;
    }
    naive->n_touched = 0;
}

/* ---- Removal ------------------------------------------------------------ */

static inline double naive_score(const naive_table *naive, const naive_row *row) {
    const tn_life *life = life_of(naive, row);
    double show = (double)naive_show(naive, row, 0), click = (double)naive_show(naive, row, 1);
    return (show - click) * life->nonclick + click * life->click;
}

static inline int naive_is_named(const naive_table *naive, const naive_row *row) {
    const tn_life *life = life_of(naive, row);
    uint32_t steps = naive->step > row->changed ? naive->step - row->changed : 0;
    uint32_t days = naive_today(naive) - naive_day(naive, row->changed);
    int unseen = (life->unseen_steps && steps > life->unseen_steps) ||
                 (life->unseen_days && days > life->unseen_days);
    int below = life->show > 0 && (double)naive_show(naive, row, 0) < life->show;
    if (life->score > 0 && naive_score(naive, row) < life->score) {
        return 1;
    }
    return life->both ? below && unseen : below || unseen;
}

static inline void naive_remove(naive_table *naive, naive_row *row) {
    naive_row **link = bucket_of(naive, row->group, row->id);
    while (*link != row) {
        link = &(*link)->next_in_bucket;
    }
    *link = row->next_in_bucket;
    uint64_t place = 0;
    while (naive->rows[place] != row) {
        place++;
    }
    naive->rows[place] = naive->rows[--naive->n_rows];
    free(row->floats);
    row->floats = NULL;
    row->changed = naive->step;
    push_row(&naive->removed, &naive->n_removed, &naive->removed_room, row);
    naive->evicted[place_of_group(naive->plan, row->group)]++;
}

static inline uint64_t naive_evict(naive_table *naive) {
    uint64_t rows_before = naive->n_rows;
    for (uint64_t i = naive->n_rows; i-- > 0;) {
        if (naive_is_named(naive, naive->rows[i])) {
            naive_remove(naive, naive->rows[i]);
        }
    }
    return rows_before - naive->n_rows;
}

/* Whether row a is worth less than row b of the same group. */
static inline int is_worth_less(const naive_table *naive, const naive_row *a, const naive_row *b) {
    if (naive->plan->shows) {
        float score_a = (float)naive_score(naive, a), score_b = (float)naive_score(naive, b);
        if (score_a != score_b) {
            return score_a < score_b;
        }
    }
    return a->changed != b->changed ? a->changed < b->changed : a->hash < b->hash;
}

/* One by one. */
static inline uint64_t naive_evict_surplus(naive_table *naive) {
    uint64_t rows_before = naive->n_rows;
    for (uint32_t g = 0; g < naive->plan->n_groups; g++) {
        uint64_t rows = 0, most = naive->plan->lives[g].most_rows;
        for (uint64_t i = 0; i < naive->n_rows; i++) {
            rows += naive->rows[i]->group == naive->plan->group_numbers[g];
        }
        uint64_t left = most > 0 && rows > most ? most - most / 16 : rows;
        for (; rows > left; rows--) {
            naive_row *least = NULL;
            for (uint64_t i = 0; i < naive->n_rows; i++) {
                naive_row *row = naive->rows[i];
                if (row->group == naive->plan->group_numbers[g] &&
                    (least == NULL || is_worth_less(naive, row, least))) {
                    least = row;
                }
            }
            naive_remove(naive, least);
        }
    }
    return rows_before - naive->n_rows;
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
