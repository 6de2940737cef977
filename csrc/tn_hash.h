/* tn_hash.h - the 64-bit mix that ids, keys and initial weights are made with. */
#ifndef TN_HASH_H
#define TN_HASH_H

#include <stdint.h>

/* MurmurHash3's 64-bit finalizer: a bijection. */
static inline uint64_t mix64(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    x ^= x >> 33;
    return x;
}

#endif
