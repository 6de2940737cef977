/* tn_bfloat16.c - floats as the upper half of their bits. */
#include <string.h>

#include "tn_cpu.h"
#include "tnctl.h"

TN_CLONES
void tn_to_bfloat16(const float *restrict values, uint64_t n, uint16_t *restrict halves) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        /* Half of the lower bits is added, or one less below an even upper half; it carries. */
        uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        uint32_t nan = (bits >> 16 & 0x8000u) | 0x7fc0u;
        halves[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
    }
}

TN_CLONES
void tn_from_bfloat16(const uint16_t *restrict halves, uint64_t n, float *restrict values) {
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits = (uint32_t)halves[i] << 16;
        memcpy(values + i, &bits, sizeof bits);
    }
}
