/* tn_memory.h - every allocation of the library, behind one set of names.
 *
 * A test defines TN_MEMORY_HEADER to put a failing allocator in their place. */
#ifndef TN_MEMORY_H
#define TN_MEMORY_H

#ifdef TN_MEMORY_HEADER
#include TN_MEMORY_HEADER
#else
#include <stdlib.h>
#define TN_CALLOC(count, size) calloc(count, size)
#define TN_REALLOC(memory, size) realloc(memory, size)
#define TN_ALIGNED_ALLOC(alignment, size) aligned_alloc(alignment, size)
#define TN_FREE(memory) free(memory)
#endif

#include <stdint.h>

/* Uninitialised memory for large arrays, on huge pages where that pays. Free with TN_FREE. */
void *tn_large_alloc(uint64_t bytes);

#endif
