/* tn_dictionary.h - exported embeddings in a memory-mapped file (docs/formats/dictionary.md)
 *
 * The files tn_dictionary*.c and tn_dictionary*.h stand alone: they need nothing but libc, and no
 * other part of the library. This header is the only one that users include.
 *
 *     tn_dictionary *users;
 *     int code = tn_dictionary_open("user.dictionary", "user.index", &users);
 *     if (code != TN_DICTIONARY_OK)
 *         puts(tn_dictionary_message(code));
 *     ...
 *     float row[9]; // as many as tn_dictionary_about says
 *     tn_dictionary_find(users, id, row);
 *
 * A row, decoded, is float32 whatever the precision of the file: the linear weight, the embedding,
 * the two counts; those that the file has. The row of an id that is unknown or removed is zeros.
 *
 * Threads. Nothing of a dictionary changes once it is open, but in tn_dictionary_make_index: any
 * number of threads read it without a lock.
 *
 * Files are mapped, not read: opening one takes as long whatever its size, and processes share its
 * pages. So a file must not be changed or cut while it is open; put the new one beside it and
 * rename.
 *
 * Damage. Opening checks header, trailer and the index's header; tn_dictionary_verify every byte.
 * Whatever the bytes are, nothing outside of the file is ever read.
 *
 * Functions that return int return TN_DICTIONARY_OK or a negative code, and then leave `out` alone;
 * but for tn_dictionary_find. What this header says stays as it is while TN_DICTIONARY_ABI does;
 * tn_dictionary_abi() returns the value of the library that is linked.
 */
#ifndef TN_DICTIONARY_H
#define TN_DICTIONARY_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* CFFI begin */

#define TN_DICTIONARY_ABI 1

#define TN_DICTIONARY_OK 0
#define TN_DICTIONARY_NO_FILE -1    /* the dictionary cannot be opened; errno says why */
#define TN_DICTIONARY_NO_INDEX -2   /* the index cannot be opened; errno says why */
#define TN_DICTIONARY_NO_MEMORY -3  /* an allocation or a mapping failed */
#define TN_DICTIONARY_NOT_ONE -4    /* the file is no dictionary */
#define TN_DICTIONARY_VERSION -5    /* it is of a version that this library does not know */
#define TN_DICTIONARY_DAMAGED -6    /* its bytes disagree with its checksums or with each other */
#define TN_DICTIONARY_BAD_INDEX -7  /* the index is damaged, or belongs to another dictionary */
#define TN_DICTIONARY_BAD_STACK -8  /* these dictionaries cannot be stacked */
#define TN_DICTIONARY_BAD_ORDER -9  /* hashes do not ascend */
#define TN_DICTIONARY_BAD_VALUE -10 /* an argument is out of its range */

/* The plain words for a code; never NULL. */
const char *tn_dictionary_message(int code);
uint32_t tn_dictionary_abi(void);

/* ---- Opening ------------------------------------------------------------ */

typedef struct tn_dictionary tn_dictionary;

/* `index` may be NULL: ids are found all the same, by searching the records, at a fifth of the
 * speed. */
int tn_dictionary_open(const char *path, const char *index, tn_dictionary **out);

/* The same of files that are in memory, which the caller keeps until tn_dictionary_close. An index
 * on a 64-byte boundary is the fastest. */
int tn_dictionary_of_memory(const void *file, uint64_t bytes, const void *index,
                            uint64_t index_bytes, tn_dictionary **out);

/* An index in memory for a dictionary that was opened without: 1.5 bytes a row, and a pass over the
 * whole file. Before other threads know the dictionary. */
int tn_dictionary_make_index(tn_dictionary *dictionary);

/* Deltas over a full dictionary, newest first, read as one: the first of them that has an id (or
 * says that it was removed) gives its row. 1 to TN_DICTIONARY_LAYERS of one salt, shape and
 * precision, the last one full or all of them deltas. They stay open until after it is closed. */
#define TN_DICTIONARY_LAYERS 9
int tn_dictionary_stack(const tn_dictionary *const *layers, uint32_t n, tn_dictionary **out);

/* NULL is fine. */
void tn_dictionary_close(tn_dictionary *dictionary);

#define TN_DICTIONARY_FLOAT32 0
#define TN_DICTIONARY_FLOAT16 1
#define TN_DICTIONARY_INT8 2

/* Of a stack: rows and removed are the sums over its layers. */
typedef struct tn_dictionary_facts {
    uint64_t records; /* removed ones among them */
    uint64_t removed;
    uint64_t salt;
    uint32_t columns; /* floats of a decoded row */
    uint32_t linear;  /* 0 or 1, as cvm, delta and indexed are */
    uint32_t width;   /* of the embedding, without the counts */
    uint32_t cvm;
    uint32_t precision; /* TN_DICTIONARY_FLOAT32, _FLOAT16 or _INT8 */
    uint32_t stride;    /* bytes of a payload */
    uint32_t delta;
    uint32_t indexed;
} tn_dictionary_facts;

void tn_dictionary_about(const tn_dictionary *dictionary, tn_dictionary_facts *facts);

/* ---- Looking up --------------------------------------------------------- */

#define TN_DICTIONARY_UNKNOWN 0
#define TN_DICTIONARY_KNOWN 1
#define TN_DICTIONARY_REMOVED 2 /* a delta's way of saying: no longer known */

/* The row of one id: [columns] floats. Returns one of the three words above. */
int tn_dictionary_find(const tn_dictionary *dictionary, uint64_t id, float *row);

/* The rows of n ids, [n, columns]. states[i], unless it is NULL, is one of the three words. Several
 * ids at once are two to three times as fast as one by one. */
void tn_dictionary_lookup(const tn_dictionary *dictionary, const uint64_t *ids, uint64_t n,
                          float *rows, uint8_t *states);

/* ids[i] in dictionaries[i], its row to rows[i]: the slots of one example. */
void tn_dictionary_lookup_each(const tn_dictionary *const *dictionaries, const uint64_t *ids,
                               uint64_t n, float *const *rows, uint8_t *states);

/* ---- Records ------------------------------------------------------------ */

/* Every byte of the file and of its index: checksums, the order of the hashes, what is counted in
 * the header, and that the index is what this dictionary's index must be. `place`, unless it is
 * NULL, gets the byte of the file at or after which the damage was seen. Not of a stack. */
int tn_dictionary_verify(const tn_dictionary *dictionary, uint64_t *place);

/* Records `first` to `first + n`, in the order of their hashes: hashes [n], removed [n] (0 or 1),
 * payloads [n, stride]; each may be NULL. Not of a stack. */
int tn_dictionary_records(const tn_dictionary *dictionary, uint64_t first, uint64_t n,
                          uint64_t *hashes, uint8_t *removed, void *payloads);

/* ---- Making an index ---------------------------------------------------- */

/* Bytes of the index of a dictionary of so many records. */
uint64_t tn_dictionary_index_size(uint64_t records);

/* Tells a zeroed index that records `first` to `first + n` have these hashes. Calls go from record
 * 0 to the last one; `last_hash` is the hash of record `first - 1`. */
int tn_dictionary_index_add(void *index, uint64_t records, uint64_t first, uint64_t last_hash,
                            const uint64_t *hashes, uint64_t n);

/* After the last one, whose hash is `last`; both checksums are the dictionary's. */
int tn_dictionary_index_finish(void *index, uint64_t records, uint64_t last, uint32_t header_crc,
                               uint32_t trailer_crc);

/* CFFI end */

#ifdef __cplusplus
}
#endif

#endif
