/* tn_records.h - one row as a record: its bytes in a file. */
#ifndef TN_RECORDS_H
#define TN_RECORDS_H

#include <stddef.h>

#include "tn_table.h"

/* A record is a row without uidx. The bytes of integers are the machine's; supported machines are
 * little-endian (build_ffi.py). */
#define AFTER_UIDX offsetof(tn_row, group)

static inline void write_record(const tn_table *table, const tn_row *row, char *to) {
    memcpy(to, &row->id, sizeof row->id);
    memcpy(to + sizeof row->id, (const char *)row + AFTER_UIDX,
           table->record_size - sizeof row->id);
}

static inline uint64_t record_id(const char *record) {
    uint64_t id;
    memcpy(&id, record, sizeof id);
    return id;
}

static inline uint16_t record_group(const char *record) {
    uint16_t group;
    memcpy(&group, record + 8, sizeof group);
    return group;
}

static inline void read_record(const tn_table *table, const char *record, tn_row *row) {
    memcpy(&row->id, record, sizeof row->id);
    memcpy((char *)row + AFTER_UIDX, record + sizeof row->id, table->record_size - sizeof row->id);
}

static inline uint64_t record_hash(const tn_table *table, const char *record) {
    return key_hash(table, record_group(record), record_id(record));
}

#endif
