/* tn_index.h - the index of a shard: from a key to the number of its row.
 *
 * An array of 8-byte entries, open addressing with linear probing:
 *
 *     63            32 31             0
 *     +---------------+----------------+
 *     | tag           | row number + 1 |     0: an empty place
 *     +---------------+----------------+
 *
 * The key itself is in the row. The home of an entry is tag * capacity / 2^32; the entry is at
 * its home or at the next empty place after it, the end of the array being followed by its start:
 *
 *     place     0    1    2    3    4    5    6    7         capacity 8: one home per 2^29 tags
 *             +----+----+----+----+----+----+----+----+
 *             |    | a1 | b1 | c2 |    |    | d6 |    |      a, b: home 1. b came second.
 *             +----+----+----+----+----+----+----+----+      c: home 2, taken by b, so it is at 3.
 *
 * Invariant 1. No place between the home of an entry and the entry is empty. So a search goes from
 * the home on and may stop at the first empty place: had the key been inserted, it would stand
 * before it. Insertion keeps the invariant because it takes the first empty place; removal
 * (tn_index_remove) has to restore it.
 *
 * Invariant 2. Homes ascend with the tag, and the tag is the high part of the hash. So runs (places
 * in a row without an empty one) follow each other in the order of the hash, and only inside a run
 * may entries be out of order. tn_encode therefore writes a table in the order of the hash by
 * sorting one run at a time, and growing streams through memory.
 *
 * The home is a product and not a mask of low bits, because a mask would scatter the order, and
 * because capacities, which grow by half, are no powers of two.
 *
 * Why growing reads no row. An entry's new home follows from its tag, which is in the entry. The
 * keys of the entries are distinct, so no key has to be compared. The old entries are put into the
 * new array in the order they stand in, so the homes there ascend too (but for the disorder inside
 * a run): both arrays are walked once from front to back. Loading records in the order of the hash
 * into an index that has its final capacity fills it from front to back in the same way.
 *
 *     capacity 8     [ .  a1 b1 c2 .  .  d6 . ]               the digit is the home: tag * 8 / 2^32
 *     capacity 12    [ .  .  a2 b2 c3 .  .  .  .  .  d10 . ]  and here tag * 12 / 2^32
 *
 * 32 bits of tag tell all homes apart while the capacity is below 2^32, which is above 2 billion
 * rows of one shard: 64 shards of these have far more rows than any machine has memory for.
 *
 * It grows by half, not to the double: the mean index is then 1.25 times, not 1.5 times, as large
 * as it must be. At most three quarters of the places are used. By Knuth's formulas for linear
 * probing a hit then reads 2.5 entries on average and a miss 8.5, all but the first in the same or
 * the next cache line. There is always an empty place, so every search ends.
 *
 * The tag does not decide: two keys may share it. A search compares id and group in the row of each
 * entry with the tag, so a wrong row is read once in about 2^32 / capacity lookups, and no two keys
 * are ever taken for one. */
#ifndef TN_INDEX_H
#define TN_INDEX_H

#include "tn_table.h"

/* The part of the hash that an entry keeps, below the bits that choose the shard. */
static inline uint32_t tag_of(uint64_t hash) {
    return (uint32_t)(hash >> (32 - SHARD_BITS));
}
static inline uint64_t home_of(const tn_shard *shard, uint32_t tag) {
    return (uint64_t)tag * shard->capacity >> 32;
}
static inline uint64_t next_place(const tn_shard *shard, uint64_t place) {
    return place + 1 == shard->capacity ? 0 : place + 1;
}

/* Announces the first place of a key's search to the cache. */
static inline void tn_index_prefetch(const tn_table *table, uint64_t hash) {
    const tn_shard *shard = &table->shards[shard_of(hash)];
    TN_PREFETCH(&shard->entries[home_of(shard, tag_of(hash))]);
}

/* The first row with the tag of a key, or NULL when no row has it. It is the row of the key unless
 * two keys share the tag; the caller compares. It reads no row, so that it can be called while the
 * rows are not in the cache. */
static inline tn_row *tn_index_candidate(const tn_table *table, uint64_t hash) {
    const tn_shard *shard = &table->shards[shard_of(hash)];
    uint32_t tag = tag_of(hash);
    for (uint64_t at = home_of(shard, tag); shard->entries[at] != 0; at = next_place(shard, at)) {
        if ((uint32_t)(shard->entries[at] >> 32) == tag) {
            return row_at(table, shard, (uint32_t)shard->entries[at] - 1);
        }
    }
    return NULL;
}

/* Makes the first, empty index of shard number i. TN_NO_MEMORY. */
int tn_index_new(tn_shard *shard, uint32_t i);
void tn_index_free(tn_shard *shard);
/* The row of a key, or NULL. */
tn_row *tn_row_find(const tn_table *table, uint16_t group, uint64_t id, uint64_t hash);
/* Adds the entry of a row. There must be room for it, and no entry of its key. */
void tn_index_add(tn_shard *shard, uint64_t hash, uint32_t row_number);
/* Grows the index until `rows` rows have room. TN_NO_MEMORY, with the index as it was. */
int tn_index_reserve(tn_shard *shard, uint64_t rows);
/* Removes the entries of rows whose bit (by row number) is set in `marks`, at least one. Reads no
 * row, and needs no memory: it cannot fail. */
void tn_index_remove(tn_shard *shard, const uint64_t *marks);

#endif
