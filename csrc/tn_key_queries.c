/* tn_key_queries.c - queries of many keys that change nothing: whether they have rows, their
 * hashes, and the records that they would have if they were inserted now. */
#include "tn_index.h"
#include "tn_records.h"
#include "tn_rows.h"

#define MAX_THREADS 64
#define FEW_KEYS 4096 /* fewer are not worth waking a thread for */
#define KEYS_AHEAD 24 /* keys whose part of the index is announced to the cache */

typedef struct {
    tn_table *table;
    const uint16_t *groups;
    const uint64_t *ids;
    uint64_t n;
    uint8_t *has_row;
    char *records;
    int codes[MAX_THREADS];
} keys_call;

/* Runs a job on a table's threads, each with its part of the keys. Parts are of keys, not of
 * shards: the jobs only read the table, so any thread may look at any shard. */
static int run_on_keys(keys_call *keys, tn_job job) {
    tn_table *table = keys->table;
    int code = TN_OK;
    pthread_mutex_lock(&table->lock);
    for (uint64_t i = 0; i < keys->n && code == TN_OK; i++) {
        code = tn_group_declared(table, keys->groups[i]) ? TN_OK : TN_NO_GROUP;
    }
    if (code == TN_OK) {
        if (keys->n < FEW_KEYS) {
            job(keys, 0, 1);
        } else {
            tn_thread_pool_run(table->pool, job, keys);
        }
        for (int t = 0; t < MAX_THREADS && code == TN_OK; t++) {
            code = keys->codes[t];
        }
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* The job of tn_table_contains: sets has_row for this thread's part of the keys. KEYS_AHEAD keys
 * later are announced to the cache, since nearly every lookup misses it. */
static void find_part(void *argument, int thread, int threads) {
    keys_call *keys = argument;
    const tn_table *table = keys->table;
    uint64_t last = tn_part(keys->n, thread + 1, threads);
    for (uint64_t i = tn_part(keys->n, thread, threads); i < last; i++) {
        if (i + KEYS_AHEAD < last) {
            uint64_t hash =
                key_hash(table, keys->groups[i + KEYS_AHEAD], keys->ids[i + KEYS_AHEAD]);
            tn_index_prefetch(table, hash);
        }
        uint64_t hash = key_hash(table, keys->groups[i], keys->ids[i]);
        keys->has_row[i] = tn_row_find(table, keys->groups[i], keys->ids[i], hash) != NULL;
    }
}

int tn_table_contains(tn_table *table, const uint16_t *groups, const uint64_t *ids, uint64_t n,
                      uint8_t *has_row) {
    keys_call keys = {.table = table, .groups = groups, .ids = ids, .n = n, .has_row = has_row};
    return run_on_keys(&keys, find_part);
}

/* The job of tn_initial_records: starts each key of this thread's part as a row outside of the
 * table, the same one again and again, and writes its record. Nothing of the table changes. */
static void start_part(void *argument, int thread, int threads) {
    keys_call *keys = argument;
    const tn_table *table = keys->table;
    tn_row *row = TN_CALLOC(1, table->stride);
    if (row == NULL) {
        keys->codes[thread] = TN_NO_MEMORY;
        return;
    }
    uint64_t last = tn_part(keys->n, thread + 1, threads);
    for (uint64_t i = tn_part(keys->n, thread, threads); i < last; i++) {
        uint64_t hash = key_hash(table, keys->groups[i], keys->ids[i]);
        tn_row_start(table, row, keys->groups[i], keys->ids[i], hash);
        write_record(table, row, keys->records + i * table->record_size);
    }
    TN_FREE(row);
}

int tn_initial_records(tn_table *table, const uint16_t *groups, const uint64_t *ids, uint64_t n,
                       void *records) {
    keys_call keys = {.table = table, .groups = groups, .ids = ids, .n = n, .records = records};
    return run_on_keys(&keys, start_part);
}

int tn_key_hashes(const uint64_t *salts, const uint8_t *declared, uint32_t n_groups,
                  const uint16_t *groups, const uint64_t *ids, uint64_t n, uint64_t *hashes) {
    for (uint64_t i = 0; i < n; i++) {
        if (groups[i] >= n_groups || !declared[groups[i]]) {
            return TN_NO_GROUP;
        }
        hashes[i] = mix64(ids[i] ^ salts[groups[i]]);
    }
    return TN_OK;
}
