/* tn_create.c - making a table and its groups; its settings and how large it is. */
#include <math.h>

#include "tn_index.h"
#include "tn_table.h"

#define BLOCK_BYTES 65536u

/* ---- Making a table ----------------------------------------------------- */

/* Where each segment's floats are read. Rows that read as they are stored are read in place; where
 * weights decay or cvm adds columns, tn_gather makes copies of rows, with the segments' columns one
 * after the other behind a row's header. */
static void plan_reads(tn_table *table) {
    table->read_floats = 0;
    table->copies = table->has_decay || table->cvm;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        tn_layout *segment = &table->layout[s];
        int cvm = table->cvm && segment->as_given.output == TN_CONCAT;
        segment->read_width = segment->as_given.width + (cvm ? CVM_COLUMNS : 0);
        segment->read_at = table->copies ? table->read_floats : segment->weights_at;
        table->read_floats += segment->read_width;
    }
    table->copy_bytes = (HEADER + 4 * table->read_floats + 7) / 8 * 8;
}

/* Where each segment's gradient is in the summed gradient of a row: the widest first, so that it
 * starts on the boundary of the row's sums and vector loads of it are aligned. */
static void plan_sums(tn_table *table, const tn_segment *segments) {
    for (uint32_t s = 0; s < table->n_segments; s++) {
        table->layout[s].sums_at = 0;
        for (uint32_t other = 0; other < table->n_segments; other++) {
            int earlier = segments[other].width > segments[s].width ||
                          (segments[other].width == segments[s].width && other < s);
            table->layout[s].sums_at += earlier ? segments[other].width : 0;
        }
    }
}

static int plan_segment(const tn_segment *segment, tn_layout *layout) {
    const tn_optimizer *optimizer = &segment->optimizer;
    if (segment->width < 1 || segment->width > MAX_WIDTH ||
        (segment->output != TN_CONCAT && segment->output != TN_SUM) ||
        !tn_optimizer_fits(optimizer, 0)) {
        return TN_BAD_VALUE;
    }
    layout->as_given = *segment;
    layout->rule = tn_rule_of(optimizer);
    layout->extras = tn_extras_of(optimizer);
    layout->keep = 1 - (double)optimizer->learning_rate * (double)optimizer->decay;
    layout->shrink = (double)optimizer->learning_rate * (double)optimizer->lazy_l2;
    return layout->keep < 0 ? TN_BAD_VALUE : TN_OK;
}

/* A row: the states of all segments, then the weights of all, then show and click. */
static int plan_layout(tn_table *table, const tn_segment *segments) {
    uint32_t at = 0;
    table->has_decay = 0;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        tn_layout *segment = &table->layout[s];
        int code = plan_segment(&segments[s], segment);
        if (code != TN_OK) {
            return code;
        }
        table->has_decay |= segment->extras.decays;
        segment->state_at = at;
        at += tn_state_floats(&segments[s].optimizer, segments[s].width);
    }
    table->weights_at = at;
    for (uint32_t s = 0; s < table->n_segments; s++) {
        table->layout[s].weights_at = at;
        at += segments[s].width;
    }
    table->weights = at - table->weights_at;
    table->shows_at = at;
    at += table->shows ? 2 : 0;
    plan_reads(table);
    plan_sums(table, segments);
    table->floats = at;
    table->record_size = HEADER - 4 + 4 * at;
    table->stride = (HEADER + 4 * at + 7) / 8 * 8;
    table->block_log = 0;
    while ((2u << table->block_log) * table->stride <= BLOCK_BYTES) {
        table->block_log++;
    }
    return TN_OK;
}

static void own_shards(tn_table *table, uint32_t first, uint32_t count) {
    table->first_shard = first;
    table->n_shards = count;
    table->per_shard = ((1u << PER_SHARD_BITS) + count - 1) / count;
}

/* The part of tn_table_new that can fail: the layout, the corrections of each optimizer, the row
 * of zeros and the index of each shard. On failure the caller frees the table; tn_table_free
 * accepts one that is only partly filled. */
static int fill_table(tn_table *table, const tn_segment *segments) {
    int code = plan_layout(table, segments);
    for (uint32_t s = 0; s < table->n_segments && code == TN_OK; s++) {
        code = tn_corrections(&segments[s].optimizer, &table->layout[s].corrections,
                              &table->layout[s].n_corrections);
    }
    if (code != TN_OK) {
        return code;
    }
    table->zero_row = TN_CALLOC(1, table->stride);
    if (table->zero_row == NULL) {
        return TN_NO_MEMORY;
    }
    for (uint32_t i = 0; i < SHARDS && code == TN_OK; i++) {
        code = tn_index_new(&table->shards[i], i);
    }
    own_shards(table, 0, SHARDS);
    return code;
}

int tn_table_new(const tn_segment *segments, uint32_t n_segments, uint64_t seed,
                 tn_thread_pool *pool, tn_table **out) {
    if (n_segments < 1 || n_segments > MAX_SEGMENTS || pool == NULL) {
        return TN_BAD_VALUE;
    }
    tn_table *table = TN_CALLOC(1, sizeof *table);
    if (table == NULL) {
        return TN_NO_MEMORY;
    }
    table->n_segments = n_segments;
    table->seed = seed;
    table->pool = pool;
    table->counting = table->inserting = 1;
    pthread_mutex_init(&table->lock, NULL);
    pthread_mutex_init(&table->arena_lock, NULL);
    int code = fill_table(table, segments);
    if (code != TN_OK) {
        tn_table_free(table);
        return code;
    }
    *out = table;
    return TN_OK;
}

void tn_table_free(tn_table *table) {
    if (table == NULL) {
        return;
    }
    for (uint32_t i = 0; i < SHARDS; i++) {
        tn_index_free(&table->shards[i]);
        TN_FREE(table->shards[i].blocks);
        TN_FREE(table->removed[i].keys);
    }
    for (uint64_t i = 0; i < table->n_chunks; i++) {
        tn_large_free(table->chunks[i], CHUNK_BYTES);
    }
    for (uint32_t s = 0; s < table->n_segments; s++) {
        TN_FREE(table->layout[s].corrections);
    }
    tn_large_free(table->sketch, table->sketch_bytes);
    TN_FREE(table->chunks);
    TN_FREE(table->groups);
    TN_FREE(table->salts);
    TN_FREE(table->zero_row);
    TN_FREE(table->days);
    TN_FREE(table->first_steps);
    pthread_mutex_destroy(&table->arena_lock);
    pthread_mutex_destroy(&table->lock);
    TN_FREE(table);
}

/* ---- Groups ------------------------------------------------------------- */

/* Makes room for group numbers below n. Counts of a group are atomics, which realloc may not move,
 * so groups are copied one by one; no call is under way, for the table's lock is held. */
static int grow_groups(tn_table *table, uint32_t n) {
    tn_group *groups = TN_CALLOC(n, sizeof *groups);
    uint64_t *salts = TN_REALLOC(table->salts, n * sizeof *salts);
    if (salts != NULL) {
        table->salts = salts;
    }
    if (groups == NULL || salts == NULL) {
        TN_FREE(groups);
        return TN_NO_MEMORY;
    }
    for (uint32_t i = 0; i < table->n_groups; i++) {
        groups[i] = table->groups[i];
    }
    TN_FREE(table->groups);
    table->groups = groups;
    table->n_groups = n;
    return TN_OK;
}

/* tn_table_add_group under the table's lock. Everything is checked before anything is changed.
 * The seed of each segment depends on the table's seed and the group's name alone, not on its
 * number, so initial weights do not depend on the order in which groups are declared. */
static int add_group(tn_table *table, uint16_t number, const char *name,
                     const tn_initial *initial) {
    for (uint32_t s = 0; s < table->n_segments; s++) {
        if (initial[s].kind > TN_NORMAL || !isfinite(initial[s].scale)) {
            return TN_BAD_VALUE;
        }
    }
    if (tn_group_declared(table, number)) {
        return TN_BAD_VALUE;
    }
    if (number >= table->n_groups && grow_groups(table, number + 1u) != TN_OK) {
        return TN_NO_MEMORY;
    }
    tn_group *group = &table->groups[number];
    group->declared = 1;
    table->salts[number] = tn_group_salt(name);
    group->life = (tn_life){
        .admit_after = 1, .admit_probability = 1, .show_decay = 1, .nonclick = 0.1, .click = 1};
    for (uint32_t s = 0; s < table->n_segments; s++) {
        group->initial[s] = initial[s];
        group->initial_seed[s] = mix64(mix64(table->seed ^ table->salts[number]) + s);
    }
    return TN_OK;
}

int tn_table_add_group(tn_table *table, uint16_t number, const char *name,
                       const tn_initial *initial) {
    pthread_mutex_lock(&table->lock);
    int code = add_group(table, number, name, initial);
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* ---- Settings and figures ----------------------------------------------- */

int tn_table_set_learning_rate(tn_table *table, uint32_t segment, float learning_rate) {
    if (segment >= table->n_segments || !isfinite(learning_rate) || learning_rate < 0) {
        return TN_BAD_VALUE;
    }
    pthread_mutex_lock(&table->lock);
    table->layout[segment].as_given.optimizer.learning_rate = learning_rate;
    pthread_mutex_unlock(&table->lock);
    return TN_OK;
}

int tn_table_set_step(tn_table *table, uint32_t step) {
    pthread_mutex_lock(&table->lock);
    table->step = step;
    pthread_mutex_unlock(&table->lock);
    return TN_OK;
}

int tn_table_set_updates(tn_table *table, int all) {
    pthread_mutex_lock(&table->lock);
    table->all = all != 0;
    pthread_mutex_unlock(&table->lock);
    return TN_OK;
}

int tn_table_set_counting(tn_table *table, int counting) {
    pthread_mutex_lock(&table->lock);
    table->counting = counting != 0;
    pthread_mutex_unlock(&table->lock);
    return TN_OK;
}

int tn_table_set_inserting(tn_table *table, int inserting) {
    pthread_mutex_lock(&table->lock);
    table->inserting = inserting != 0;
    pthread_mutex_unlock(&table->lock);
    return TN_OK;
}

/* The shards of the range get new indexes, whose capacities are spread over one step of growth as
 * those of all 64 are (tn_index_new): else a few shards of a table would grow in the same batch. */
static int set_shards(tn_table *table, uint32_t first, uint32_t count) {
    uint64_t used = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        used += table->shards[i].next_row;
    }
    if (count < 1 || first >= SHARDS || count > SHARDS - first || used > 0) {
        return TN_BAD_VALUE;
    }
    for (uint32_t i = 0; i < count; i++) {
        tn_shard fresh = {0};
        int code = tn_index_new(&fresh, i * SHARDS / count);
        if (code != TN_OK) {
            return code;
        }
        tn_index_free(&table->shards[first + i]);
        table->shards[first + i] = fresh;
    }
    own_shards(table, first, count);
    return TN_OK;
}

int tn_table_set_shards(tn_table *table, uint32_t first, uint32_t count) {
    pthread_mutex_lock(&table->lock);
    int code = set_shards(table, first, count);
    pthread_mutex_unlock(&table->lock);
    return code;
}

/* Before the first group there is no row, so the layout can still change; the row of zeros that
 * unknown ids read must be as long as the rows, and as what is read of a row. */
static int set_shows(tn_table *table, int shows, int cvm) {
    if (table->n_groups > 0 || (cvm && !shows)) {
        return TN_BAD_VALUE;
    }
    tn_segment segments[MAX_SEGMENTS];
    for (uint32_t s = 0; s < table->n_segments; s++) {
        segments[s] = table->layout[s].as_given;
    }
    char *zero_row = TN_CALLOC(1, table->stride + (2 + MAX_SEGMENTS * CVM_COLUMNS) * sizeof(float));
    if (zero_row == NULL) {
        return TN_NO_MEMORY;
    }
    TN_FREE(table->zero_row);
    table->zero_row = zero_row;
    table->shows = shows != 0;
    table->cvm = cvm != 0;
    return plan_layout(table, segments);
}

int tn_table_set_shows(tn_table *table, int shows, int cvm) {
    pthread_mutex_lock(&table->lock);
    int code = set_shows(table, shows, cvm);
    pthread_mutex_unlock(&table->lock);
    return code;
}

uint64_t tn_table_rows(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t rows = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        rows += table->shards[i].used;
    }
    pthread_mutex_unlock(&table->lock);
    return rows;
}

uint64_t tn_table_group_rows(tn_table *table, uint16_t number) {
    pthread_mutex_lock(&table->lock);
    uint64_t rows = tn_group_declared(table, number) ? atomic_load(&table->groups[number].rows) : 0;
    pthread_mutex_unlock(&table->lock);
    return rows;
}

uint64_t tn_table_index_bytes(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < SHARDS; i++) {
        bytes += table->shards[i].capacity * sizeof(uint64_t);
        bytes += table->shards[i].room_for_blocks * sizeof(char *);
    }
    pthread_mutex_unlock(&table->lock);
    return bytes;
}

uint64_t tn_table_row_bytes(tn_table *table) {
    pthread_mutex_lock(&table->lock);
    uint64_t bytes = table->arena_bytes;
    pthread_mutex_unlock(&table->lock);
    return bytes;
}

uint32_t tn_table_stride(tn_table *table) {
    return table->stride;
}
uint32_t tn_table_record_size(tn_table *table) {
    return table->record_size;
}
