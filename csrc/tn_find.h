/* tn_find.h - the rows of ids that were dealt out to the threads. */
#ifndef TN_FIND_H
#define TN_FIND_H

#include "tn_batch.h"

/* Finds the rows of the entries. `missing` is one of TN_PULL_READ, TN_PULL_INSERT and
 * TN_PULL_AGAIN. TN_NO_MEMORY and TN_TABLE_FULL: what was inserted before stays. */
int tn_find_dealt(tn_batch *batch, int missing);

#endif
