/* tn_memory.h - every allocation of the library, behind one set of names.
 *
 * A test defines TN_MEMORY_HEADER to put a failing allocator in their place. */
#ifndef TN_MEMORY_H
#define TN_MEMORY_H

#ifdef TN_MEMORY_HEADER
#include TN_MEMORY_HEADER
#else
#include <stdlib.h>
#include <sys/mman.h>
#define TN_CALLOC(count, size) calloc(count, size)
#define TN_REALLOC(memory, size) realloc(memory, size)
#define TN_ALIGNED_ALLOC(alignment, size) aligned_alloc(alignment, size)
#define TN_FREE(memory) free(memory)
#define TN_MAP(size) mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
#define TN_UNMAP(memory, size) munmap(memory, size)
#endif

#include <stdint.h>

/* Zeroed memory for arrays that come and go, on huge pages where that pays. From 2 MiB on it is
 * the system's own: what tn_large_free gives back leaves the process, where malloc would keep the
 * index of yesterday (10 bytes a key). NULL when there is none. */
void *tn_large_alloc(uint64_t bytes);
/* `bytes` as they were asked for; NULL is nothing. */
void tn_large_free(void *memory, uint64_t bytes);

#endif
