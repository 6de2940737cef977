/* tn_reading.c - rows as they read: their weights decayed, with the columns of cvm. */
#include "tn_reading.h"

#include "tn_index.h"
#include "tn_shows.h"

TN_INLINE void read_segment(const tn_table *table, const tn_layout *segment, tn_row *const *rows,
                            uint64_t n, uint32_t at, float *const *to, uint32_t first,
                            uint32_t width) {
    for (uint64_t i = 0; i < n; i++) {
        const float *weights = row_floats(rows[i]) + segment->weights_at;
        float *values = to[i] + first;
        float kept = table->has_decay ? tn_kept(segment, rows[i], at) : 1;
        for (uint32_t j = 0; j < width; j++) {
            values[j] = weights[j] * kept;
        }
    }
}

void tn_rows_read(const tn_table *table, tn_row *const *rows, uint64_t n, uint32_t at,
                  const float *columns, float *const *to) {
    uint32_t first = 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        const tn_layout *segment = &table->layout[s];
        uint32_t width = segment->as_given.width;
        FOR_WIDTH(width, read_segment(table, segment, rows, n, at, to, first, WIDTH));
        for (uint64_t i = 0; i < n && segment->read_width > width; i++) {
            memcpy(to[i] + first + width, columns + CVM_COLUMNS * i, CVM_COLUMNS * sizeof *columns);
        }
        first += segment->read_width;
    }
}

/* A row as the table reads it at its own step and day: what serving gets of it. */
static void read_row(const tn_table *table, tn_row *row, float *weights) {
    float columns[CVM_COLUMNS];
    if (table->cvm) {
        tn_rows_counts(table, &row, 1, columns);
        tn_counts_cvm(columns, NULL, 1, columns);
    }
    tn_rows_read(table, &row, 1, table->step, columns, &weights);
}

int tn_table_lookup(tn_table *table, uint16_t group, uint64_t id, float *weights, int *has_row) {
    pthread_mutex_lock(&table->lock);
    int code = tn_group_declared(table, group) ? TN_OK : TN_NO_GROUP;
    if (code == TN_OK) {
        tn_row *row = tn_row_find(table, group, id, key_hash(table, group, id));
        *has_row = row != NULL;
        if (row != NULL) {
            read_row(table, row, weights);
        } else {
            memset(weights, 0, table->read_floats * sizeof *weights);
        }
    }
    pthread_mutex_unlock(&table->lock);
    return code;
}
