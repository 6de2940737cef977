/* failing_memory.h - the library's allocator under test_oom: see tn_memory.h. */
#ifndef FAILING_MEMORY_H
#define FAILING_MEMORY_H

#include <stddef.h>

void *failing_calloc(size_t count, size_t size);
void *failing_realloc(void *memory, size_t size);
void *failing_aligned_alloc(size_t alignment, size_t size);
void failing_free(void *memory);
void *failing_map(size_t size);
void failing_unmap(void *memory, size_t size);

#define TN_CALLOC(count, size) failing_calloc(count, size)
#define TN_REALLOC(memory, size) failing_realloc(memory, size)
#define TN_ALIGNED_ALLOC(alignment, size) failing_aligned_alloc(alignment, size)
#define TN_FREE(memory) failing_free(memory)
#define TN_MAP(size) failing_map(size)
#define TN_UNMAP(memory, size) failing_unmap(memory, size)

#endif
