/* tn_push.c - the sums of gradients, shows and clicks that ranks send for the keys that they
 * pulled, reduced in the order of the ranks. See tn_exchange.h and tn_pull.c.
 *
 * A rank's entries are consecutive in each list, for lists are in the order of the keys. So each
 * thread walks a part of each of its lists, found by halving, and adds to rows that only it has. */
#include "tn_exchange.h"

typedef struct {
    tn_batch *batch;
    uint64_t first, last; /* keys of the rank */
    const float *values;
    float weight;
    int clear; /* the first push: sums start at zero */
} push_call;

/* The entries of a list whose keys are the rank's: from *begin to *end. */
static void entries_of_rank(const push_call *call, const tn_entry *list, uint64_t n,
                            const tn_entry **begin, const tn_entry **end) {
    const uint64_t keys[2] = {call->first, call->last};
    const tn_entry **out[2] = {begin, end};
    for (int side = 0; side < 2; side++) {
        uint64_t low = 0, high = n;
        while (low < high) {
            uint64_t middle = low + (high - low) / 2;
            if (list[middle].cell < keys[side]) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        *out[side] = list + low;
    }
}

TN_INLINE void add_weighted(float *restrict sum, const float *restrict values, float weight,
                            uint32_t n) {
    for (uint32_t j = 0; j < n; j++) {
        sum[j] += weight * values[j];
    }
}

TN_INLINE void add_of_width(const push_call *call, const tn_entry *begin, const tn_entry *end,
                            uint32_t weights) {
    const tn_batch *batch = call->batch;
    for (const tn_entry *entry = begin; entry < end; entry++) {
        add_weighted(batch->sums + (uint64_t)entry->place * batch->sums_stride,
                     call->values + (entry->cell - call->first) * weights, call->weight, weights);
    }
}

TN_CLONES
static void add_sums(const push_call *call, const tn_entry *begin, const tn_entry *end) {
    uint32_t weights = call->batch->table->weights;
    if (weights == 9) {
        add_of_width(call, begin, end, 9);
    } else if (weights == 17) {
        add_of_width(call, begin, end, 17);
    } else {
        FOR_WIDTH(weights, add_of_width(call, begin, end, WIDTH));
    }
}

static void add_shows(const push_call *call, const tn_entry *begin, const tn_entry *end) {
    for (const tn_entry *entry = begin; entry < end; entry++) {
        float *counts = call->batch->shows + 2 * (uint64_t)entry->place;
        const float *values = call->values + 2 * (entry->cell - call->first);
        counts[0] += values[0];
        counts[1] += values[1];
    }
}

/* Calls `add` for the rank's entries of each list of a thread. */
TN_INLINE void push_lists(const push_call *call, int thread,
                          void (*add)(const push_call *, const tn_entry *, const tn_entry *)) {
    const tn_batch *batch = call->batch;
    for (int t = 0; t < batch->threads; t++) {
        uint64_t from, to;
        const tn_entry *begin, *end;
        part_of(batch, t, &from, &to);
        entries_of_rank(call, list_of(batch, from, to - from, thread), batch->counts[t][thread],
                        &begin, &end);
        add(call, begin, end);
    }
}

static void push_sums(void *argument, int thread, int threads) {
    (void)threads;
    const push_call *call = argument;
    const tn_batch *batch = call->batch;
    const tn_owner *owner = &batch->owners[thread];
    if (call->clear) {
        memset(batch->sums + owner->first_row * batch->sums_stride, 0,
               owner->rows * batch->sums_stride * sizeof *batch->sums);
    }
    push_lists(call, thread, add_sums);
}

static void push_shows(void *argument, int thread, int threads) {
    (void)threads;
    const push_call *call = argument;
    const tn_batch *batch = call->batch;
    const tn_owner *owner = &batch->owners[thread];
    if (call->clear) {
        memset(batch->shows + 2 * owner->first_row, 0, 2 * owner->rows * sizeof *batch->shows);
    }
    push_lists(call, thread, add_shows);
}

static push_call call_of(tn_batch *batch, uint32_t rank, const float *values) {
    return (push_call){.batch = batch,
                       .first = batch->pulled->first_key[rank],
                       .last = batch->pulled->first_key[rank + 1],
                       .values = values};
}

int tn_push_sums(tn_batch *batch, uint32_t rank, const float *sums, float weight) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_rank(batch, rank, BATCH_INSERTED);
    if (code == TN_OK &&
        (rank < batch->pulled->summed || !is_aligned(sums, 4) || !(weight >= 0 && weight <= 1))) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        push_call call = call_of(batch, rank, sums);
        call.weight = weight;
        call.clear = batch->state == BATCH_INSERTED;
        float limit = TN_LARGEST / (float)batch->pulled->n_ranks;
        if (!tn_all_below(sums, (call.last - call.first) * batch->table->weights, limit)) {
            code = TN_NOT_FINITE;
        } else {
            run_on_keys(batch, call.last - call.first, push_sums, &call);
            batch->pulled->summed = rank + 1;
            batch->state = BATCH_SUMMED;
        }
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

static int counts_fit(const float *counts, uint64_t n) {
    int fit = tn_all_finite(counts, n);
    for (uint64_t i = 0; i < n; i++) {
        fit &= counts[i] >= 0;
    }
    return fit;
}

int tn_push_shows(tn_batch *batch, uint32_t rank, const float *counts) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_rank(batch, rank, BATCH_INSERTED);
    if (code == TN_OK &&
        (!batch->table->shows || rank < batch->pulled->counted || !is_aligned(counts, 4))) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        push_call call = call_of(batch, rank, counts);
        call.clear = !batch->counted;
        if (!counts_fit(counts, 2 * (call.last - call.first))) {
            code = TN_BAD_VALUE;
        } else {
            run_on_keys(batch, call.last - call.first, push_shows, &call);
            batch->pulled->counted = rank + 1;
            batch->counted = 1;
        }
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}
