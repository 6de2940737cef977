/* tn_deal.h - the ids of a batch, dealt out to the threads that own their shards. */
#ifndef TN_DEAL_H
#define TN_DEAL_H

#include "tn_batch.h"

/* Checks the ids of a batch and deals them out; with `hashed` as tn_deal.c says. TN_BAD_VALUE,
 * TN_NOT_OWNED, TN_NO_MEMORY. The batch is empty then. */
int tn_deal(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, const float *weights,
            uint32_t examples, int hashed);

#endif
