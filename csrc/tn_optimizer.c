/* tn_optimizer.c - every optimizer: its formula, and its entry in the one table (at the end).
 *
 * A formula is written once, as an inlined function on w, g and state. ROWS_KERNEL makes a loop
 * over rows of it, for the usual widths with the width known; dense kernels call it on whole
 * arrays. Both are built for several CPU levels. The formulas of all are in tnctl.h; only + - * /
 * and sqrt occur, which every CPU rounds alike. */
#include "tn_optimizer.h"

#include <float.h>
#include <math.h>

#include "tn_memory.h"

/* Makes the kernel NAME_rows of the formula NAME(segment, state, w, g, width). Rows are the outer
 * loop: a row is then touched once, and the rows after it come into the cache meanwhile. A row that
 * is not a whole cache line mostly lies in two. */
#define ROWS_KERNEL(name)                                                                          \
    TN_INLINE void name##_of_width(const tn_row_updates *updates, uint32_t i, uint32_t s,          \
                                   uint32_t width) {                                               \
        const tn_segment_update *segment = &updates->segments[s];                                  \
        float *row = (float *)(void *)(updates->rows[i] + updates->floats_at);                     \
        name(segment, row + segment->state_at, row + segment->weights_at,                          \
             updates->gradients[i] + segment->gradient_at, width);                                 \
    }                                                                                              \
    TN_CLONES static void name##_rows(const tn_row_updates *updates) {                             \
        for (uint32_t i = 0; i < updates->n; i++) {                                                \
            if (i + TN_ROWS_AHEAD < updates->rows_to_come) {                                       \
                TN_PREFETCH_WRITE(updates->rows[i + TN_ROWS_AHEAD]);                               \
                TN_PREFETCH_WRITE(updates->rows[i + TN_ROWS_AHEAD] + 63);                          \
            }                                                                                      \
            for (uint32_t s = 0; s < updates->n_segments; s++) {                                   \
                FOR_WIDTH(updates->segments[s].width, name##_of_width(updates, i, s, WIDTH));      \
            }                                                                                      \
        }                                                                                          \
    }

/* ---- AdaGrad ------------------------------------------------------------ */

/* Row-wise AdaGrad: one accumulator per row, of the mean square of its gradients. The squares
 * are added in order (a compiler may not reorder additions of floats), so the bits of a row do
 * not depend on the vectors of the machine. */
TN_INLINE void adagrad(const tn_segment_update *segment, float *restrict state, float *restrict w,
                       const float *restrict g, uint32_t width) {
    const tn_optimizer *o = segment->optimizer;
    float squares = 0;
    for (uint32_t j = 0; j < width; j++) {
        squares += g[j] * g[j];
    }
    state[0] += squares / (float)width;
    float rate = o->learning_rate / (sqrtf(state[0]) + o->epsilon);
    TN_SEPARATE
    for (uint32_t j = 0; j < width; j++) {
        w[j] -= rate * g[j];
    }
}
ROWS_KERNEL(adagrad)

TN_INLINE void adagrad_weights(const tn_optimizer *o, float *restrict w, float *restrict sum,
                               const float *restrict g, uint64_t n) {
    TN_SEPARATE
    for (uint64_t j = 0; j < n; j++) {
        sum[j] += g[j] * g[j];
        w[j] -= o->learning_rate * g[j] / (sqrtf(sum[j]) + o->epsilon);
    }
}

TN_INLINE void adagrad_coordinate(const tn_segment_update *segment, float *restrict state,
                                  float *restrict w, const float *restrict g, uint32_t width) {
    adagrad_weights(segment->optimizer, w, state, g, width);
}
ROWS_KERNEL(adagrad_coordinate)

TN_CLONES static void adagrad_dense(const tn_optimizer *o, float rate, float *w,
                                    float *const *states, const float *g, uint64_t n) {
    (void)rate;
    adagrad_weights(o, w, states[0], g, n);
}

TN_INLINE void tensornet_adagrad(const tn_segment_update *segment, float *restrict state,
                                 float *restrict w, const float *restrict g, uint32_t width) {
    const tn_optimizer *o = segment->optimizer;
    double squares = 0;
    for (uint32_t j = 0; j < width; j++) {
        squares += (double)(g[j] * g[j]);
    }
    state[0] = (float)((double)state[0] + squares / width);
    float root = o->epsilon + sqrtf(state[0]);
    for (uint32_t j = 0; j < width; j++) {
        w[j] -= o->learning_rate * g[j] / root;
    }
}
ROWS_KERNEL(tensornet_adagrad)

TN_INLINE void tensornet_adagrad_weights(const tn_optimizer *o, float *restrict w,
                                         float *restrict d, float *restrict sum, float *restrict m,
                                         const float *restrict g, uint64_t n) {
    float keep = (float)o->beta2, rest = (float)(1 - o->beta1);
    TN_SEPARATE
    for (uint64_t j = 0; j < n; j++) {
        d[j] = keep * d[j] + 1;
        sum[j] = keep * sum[j] + g[j] * g[j];
        m[j] += (g[j] - m[j]) * rest;
        w[j] -= o->learning_rate * m[j] / (sqrtf(sum[j]) / sqrtf(d[j]) + o->epsilon);
    }
}

TN_CLONES static void tensornet_adagrad_dense(const tn_optimizer *o, float rate, float *w,
                                              float *const *states, const float *g, uint64_t n) {
    (void)rate;
    tensornet_adagrad_weights(o, w, states[0], states[1], states[2], g, n);
}

/* ---- Adam --------------------------------------------------------------- */

/* 1 - beta is taken in double and then rounded, as Keras does: see tn_beta. */
TN_INLINE void adam_weights(const tn_optimizer *o, float rate, float *restrict w, float *restrict m,
                            float *restrict v, const float *restrict g, uint64_t n) {
    float rest1 = (float)(1 - o->beta1), rest2 = (float)(1 - o->beta2), epsilon = o->epsilon;
    TN_SEPARATE
    for (uint64_t j = 0; j < n; j++) {
        m[j] += rest1 * (g[j] - m[j]);
        v[j] += rest2 * (g[j] * g[j] - v[j]);
        w[j] -= rate * m[j] / (sqrtf(v[j]) + epsilon);
    }
}

/* The first float of state holds, as 32 bits, how many steps the row has trained: a rare row is at
 * step 1 when it first trains, so its bias correction counts its updates and not the table's. */
TN_INLINE void adam(const tn_segment_update *segment, float *restrict state, float *restrict w,
                    const float *restrict g, uint32_t width) {
    const tn_optimizer *o = segment->optimizer;
    uint32_t steps;
    memcpy(&steps, state, sizeof steps);
    double correction = steps < segment->n_corrections ? segment->corrections[steps] : 1;
    steps += steps < UINT32_MAX;
    memcpy(state, &steps, sizeof steps);
    adam_weights(o, (float)(o->learning_rate * correction), w, state + 1, state + 1 + width, g,
                 width);
}
ROWS_KERNEL(adam)

TN_INLINE void tensornet_adam(const tn_segment_update *segment, float *restrict state,
                              float *restrict w, const float *restrict g, uint32_t width) {
    const tn_optimizer *o = segment->optimizer;
    adam_weights(o, o->learning_rate, w, state, state + width, g, width);
}
ROWS_KERNEL(tensornet_adam)

TN_CLONES static void adam_dense(const tn_optimizer *o, float rate, float *w, float *const *states,
                                 const float *g, uint64_t n) {
    adam_weights(o, rate, w, states[0], states[1], g, n);
}

/* Not inlined: where two of these are computed beside each other, GCC 12 makes a vector of them and
 * drops both roundings. */
__attribute__((noinline)) double tn_beta(double beta) {
    return (double)(float)beta;
}

int tn_corrections(const tn_optimizer *optimizer, double **corrections, uint64_t *n) {
    if (tn_rule_of(optimizer)->kind.row_states[0].extent != TN_STEPS) {
        return TN_OK;
    }
    double beta1 = tn_beta(optimizer->beta1), beta2 = tn_beta(optimizer->beta2);
    uint64_t count = 0;
    double power1 = 1, power2 = 1;
    while (1 - power1 < 1 || 1 - power2 < 1) {
        power1 *= beta1;
        power2 *= beta2;
        count++;
    }
    *corrections = TN_CALLOC(count, sizeof **corrections);
    if (*corrections == NULL) {
        return TN_NO_MEMORY;
    }
    *n = count;
    power1 = power2 = 1;
    for (uint64_t t = 0; t < count; t++) {
        power1 *= beta1;
        power2 *= beta2;
        (*corrections)[t] = sqrt(1 - power2) / (1 - power1);
    }
    return TN_OK;
}

/* ---- SGD ---------------------------------------------------------------- */

/* SGD, with momentum or Nesterov's, of rows and of dense weights. `m` is read and written only
 * where there is momentum: without it an optimizer has no state, and `m` may be anything. */
TN_INLINE void sgd_weights(const tn_optimizer *o, float *restrict w, float *restrict m,
                           const float *restrict g, uint64_t n) {
    float rate = o->learning_rate, momentum = o->momentum;
    if (momentum == 0) {
        TN_SEPARATE
        for (uint64_t j = 0; j < n; j++) {
            w[j] -= rate * g[j];
        }
    } else if (!o->nesterov) {
        TN_SEPARATE
        for (uint64_t j = 0; j < n; j++) {
            m[j] = momentum * m[j] + g[j];
            w[j] -= rate * m[j];
        }
    } else {
        TN_SEPARATE
        for (uint64_t j = 0; j < n; j++) {
            m[j] = momentum * m[j] + g[j];
            w[j] -= rate * (g[j] + momentum * m[j]);
        }
    }
}

TN_INLINE void sgd(const tn_segment_update *segment, float *restrict state, float *restrict w,
                   const float *restrict g, uint32_t width) {
    sgd_weights(segment->optimizer, w, state, g, width);
}
ROWS_KERNEL(sgd)

TN_CLONES static void sgd_dense(const tn_optimizer *o, float rate, float *w, float *const *states,
                                const float *g, uint64_t n) {
    (void)rate;
    sgd_weights(o, w, states[0], g, n);
}

/* ---- FTRL-proximal ------------------------------------------------------ */

/* `slope` is 1/lr of the paper. sqrt(n+g^2) - sqrt(n) is taken as
 * g^2 / (sqrt(n+g^2) + sqrt(n)), which is equal and keeps its digits where n is large: there the
 * two roots agree in all but their last digits, and the difference would be noise. */
TN_INLINE void ftrl_weights(const tn_optimizer *o, float slope, float *restrict w,
                            float *restrict sum, float *restrict z, const float *restrict g,
                            uint64_t n) {
    if (o->learning_rate == 0) {
        return;
    }
    float l1 = o->l1, l2 = o->l2, beta = o->beta;
    TN_SEPARATE
    for (uint64_t j = 0; j < n; j++) {
        float square = g[j] * g[j], root = sqrtf(sum[j]);
        sum[j] += square;
        float new_root = sqrtf(sum[j]);
        /* 0x1p-126, the smallest normal float, prevents 0/0 and is lost in every other sum. */
        z[j] += g[j] - square / (new_root + root + 0x1p-126f) * slope * w[j];
        /* clamp(z) - z is 0 where |z| <= l1, and -(z - sign(z)*l1) elsewhere. */
        w[j] = (clamp(z[j], l1) - z[j]) / ((beta + new_root) * slope + l2);
    }
}

TN_INLINE void ftrl(const tn_segment_update *segment, float *restrict state, float *restrict w,
                    const float *restrict g, uint32_t width) {
    const tn_optimizer *o = segment->optimizer;
    ftrl_weights(o, 1 / o->learning_rate, w, state, state + width, g, width);
}
ROWS_KERNEL(ftrl)

TN_INLINE void tensornet_ftrl(const tn_segment_update *segment, float *restrict state,
                              float *restrict w, const float *restrict g, uint32_t width) {
    const tn_optimizer *o = segment->optimizer;
    ftrl_weights(o, o->learning_rate, w, state, state + width, g, width);
}
ROWS_KERNEL(tensornet_ftrl)

TN_CLONES static void ftrl_dense(const tn_optimizer *o, float rate, float *w, float *const *states,
                                 const float *g, uint64_t n) {
    (void)rate;
    ftrl_weights(o, 1 / o->learning_rate, w, states[0], states[1], g, n);
}

/* FTRL divides by beta + l2 + the root of n, which must not be 0 before the first gradient. */
static int ftrl_fits(const tn_optimizer *o) {
    return o->beta > 0 || o->l2 > 0 || o->initial_accumulator > 0;
}

/* Here n starts at 0, and there is no such setting. */
static int tensornet_ftrl_fits(const tn_optimizer *o) {
    return o->beta > 0 || o->l2 > 0;
}

/* ---- The table ---------------------------------------------------------- */

#define FLOAT(member, initial, highest)                                                            \
    {#member, TN_FLOAT, offsetof(tn_optimizer, member), initial, highest, 0}
#define DOUBLE(member, initial, highest)                                                           \
    {#member, TN_DOUBLE, offsetof(tn_optimizer, member), initial, highest, 0}
#define SWITCH(member) {#member, TN_SWITCH, offsetof(tn_optimizer, member), 0, 1, 0}
#define EPSILON(initial) {"epsilon", TN_FLOAT, offsetof(tn_optimizer, epsilon), initial, FLT_MAX, 1}

#define WEIGHTS(name) {name, TN_PER_WEIGHT, 0, 0}
#define ACCUMULATOR(name, extent) {name, extent, 1, 0}

/* The most that a beta or a momentum may be. At this beta 1 - beta^t is 1 in double after 367,000
 * steps, which is how long tn_corrections' list gets. */
#define MOST_BETA 0.9999

static const tn_rule RULES[] = {
    [TN_ADAGRAD] = {.kind = {.name = "adagrad",
                             .settings = {EPSILON(1e-8), FLOAT(initial_accumulator, 1e-6, FLT_MAX)},
                             .row_states = {ACCUMULATOR("accumulator", TN_PER_ROW)},
                             .dense_states = {ACCUMULATOR("accumulator", TN_PER_WEIGHT)}},
                    .rows = adagrad_rows,
                    .dense = adagrad_dense},
    [TN_ADAM] = {.kind = {.name = "adam",
                          .settings = {EPSILON(1e-7), DOUBLE(beta1, 0.9, MOST_BETA),
                                       DOUBLE(beta2, 0.999, MOST_BETA)},
                          .row_states = {{"steps", TN_STEPS, 0, 0}, WEIGHTS("m"), WEIGHTS("v")},
                          .dense_states = {WEIGHTS("m"), WEIGHTS("v")}},
                 .corrects_dense = 1,
                 .rows = adam_rows,
                 .dense = adam_dense},
    [TN_SGD] = {.kind = {.name = "sgd",
                         .settings = {FLOAT(momentum, 0, MOST_BETA), SWITCH(nesterov)},
                         .row_states = {{"m", TN_PER_WEIGHT, 0, 1}},
                         .dense_states = {{"m", TN_PER_WEIGHT, 0, 1}}},
                .rows = sgd_rows,
                .dense = sgd_dense},
    [TN_ADAGRAD_COORDINATE] =
        {.kind = {.name = "adagrad_coordinate",
                  .settings = {EPSILON(1e-8), FLOAT(initial_accumulator, 1e-6, FLT_MAX)},
                  .row_states = {ACCUMULATOR("accumulator", TN_PER_WEIGHT)},
                  .dense_states = {ACCUMULATOR("accumulator", TN_PER_WEIGHT)}},
         .rows = adagrad_coordinate_rows,
         .dense = adagrad_dense},
    [TN_FTRL] = {.kind = {.name = "ftrl",
                          .settings = {FLOAT(initial_accumulator, 0, FLT_MAX),
                                       FLOAT(l1, 0, FLT_MAX), FLOAT(l2, 0, FLT_MAX),
                                       FLOAT(beta, 1, FLT_MAX)},
                          .row_states = {ACCUMULATOR("n", TN_PER_WEIGHT), WEIGHTS("z")},
                          .dense_states = {ACCUMULATOR("n", TN_PER_WEIGHT), WEIGHTS("z")}},
                 .fits = ftrl_fits,
                 .rows = ftrl_rows,
                 .dense = ftrl_dense},
    [TN_TENSORNET_ADAGRAD] = {.kind = {.name = "tensornet_adagrad",
                                       .settings = {EPSILON(1e-8),
                                                    FLOAT(initial_accumulator, 0, FLT_MAX),
                                                    DOUBLE(beta1, 1, 1), DOUBLE(beta2, 1, 1)},
                                       .row_states = {ACCUMULATOR("accumulator", TN_PER_ROW)},
                                       .dense_states = {WEIGHTS("d"),
                                                        ACCUMULATOR("accumulator", TN_PER_WEIGHT),
                                                        WEIGHTS("m")}},
                              .rows = tensornet_adagrad_rows,
                              .dense = tensornet_adagrad_dense},
    [TN_TENSORNET_ADAM] = {.kind = {.name = "tensornet_adam",
                                    .settings = {EPSILON(1e-8), DOUBLE(beta1, 0.9, MOST_BETA),
                                                 DOUBLE(beta2, 0.999, MOST_BETA)},
                                    .row_states = {WEIGHTS("m"), WEIGHTS("v")},
                                    .dense_states = {WEIGHTS("m"), WEIGHTS("v")}},
                           .corrects_dense = 1,
                           .rows = tensornet_adam_rows,
                           .dense = adam_dense},
    [TN_TENSORNET_FTRL] = {.kind = {.name = "tensornet_ftrl",
                                    .settings = {FLOAT(l1, 0.1, FLT_MAX), FLOAT(l2, 0, FLT_MAX),
                                                 FLOAT(beta, 1, FLT_MAX)},
                                    .row_states = {WEIGHTS("n"), WEIGHTS("z")},
                                    .rows_only = 1},
                           .fits = tensornet_ftrl_fits,
                           .rows = tensornet_ftrl_rows},
};

static const tn_setting EXTRAS[] = {FLOAT(l2, 0, FLT_MAX),
                                    FLOAT(decay, 0, FLT_MAX),
                                    FLOAT(clip, 0, FLT_MAX),
                                    FLOAT(bound, 0, FLT_MAX),
                                    FLOAT(max_norm, 0, FLT_MAX),
                                    FLOAT(lazy_l2, 0, FLT_MAX),
                                    {0}};

static const tn_setting LEARNING_RATE = FLOAT(learning_rate, 0, FLT_MAX);

/* ---- Reading the table -------------------------------------------------- */

const tn_rule *tn_rule_of(const tn_optimizer *optimizer) {
    uint32_t kind = optimizer->kind;
    return kind > 0 && kind < sizeof RULES / sizeof *RULES ? &RULES[kind] : NULL;
}

const tn_kind *tn_optimizer_kind(uint32_t kind) {
    const tn_rule *rule = tn_rule_of(&(tn_optimizer){.kind = kind});
    return rule ? &rule->kind : NULL;
}

const tn_setting *tn_optimizer_extras(void) {
    return EXTRAS;
}

/* A setting as a double, exact for all three types. memcpy because the offset of a member says
 * nothing to the compiler about the type that is there. */
static double value_of(const tn_optimizer *o, const tn_setting *setting) {
    const char *member = (const char *)o + setting->offset;
    if (setting->type == TN_DOUBLE) {
        double number;
        memcpy(&number, member, sizeof number);
        return number;
    }
    if (setting->type == TN_FLOAT) {
        float number;
        memcpy(&number, member, sizeof number);
        return (double)number;
    }
    uint32_t number;
    memcpy(&number, member, sizeof number);
    return number;
}

/* NaN is in no range: all its comparisons are false. */
static int in_range(const tn_optimizer *o, const tn_setting *setting) {
    double value = value_of(o, setting);
    return value >= 0 && value <= setting->highest && (value > 0 || !setting->above_zero);
}

/* Whether the settings of a kind are in its limits, or, where they are another kind's, at least
 * numbers: what is not finite there is a mistake too, though nothing reads it. */
static int settings_fit(const tn_optimizer *o, const tn_kind *kind, int own) {
    int fit = 1;
    for (uint32_t i = 0; i < TN_MAX_SETTINGS && kind->settings[i].name != NULL; i++) {
        double value = value_of(o, &kind->settings[i]);
        fit &= own ? in_range(o, &kind->settings[i]) : value >= 0 && value <= (double)FLT_MAX;
    }
    return fit;
}

int tn_optimizer_fits(const tn_optimizer *o, int dense) {
    const tn_rule *rule = tn_rule_of(o);
    if (rule == NULL || !in_range(o, &LEARNING_RATE) ||
        (dense && (rule->dense == NULL || o->max_norm != 0))) {
        return 0;
    }
    int fit = 1;
    for (const tn_setting *extra = EXTRAS; extra->name != NULL; extra++) {
        fit &= in_range(o, extra);
    }
    for (uint32_t kind = 1; tn_optimizer_kind(kind) != NULL; kind++) {
        fit &= settings_fit(o, tn_optimizer_kind(kind), kind == o->kind);
    }
    /* Rows of AdaGrad alone have the accumulator that lazy_l2 needs, and one of both factors. */
    fit &= o->lazy_l2 == 0 || (!dense && o->kind == TN_ADAGRAD && o->decay == 0);
    return fit && (rule->fits == NULL || rule->fits(o));
}

/* A kind whose own settings have an l2 uses it in its formula. */
tn_extras tn_extras_of(const tn_optimizer *o) {
    tn_extras extras = {.l2 = o->l2,
                        .clip = o->clip,
                        .bound = o->bound,
                        .max_norm = o->max_norm,
                        .decays = o->decay > 0 || o->lazy_l2 > 0};
    const tn_setting *settings = tn_rule_of(o)->kind.settings;
    for (uint32_t i = 0; i < TN_MAX_SETTINGS; i++) {
        if (settings[i].name != NULL && settings[i].offset == offsetof(tn_optimizer, l2)) {
            extras.l2 = 0;
        }
    }
    extras.any = extras.l2 > 0 || extras.decays || extras.clip > 0 || extras.bound > 0 ||
                 extras.max_norm > 0;
    return extras;
}

uint32_t tn_optimizer_states(const tn_optimizer *optimizer, int dense, tn_state *states) {
    const tn_kind *kind = tn_optimizer_kind(optimizer->kind);
    if (kind == NULL) {
        return 0;
    }
    const tn_state *all = dense ? kind->dense_states : kind->row_states;
    uint32_t n = 0;
    for (uint32_t k = 0; k < TN_MAX_STATES && all[k].name != NULL; k++) {
        if (!all[k].of_momentum || optimizer->momentum > 0) {
            states[n++] = all[k];
        }
    }
    return n;
}

uint32_t tn_state_floats(const tn_optimizer *optimizer, uint32_t width) {
    tn_state states[TN_MAX_STATES];
    uint32_t floats = 0, n = tn_optimizer_states(optimizer, 0, states);
    for (uint32_t k = 0; k < n; k++) {
        floats += states[k].extent == TN_PER_WEIGHT ? width : 1;
    }
    return floats;
}

void tn_state_start(const tn_optimizer *optimizer, uint32_t width, uint32_t steps, float *state) {
    tn_state states[TN_MAX_STATES];
    uint32_t n = tn_optimizer_states(optimizer, 0, states);
    for (uint32_t k = 0; k < n; k++) {
        uint32_t floats = states[k].extent == TN_PER_WEIGHT ? width : 1;
        if (states[k].extent == TN_STEPS) {
            memcpy(state, &steps, sizeof steps);
        }
        for (uint32_t j = 0; j < floats && states[k].accumulator; j++) {
            state[j] = optimizer->initial_accumulator;
        }
        state += floats;
    }
}
