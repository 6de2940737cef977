/* tn_records.c - rows to bytes in the order of their hash, and back. */
#include "tn_table.h"

/* ---- One row ------------------------------------------------------------ */

/* The bytes of integers are the machine's; supported machines are little-endian (setup.py). */
static void write_record(const tn_table *table, const tn_row *row, char *to) {
    memcpy(to, &row->id, 8);
    memcpy(to + 8, &row->group, 2);
    memcpy(to + 10, &row->flags, 2);
    memcpy(to + 12, &row->changed, 4);
    memcpy(to + 16, row_floats(row), table->floats * sizeof(float));
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
    memcpy(&row->flags, record + 10, 2);
    memcpy(&row->changed, record + 12, 4);
    memcpy(row_floats(row), record + 16, table->floats * sizeof(float));
}

/* ---- Encode ------------------------------------------------------------- */

typedef struct {
    uint64_t hash;
    const tn_row *row;
} tn_keyed;

typedef struct {
    tn_table *table;
    uint64_t first, last; /* hashes wanted */
    char *records;
    uint64_t capacity, written;
    uint64_t next; /* the hash that did not fit */
    int full;
    tn_keyed *run; /* rows of one run of the index */
    uint64_t run_rows, run_room;
} tn_writer;

static int before(const tn_keyed *a, const tn_keyed *b) {
    return a->hash != b->hash ? a->hash < b->hash : a->row->group < b->row->group;
}

/* Runs are short and almost in order. */
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
        if (hash < writer->first || hash > writer->last) {
            continue;
        }
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

static int add_to_run(tn_writer *writer, const tn_row *row, uint64_t hash) {
    if (writer->run_rows == writer->run_room) {
        uint64_t room = writer->run_room == 0 ? 256 : writer->run_room * 2;
        tn_keyed *larger = TN_REALLOC(writer->run, room * sizeof *larger);
        if (larger == NULL) {
            return TN_NO_MEMORY;
        }
        writer->run = larger;
        writer->run_room = room;
    }
    writer->run[writer->run_rows++] = (tn_keyed){hash, row};
    return TN_OK;
}

#define AHEAD 24

/* Walks the runs that can hold hashes from `first` to `last` (of this shard); no entry stands
 * before its home, so none of them begins before that of `first`. A run that reaches past the end
 * of the index goes on at its start: entries there whose home is behind them belong to the end, and
 * are skipped at the start. */
static int encode_shard(tn_writer *writer, const tn_shard *shard, uint64_t first, uint64_t last) {
    const tn_table *table = writer->table;
    uint64_t at = home_of(shard, tag_of(first));
    uint64_t last_home = home_of(shard, tag_of(last));
    for (;; at++) {
        uint64_t place = at < shard->capacity ? at : at - shard->capacity;
        uint64_t entry = shard->entries[place];
        if (entry == 0) {
            flush_run(writer);
            if (writer->full || at >= last_home) {
                return TN_OK;
            }
            continue;
        }
        if (at + AHEAD < shard->capacity && shard->entries[at + AHEAD] != 0) {
            TN_PREFETCH(row_at(table, shard, (uint32_t)shard->entries[at + AHEAD] - 1));
        }
        int wrapped = home_of(shard, (uint32_t)(entry >> 32)) > place;
        if (wrapped == (at >= shard->capacity)) {
            const tn_row *row = row_at(table, shard, (uint32_t)entry - 1);
            int code = add_to_run(writer, row, key_hash(table, row->group, row->id));
            if (code != TN_OK) {
                return code;
            }
        }
    }
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

int tn_encode(tn_table *table, uint64_t first, uint64_t last, void *records, uint64_t capacity,
              uint64_t *written, uint64_t *next, int *more) {
    if (first > last) {
        return TN_BAD_VALUE;
    }
    tn_writer writer = {
        .table = table, .first = first, .last = last, .records = records, .capacity = capacity};
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

static int check_records(const tn_table *table, const char *records, uint64_t n) {
    int empty = 1;
    for (uint32_t i = 0; i < SHARDS; i++) {
        empty &= table->shards[i].used == 0;
    }
    uint64_t last_hash = 0;
    uint16_t last_group = 0;
    for (uint64_t i = 0; i < n; i++) {
        const char *record = records + i * table->record_size;
        uint16_t group = record_group(record);
        if (group >= table->n_groups || !table->groups[group].declared) {
            return TN_NO_GROUP;
        }
        uint64_t hash = key_hash(table, group, record_id(record));
        if (i > 0 && (hash < last_hash || (hash == last_hash && group <= last_group))) {
            return TN_BAD_ORDER;
        }
        if (!empty && tn_row_find(table, group, record_id(record), hash) != NULL) {
            return TN_KEY_EXISTS;
        }
        last_hash = hash;
        last_group = group;
    }
    return TN_OK;
}

static int insert_records(tn_table *table, const char *records, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        const char *record = records + i * table->record_size;
        uint16_t group = record_group(record);
        uint64_t id = record_id(record);
        tn_row *row;
        int code = tn_row_insert(table, group, id, key_hash(table, group, id), &row);
        if (code != TN_OK) {
            return code;
        }
        read_record(table, record, row);
    }
    return TN_OK;
}

int tn_decode(tn_table *table, const void *records, uint64_t n) {
    pthread_mutex_lock(&table->lock);
    int code = check_records(table, records, n);
    if (code == TN_OK) {
        code = insert_records(table, records, n);
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
