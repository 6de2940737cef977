/* tn_life.c - show and click, days, and the end of rows: eviction and the
 * bound.
 *
 * Rows are removed in two passes, each on all threads of the pool. The first
 * walks the rows as they lie in memory and marks, a bit each, those that go;
 * all memory that the second needs is there before it starts. The second takes
 * the marked rows out of the index, which reads no row, and links them, in the
 * order of their numbers, into what the next insertions use. */
#include <math.h>
#include <stdlib.h>

#include "tn_batch.h"

/* ---- Days --------------------------------------------------------------- */

uint32_t tn_day_of(const tn_table *table, uint32_t step) {
    if (table->n_days == 0) {
        return 0;
    }
    /* Most rows that are not of today are of one of the last days. */
    uint32_t above = table->n_days, nearest = above > 8 ? above - 8 : 0;
    while (above > nearest && table->first_steps[above - 1] > step) {
        above--;
    }
    if (above > 0 && table->first_steps[above - 1] > step) {
        uint32_t from = 0; /* as many begin by `step` as there are before `above` */
        while (from < above) {
            uint32_t middle = from + (above - from) / 2;
            if (table->first_steps[middle] <= step) {
                from = middle + 1;
            } else {
                above = middle;
            }
        }
    }
    return table->days[above > 0 ? above - 1 : 0];
}

static int days_ascend(const uint32_t *days, const uint32_t *first_steps, uint32_t n) {
    for (uint32_t i = 1; i < n; i++) {
        if (days[i] < days[i - 1] || first_steps[i] < first_steps[i - 1]) {
            return 0;
        }
    }
    return 1;
}

static int copy_numbers(const uint32_t *numbers, uint32_t n, uint32_t **out) {
    *out = TN_CALLOC(n + 1, sizeof **out);
    if (*out == NULL) {
        return TN_NO_MEMORY;
    }
    if (n > 0) {
        memcpy(*out, numbers, n * sizeof **out);
    }
    return TN_OK;
}

int tn_table_set_days(tn_table *table, const uint32_t *days, const uint32_t *first_steps,
                      uint32_t n) {
    if (!days_ascend(days, first_steps, n)) {
        return TN_BAD_VALUE;
    }
    uint32_t *own_days, *own_steps;
    if (copy_numbers(days, n, &own_days) != TN_OK) {
        return TN_NO_MEMORY;
    }
    if (copy_numbers(first_steps, n, &own_steps) != TN_OK) {
        TN_FREE(own_days);
        return TN_NO_MEMORY;
    }
    pthread_mutex_lock(&table->lock);
    uint32_t *old_days = table->days, *old_steps = table->first_steps;
    table->days = own_days;
    table->first_steps = own_steps;
    table->n_days = n;
    table->today = n > 0 ? days[n - 1] : 0;
    table->today_from = n > 0 ? first_steps[n - 1] : 0;
    pthread_mutex_unlock(&table->lock);
    TN_FREE(old_days);
    TN_FREE(old_steps);
    return TN_OK;
}

uint32_t tn_table_day(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint32_t day = table->today;
    pthread_mutex_unlock(&table->lock);
    return day;
}

/* ---- Show and click as inputs ------------------------------------------- */

/* Show and click as they read at the table's day. */
static void read_shows(const tn_table *table, const tn_row *row, float *to) {
    const float *shows = row_shows(table, row);
    float kept = tn_show_kept(table, row->group, row->changed, table->today);
    to[0] = shows[0] * kept;
    to[1] = shows[1] * kept;
}

#define EXPONENT_ONE (UINT64_C(1023) << 52)
#define FRACTION ((UINT64_C(1) << 52) - 1)

TN_INLINE double in_one_to_two(uint64_t bits) {
    double value;
    bits = (bits & FRACTION) | EXPONENT_ONE;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ln(a / b) of normal doubles above 0 by + - x / alone: 2 atanh((a - b) / (a + b)) of fractions
 * that differ by a factor of at most sqrt(2), so (a - b) / (a + b) is below 0.1716 and the tenth
 * term of the series below 1e-15 of the first. */
TN_INLINE double log_of_ratio(double a, double b) {
    uint64_t a_bits, b_bits;
    memcpy(&a_bits, &a, sizeof a_bits);
    memcpy(&b_bits, &b, sizeof b_bits);
    double twos = (int32_t)(uint32_t)(a_bits >> 52) - (int32_t)(uint32_t)(b_bits >> 52);
    a = in_one_to_two(a_bits);
    b = in_one_to_two(b_bits);
    double half_a = a > b * 1.4142135623730951 ? 1 : 0;
    double half_b = b > a * 1.4142135623730951 ? 1 : 0;
    twos += half_a - half_b;
    a -= a * 0.5 * half_a;
    b -= b * 0.5 * half_b;
    double s = (a - b) / (a + b), square = s * s, series = 1.0 / 17;
    series = series * square + 1.0 / 15;
    series = series * square + 1.0 / 13;
    series = series * square + 1.0 / 11;
    series = series * square + 1.0 / 9;
    series = series * square + 1.0 / 7;
    series = series * square + 1.0 / 5;
    series = series * square + 1.0 / 3;
    series = series * square + 1;
    return twos * 0.69314718055994531 + 2 * s * series;
}

/* Of shows and clicks as they read; vector code, for several at a time. */
TN_CLONES
static void make_columns(const float *restrict show, const float *restrict click, uint64_t n,
                         float *restrict columns) {
    for (uint64_t i = 0; i < n; i++) {
        columns[CVM_COLUMNS * i] = show[i];
        columns[CVM_COLUMNS * i + 1] =
            (float)log_of_ratio((double)click[i] + 1, (double)show[i] + 1);
    }
}

#define TOGETHER 64

void tn_cvm_columns(const float *show, const float *click, const float *factors, uint64_t n,
                    float *columns) {
    float kept[2][TOGETHER];
    for (uint64_t start = 0; start < n; start += TOGETHER) {
        uint64_t count = n - start < TOGETHER ? n - start : TOGETHER;
        for (uint64_t i = 0; i < count; i++) {
            kept[0][i] = show[start + i] * factors[start + i];
            kept[1][i] = click[start + i] * factors[start + i];
        }
        make_columns(kept[0], kept[1], count, columns + CVM_COLUMNS * start);
    }
}

void tn_rows_cvm(const tn_table *table, tn_row *const *rows, uint64_t n, float *columns) {
    float read[2][TOGETHER];
    for (uint64_t start = 0; start < n; start += TOGETHER) {
        uint64_t count = n - start < TOGETHER ? n - start : TOGETHER;
        for (uint64_t i = 0; i < count; i++) {
            float shows[2];
            read_shows(table, rows[start + i], shows);
            read[0][i] = shows[0];
            read[1][i] = shows[1];
        }
        make_columns(read[0], read[1], count, columns + CVM_COLUMNS * start);
    }
}

/* ---- Rules -------------------------------------------------------------- */

static int is_number(double value) {
    return isfinite(value) && value >= 0;
}

static int life_fits(const tn_table *table, const tn_life *life) {
    int by_shows = life->show > 0 || life->score > 0;
    int unseen = life->unseen_steps > 0 || life->unseen_days > 0;
    return is_number(life->show_decay) && life->show_decay <= 1 && is_number(life->show) &&
           is_number(life->score) && is_number(life->nonclick) && is_number(life->click) &&
           life->both <= 1 && (!by_shows || table->shows) &&
           (!life->both || (life->show > 0 && unseen));
}

static int set_life(tn_table *table, uint16_t number, const tn_life *life) {
    if (!tn_group_declared(table, number)) {
        return TN_NO_GROUP;
    }
    tn_group *group = &table->groups[number];
    if (!life_fits(table, life)) {
        return TN_BAD_VALUE;
    }
    int code = tn_admission_of(table, life, &group->admission);
    if (code == TN_OK) {
        group->life = *life;
    }
    return code;
}

int tn_table_set_life(tn_table *table, uint16_t group, const tn_life *life) {
    pthread_mutex_lock(&table->lock);
    int code = set_life(table, group, life);
    pthread_mutex_unlock(&table->lock);
    return code;
}

static double score_of(const tn_life *life, const float *shows) {
    return ((double)shows[0] - (double)shows[1]) * life->nonclick + (double)shows[1] * life->click;
}

static int unseen_too_long(const tn_table *table, const tn_life *life, uint32_t changed) {
    if (life->unseen_steps > 0 && changed < table->step &&
        table->step - changed > life->unseen_steps) {
        return 1;
    }
    if (life->unseen_days == 0 || changed >= table->today_from) {
        return 0;
    }
    return table->today - tn_day_of(table, changed) > life->unseen_days;
}

/* Whether the rules of a row's group name it. */
static int is_named(const tn_table *table, const tn_row *row) {
    const tn_life *life = &table->groups[row->group].life;
    int unseen = unseen_too_long(table, life, row->changed);
    if (life->show == 0 && life->score == 0) {
        return unseen;
    }
    float shows[2];
    read_shows(table, row, shows);
    int below = (double)shows[0] < life->show;
    int cheap = life->score > 0 && score_of(life, shows) < life->score;
    return cheap || (life->both ? below && unseen : below || unseen);
}

/* ---- The bound: which rows are worth least ------------------------------- */

/* A row's place among those of its group: first worth, then hash. */
typedef struct {
    uint64_t worth, hash;
} tn_rank;

/* Floats as integers in the same order. */
static uint32_t ordered(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

static uint64_t worth_of(const tn_table *table, const tn_row *row) {
    if (!table->shows) {
        return row->changed;
    }
    float shows[2];
    read_shows(table, row, shows);
    double score = score_of(&table->groups[row->group].life, shows);
    return (uint64_t)ordered((float)score) << 32 | row->changed;
}

static int is_before(tn_rank a, tn_rank b) {
    return a.worth != b.worth ? a.worth < b.worth : a.hash < b.hash;
}

/* The first row that stays is found by counting, interval after interval: how many rows of an
 * interval are in each of these parts of it; the part in which it must be is the next interval. */
#define PARTS 1024u

typedef struct {
    uint64_t rows, least, most; /* least and most are of the rows in it */
} tn_part_rows;

typedef struct {
    int bounded;          /* whether the group has too many rows */
    uint64_t surplus;     /* of the interval's rows, so many go */
    int by_hash, done;    /* the interval is of the hashes of those worth first.worth */
    uint64_t least, most; /* the interval, */
    uint32_t shift;       /* and its parts' width, as a power of two */
    tn_rank first;        /* that stays */
    tn_part_rows *parts;  /* PARTS for each thread */
} tn_choice;

static void set_interval(tn_choice *choice, uint64_t least, uint64_t most) {
    choice->least = least;
    choice->most = most;
    choice->shift = 0;
    while ((most - least) >> choice->shift >= PARTS) {
        choice->shift++;
    }
}

static void count_row(const tn_table *table, const tn_row *row, tn_choice *choices, int thread) {
    tn_choice *choice = &choices[row->group];
    if (!choice->bounded || choice->done) {
        return;
    }
    uint64_t value = worth_of(table, row);
    if (choice->by_hash) {
        if (value != choice->first.worth) {
            return;
        }
        value = key_hash(table, row->group, row->id);
    }
    if (value < choice->least || value > choice->most) {
        return;
    }
    tn_part_rows *part =
        choice->parts + (uint64_t)thread * PARTS + ((value - choice->least) >> choice->shift);
    part->least = part->rows == 0 || value < part->least ? value : part->least;
    part->most = part->rows == 0 || value > part->most ? value : part->most;
    part->rows++;
}

typedef struct {
    tn_table *table;
    tn_choice *choices; /* per group, or NULL: the groups' rules name the rows */
    uint64_t *marks;    /* a bit per row, shard after shard: */
    uint64_t first_mark[SHARDS];
    uint64_t removed[SHARDS];
    uint64_t *removed_of; /* per group, `counters` for each thread: cache lines of its own */
    uint64_t counters;
    int codes[SHARDS];
} tn_removal;

static void count_owned(void *argument, int thread, int threads) {
    const tn_removal *removal = argument;
    const tn_table *table = removal->table;
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(i, threads) == thread) {
            FOR_ROWS_OF_SHARD(table, &table->shards[i], row, number,
                              count_row(table, row, removal->choices, thread));
        }
    }
}

static tn_part_rows sum_of_part(const tn_choice *choice, uint32_t part, int threads) {
    tn_part_rows sum = {0, UINT64_MAX, 0};
    for (int t = 0; t < threads; t++) {
        const tn_part_rows *one = choice->parts + (uint64_t)t * PARTS + part;
        if (one->rows > 0) {
            sum.rows += one->rows;
            sum.least = one->least < sum.least ? one->least : sum.least;
            sum.most = one->most > sum.most ? one->most : sum.most;
        }
    }
    return sum;
}

/* Goes on with the part that has the first row that stays. */
static void narrow(tn_choice *choice, int threads) {
    uint32_t i = 0;
    tn_part_rows part = sum_of_part(choice, i, threads);
    while (part.rows <= choice->surplus) {
        choice->surplus -= part.rows;
        part = sum_of_part(choice, ++i, threads);
    }
    uint64_t *found = choice->by_hash ? &choice->first.hash : &choice->first.worth;
    *found = part.least;
    set_interval(choice, part.least, part.most);
    if (choice->surplus == 0) {
        choice->done = 1;
    } else if (part.least == part.most) { /* equals, and their hashes differ */
        choice->by_hash = 1;
        set_interval(choice, 0, UINT64_MAX);
    }
    memset(choice->parts, 0, (uint64_t)threads * PARTS * sizeof *choice->parts);
}

static void choose_rows(tn_removal *removal) {
    tn_table *table = removal->table;
    int threads = tn_pool_threads(table->pool), left;
    do {
        tn_pool_run(table->pool, count_owned, removal);
        left = 0;
        for (uint32_t g = 0; g < table->n_groups; g++) {
            tn_choice *choice = &removal->choices[g];
            if (choice->bounded && !choice->done) {
                narrow(choice, threads);
                left |= !choice->done;
            }
        }
    } while (left);
}

/* ---- Removing rows ------------------------------------------------------ */

static int goes(const tn_removal *removal, const tn_row *row) {
    const tn_table *table = removal->table;
    if (removal->choices == NULL) {
        return is_named(table, row);
    }
    const tn_choice *choice = &removal->choices[row->group];
    if (!choice->bounded) {
        return 0;
    }
    tn_rank rank = {worth_of(table, row), 0};
    if (rank.worth == choice->first.worth) {
        rank.hash = key_hash(table, row->group, row->id);
    }
    return is_before(rank, choice->first);
}

/* Room for the keys that a shard will lose. */
static int room_for_keys(tn_gone_list *list, uint64_t more) {
    if (list->n + more <= list->room) {
        return TN_OK;
    }
    uint64_t room = list->n + more + list->room / 2;
    tn_gone *larger = TN_REALLOC(list->keys, room * sizeof *larger);
    if (larger == NULL) {
        return TN_NO_MEMORY;
    }
    list->keys = larger;
    list->room = room;
    return TN_OK;
}

static void mark_shard(tn_removal *removal, uint32_t i) {
    tn_table *table = removal->table;
    const tn_shard *shard = &table->shards[i];
    uint64_t *marks = removal->marks + removal->first_mark[i], n = 0;
    FOR_ROWS_OF_SHARD(table, shard, row, number, {
        uint64_t gone = (uint64_t)goes(removal, row);
        marks[number / 64] |= gone << number % 64;
        n += gone;
    });
    removal->removed[i] = n;
    removal->codes[i] = room_for_keys(&table->gone[i], n);
}

static void mark_owned(void *argument, int thread, int threads) {
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(i, threads) == thread) {
            mark_shard(argument, i);
        }
    }
}

/* Notes the key of a row and frees the row. */
static void end_row(const tn_table *table, tn_row *row, tn_gone_list *gone) {
    gone->keys[gone->n++] = (tn_gone){
        .hash = key_hash(table, row->group, row->id), .step = table->step, .group = row->group};
    row->uidx = FREE_ROW;
}

static void remove_marked(tn_removal *removal, uint32_t i, uint64_t *removed_of) {
    tn_table *table = removal->table;
    tn_shard *shard = &table->shards[i];
    const uint64_t *marks = removal->marks + removal->first_mark[i];
    if (removal->removed[i] == 0) {
        return;
    }
    tn_index_remove(shard, marks);
    /* From the last to the first, so that they are taken in the order they lie in. */
    for (uint64_t word = (shard->next_row + 63) / 64; word-- > 0;) {
        for (uint32_t bit = 64; marks[word] != 0 && bit-- > 0;) {
            if (marks[word] >> bit & 1) {
                uint32_t number = (uint32_t)(word * 64 + bit);
                tn_row *row = row_at(table, shard, number);
                removed_of[row->group]++;
                end_row(table, row, &table->gone[i]);
                row->changed = shard->first_free;
                shard->first_free = number;
            }
        }
    }
    shard->used -= removal->removed[i];
    shard->free_rows += (uint32_t)removal->removed[i];
}

static void remove_owned(void *argument, int thread, int threads) {
    tn_removal *removal = argument;
    uint64_t *removed_of = removal->removed_of + (uint64_t)thread * removal->counters;
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(i, threads) == thread) {
            remove_marked(removal, i, removed_of);
        }
    }
}

static int make_marks(tn_removal *removal) {
    const tn_table *table = removal->table;
    uint64_t words = 0, threads = (uint64_t)tn_pool_threads(table->pool);
    for (uint32_t i = 0; i < SHARDS; i++) {
        removal->first_mark[i] = words;
        words += (table->shards[i].next_row + 63) / 64;
    }
    removal->marks = TN_CALLOC(words + 1, sizeof *removal->marks);
    removal->counters = table->n_groups + 16;
    removal->removed_of = TN_CALLOC(threads * removal->counters, sizeof *removal->removed_of);
    return removal->marks == NULL || removal->removed_of == NULL ? TN_NO_MEMORY : TN_OK;
}

static void count_removed(const tn_removal *removal) {
    tn_table *table = removal->table;
    for (uint32_t g = 0; g < table->n_groups; g++) {
        uint64_t n = 0;
        for (int t = 0; t < tn_pool_threads(table->pool); t++) {
            n += removal->removed_of[(uint64_t)t * removal->counters + g];
        }
        atomic_fetch_sub(&table->groups[g].rows, n);
        atomic_fetch_add(&table->groups[g].evicted, n);
    }
}

static int mark_and_remove(tn_removal *removal, uint64_t *evicted) {
    tn_table *table = removal->table;
    int code = make_marks(removal);
    if (code != TN_OK) {
        return code;
    }
    tn_pool_run(table->pool, mark_owned, removal);
    uint64_t removed = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        code = removal->codes[i] == TN_OK ? code : removal->codes[i];
        removed += removal->removed[i];
    }
    if (code == TN_OK && removed > 0) {
        tn_pool_run(table->pool, remove_owned, removal);
        count_removed(removal);
        table->removals++;
    }
    if (code == TN_OK) {
        *evicted = removed;
    }
    return code;
}

static int remove_rows(tn_removal *removal, uint64_t *evicted) {
    int code = mark_and_remove(removal, evicted);
    TN_FREE(removal->marks);
    TN_FREE(removal->removed_of);
    return code;
}

static int has_rules(const tn_table *table) {
    for (uint32_t g = 0; g < table->n_groups; g++) {
        const tn_life *life = &table->groups[g].life;
        if (life->unseen_steps > 0 || life->unseen_days > 0 || life->show > 0 || life->score > 0) {
            return 1;
        }
    }
    return 0;
}

int tn_evict(tn_table *table, uint64_t *evicted) {
    pthread_mutex_lock(&table->lock);
    int code = TN_OK;
    if (has_rules(table)) {
        code = remove_rows(&(tn_removal){.table = table}, evicted);
    } else {
        *evicted = 0;
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

static int is_over(const tn_group *group) {
    return group->life.most_rows > 0 && atomic_load(&group->rows) > group->life.most_rows;
}

static int bound_groups(tn_table *table, uint32_t over, uint64_t *evicted) {
    uint64_t parts = (uint64_t)tn_pool_threads(table->pool) * PARTS;
    tn_removal removal = {.table = table};
    removal.choices = TN_CALLOC(table->n_groups, sizeof *removal.choices);
    tn_part_rows *all_parts = TN_CALLOC(over * parts, sizeof *all_parts);
    int code = removal.choices == NULL || all_parts == NULL ? TN_NO_MEMORY : TN_OK;
    tn_part_rows *next = all_parts;
    for (uint32_t g = 0; g < table->n_groups && code == TN_OK; g++) {
        const tn_group *group = &table->groups[g];
        if (is_over(group)) {
            uint64_t most = group->life.most_rows;
            removal.choices[g] =
                (tn_choice){.bounded = 1,
                            .surplus = atomic_load(&group->rows) - most + most / 16,
                            .parts = next};
            set_interval(&removal.choices[g], 0, table->shows ? UINT64_MAX : UINT32_MAX);
            next += parts;
        }
    }
    if (code == TN_OK) {
        choose_rows(&removal);
        code = remove_rows(&removal, evicted);
    }
    TN_FREE(removal.choices);
    TN_FREE(all_parts);
    return code;
}

int tn_bound(tn_table *table, uint64_t *evicted) {
    pthread_mutex_lock(&table->lock);
    uint32_t over = 0;
    for (uint32_t g = 0; g < table->n_groups; g++) {
        over += (uint32_t)is_over(&table->groups[g]);
    }
    int code = TN_OK;
    if (over > 0) {
        code = bound_groups(table, over, evicted);
    } else {
        *evicted = 0;
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* ---- Keys that were removed --------------------------------------------- */

static int compare_gone(const void *left, const void *right) {
    const tn_gone *a = left, *b = right;
    if (a->hash != b->hash) {
        return a->hash < b->hash ? -1 : 1;
    }
    if (a->group != b->group) {
        return a->group < b->group ? -1 : 1;
    }
    return (a->step > b->step) - (a->step < b->step);
}

static int is_same_key(const tn_gone *a, const tn_gone *b) {
    return a->hash == b->hash && a->group == b->group;
}

/* In order, and of each key the last one. */
static void sort_gone(tn_gone_list *list) {
    if (list->n == 0) {
        return;
    }
    qsort(list->keys, list->n, sizeof *list->keys, compare_gone);
    uint64_t kept = 0;
    for (uint64_t i = 1; i < list->n; i++) {
        kept += !is_same_key(&list->keys[kept], &list->keys[i]);
        list->keys[kept] = list->keys[i];
    }
    list->n = kept + 1;
}

static void sort_owned(void *argument, int thread, int threads) {
    tn_table *table = argument;
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(i, threads) == thread) {
            sort_gone(&table->gone[i]);
        }
    }
}

static uint64_t removed_keys(const tn_table *table) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        n += table->gone[i].n;
    }
    return n;
}

uint64_t tn_removed_keys(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t n = removed_keys(table);
    pthread_mutex_unlock(&table->lock);
    return n;
}

static char *write_gone(const tn_table *table, const tn_gone *key, char *to) {
    uint64_t id = tn_unmix64(key->hash) ^ table->salts[key->group];
    memcpy(to, &id, 8);
    memcpy(to + 8, &key->group, 2);
    memcpy(to + 10, &key->step, 4);
    return to + 14;
}

int tn_take_removed(tn_table *table, void *keys, uint64_t capacity, uint64_t *n) {
    pthread_mutex_lock(&table->lock);
    int code = removed_keys(table) > capacity ? TN_BAD_VALUE : TN_OK;
    if (code == TN_OK) {
        tn_pool_run(table->pool, sort_owned, table);
        char *to = keys;
        *n = removed_keys(table);
        for (uint32_t i = 0; i < SHARDS; i++) {
            for (uint64_t k = 0; k < table->gone[i].n; k++) {
                to = write_gone(table, &table->gone[i].keys[k], to);
            }
            TN_FREE(table->gone[i].keys);
            table->gone[i] = (tn_gone_list){0};
        }
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* ---- Figures ------------------------------------------------------------ */

int tn_table_figures(tn_table *table, uint16_t number, tn_figures *out) {
    pthread_mutex_lock(&table->lock);
    int code = tn_group_declared(table, number) ? TN_OK : TN_NO_GROUP;
    if (code == TN_OK) {
        tn_group *group = &table->groups[number];
        int64_t waiting = atomic_load(&group->waiting);
        out->rows = atomic_load(&group->rows);
        out->evicted = atomic_load(&group->evicted);
        out->admitted = out->rows + out->evicted;
        out->waiting = waiting > 0 ? (uint64_t)waiting : 0;
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

int tn_table_set_figures(tn_table *table, uint16_t number, const tn_figures *figures) {
    if (figures->waiting > INT64_MAX) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&table->lock);
    int code = tn_group_declared(table, number) ? TN_OK : TN_NO_GROUP;
    if (code == TN_OK) {
        atomic_store(&table->groups[number].waiting, (int64_t)figures->waiting);
        atomic_store(&table->groups[number].evicted, figures->evicted);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
