/* tn_decode.c - tn_decode: records to rows.
 *
 * All or none: first every record is checked and room is made for all rows, which may fail; then
 * they are inserted, which cannot. Records come in the order of their hash, so the records of a
 * shard are contiguous, and each owner has a range of them. */
#include <math.h>

#include "tn_index.h"
#include "tn_records.h"
#include "tn_rows.h"

#define MAX_THREADS 64

typedef struct {
    tn_table *table;
    const char *records;
    uint64_t n;
    int empty;                   /* the table, before */
    int alone;                   /* the records are of too few shards for several threads */
    uint64_t starts[SHARDS + 1]; /* where the records of each shard begin */
    int codes[MAX_THREADS];
} record_reader;

/* Runs a job on the pool, or on this thread alone: waking the others costs as much as a small job,
 * and much more while something else has the cores. */
static void run(record_reader *reader, tn_job job) {
    if (reader->alone) {
        job(reader, 0, 1);
    } else {
        tn_thread_pool_run(reader->table->pool, job, reader);
    }
}

static const char *record_at(const record_reader *reader, uint64_t i) {
    return reader->records + i * reader->table->record_size;
}

/* Records from .. to - 1, in their order. The one before them is another thread's to check, but
 * what it is must be known here. */
static int check_range(const record_reader *reader, uint64_t from, uint64_t to) {
    const tn_table *table = reader->table;
    uint64_t last_hash = 0;
    uint16_t last_group = 0;
    for (uint64_t i = from > 0 ? from - 1 : 0; i < to; i++) {
        const char *record = record_at(reader, i);
        uint16_t group = record_group(record);
        if (!tn_group_declared(table, group)) {
            return TN_NO_GROUP;
        }
        uint64_t hash = record_hash(table, record);
        if (!tn_has_shard(table, shard_of(hash))) {
            return TN_NOT_OWNED;
        }
        if (i >= from) {
            if (i > 0 && (hash < last_hash || (hash == last_hash && group <= last_group))) {
                return TN_BAD_ORDER;
            }
            if (!reader->empty && tn_row_find(table, group, record_id(record), hash) != NULL) {
                return TN_KEY_EXISTS;
            }
        }
        last_hash = hash;
        last_group = group;
    }
    return TN_OK;
}

static void check_part(void *argument, int thread, int threads) {
    record_reader *reader = argument;
    reader->codes[thread] = check_range(reader, tn_part(reader->n, thread, threads),
                                        tn_part(reader->n, thread + 1, threads));
}

/* Whether there is less than a shard for each thread. */
static int few_shards(const record_reader *reader) {
    const tn_table *table = reader->table;
    const char *first = reader->records, *last = record_at(reader, reader->n - 1);
    if (!tn_group_declared(table, record_group(first)) ||
        !tn_group_declared(table, record_group(last))) {
        return 1;
    }
    int64_t shards =
        (int64_t)shard_of(record_hash(table, last)) - (int64_t)shard_of(record_hash(table, first));
    return shards < tn_thread_pool_size(table->pool);
}

/* The code of the first part that has one: a later part's may be a consequence. */
static int check_records(record_reader *reader) {
    for (uint32_t i = 0; i < SHARDS; i++) {
        reader->empty &= reader->table->shards[i].used == 0;
    }
    reader->alone = few_shards(reader);
    run(reader, check_part);
    int code = TN_OK;
    for (int t = 0; t < MAX_THREADS && code == TN_OK; t++) {
        code = reader->codes[t];
    }
    return code;
}

/* The first of the records, which are in order, whose shard is `shard` or a later one. */
static uint64_t start_of(const record_reader *reader, uint32_t shard) {
    uint64_t low = 0, high = reader->n;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (shard_of(record_hash(reader->table, record_at(reader, middle))) < shard) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Makes room for all records, shard by shard, so that no insertion can fail, and so that each index
 * has its final capacity: records in the order of the hash then fill it from front to back
 * (tn_index.h). The records are sorted, so the first of each shard is found by halving. */
static int make_room(record_reader *reader) {
    int code = TN_OK;
    for (uint32_t i = 0; i <= SHARDS; i++) {
        reader->starts[i] = start_of(reader, i);
    }
    for (uint32_t i = 0; i < SHARDS && code == TN_OK; i++) {
        uint64_t rows = reader->starts[i + 1] - reader->starts[i];
        code = tn_shard_make_room(reader->table, &reader->table->shards[i], rows);
    }
    return code;
}

/* The second job of tn_decode: each thread inserts the records of the shards it owns, whose
 * range make_room found. The code of tn_row_place is dropped because it cannot fail: the records
 * are checked and there is room for their rows. */
static void insert_owned(void *argument, int thread, int threads) {
    record_reader *reader = argument;
    tn_table *table = reader->table;
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (owner_of(table, shard, threads) != thread) {
            continue;
        }
        for (uint64_t i = reader->starts[shard]; i < reader->starts[shard + 1]; i++) {
            const char *record = record_at(reader, i);
            tn_row *row = NULL;
            (void)tn_row_place(table, record_group(record), record_id(record),
                               record_hash(table, record), &row);
            read_record(table, record, row);
        }
    }
}

/* After all were inserted: an atomic addition per row would wait for the row's memory each time. */
static void count_rows(const record_reader *reader) {
    tn_group *groups = reader->table->groups;
    for (uint64_t i = 0; i < reader->n; i++) {
        _Atomic uint64_t *rows = &groups[record_group(record_at(reader, i))].rows;
        atomic_store_explicit(rows, atomic_load_explicit(rows, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    }
}

int tn_decode(tn_table *table, const void *records, uint64_t n) {
    record_reader reader = {.table = table, .records = records, .n = n, .empty = 1};
    pthread_mutex_lock(&table->lock);
    int code = n > 0 ? check_records(&reader) : TN_OK;
    if (code == TN_OK) {
        code = make_room(&reader);
    }
    if (code == TN_OK) {
        run(&reader, insert_owned);
        count_rows(&reader);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

int tn_table_reserve(tn_table *table, uint64_t rows) {
    /* A shard has a binomial share of the keys: four standard deviations more will do. */
    int code = TN_OK;
    pthread_mutex_lock(&table->lock);
    uint64_t share = rows / table->n_shards + 1;
    uint64_t most = share + 4 * (uint64_t)sqrt((double)share);
    for (uint32_t i = 0; i < table->n_shards && code == TN_OK; i++) {
        code = tn_index_reserve(&table->shards[table->first_shard + i], most);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
