/* tn_encode.c - tn_encode: rows to records, in the order of (hash, group). */
#include "tn_index.h"
#include "tn_records.h"

#define WINDOW 256 /* places of the index that are taken together */

typedef struct {
    uint64_t hash;
    const tn_row *row;
} keyed_row;

typedef struct {
    tn_table *table;
    uint64_t first, last;  /* hashes wanted */
    uint32_t changed_from; /* of rows changed at this step or later */
    char *records;
    uint64_t capacity, written;
    uint64_t next; /* the hash that did not fit */
    int full;
    keyed_row *run; /* rows of whole runs of the index */
    uint64_t run_rows, run_room;
} record_writer;

static int is_before(const keyed_row *a, const keyed_row *b) {
    return a->hash != b->hash ? a->hash < b->hash : a->row->group < b->row->group;
}

/* By insertion: entries of a run are out of order only as far as they were pushed from their homes,
 * so few are moved, and not far. */
static void sort_run(keyed_row *run, uint64_t n) {
    for (uint64_t i = 1; i < n; i++) {
        keyed_row moved = run[i];
        uint64_t j = i;
        for (; j > 0 && is_before(&moved, &run[j - 1]); j--) {
            run[j] = run[j - 1];
        }
        run[j] = moved;
    }
}

/* Takes back the records that have the hash of the one that did not fit: keys of two groups can
 * share a hash, and the next call, which starts at that hash, writes all of them. */
static void stop_before(record_writer *writer, uint64_t hash) {
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

/* Sorts the rows collected so far and writes their records until the output is full. Runs are
 * flushed in the order of their hashes (encode_shard), so sorting within each makes the whole
 * output sorted. */
static void flush_run(record_writer *writer) {
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

/* Makes room for `more` rows at the end of the run, doubling its memory. tn_encode frees the run
 * at the end, also after TN_NO_MEMORY, which leaves it as it was. */
static int room_in_run(record_writer *writer, uint64_t more) {
    uint64_t room = writer->run_room == 0 ? 2 * WINDOW : writer->run_room;
    while (room < writer->run_rows + more) {
        room *= 2;
    }
    if (room == writer->run_room) {
        return TN_OK;
    }
    keyed_row *larger = TN_REALLOC(writer->run, room * sizeof *larger);
    if (larger == NULL) {
        return TN_NO_MEMORY;
    }
    writer->run = larger;
    writer->run_room = room;
    return TN_OK;
}

/* Adds the row of an entry, and announces it to the cache, unless the place is empty or of the
 * other round. A run that reaches past the end of the index continues at its start, where it may
 * meet the entries with the smallest hashes:
 *
 *     place      0    1    2        62   63
 *              +----+----+----    ----+----+
 *              | z0 | a0 | .         | y62| x63|      z is of home 63: wrapped, the last in order
 *              +----+----+----    ----+----+          a is of home 0: the first in order
 *
 * Round 0 takes the entries at or after their homes, round 1 (places past the end) those before it.
 * The row is written in any case and counts only if it is wanted: a branch would be wrong every
 * other time. */
TN_INLINE void add_entry(record_writer *writer, const tn_shard *shard, uint64_t place, int round) {
    uint64_t entry = shard->entries[place];
    int wrapped = home_of(shard, (uint32_t)(entry >> 32)) > place;
    uint32_t number = entry != 0 ? (uint32_t)entry - 1 : 0;
    writer->run[writer->run_rows].row = row_at(writer->table, shard, number);
    TN_PREFETCH(writer->run[writer->run_rows].row);
    writer->run_rows += entry != 0 && wrapped == round;
}

/* Hashes the rows of the run, and keeps those that are wanted. */
static void hash_run(record_writer *writer) {
    const tn_table *table = writer->table;
    uint64_t kept = 0;
    for (uint64_t i = 0; i < writer->run_rows; i++) {
        const tn_row *row = writer->run[i].row;
        uint64_t hash = key_hash(table, row->group, row->id);
        writer->run[kept] = (keyed_row){hash, row};
        kept +=
            row->changed >= writer->changed_from && hash >= writer->first && hash <= writer->last;
    }
    writer->run_rows = kept;
}

/* Writes the rows of a shard with hashes from `first` to `last`, WINDOW places and the rest of
 * their last run at a time. Each run is sorted, and runs are in order (tn_index.h): so the output
 * is in order. The walk may start at the home of `first`, in the middle of a run: no entry but a
 * wrapped one is stored before its home, so every wanted row is at that place or after it, and
 * hash_run drops the rows of the run that are not wanted. */
static int encode_shard(record_writer *writer, const tn_shard *shard, uint64_t first,
                        uint64_t last) {
    uint64_t at = home_of(shard, tag_of(first));
    uint64_t last_home = home_of(shard, tag_of(last));
    if (shard->used == 0) {
        return TN_OK; /* add_entry takes row 0 for an empty place, and there is none yet */
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

static int encode_shards(record_writer *writer) {
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
    record_writer writer = {.table = table,
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
