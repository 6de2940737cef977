/* tn_rows.h - inserting rows: their memory, their numbers, and what a new one holds. */
#ifndef TN_ROWS_H
#define TN_ROWS_H

#include "tn_table.h"

/* Makes the row of a key that the table lacks, with its initial weights and state, and counts it as
 * one of its group. TN_NO_MEMORY or TN_TABLE_FULL: nothing has changed then. Only the owner of the
 * shard may call this and the next one. */
int tn_row_insert(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out);
/* The same with nothing in the row but the key: the caller writes all the rest, and counts it. */
int tn_row_place(tn_table *table, uint16_t group, uint64_t id, uint64_t hash, tn_row **out);
/* Writes a whole row as it is when inserted at the table's step. It depends on the key and the step
 * alone, not on the table's other rows. */
void tn_row_start(const tn_table *table, tn_row *row, uint16_t group, uint64_t id, uint64_t hash);
/* Room for so many more rows: none of their tn_row_place fails then. */
int tn_shard_make_room(tn_table *table, tn_shard *shard, uint64_t rows);

#endif
