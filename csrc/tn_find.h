/* tn_find.h - the rows of ids that were dealt out to the threads. */
#ifndef TN_FIND_H
#define TN_FIND_H

#include "tn_batch.h"

/* Finds the rows of the entries; with `insert` makes those that are missing. TN_NO_MEMORY and
 * TN_TABLE_FULL: what was inserted before stays. */
int tn_find_dealt(tn_batch *batch, int insert);

#endif
