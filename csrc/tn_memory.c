/* tn_memory.c - aligned memory, on huge pages where that pays. */
#define _DEFAULT_SOURCE
#include "tn_memory.h"

#include <string.h>
#include <sys/mman.h>

#include "tnctl.h"

#define CACHE_LINE 64u
#define HUGE_PAGE (2u << 20)

static void advise_huge(void *memory, uint64_t bytes) {
#ifdef MADV_HUGEPAGE
    /* Advice only: without it the memory is the same, 10 to 20 % slower. */
    (void)madvise(memory, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

static uint64_t whole_lines(uint64_t bytes) {
    return bytes == 0 ? CACHE_LINE : (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static uint64_t whole_pages(uint64_t bytes) {
    return (bytes + 4095) / 4096 * 4096;
}

/* Memory of the system on a huge page's boundary: more than needed, its ends given back. */
static void *map_large(uint64_t bytes) {
    char *start = TN_MAP(bytes + HUGE_PAGE);
    if (start == MAP_FAILED) {
        return NULL;
    }
    uint64_t gap = (HUGE_PAGE - (uintptr_t)start % HUGE_PAGE) % HUGE_PAGE;
    if (gap > 0) {
        munmap(start, gap);
    }
    munmap(start + gap + bytes, HUGE_PAGE - gap);
    advise_huge(start + gap, bytes);
    return start + gap;
}

void *tn_large_alloc(uint64_t bytes) {
    if (bytes > UINT64_MAX / 2) {
        return NULL;
    }
    if (bytes >= HUGE_PAGE) {
        return map_large(whole_pages(bytes));
    }
    void *memory = TN_ALIGNED_ALLOC(CACHE_LINE, whole_lines(bytes));
    if (memory != NULL) {
        memset(memory, 0, bytes);
    }
    return memory;
}

void tn_large_free(void *memory, uint64_t bytes) {
    if (memory != NULL && bytes >= HUGE_PAGE) {
        TN_UNMAP(memory, whole_pages(bytes));
    } else {
        TN_FREE(memory);
    }
}

void *tn_aligned_new(uint64_t bytes) {
    if (bytes > UINT64_MAX / 2) {
        return NULL;
    }
    uint64_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : CACHE_LINE;
    void *memory = TN_ALIGNED_ALLOC(alignment, whole_lines(bytes));
    if (memory != NULL) {
        if (bytes >= HUGE_PAGE) {
            advise_huge(memory, bytes);
        }
        memset(memory, 0, bytes);
    }
    return memory;
}

void tn_aligned_free(void *memory) {
    TN_FREE(memory);
}
