/* tn_removal.c - taking rows out of a table, and the list of the keys that were.
 *
 * Two passes over the shards, each on all threads, every shard by its owner. The first walks the
 * rows as they lie in memory and marks, a bit each, those to be removed. All memory that the second
 * needs (bits, and room for the removed keys) is taken before it starts, so it cannot fail half
 * way. The second takes the marked rows out of the index, which reads no row, and links their
 * places, in the order of their numbers, into the list that the next insertions take from. */
#include "tn_removal.h"

#include <stdlib.h>

#include "tn_index.h"

/* One removal. */
typedef struct {
    tn_table *table;
    tn_marker marker;
    const void *context;
    uint64_t *marks; /* a bit per row, shard after shard: */
    uint64_t first_mark[SHARDS];
    uint64_t rows[SHARDS];   /* marked in each */
    uint64_t *rows_of_group; /* `counters` for each thread: cache lines that no other writes */
    uint64_t counters;
    int codes[SHARDS];
} removal_call;

/* ---- Marking ------------------------------------------------------------- */

/* Room for the keys that a shard will lose. */
static int room_for_keys(tn_removed_list *list, uint64_t more) {
    if (list->n + more <= list->room) {
        return TN_OK;
    }
    uint64_t room = list->n + more + list->room / 2;
    tn_removed_key *larger = TN_REALLOC(list->keys, room * sizeof *larger);
    if (larger == NULL) {
        return TN_NO_MEMORY;
    }
    list->keys = larger;
    list->room = room;
    return TN_OK;
}

static void mark_owned(void *argument, int thread, int threads) {
    removal_call *removal = argument;
    tn_table *table = removal->table;
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(table, i, threads) == thread) {
            removal->rows[i] = removal->marker(table, &table->shards[i], removal->context,
                                               removal->marks + removal->first_mark[i]);
            removal->codes[i] = room_for_keys(&table->removed[i], removal->rows[i]);
        }
    }
}

/* ---- Removing ------------------------------------------------------------ */

/* Notes the key of a row and marks the row as free. */
static void free_row(const tn_table *table, tn_row *row, tn_removed_list *list) {
    list->keys[list->n++] = (tn_removed_key){
        .hash = key_hash(table, row->group, row->id), .step = table->step, .group = row->group};
    row->uidx = FREE_ROW;
}

/* Removes the marked rows of shard i, on the thread that owns it: from the index, then from
 * memory, where each becomes free, and notes their keys for tn_take_removed. Cannot fail:
 * mark_owned made room for the keys. Rows that stay do not move, so pointers to them remain
 * right. */
static void remove_marked(removal_call *removal, uint32_t i, uint64_t *rows_of_group) {
    tn_table *table = removal->table;
    tn_shard *shard = &table->shards[i];
    const uint64_t *marks = removal->marks + removal->first_mark[i];
    if (removal->rows[i] == 0) {
        return;
    }
    tn_index_remove(shard, marks);
    /* From the last number to the first: the list of free rows is a stack, so the next insertions
     * take them in the order they lie in memory. */
    for (uint64_t word = (shard->next_row + 63) / 64; word-- > 0;) {
        for (uint32_t bit = 64; marks[word] != 0 && bit-- > 0;) {
            if (marks[word] >> bit & 1) {
                uint32_t number = (uint32_t)(word * 64 + bit);
                tn_row *row = row_at(table, shard, number);
                rows_of_group[row->group]++;
                free_row(table, row, &table->removed[i]);
                row->changed = shard->first_free;
                shard->first_free = number;
            }
        }
    }
    shard->used -= removal->rows[i];
    shard->free_rows += (uint32_t)removal->rows[i];
}

static void remove_owned(void *argument, int thread, int threads) {
    removal_call *removal = argument;
    uint64_t *rows_of_group = removal->rows_of_group + (uint64_t)thread * removal->counters;
    for (uint32_t i = 0; i < SHARDS; i++) {
        if (owner_of(removal->table, i, threads) == thread) {
            remove_marked(removal, i, rows_of_group);
        }
    }
}

static int make_marks(removal_call *removal) {
    const tn_table *table = removal->table;
    uint64_t words = 0, threads = (uint64_t)tn_thread_pool_size(table->pool);
    for (uint32_t i = 0; i < SHARDS; i++) {
        removal->first_mark[i] = words;
        words += (table->shards[i].next_row + 63) / 64;
    }
    removal->marks = TN_CALLOC(words + 1, sizeof *removal->marks);
    removal->counters = table->n_groups + 16;
    removal->rows_of_group = TN_CALLOC(threads * removal->counters, sizeof *removal->rows_of_group);
    return removal->marks == NULL || removal->rows_of_group == NULL ? TN_NO_MEMORY : TN_OK;
}

/* Adds up what the threads counted, each thread in separate counters: an atomic addition per row
 * would have all threads wait for one cache line. */
static void count_removed(const removal_call *removal) {
    tn_table *table = removal->table;
    for (uint32_t g = 0; g < table->n_groups; g++) {
        uint64_t n = 0;
        for (int t = 0; t < tn_thread_pool_size(table->pool); t++) {
            n += removal->rows_of_group[(uint64_t)t * removal->counters + g];
        }
        atomic_fetch_sub(&table->groups[g].rows, n);
        atomic_fetch_add(&table->groups[g].evicted, n);
    }
}

/* Both passes of tn_remove_rows, which frees what they allocated. Between them every shard's
 * code is looked at, so no row is removed unless there is memory for all. Counting a removal in
 * the table makes the batches of earlier calls empty (state_of), for their pointers may be to
 * rows now free. */
static int mark_and_remove(removal_call *removal, uint64_t *removed) {
    tn_table *table = removal->table;
    int code = make_marks(removal);
    if (code != TN_OK) {
        return code;
    }
    tn_thread_pool_run(table->pool, mark_owned, removal);
    uint64_t rows = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        code = removal->codes[i] == TN_OK ? code : removal->codes[i];
        rows += removal->rows[i];
    }
    if (code == TN_OK && rows > 0) {
        tn_thread_pool_run(table->pool, remove_owned, removal);
        count_removed(removal);
        table->removals++;
    }
    if (code == TN_OK) {
        *removed = rows;
    }
    return code;
}

int tn_remove_rows(tn_table *table, tn_marker marker, const void *context, uint64_t *removed) {
    removal_call removal = {.table = table, .marker = marker, .context = context};
    int code = mark_and_remove(&removal, removed);
    TN_FREE(removal.marks);
    TN_FREE(removal.rows_of_group);
    return code;
}

/* ---- Keys that were removed ---------------------------------------------- */

static int compare_keys(const void *left, const void *right) {
    const tn_removed_key *a = left, *b = right;
    if (a->hash != b->hash) {
        return a->hash < b->hash ? -1 : 1;
    }
    if (a->group != b->group) {
        return a->group < b->group ? -1 : 1;
    }
    return (a->step > b->step) - (a->step < b->step);
}

static int is_same_key(const tn_removed_key *a, const tn_removed_key *b) {
    return a->hash == b->hash && a->group == b->group;
}

/* Sorts by (hash, group, step) and keeps the last entry of each key: a key can be removed, come
 * back and be removed again before the list is taken. */
static void sort_keys(tn_removed_list *list) {
    if (list->n == 0) {
        return;
    }
    qsort(list->keys, list->n, sizeof *list->keys, compare_keys);
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
        if (owner_of(table, i, threads) == thread) {
            sort_keys(&table->removed[i]);
        }
    }
}

static uint64_t removed_keys(const tn_table *table) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        n += table->removed[i].n;
    }
    return n;
}

uint64_t tn_removed_keys(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t n = removed_keys(table);
    pthread_mutex_unlock(&table->lock);
    return n;
}

static char *write_key(const tn_table *table, const tn_removed_key *key, char *to) {
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
        tn_thread_pool_run(table->pool, sort_owned, table);
        char *to = keys;
        *n = removed_keys(table);
        for (uint32_t i = 0; i < SHARDS; i++) {
            for (uint64_t k = 0; k < table->removed[i].n; k++) {
                to = write_key(table, &table->removed[i].keys[k], to);
            }
            TN_FREE(table->removed[i].keys);
            table->removed[i] = (tn_removed_list){0};
        }
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
