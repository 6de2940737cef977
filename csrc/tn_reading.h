/* tn_reading.h - rows as they read, in a table whose rows must not be read as they are stored. */
#ifndef TN_READING_H
#define TN_READING_H

#include "tn_table.h"

/* Copies what is read of n rows: to[i] gets the columns of all segments of rows[i], one segment
 * after the other, weights as at step `at`. In a table with cvm `columns` has two floats a row
 * (tn_counts_cvm), which follow the weights of each TN_CONCAT segment. */
void tn_rows_read(const tn_table *table, tn_row *const *rows, uint64_t n, uint32_t at,
                  const float *columns, float *const *to);

#endif
