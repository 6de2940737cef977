/* tn_records.c - rows to bytes in the order of their hash, and back. */
#include <math.h>
#include <stddef.h>

#include "tn_table.h"

#define MAX_THREADS 64
#define WINDOW 256    /* places of the index that are taken together */
#define FEW_KEYS 4096 /* not worth waking a thread for */
#define AHEAD 24      /* keys whose part of the index is on its way */

/* ---- One row ------------------------------------------------------------ */

/* A record is a row without uidx. The bytes of integers are the machine's; supported machines are
 * little-endian (setup.py). */
#define AFTER_UIDX offsetof(tn_row, group)

static void write_record(const tn_table *table, const tn_row *row, char *to) {
    memcpy(to, &row->id, sizeof row->id);
    memcpy(to + sizeof row->id, (const char *)row + AFTER_UIDX,
           table->record_size - sizeof row->id);
}

static uint64_t record_id(const char *record) {
    uint64_t id;
    memcpy(&id, record, sizeof id);
    return id;
}

static uint16_t record_group(const char *record) {
    uint16_t group;
    memcpy(&group, record + 8, sizeof group);
    return group;
}

static void read_record(const tn_table *table, const char *record, tn_row *row) {
    memcpy(&row->id, record, sizeof row->id);
    memcpy((char *)row + AFTER_UIDX, record + sizeof row->id, table->record_size - sizeof row->id);
}

/* ---- Encode ------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    const tn_row *row;
} tn_keyed;

typedef struct {
    tn_table *table;
    uint64_t first, last;  /* hashes wanted */
    uint32_t changed_from; /* of rows changed at this step or later */
    char *records;
    uint64_t capacity, written;
    uint64_t next; /* the hash that did not fit */
    int full;
    tn_keyed *run; /* rows of whole runs of the index */
    uint64_t run_rows, run_room;
} tn_writer;

static int before(const tn_keyed *a, const tn_keyed *b) {
    return a->hash != b->hash ? a->hash < b->hash : a->row->group < b->row->group;
}

/* Almost in order: an entry is never far from its home. */
static void sort_run(tn_keyed *run, uint64_t n) {
    for (uint64_t i = 1; i < n; i++) {
        tn_keyed moved = run[i];
        uint64_t j = i;
        for (; j > 0 && before(&moved, &run[j - 1]); j--) {
            run[j] = run[j - 1];
        }
        run[j] = moved;
    }
}

/* Takes back what was written with the hash that did not fit, so that the next call, which goes on
 * from that hash, writes all groups that share it. */
static void stop_before(tn_writer *writer, uint64_t hash) {
    const tn_table *table = writer->table;
    while (writer->written > 0) {
        const char *record = writer->records + (writer->written - 1) * table->record_size;
        if (key_hash(table, record_group(record), record_id(record)) != hash) {
            break;
        }
        writer->written--;
    }
    writer->next = hash;
    writer->full = 1;
}

static void flush_run(tn_writer *writer) {
    sort_run(writer->run, writer->run_rows);
    for (uint64_t i = 0; i < writer->run_rows && !writer->full; i++) {
        uint64_t hash = writer->run[i].hash;
        if (writer->written == writer->capacity) {
            stop_before(writer, hash);
            break;
        }
        write_record(writer->table, writer->run[i].row,
                     writer->records + writer->written * writer->table->record_size);
        writer->written++;
    }
    writer->run_rows = 0;
}

static int room_in_run(tn_writer *writer, uint64_t more) {
    uint64_t room = writer->run_room == 0 ? 2 * WINDOW : writer->run_room;
    while (room < writer->run_rows + more) {
        room *= 2;
    }
    if (room == writer->run_room) {
        return TN_OK;
    }
    tn_keyed *larger = TN_REALLOC(writer->run, room * sizeof *larger);
    if (larger == NULL) {
        return TN_NO_MEMORY;
    }
    writer->run = larger;
    writer->run_room = room;
    return TN_OK;
}

/* Adds the row of an entry, and starts it on its way, unless the place is empty or not of this
 * round: a run that reaches past the end of the index goes on at its start, and entries there whose
 * home is behind them belong to the end. Without a branch, for it would be a coin toss. */
static inline void add_entry(tn_writer *writer, const tn_shard *shard, uint64_t place, int round) {
    uint64_t entry = shard->entries[place];
    int wrapped = home_of(shard, (uint32_t)(entry >> 32)) > place;
    uint32_t number = entry != 0 ? (uint32_t)entry - 1 : 0;
    writer->run[writer->run_rows].row = row_at(writer->table, shard, number);
    TN_PREFETCH(writer->run[writer->run_rows].row);
    writer->run_rows += entry != 0 && wrapped == round;
}

/* Hashes the rows of the run, and keeps those that are wanted. */
static void hash_run(tn_writer *writer) {
    const tn_table *table = writer->table;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < writer->run_rows; i++) {
        const tn_row *row = writer->run[i].row;
        uint64_t hash = key_hash(table, row->group, row->id);
        writer->run[kept] = (tn_keyed){hash, row};
        kept +=
            row->changed >= writer->changed_from && hash >= writer->first && hash <= writer->last;
    }
    writer->run_rows = kept;
}

/* Walks the runs that can hold hashes from `first` to `last` (of this shard), many at a time; no
 * entry stands before its home, so none of them begins before that of `first`. */
static int encode_shard(tn_writer *writer, const tn_shard *shard, uint64_t first, uint64_t last) {
    uint64_t at = home_of(shard, tag_of(first));
    uint64_t last_home = home_of(shard, tag_of(last));
    if (shard->used == 0) {
        return TN_OK; /* and it may not even have the row that an empty entry stands for */
    }
    while (at <= last_home && !writer->full) {
        uint64_t end = at + WINDOW <= last_home ? at + WINDOW : last_home + 1;
        if (room_in_run(writer, WINDOW) != TN_OK) {
            return TN_NO_MEMORY;
        }
        for (; at < end; at++) {
            add_entry(writer, shard, at, 0);
        }
        /* On to the end of the run that reaches beyond them. */
        for (;; at++) {
            uint64_t place = at < shard->capacity ? at : at - shard->capacity;
            if (shard->entries[place] == 0) {
                break;
            }
            if (room_in_run(writer, 1) != TN_OK) {
                return TN_NO_MEMORY;
            }
            add_entry(writer, shard, place, at >= shard->capacity);
        }
        hash_run(writer);
        flush_run(writer);
    }
    return TN_OK;
}

static int encode_shards(tn_writer *writer) {
    int code = TN_OK;
    for (uint32_t i = shard_of(writer->first);
         i <= shard_of(writer->last) && code == TN_OK && !writer->full; i++) {
        uint64_t lowest = (uint64_t)i << (64 - SHARD_BITS);
        uint64_t highest = lowest | (UINT64_MAX >> SHARD_BITS);
        code = encode_shard(writer, &writer->table->shards[i],
                            writer->first > lowest ? writer->first : lowest,
                            writer->last < highest ? writer->last : highest);
    }
    return code;
}

int tn_encode(tn_table *table, uint64_t first, uint64_t last, uint32_t changed_from, void *records,
              uint64_t capacity, uint64_t *written, uint64_t *next, int *more) {
    if (first > last) {
        return TN_BAD_VALUE;
    }
    tn_writer writer = {.table = table,
                        .first = first,
                        .last = last,
                        .changed_from = changed_from,
                        .records = records,
                        .capacity = capacity};
    pthread_mutex_lock(&table->lock);
    int code = encode_shards(&writer);
    pthread_mutex_unlock(&table->lock);
    TN_FREE(writer.run);
    if (code == TN_OK && writer.full && writer.written == 0) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        *written = writer.written;
        *next = writer.full ? writer.next : last;
        *more = writer.full;
    }
    return code;
}

/* ---- Decode ------------------------------------------------------------- */

/* Runs a job on the pool, or, when it is `alone`, on this thread: waking others costs as much as a
 * small job, and much more while something else has the cores. */
static void run(tn_table *table, tn_job job, void *argument, int alone) {
    if (alone) {
        job(argument, 0, 1);
    } else {
        tn_pool_run(table->pool, job, argument);
    }
}

typedef struct {
    tn_table *table;
    const char *records;
    uint64_t n;
    int empty;                   /* the table, before */
    int alone;                   /* the records are of too few shards for several threads */
    uint64_t starts[SHARDS + 1]; /* where the records of each shard begin */
    int codes[MAX_THREADS];
} tn_reader;

static const char *record_at(const tn_reader *reader, uint64_t i) {
    return reader->records + i * reader->table->record_size;
}

static int known_group(const tn_table *table, uint16_t group) {
    return group < table->n_groups && table->groups[group].declared;
}

static uint64_t record_hash(const tn_table *table, const char *record) {
    return key_hash(table, record_group(record), record_id(record));
}

/* Records from .. to - 1, in their order. The one before them is another thread's to check, but
 * what it is must be known here. */
static int check_range(const tn_reader *reader, uint64_t from, uint64_t to) {
    const tn_table *table = reader->table;
    uint64_t last_hash = 0;
    uint16_t last_group = 0;
    for (uint64_t i = from > 0 ? from - 1 : 0; i < to; i++) {
        const char *record = record_at(reader, i);
        uint16_t group = record_group(record);
        if (!known_group(table, group)) {
            return TN_NO_GROUP;
        }
        uint64_t hash = record_hash(table, record);
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
    tn_reader *reader = argument;
    reader->codes[thread] = check_range(reader, tn_part(reader->n, thread, threads),
                                        tn_part(reader->n, thread + 1, threads));
}

/* Whether there is less than a shard for each thread. */
static int few_shards(const tn_reader *reader) {
    const tn_table *table = reader->table;
    const char *first = reader->records, *last = record_at(reader, reader->n - 1);
    if (!known_group(table, record_group(first)) || !known_group(table, record_group(last))) {
        return 1;
    }
    int64_t shards =
        (int64_t)shard_of(record_hash(table, last)) - (int64_t)shard_of(record_hash(table, first));
    return shards < tn_pool_threads(table->pool);
}

/* The code of the first part that has one: a later part's may be a consequence. */
static int check_records(tn_reader *reader) {
    for (uint32_t i = 0; i < SHARDS; i++) {
        reader->empty &= reader->table->shards[i].used == 0;
    }
    reader->alone = few_shards(reader);
    run(reader->table, check_part, reader, reader->alone);
    int code = TN_OK;
    for (int t = 0; t < MAX_THREADS && code == TN_OK; t++) {
        code = reader->codes[t];
    }
    return code;
}

/* The first of the records, which are in order, whose shard is `shard` or a later one. */
static uint64_t start_of(const tn_reader *reader, uint32_t shard) {
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

/* Room for all records, so that none fails to go in. */
static int make_room(tn_reader *reader) {
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

static void insert_owned(void *argument, int thread, int threads) {
    tn_reader *reader = argument;
    tn_table *table = reader->table;
    for (uint32_t shard = 0; shard < SHARDS; shard++) {
        if (owner_of(shard, threads) != thread) {
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

/* In one go: an atomic addition a row would wait for the row's memory each time. */
static void count_rows(const tn_reader *reader) {
    tn_group *groups = reader->table->groups;
    for (uint64_t i = 0; i < reader->n; i++) {
        _Atomic uint64_t *rows = &groups[record_group(record_at(reader, i))].rows;
        atomic_store_explicit(rows, atomic_load_explicit(rows, memory_order_relaxed) + 1,
                              memory_order_relaxed);
    }
}

int tn_decode(tn_table *table, const void *records, uint64_t n) {
    tn_reader reader = {.table = table, .records = records, .n = n, .empty = 1};
    pthread_mutex_lock(&table->lock);
    int code = n > 0 ? check_records(&reader) : TN_OK;
    if (code == TN_OK) {
        code = make_room(&reader);
    }
    if (code == TN_OK) {
        run(table, insert_owned, &reader, reader.alone);
        count_rows(&reader);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

int tn_table_reserve(tn_table *table, uint64_t rows) {
    /* A shard has a binomial share of the keys: four standard deviations more will do. */
    uint64_t share = rows / SHARDS + 1;
    uint64_t most = share + 4 * (uint64_t)sqrt((double)share);
    int code = TN_OK;
    pthread_mutex_lock(&table->lock);
    for (uint32_t i = 0; i < SHARDS && code == TN_OK; i++) {
        code = tn_shard_reserve(&table->shards[i], most);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* ---- Keys --------------------------------------------------------------- */

typedef struct {
    tn_table *table;
    const uint16_t *groups;
    const uint64_t *ids;
    uint64_t n;
    uint8_t *found;
    char *records;
    int codes[MAX_THREADS];
} tn_keys;

/* Runs a job on a table's threads, each with its part of the keys. */
static int run_on_keys(tn_keys *keys, tn_job job) {
    tn_table *table = keys->table;
    int code = TN_OK;
    pthread_mutex_lock(&table->lock);
    for (uint64_t i = 0; i < keys->n && code == TN_OK; i++) {
        code = known_group(table, keys->groups[i]) ? TN_OK : TN_NO_GROUP;
    }
    if (code == TN_OK) {
        run(table, job, keys, keys->n < FEW_KEYS);
        for (int t = 0; t < MAX_THREADS && code == TN_OK; t++) {
            code = keys->codes[t];
        }
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}

static void find_part(void *argument, int thread, int threads) {
    tn_keys *keys = argument;
    const tn_table *table = keys->table;
    uint64_t last = tn_part(keys->n, thread + 1, threads);
    for (uint64_t i = tn_part(keys->n, thread, threads); i < last; i++) {
        if (i + AHEAD < last) {
            uint64_t hash = key_hash(table, keys->groups[i + AHEAD], keys->ids[i + AHEAD]);
            const tn_shard *shard = &table->shards[shard_of(hash)];
            TN_PREFETCH(&shard->entries[home_of(shard, tag_of(hash))]);
        }
        uint64_t hash = key_hash(table, keys->groups[i], keys->ids[i]);
        keys->found[i] = tn_row_find(table, keys->groups[i], keys->ids[i], hash) != NULL;
    }
}

int tn_table_contains(tn_table *table, const uint16_t *groups, const uint64_t *ids, uint64_t n,
                      uint8_t *found) {
    tn_keys keys = {.table = table, .groups = groups, .ids = ids, .n = n, .found = found};
    return run_on_keys(&keys, find_part);
}

static void start_part(void *argument, int thread, int threads) {
    tn_keys *keys = argument;
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

int tn_fresh(tn_table *table, const uint16_t *groups, const uint64_t *ids, uint64_t n,
             void *records) {
    tn_keys keys = {.table = table, .groups = groups, .ids = ids, .n = n, .records = records};
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
