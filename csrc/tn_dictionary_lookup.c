/* tn_dictionary_lookup.c - ids to rows: the hot path of a dictionary.
 *
 * An id is found in three steps, each of which touches one place in memory: the line of the index
 * that its hash belongs to, the record that the line's tags point at, and that record's payload
 * beside it. A lookup of many ids takes each step for a group of them before the next one, and a
 * group is a step ahead of the group before, so that many wait for memory together:
 *
 *     time      0        1        2        3
 *     group 0   line     record   row
 *     group 1            line     record   row
 *     group 2                     line     record  ...
 *
 * Nothing that was read from a file is believed: whatever an index says is held inside of the
 * records, and a record counts only when its hash is the one looked for. */
#include "tn_dictionary_format.h"

#if defined(__SSE2__) && !defined(TN_NO_SIMD)
#include <emmintrin.h>
#endif

#define WINDOW 16 /* tags compared at once */
#define SCAN 16   /* records that are faster looked at one by one */
#define AHEAD 32  /* ids that wait for memory together */

/* ---- Finding a record --------------------------------------------------- */

/* The record with this hash among those from `low` to before `high`, or NULL. Hashes are spread
 * evenly: where they are says where to look. When that does not help, which only damaged or very
 * small files do, halving the range does. */
static const uint8_t *search(const layer *in, uint64_t hash, uint64_t low, uint64_t high) {
    uint64_t least_hash = 0, most_hash = UINT64_MAX;
    for (int tries = 0; low < high && high - low > SCAN; tries++) {
        uint64_t middle = low + (high - low) / 2;
        if (tries < 8 && hash >= least_hash && hash < most_hash) {
            double part = (double)(hash - least_hash) / (double)(most_hash - least_hash);
            middle = least(low + (uint64_t)((double)(high - low) * part), high - 1);
        }
        const uint8_t *record = record_at(in, middle);
        uint64_t met = load64(record);
        if (met == hash)
            return record;
        if (met < hash) {
            low = middle + 1;
            least_hash = met;
        } else {
            high = middle;
            most_hash = met;
        }
    }
    for (; low < high; low++)
        if (load64(record_at(in, low)) == hash)
            return record_at(in, low);
    return NULL;
}

INLINE const uint8_t *line_of(const layer *in, uint64_t part) {
    return in->lines + part / PARTS * LINE;
}

/* One bit for each of 16 tags that is this one. */
INLINE uint32_t equal_tags(const uint8_t *tags, uint8_t tag) {
#if defined(__SSE2__) && !defined(TN_NO_SIMD)
    __m128i equal = _mm_cmpeq_epi8(_mm_loadu_si128((const __m128i *)(const void *)tags),
                                   _mm_set1_epi8((char)tag));
    return (uint32_t)_mm_movemask_epi8(equal);
#else
    uint32_t equal = 0;
    for (uint32_t i = 0; i < WINDOW; i++)
        equal |= (uint32_t)(tags[i] == tag) << i;
    return equal;
#endif
}

/* What a line of the index says of a hash: only the records `first` + (position of a bit that is
 * set) can have it; but when there are `unsure`, any record from `first` on. */
typedef struct {
    uint64_t first;
    uint32_t bits;
    int unsure;
} answer;

INLINE answer ask(const layer *in, uint64_t hash) {
    uint64_t part = scaled(hash, in->parts);
    const uint8_t *line = line_of(in, part);
    uint64_t rank = load32(line + LINE_RANK), ends = load64(line + LINE_ENDS);
    unsigned shift = 8 * (unsigned)(part % PARTS);
    unsigned start = (ends << 8 >> shift) & 255, end = ends >> shift & 255;
    /* A line of more records than tags, a part of more than are compared at once; or damage. */
    if (UNLIKELY(end > TAGS || end - start > WINDOW))
        return (answer){rank + start, 0, 1};
    uint32_t bits = equal_tags(line + start, (uint8_t)hash);
    return (answer){rank + start, bits & ((1u << (end - start)) - 1), 0};
}

/* The record with this hash, or NULL. */
static const uint8_t *find_record(const layer *in, uint64_t hash) {
    if (in->lines == NULL)
        return search(in, hash, 0, in->n);
    answer said = ask(in, hash);
    if (said.unsure) {
        const uint8_t *next = line_of(in, scaled(hash, in->parts)) + LINE;
        return search(in, hash, said.first, least(load32(next + LINE_RANK), in->n));
    }
    for (uint32_t bits = said.bits; bits; bits &= bits - 1) {
        uint64_t place = said.first + (uint64_t)__builtin_ctz(bits);
        if (place < in->n && load64(record_at(in, place)) == hash)
            return record_at(in, place);
    }
    return NULL;
}

/* The record that most likely has this hash; NULL when find_record would find none. */
INLINE const uint8_t *likely_record(const layer *in, uint64_t hash) {
    if (UNLIKELY(in->lines == NULL))
        return in->n ? record_at(in, scaled(hash, in->n)) : NULL;
    answer said = ask(in, hash);
    if (!said.bits && !said.unsure)
        return NULL;
    uint64_t place = said.first + (said.unsure ? 0 : (uint64_t)__builtin_ctz(said.bits));
    return LIKELY(place < in->n) ? record_at(in, place) : in->records;
}

/* ---- Rows --------------------------------------------------------------- */

/* Whole floats, as most rows have few: no call, and no loop over single ones. */
INLINE void copy_floats(float *to, const uint8_t *from, uint32_t n) {
    if (LIKELY(n >= 4)) {
        const uint8_t *last = from + 4 * (n - 4);
        float *last_to = to + (n - 4);
        for (; from < last; from += 16, to += 4)
            memcpy(to, from, 16);
        memcpy(last_to, last, 16);
    } else {
        for (uint32_t i = 0; i < n; i++)
            memcpy(to + i, from + 4 * i, 4);
    }
}

INLINE void zero_floats(float *to, uint32_t n) {
    static const uint8_t ZEROS[16];
    if (LIKELY(n >= 4)) {
        float *last = to + (n - 4);
        for (; to < last; to += 4)
            memcpy(to, ZEROS, 16);
        memcpy(last, ZEROS, 16);
    } else {
        for (uint32_t i = 0; i < n; i++)
            to[i] = 0;
    }
}

/* Exact, and without a subnormal on the way: threads of TensorFlow flush those to zero. */
INLINE float half_to_float(uint16_t half) {
    uint32_t exponent = half >> 10 & 31, fraction = half & 1023u, bits;
    float value = (float)(int32_t)fraction * 0x1p-24f;
    memcpy(&bits, &value, 4);
    bits = exponent ? (exponent + (exponent == 31 ? 224 : 112)) << 23 | fraction << 13 : bits;
    bits |= (uint32_t)(half & 0x8000) << 16;
    memcpy(&value, &bits, 4);
    return value;
}

static void decode_halves(const tn_dictionary_facts *facts, const uint8_t *payload, float *row) {
    uint32_t linear = facts->linear, width = facts->width, counts = 2 * facts->cvm;
    copy_floats(row, payload, linear);
    copy_floats(row + linear + width, payload + 4 * linear, counts);
    payload += 4 * (linear + counts);
    for (uint32_t i = 0; i < width; i++) {
        uint16_t half;
        memcpy(&half, payload + 2 * i, 2);
        row[linear + i] = half_to_float(half);
    }
}

static void decode_bytes(const tn_dictionary_facts *facts, const uint8_t *payload, float *row) {
    uint32_t linear = facts->linear, width = facts->width, counts = 2 * facts->cvm;
    float scale;
    copy_floats(row, payload, linear);
    copy_floats(row + linear + width, payload + 4 * linear, counts);
    if (width == 0)
        return;
    payload += 4 * (linear + counts);
    memcpy(&scale, payload, 4);
    payload += 4;
    for (uint32_t i = 0; i < width; i++)
        row[linear + i] = (float)(int8_t)payload[i] * scale;
}

INLINE void decode(const tn_dictionary_facts *facts, const uint8_t *payload, float *row) {
    if (LIKELY(facts->precision == TN_DICTIONARY_FLOAT32))
        copy_floats(row, payload, facts->columns);
    else if (facts->precision == TN_DICTIONARY_FLOAT16)
        decode_halves(facts, payload, row);
    else
        decode_bytes(facts, payload, row);
}

INLINE int nothing(const tn_dictionary *dictionary, float *row, int why) {
    zero_floats(row, dictionary->facts.columns);
    return why;
}

/* The row of a record; `in` is the layer it is from. */
INLINE int row_of(const tn_dictionary *dictionary, const layer *in, const uint8_t *record,
                  float *row) {
    if (in->payload == 12 && load32(record + 8) != 0)
        return nothing(dictionary, row, TN_DICTIONARY_REMOVED);
    decode(&dictionary->facts, record + in->payload, row);
    return TN_DICTIONARY_KNOWN;
}

static __attribute__((noinline)) int find_row(const tn_dictionary *dictionary, uint64_t hash,
                                              float *row) {
    for (uint32_t k = 0; k < dictionary->n_layers; k++) {
        const layer *in = &dictionary->layers[k];
        const uint8_t *record = find_record(in, hash);
        if (record != NULL)
            return row_of(dictionary, in, record, row);
    }
    return nothing(dictionary, row, TN_DICTIONARY_UNKNOWN);
}

/* ---- Looking up --------------------------------------------------------- */

int tn_dictionary_find(const tn_dictionary *dictionary, uint64_t id, float *row) {
    uint64_t hash = mix(id ^ dictionary->facts.salt);
    const layer *newest = &dictionary->layers[0];
    const uint8_t *record = likely_record(newest, hash);
    if (record != NULL && LIKELY(load64(record) == hash))
        return row_of(dictionary, newest, record, row);
    if (record == NULL && dictionary->n_layers == 1)
        return nothing(dictionary, row, TN_DICTIONARY_UNKNOWN);
    return find_row(dictionary, hash, row);
}

#define RING (4 * AHEAD) /* ids in flight: three groups, rounded up */

/* `step` is 0 when all ids are looked up in one dictionary, into one array of rows; else 1. */
INLINE void lookup(const tn_dictionary *const *dictionaries, uint64_t step, const uint64_t *ids,
                   uint64_t n, float *rows, float *const *each_row, uint8_t *states) {
    uint64_t hashes[RING];
    const uint8_t *records[RING];
    const layer *from[RING];
    for (uint64_t first = 0; first < n + 2 * AHEAD; first += AHEAD) {
        for (uint64_t i = first; i < least(n, first + AHEAD); i++) {
            const tn_dictionary *dictionary = dictionaries[i * step];
            uint64_t hash = mix(ids[i] ^ dictionary->facts.salt);
            hashes[i % RING] = hash;
            for (uint32_t k = 0; k < dictionary->n_layers; k++) {
                const layer *in = &dictionary->layers[k];
                if (LIKELY(in->lines != NULL))
                    __builtin_prefetch(line_of(in, scaled(hash, in->parts)));
            }
        }
        for (uint64_t i = first - AHEAD; first >= AHEAD && i < least(n, first); i++) {
            const tn_dictionary *dictionary = dictionaries[i * step];
            uint64_t at = i % RING;
            const layer *in = &dictionary->layers[0];
            const uint8_t *record = likely_record(in, hashes[at]);
            for (uint32_t k = 1; k < dictionary->n_layers && record == NULL; k++) {
                in = &dictionary->layers[k];
                record = likely_record(in, hashes[at]);
            }
            records[at] = record;
            from[at] = in;
            if (record != NULL) { /* most lie on two cache lines */
                __builtin_prefetch(record);
                __builtin_prefetch(record + in->record - 1);
            }
        }
        for (uint64_t i = first - 2 * AHEAD; first >= 2 * AHEAD && i < least(n, first - AHEAD);
             i++) {
            const tn_dictionary *dictionary = dictionaries[i * step];
            uint64_t at = i % RING;
            float *row = step ? each_row[i] : rows + i * dictionary->facts.columns;
            int word;
            if (records[at] == NULL)
                word = nothing(dictionary, row, TN_DICTIONARY_UNKNOWN);
            else if (LIKELY(load64(records[at]) == hashes[at]))
                word = row_of(dictionary, from[at], records[at], row);
            else
                word = find_row(dictionary, hashes[at], row);
            if (states != NULL)
                states[i] = (uint8_t)word;
        }
    }
}

void tn_dictionary_lookup(const tn_dictionary *dictionary, const uint64_t *ids, uint64_t n,
                          float *rows, uint8_t *states) {
    lookup(&dictionary, 0, ids, n, rows, NULL, states);
}

void tn_dictionary_lookup_each(const tn_dictionary *const *dictionaries, const uint64_t *ids,
                               uint64_t n, float *const *rows, uint8_t *states) {
    lookup(dictionaries, 1, ids, n, NULL, rows, states);
}
