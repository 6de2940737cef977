/* tn_evict_surplus.c - tn_evict_surplus: removes the least valuable rows of groups over most_rows.
 *
 * Rows are ranked by (worth, hash), which no two rows of a group share, so which rows stay does not
 * depend on the order they lie in, nor on threads. To find the first that stays, the k-th smallest,
 * without sorting or copying ranks, rows are counted by parts of an interval of worth, all groups
 * in one pass over memory; the part that holds the k-th is the next interval:
 *
 *     surplus 100     worth   0 ........................................ 2^32
 *     pass 1                  [ 30 | 40 | 50 | ... 1024 parts ]          30 + 40 < 100 <= 120
 *     pass 2                            [ 12 | 9 | 3 ... ]               the 30th of this part
 *
 * An interval is narrowed to the worths that occur in it, so three or four passes reach a single
 * worth; rows that are equal are then told apart by their hashes in the same way. */
#include "tn_removal.h"
#include "tn_shows.h"

/* A row's rank within its group: by worth, then by hash. */
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
    tn_read_shows(table, row, shows);
    double score = tn_score_of(&table->groups[row->group].life, shows);
    return (uint64_t)ordered((float)score) << 32 | row->changed;
}

static int is_before(tn_rank a, tn_rank b) {
    return a.worth != b.worth ? a.worth < b.worth : a.hash < b.hash;
}

#define PARTS 1024u /* of an interval */

typedef struct {
    uint64_t rows, least, most; /* least and most are of the rows in it */
} tn_part_rows;

typedef struct {
    int bounded;          /* whether the group has too many rows */
    uint64_t surplus;     /* of the interval's rows, so many go */
    int by_hash, done;    /* the interval is of the hashes of the rows worth first.worth */
    uint64_t least, most; /* the interval, */
    uint32_t shift;       /* and its parts' width, as a power of two */
    tn_rank first;        /* the first that stays */
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

/* Adds a row to the count of its part of the group's interval, unless it is outside: rows below
 * the interval go and rows above it stay, whatever the next passes find. `thread` owns the row's
 * shard and counts in parts of its own, so counting needs no atomics. */
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
    tn_choice *choices; /* per group */
} surplus_call;

static void count_owned(void *argument, int thread, int threads) {
    const surplus_call *call = argument;
    const tn_table *table = call->table;
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(table, i, threads) == thread) {
            FOR_ROWS_OF_SHARD(table, &table->shards[i], row, number,
                              count_row(table, row, call->choices, thread));
        }
    }
}

static tn_part_rows sum_of_part(const tn_choice *choice, uint32_t part, int threads) {
    tn_part_rows sum = {0, UINT64_MAX, 0};
    for (int t = 0; t < threads; t++) {
        const tn_part_rows *counted = choice->parts + (uint64_t)t * PARTS + part;
        if (counted->rows > 0) {
            sum.rows += counted->rows;
            sum.least = counted->least < sum.least ? counted->least : sum.least;
            sum.most = counted->most > sum.most ? counted->most : sum.most;
        }
    }
    return sum;
}

/* Makes the part that has the first row that stays the next interval. */
static void narrow(tn_choice *choice, int threads) {
    uint32_t i = 0;
    tn_part_rows part = sum_of_part(choice, i, threads);
    while (part.rows <= choice->surplus) {
        choice->surplus -= part.rows;
        part = sum_of_part(choice, ++i, threads);
    }
    uint64_t *first = choice->by_hash ? &choice->first.hash : &choice->first.worth;
    *first = part.least;
    set_interval(choice, part.least, part.most);
    if (choice->surplus == 0) {
        choice->done = 1;
    } else if (part.least == part.most) { /* equals, and their hashes differ */
        choice->by_hash = 1;
        set_interval(choice, 0, UINT64_MAX);
    }
    memset(choice->parts, 0, (uint64_t)threads * PARTS * sizeof *choice->parts);
}

/* Finds the first row that stays of each bounded group: passes over all rows, each followed by
 * one narrowing per group on the calling thread, until no group has rows left to tell apart.
 * Ends because every pass makes the interval smaller, one of a single worth is followed by one
 * of hashes, and no two rows of a group share a hash. */
static void choose_rows(surplus_call *call) {
    tn_table *table = call->table;
    int threads = tn_thread_pool_size(table->pool), left;
    do {
        tn_thread_pool_run(table->pool, count_owned, call);
        left = 0;
        for (uint32_t g = 0; g < table->n_groups; g++) {
            tn_choice *choice = &call->choices[g];
            if (choice->bounded && !choice->done) {
                narrow(choice, threads);
                left |= !choice->done;
            }
        }
    } while (left);
}

/* Whether a row comes before the first that stays. Its hash is computed only where it decides. */
static int is_surplus(const tn_table *table, const tn_row *row, const tn_choice *choice) {
    if (!choice->bounded) {
        return 0;
    }
    tn_rank rank = {worth_of(table, row), 0};
    if (rank.worth == choice->first.worth) {
        rank.hash = key_hash(table, row->group, row->id);
    }
    return is_before(rank, choice->first);
}

static uint64_t mark_surplus(const tn_table *table, const tn_shard *shard, const void *context,
                             uint64_t *marks) {
    const tn_choice *choices = context;
    uint64_t n = 0;
    FOR_ROWS_OF_SHARD(table, shard, row, number, {
        uint64_t surplus = (uint64_t)is_surplus(table, row, &choices[row->group]);
        marks[number / 64] |= surplus << number % 64;
        n += surplus;
    });
    return n;
}

static int is_over(const tn_group *group) {
    return group->life.most_rows > 0 && atomic_load(&group->rows) > group->life.most_rows;
}

/* tn_evict_surplus for the `over` groups that have too many rows. Beyond the surplus a sixteenth of
 * the bound is removed, so that the next step does not have to search again. Frees what it
 * allocates; when memory runs out no row is removed. */
static int evict_surplus_of_groups(tn_table *table, uint32_t over, uint64_t *evicted) {
    uint64_t parts = (uint64_t)tn_thread_pool_size(table->pool) * PARTS;
    surplus_call call = {table, TN_CALLOC(table->n_groups, sizeof *call.choices)};
    tn_part_rows *all_parts = TN_CALLOC(over * parts, sizeof *all_parts);
    int code = call.choices == NULL || all_parts == NULL ? TN_NO_MEMORY : TN_OK;
    tn_part_rows *next = all_parts;
    for (uint32_t g = 0; g < table->n_groups && code == TN_OK; g++) {
        const tn_group *group = &table->groups[g];
        if (is_over(group)) {
            uint64_t most = group->life.most_rows;
            call.choices[g] = (tn_choice){.bounded = 1,
                                          .surplus = atomic_load(&group->rows) - most + most / 16,
                                          .parts = next};
            set_interval(&call.choices[g], 0, table->shows ? UINT64_MAX : UINT32_MAX);
            next += parts;
        }
    }
    if (code == TN_OK) {
        choose_rows(&call);
        code = tn_remove_rows(table, mark_surplus, call.choices, evicted);
    }
    TN_FREE(call.choices);
    TN_FREE(all_parts);
    return code;
}

int tn_evict_surplus(tn_table *table, uint64_t *evicted) {
    pthread_mutex_lock(&table->lock);
    uint32_t over = 0;
    for (uint32_t g = 0; g < table->n_groups; g++) {
        over += (uint32_t)is_over(&table->groups[g]);
    }
    int code = TN_OK;
    if (over > 0) {
        code = evict_surplus_of_groups(table, over, evicted);
    } else {
        *evicted = 0;
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
