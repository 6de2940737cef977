/* tn_pooling.c - checks of the matrices that gather and accumulate are given. */
#include "tn_pooling.h"

int tn_columns_fit(const tn_batch *batch, const uint32_t *const *strides) {
    for (uint32_t s = 0; s < batch->table->n_segments; s++) {
        const tn_layout *segment = &batch->table->layout[s];
        int concat = segment->as_given.output == TN_CONCAT;
        for (uint32_t slot = 0; slot < batch->n_slots; slot++) {
            uint64_t column = concat ? batch->slots[slot].column : 0;
            if (column + segment->read_width > strides[concat && batch->slots[slot].apart][s]) {
                return 0;
            }
        }
    }
    return 1;
}

int tn_apart_given(const tn_batch *batch, const float *const *apart, const uint32_t *strides) {
    for (uint32_t s = 0; s < batch->table->n_segments; s++) {
        if (batch->table->layout[s].as_given.output == TN_CONCAT &&
            (apart == NULL || strides == NULL || apart[s] == NULL)) {
            return 0;
        }
    }
    return 1;
}
