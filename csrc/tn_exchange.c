/* tn_exchange.c - the distinct keys of a batch whose rows are in other processes, by peer. See
 * tn_exchange.h. */
#include "tn_exchange.h"

#include "tn_deal.h"

#define FEWEST_SLOTS UINT64_C(256)
#define SLOTS_AHEAD 12 /* ids whose slot is announced to the cache */

/* ---- Memory -------------------------------------------------------------- */

static uint64_t cut_keys(tn_key_set *keys, char *memory, uint64_t places, int threads) {
    uint64_t used = 0;
    /* A thread with n ids may have up to 4 n slots. */
    uint64_t slots = 4 * places + FEWEST_SLOTS * (uint64_t)threads;
    keys->slots = tn_cut(memory, &used, slots * sizeof *keys->slots);
    keys->hashes = tn_cut(memory, &used, places * sizeof *keys->hashes);
    keys->occurrences = tn_cut(memory, &used, places * sizeof *keys->occurrences);
    keys->waits = tn_cut(memory, &used, places * sizeof *keys->waits);
    keys->order = tn_cut(memory, &used, places * sizeof *keys->order);
    keys->groups = tn_cut(memory, &used, places * sizeof *keys->groups);
    return used;
}

static int make_room(tn_batch *batch, uint64_t places) {
    tn_batch_memory *memory = &batch->keys_memory;
    if (memory->start != NULL && places <= memory->room) {
        return TN_OK;
    }
    tn_large_free(memory->start, memory->bytes);
    memory->room = places + places / 4;
    memory->bytes = cut_keys(batch->keys, NULL, memory->room, batch->threads);
    memory->start = tn_large_alloc(memory->bytes);
    if (memory->start == NULL) {
        return TN_NO_MEMORY;
    }
    cut_keys(batch->keys, memory->start, memory->room, batch->threads);
    return TN_OK;
}

/* ---- Numbering ----------------------------------------------------------- */

static uint64_t power_above(uint64_t n) {
    uint64_t power = FEWEST_SLOTS;
    while (power < n) {
        power *= 2;
    }
    return power;
}

/* The slot of a key, or the empty one where it belongs. */
static inline tn_key_slot *slot_of(tn_key_slot *slots, uint64_t mask, uint64_t hash,
                                   uint16_t group) {
    uint64_t at = hash & mask;
    while (slots[at].number != 0 && (slots[at].hash != hash || slots[at].group != group)) {
        at = (at + 1) & mask;
    }
    return &slots[at];
}

/* Doubles the slots in use and enters again the keys met so far. */
static void grow(const tn_key_set *keys, const tn_owner *owner, tn_key_slot *slots, uint64_t used) {
    memset(slots, 0, used * sizeof *slots);
    for (uint64_t place = owner->first_row; place < owner->first_row + owner->rows; place++) {
        tn_key_slot *slot = slot_of(slots, used - 1, keys->hashes[place], keys->groups[place]);
        *slot = (tn_key_slot){.hash = keys->hashes[place],
                              .number = (uint32_t)place + 1,
                              .group = keys->groups[place]};
    }
}

/* Gives each entry of a list the place of its key. The slots in use start at twice the keys of the
 * batch before, so as few lines of memory as possible are cleared and read. */
static uint64_t number_list(tn_key_set *keys, tn_owner *owner, tn_key_slot *slots, uint64_t used,
                            tn_entry *entries, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        uint64_t hash = entries[i].id;
        uint16_t group = (uint16_t)entries[i].place;
        TN_PREFETCH_WRITE(
            &slots[entries[i + SLOTS_AHEAD < n ? i + SLOTS_AHEAD : i].id & (used - 1)]);
        tn_key_slot *slot = slot_of(slots, used - 1, hash, group);
        if (slot->number == 0) {
            if (2 * (owner->rows + 1) > used) {
                used *= 2;
                grow(keys, owner, slots, used);
                slot = slot_of(slots, used - 1, hash, group);
            }
            uint64_t place = owner->first_row + owner->rows++;
            keys->hashes[place] = hash;
            keys->groups[place] = group;
            keys->occurrences[place] = 0;
            *slot = (tn_key_slot){.hash = hash, .number = (uint32_t)place + 1, .group = group};
        }
        entries[i].place = slot->number - 1;
        keys->occurrences[entries[i].place]++;
    }
    return used;
}

/* Lists the places of a thread by peer. */
static void sort_by_peer(tn_key_set *keys, const tn_owner *owner, uint64_t *starts) {
    const uint64_t *hashes = keys->hashes + owner->first_row;
    uint64_t ends[MAX_PEERS + 1] = {0};
    for (uint64_t i = 0; i < owner->rows; i++) {
        ends[keys->peer_of_shard[shard_of(hashes[i])] + 1]++;
    }
    for (uint32_t p = 0; p < keys->n_peers; p++) {
        ends[p + 1] += ends[p];
    }
    memcpy(starts, ends, sizeof ends);
    for (uint64_t i = 0; i < owner->rows; i++) {
        uint64_t at = ends[keys->peer_of_shard[shard_of(hashes[i])]]++;
        keys->order[owner->first_row + at] = (uint32_t)(owner->first_row + i);
    }
}

static void number_owned(void *argument, int thread, int threads) {
    tn_batch *batch = argument;
    tn_key_set *keys = batch->keys;
    tn_owner *owner = &batch->owners[thread];
    tn_key_slot *slots = keys->slots + keys->first_slot[thread];
    uint64_t used = power_above(2 * keys->expected[thread]);
    used = used < keys->most_slots[thread] ? used : keys->most_slots[thread];
    memset(slots, 0, used * sizeof *slots);
    owner->rows = 0;
    for (int t = 0; t < threads; t++) {
        uint64_t from, to;
        part_of(batch, t, &from, &to);
        used = number_list(keys, owner, slots, used, list_of(batch, from, to - from, thread),
                           batch->counts[t][thread]);
    }
    keys->expected[thread] = owner->rows;
    sort_by_peer(keys, owner, keys->starts[thread]);
}

static int set_peers(tn_batch *batch, const uint32_t *first_shards, uint32_t n_peers) {
    if (n_peers < 1 || n_peers > MAX_PEERS || first_shards[0] != 0 ||
        first_shards[n_peers] != SHARDS) {
        return TN_BAD_VALUE;
    }
    for (uint32_t p = 0; p < n_peers; p++) {
        if (first_shards[p] > first_shards[p + 1]) {
            return TN_BAD_VALUE;
        }
    }
    if (batch->keys == NULL) {
        batch->keys = TN_CALLOC(1, sizeof *batch->keys);
        if (batch->keys == NULL) {
            return TN_NO_MEMORY;
        }
    }
    batch->keys->n_peers = n_peers;
    for (uint32_t p = 0; p < n_peers; p++) {
        memset(batch->keys->peer_of_shard + first_shards[p], (int)p,
               first_shards[p + 1] - first_shards[p]);
    }
    return TN_OK;
}

/* Numbers the keys that were dealt out. Each thread has a place for each of its ids, and one more:
 * all ids may be distinct, and still some may wait. */
static int number_keys(tn_batch *batch, uint64_t ids) {
    tn_key_set *keys = batch->keys;
    int code = make_room(batch, ids + (uint64_t)batch->threads);
    if (code != TN_OK) {
        return code;
    }
    uint64_t first_row = 0, first_slot = 0;
    for (int o = 0; o < batch->threads; o++) {
        uint64_t dealt = 0;
        for (int t = 0; t < batch->threads; t++) {
            dealt += batch->counts[t][o];
        }
        batch->owners[o] = (tn_owner){.first_row = first_row, .no_row = first_row + dealt};
        first_row += dealt + 1;
        keys->first_slot[o] = first_slot;
        keys->most_slots[o] = power_above(2 * dealt);
        first_slot += keys->most_slots[o];
    }
    tn_thread_pool_run(batch->table->pool, number_owned, batch);
    batch->distinct = 0;
    for (int o = 0; o < batch->threads; o++) {
        batch->distinct += batch->owners[o].rows;
    }
    batch->counted = batch->has_clicks = 0;
    batch->state = BATCH_NUMBERED;
    return TN_OK;
}

int tn_keys(tn_batch *batch, const uint64_t *ids, const uint32_t *offsets, const float *weights,
            uint32_t examples, const uint32_t *first_shards, uint32_t n_peers) {
    pthread_mutex_lock(&batch->table->lock);
    batch->source = BATCH_OF_KEYS;
    batch->state = BATCH_EMPTY;
    int code = set_peers(batch, first_shards, n_peers);
    if (code == TN_OK) {
        code = tn_deal(batch, ids, offsets, weights, examples, 1);
    }
    if (code == TN_OK) {
        code = number_keys(batch, batch->first_of_part[batch->threads]);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

/* ---- Keys of a peer ------------------------------------------------------ */

int tn_keys_count(tn_batch *batch, uint32_t peer, uint64_t *n) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_keys(batch, peer, BATCH_NUMBERED);
    if (code == TN_OK) {
        *n = keys_before(batch, batch->threads, peer);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}

static void write_keys(const tn_batch *batch, uint32_t peer, uint64_t *ids, uint16_t *groups,
                       uint32_t *occurrences) {
    const tn_key_set *keys = batch->keys;
    uint64_t first, last, i = 0;
    for (int t = 0; t < batch->threads; t++) {
        keys_of(batch, t, peer, &first, &last);
        for (uint64_t k = first; k < last; k++, i++) {
            uint32_t place = keys->order[k];
            groups[i] = keys->groups[place];
            ids[i] = tn_unmix64(keys->hashes[place]) ^ batch->table->salts[groups[i]];
            if (occurrences != NULL) {
                occurrences[i] = keys->occurrences[place];
            }
        }
    }
}

int tn_keys_write(tn_batch *batch, uint32_t peer, uint64_t *ids, uint16_t *groups,
                  uint32_t *occurrences) {
    pthread_mutex_lock(&batch->table->lock);
    int code = check_keys(batch, peer, BATCH_NUMBERED);
    if (!is_aligned(ids, 8) || !is_aligned(groups, 2) || !is_aligned(occurrences, 4)) {
        code = TN_BAD_VALUE;
    }
    if (code == TN_OK) {
        write_keys(batch, peer, ids, groups, occurrences);
    }
    pthread_mutex_unlock(&batch->table->lock);
    return code;
}
