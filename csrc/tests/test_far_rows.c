/* test_far_rows.c - row numbers past 2^31 and at their end, with most blocks left unallocated.
 *
 * White box: the counters of a shard are set as if it had handed out billions of rows. All blocks
 * but the last of them are NULL, so any look at a row that is not ours ends the test. */
#include "tn_index.h"
#include "tn_rows.h"

#include "cases.h"

#define FIRST_MISSING UINT64_C(0xffffffff) /* no row has this number: 32 bits hold number + 1 */

/* The table's chunks free their blocks; this one is ours to free. */
static char *fake_block;

/* Makes `number` the next row of a shard. */
static void skip_rows(tn_table *table, tn_shard *shard, uint64_t number) {
    uint32_t rows_per_block = 1u << table->block_log;
    uint64_t blocks = (number + rows_per_block - 1) / rows_per_block;
    free(shard->blocks);
    shard->blocks =
        calloc(blocks + 1, sizeof *shard->blocks); /* pages nobody touches cost nothing */
    CHECK(shard->blocks != NULL);
    shard->room_for_blocks = (uint32_t)blocks + 1;
    shard->n_blocks = (uint32_t)blocks;
    free(fake_block);
    fake_block = test_memory((uint64_t)rows_per_block * table->stride);
    shard->blocks[blocks - 1] = fake_block;
    shard->next_row = number;
}

/* Finds `n` ids of one cell each; ids of the plan's first slot, all of shard 5. */
static int find_ids(tn_batch *batch, const test_plan *plan, const uint64_t *ids, uint32_t n,
                    int insert) {
    uint32_t *offsets = test_memory((n * plan->n_slots + 1) * sizeof *offsets);
    for (uint32_t c = 0; c < n * plan->n_slots; c++) {
        offsets[c + 1] = offsets[c] + (c % plan->n_slots == 0);
    }
    int code = tn_find(batch, ids, offsets, NULL, n, insert);
    free(offsets);
    return code;
}

static uint64_t id_of_shard(const test_plan *plan, uint32_t shard, uint64_t i) {
    uint64_t hash = (uint64_t)shard << 58 | tn_mix64(i) >> 6;
    uint32_t place = place_of_group(plan, plan->slots[0].group);
    return tn_unmix64(hash) ^ tn_group_salt(plan->group_names[place]);
}

static void train_cells(tn_batch *batch, naive_table *naive, const uint64_t *ids, uint32_t n,
                        random_source *random) {
    const test_plan *plan = naive->plan;
    test_cells cells = {.examples = n, .n_ids = n, .ids = test_memory(n * sizeof *ids)};
    cells.offsets = test_memory((n * plan->n_slots + 1) * sizeof *cells.offsets);
    memcpy(cells.ids, ids, n * sizeof *ids);
    for (uint32_t c = 0; c < n * plan->n_slots; c++) {
        cells.offsets[c + 1] = cells.offsets[c] + (c % plan->n_slots == 0);
    }
    CHECK_OK(find(batch, &cells, 1));
    naive_insert_cells(naive, &cells);
    check_gather(batch, naive, &cells, random);
    check_update(batch, naive, &cells, random);
    free_cells(&cells);
}

#define IDS 5000u

/* Inserts rows on both sides of `number`, finds, trains and writes them. */
static void cross(const test_plan *plan, uint64_t number) {
    random_source random = {number};
    tn_thread_pool *pool;
    CHECK_OK(tn_thread_pool_new(2, &pool));
    tn_table *table = make_table(plan, pool);
    tn_batch *batch = make_batch(table, plan);
    naive_table *naive = naive_new(plan);
    uint64_t *ids = test_memory(IDS * sizeof *ids);
    for (uint64_t i = 0; i < IDS; i++) {
        ids[i] = id_of_shard(plan, 5, i);
    }
    skip_rows(table, &table->shards[5], number - 3);
    for (int round = 0; round < 3; round++) {
        train_cells(batch, naive, ids, IDS, &random);
        CHECK(table->shards[5].next_row == number - 3 + IDS);
    }
    check_records(table, naive);
    check_counts(table, naive);
    free(ids);
    tn_batch_free(batch);
    tn_table_free(table);
    naive_free(naive);
    tn_thread_pool_free(pool);
}

/* The last four row numbers of a shard; then it is full, and nothing else is. */
static void fill_up(const test_plan *plan) {
    tn_thread_pool *pool;
    CHECK_OK(tn_thread_pool_new(1, &pool));
    tn_table *table = make_table(plan, pool);
    tn_batch *batch = make_batch(table, plan);
    naive_table *naive = naive_new(plan);
    random_source random = {1};
    uint64_t ids[6];
    for (uint64_t i = 0; i < 6; i++) {
        ids[i] = id_of_shard(plan, i < 5 ? 5 : 6, i);
    }
    skip_rows(table, &table->shards[5], FIRST_MISSING - 4);
    train_cells(batch, naive, ids, 4, &random);
    CHECK(table->shards[5].next_row == FIRST_MISSING);
    CHECK_CODE(find_ids(batch, plan, ids, 5, 1), TN_TABLE_FULL);
    CHECK_CODE(find_ids(batch, plan, ids + 4, 1, 1), TN_TABLE_FULL);
    CHECK_OK(find_ids(batch, plan, ids, 5, 0));
    train_cells(batch, naive, ids, 4, &random);
    train_cells(batch, naive, ids + 5, 1, &random);
    check_records(table, naive);
    check_counts(table, naive);
    tn_batch_free(batch);
    tn_table_free(table);
    naive_free(naive);
    tn_thread_pool_free(pool);
}

int main(void) {
    test_plan plan;
    random_source random = {3};
    for (uint32_t layout = 0; layout < 4; layout++) {
        make_plan(&plan, &random, layout);
        plan.all = 0; /* a sweep would meet the missing blocks */
        cross(&plan, UINT64_C(1) << 31);
        cross(&plan, UINT64_C(3) << 30);
        fill_up(&plan);
    }
    free(fake_block);
    return report_checks("test_far_rows");
}
