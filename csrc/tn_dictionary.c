/* tn_dictionary.c - see tn_dictionary.h; the bytes are those of docs/formats/dictionary.md.
 *
 * An id is found in three steps, each of which touches one place in memory: the line of the index
 * that its hash belongs to, the record that the line's tags point at, and that record's payload
 * beside it. A lookup of many ids takes each step for a group of them before the next one, and a
 * group is a step ahead of the group before, so that many wait for memory together.
 *
 * Nothing that was read from a file is believed: whatever an index says is held inside of the
 * records, and a record counts only when its hash is the one looked for. */
#define _DEFAULT_SOURCE
#define _FILE_OFFSET_BITS 64

#include "tn_dictionary.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__SSE2__) && !defined(TN_NO_SIMD)
#include <emmintrin.h>
#endif

#ifdef TN_MEMORY_HEADER
#include TN_MEMORY_HEADER
#else
#include <stdlib.h>
#define TN_CALLOC(count, size) calloc(count, size)
#define TN_ALIGNED_ALLOC(alignment, size) aligned_alloc(alignment, size)
#define TN_FREE(memory) free(memory)
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "dictionaries are little-endian, and read as they are"
#endif

#define INLINE static inline __attribute__((always_inline))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

#define HEADER 64
#define TRAILER 8 /* and a checksum for each block */
#define VERSION 1
#define BLOCK (1u << 20)
#define MOST_RECORDS UINT64_C(0xffffffff)
#define MOST_WIDTH 65536

/* A line of the index: tags, where each of its parts ends, and the number of its first record. */
#define LINE 64
#define PARTS 8
#define TAGS 52
#define LINE_ENDS 52
#define LINE_RANK 60
#define KEYS_A_LINE 42 /* on average: rarely more than there are tags */
#define WINDOW 16      /* tags compared at once */
#define SCAN 16        /* records that are faster looked at one by one */

#define AHEAD 32 /* ids that wait for memory together */
#define CHUNK 4096

static const char FILE_MAGIC[8] = {'t', 'n', 'c', 't', 'l', 'd', 'i', 'c'};
static const char INDEX_MAGIC[8] = {'t', 'n', 'c', 't', 'l', 'i', 'd', 'x'};

typedef struct {
    char magic[8];
    uint32_t version, header;
    uint64_t records, removed, salt;
    uint32_t width;
    uint8_t linear, cvm, precision, delta;
    uint32_t stride, record, block, crc;
} file_header;

typedef struct {
    char magic[8];
    uint32_t version, header;
    uint64_t records, lines;
    uint32_t header_crc, trailer_crc;
    uint8_t zeros[20];
    uint32_t crc;
} index_header;

_Static_assert(sizeof(file_header) == HEADER, "a header has no gaps");
_Static_assert(sizeof(index_header) == HEADER, "a header has no gaps");

typedef struct {
    const uint8_t *records;
    const uint8_t *lines; /* NULL: none */
    uint64_t n;
    uint64_t parts;   /* of all lines */
    uint32_t record;  /* bytes of one */
    uint32_t payload; /* where it is in the record */
} layer;

typedef struct {
    void *memory;
    size_t bytes;
} mapping;

struct tn_dictionary {
    layer layers[TN_DICTIONARY_LAYERS]; /* newest first */
    uint32_t n_layers;
    uint32_t header_crc, trailer_crc;
    tn_dictionary_facts facts;
    const uint8_t *file, *index; /* NULL in a stack */
    mapping file_map, index_map; /* what is to be unmapped */
    void *made_index;            /* what is to be freed */
};

const char *tn_dictionary_message(int code) {
    switch (code) {
    case TN_DICTIONARY_OK:
        return "done";
    case TN_DICTIONARY_NO_FILE:
        return "the dictionary cannot be opened";
    case TN_DICTIONARY_NO_INDEX:
        return "the index cannot be opened";
    case TN_DICTIONARY_NO_MEMORY:
        return "an allocation or a mapping failed";
    case TN_DICTIONARY_NOT_ONE:
        return "the file is no dictionary";
    case TN_DICTIONARY_VERSION:
        return "the dictionary has a version that is not known here";
    case TN_DICTIONARY_DAMAGED:
        return "the dictionary is damaged";
    case TN_DICTIONARY_BAD_INDEX:
        return "the index is damaged, or that of another dictionary";
    case TN_DICTIONARY_BAD_STACK:
        return "these dictionaries cannot be stacked";
    case TN_DICTIONARY_BAD_ORDER:
        return "hashes do not ascend";
    case TN_DICTIONARY_BAD_VALUE:
        return "an argument is out of its range";
    default:
        return "unknown code";
    }
}

uint32_t tn_dictionary_abi(void) {
    return TN_DICTIONARY_ABI;
}

/* ---- Words -------------------------------------------------------------- */

INLINE uint32_t load32(const void *at) {
    uint32_t word;
    memcpy(&word, at, 4);
    return word;
}

INLINE uint64_t load64(const void *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* MurmurHash3's 64-bit finalizer. */
INLINE uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

/* floor(hash * n / 2^64) for n below 2^32. */
INLINE uint64_t scaled(uint64_t hash, uint64_t n) {
#ifdef __SIZEOF_INT128__
    __extension__ typedef unsigned __int128 wide;
    return (uint64_t)((wide)hash * n >> 64);
#else
    return ((hash >> 32) * n + ((hash & UINT32_MAX) * n >> 32)) >> 32;
#endif
}

INLINE uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* ---- Checksums ---------------------------------------------------------- */

typedef struct {
    uint32_t of[8][256];
} crc_tables;

/* Made anew for whoever needs them: 5 microseconds, and nothing is shared between threads. */
static void fill_tables(crc_tables *tables) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (0xedb88320u & (0u - (crc & 1)));
        tables->of[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = tables->of[k - 1][byte];
            tables->of[k][byte] = (crc >> 8) ^ tables->of[0][crc & 255];
        }
    }
}

/* CRC-32 as zlib and PNG have it. */
static uint32_t crc32_of(const crc_tables *tables, const uint8_t *at, uint64_t n) {
    const uint32_t(*of)[256] = tables->of;
    uint32_t crc = ~0u;
    for (; n >= 8; n -= 8, at += 8) {
        uint64_t word = load64(at) ^ crc;
        crc = of[7][word & 255] ^ of[6][word >> 8 & 255] ^ of[5][word >> 16 & 255] ^
              of[4][word >> 24 & 255] ^ of[3][word >> 32 & 255] ^ of[2][word >> 40 & 255] ^
              of[1][word >> 48 & 255] ^ of[0][word >> 56];
    }
    for (; n; n--, at++)
        crc = (crc >> 8) ^ of[0][(crc ^ *at) & 255];
    return ~crc;
}

/* ---- Opening ------------------------------------------------------------ */

static uint64_t blocks_of(uint64_t bytes) {
    return (bytes + BLOCK - 1) / BLOCK;
}

static uint32_t stride_of(const file_header *header) {
    uint32_t floats = header->linear + 2u * header->cvm, width = header->width;
    if (header->precision == TN_DICTIONARY_FLOAT32)
        return 4 * (floats + width);
    if (header->precision == TN_DICTIONARY_FLOAT16)
        return 4 * floats + (2 * width + 3) / 4 * 4;
    return 4 * (floats + (width > 0)) + (width + 3) / 4 * 4;
}

/* Whether the numbers of a header go together. */
static int sensible(const file_header *header) {
    return header->header == HEADER && header->block == BLOCK && header->records <= MOST_RECORDS &&
           header->width <= MOST_WIDTH && header->linear <= 1 && header->cvm <= 1 &&
           header->delta <= 1 && header->precision <= TN_DICTIONARY_INT8 &&
           header->removed <= (header->delta ? header->records : 0) &&
           header->stride == stride_of(header) &&
           header->record == 8u + 4u * header->delta + header->stride;
}

static int read_file(tn_dictionary *dictionary, const uint8_t *file, uint64_t bytes,
                     const crc_tables *tables) {
    file_header header;
    if (bytes < sizeof FILE_MAGIC || memcmp(file, FILE_MAGIC, sizeof FILE_MAGIC) != 0)
        return TN_DICTIONARY_NOT_ONE;
    if (bytes < HEADER + TRAILER)
        return TN_DICTIONARY_DAMAGED;
    memcpy(&header, file, HEADER);
    if (crc32_of(tables, file, HEADER - 4) != header.crc)
        return TN_DICTIONARY_DAMAGED;
    if (header.version != VERSION)
        return TN_DICTIONARY_VERSION;
    if (!sensible(&header))
        return TN_DICTIONARY_DAMAGED;
    uint64_t body = header.records * header.record, trailer = 4 * blocks_of(body) + TRAILER;
    if (bytes != HEADER + body + trailer)
        return TN_DICTIONARY_DAMAGED;
    const uint8_t *end = file + bytes;
    if (load32(end - 8) != header.crc ||
        load32(end - 4) != crc32_of(tables, end - trailer, trailer - 4))
        return TN_DICTIONARY_DAMAGED;

    dictionary->file = file;
    dictionary->header_crc = header.crc;
    dictionary->trailer_crc = load32(end - 4);
    dictionary->n_layers = 1;
    dictionary->layers[0] = (layer){.records = file + HEADER,
                                    .n = header.records,
                                    .record = header.record,
                                    .payload = 8u + 4u * header.delta};
    dictionary->facts =
        (tn_dictionary_facts){.records = header.records,
                              .removed = header.removed,
                              .salt = header.salt,
                              .columns = header.linear + header.width + 2u * header.cvm,
                              .linear = header.linear,
                              .width = header.width,
                              .cvm = header.cvm,
                              .precision = header.precision,
                              .stride = header.stride,
                              .delta = header.delta};
    return TN_DICTIONARY_OK;
}

static uint64_t lines_of(uint64_t records) {
    return records / KEYS_A_LINE + 1;
}

/* One line more, in which the last one's records end. */
uint64_t tn_dictionary_index_size(uint64_t records) {
    return HEADER + LINE * (lines_of(records) + 1);
}

static void use_index(tn_dictionary *dictionary, const uint8_t *index) {
    layer *only = &dictionary->layers[0];
    dictionary->index = index;
    dictionary->facts.indexed = 1;
    only->parts = lines_of(only->n) * PARTS;
    only->lines = only->n ? index + HEADER : NULL; /* so that whoever asks one has a record */
}

static int read_index(tn_dictionary *dictionary, const uint8_t *index, uint64_t bytes,
                      const crc_tables *tables) {
    index_header header;
    uint64_t records = dictionary->facts.records;
    if (bytes != tn_dictionary_index_size(records))
        return TN_DICTIONARY_BAD_INDEX;
    memcpy(&header, index, HEADER);
    if (memcmp(header.magic, INDEX_MAGIC, sizeof INDEX_MAGIC) != 0 || header.version != VERSION ||
        header.header != HEADER || header.records != records || header.lines != lines_of(records) ||
        header.header_crc != dictionary->header_crc ||
        header.trailer_crc != dictionary->trailer_crc ||
        header.crc != crc32_of(tables, index, HEADER - 4))
        return TN_DICTIONARY_BAD_INDEX;
    use_index(dictionary, index);
    return TN_DICTIONARY_OK;
}

/* A file of no bytes is a mapping of none. */
static int map_file(const char *path, int not_there, mapping *map) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (file < 0)
        return not_there;
    int code = not_there;
    if (fstat(file, &status) != 0) {
        code = not_there;
    } else if (!S_ISREG(status.st_mode)) {
        errno = S_ISDIR(status.st_mode) ? EISDIR : EINVAL;
    } else if (status.st_size == 0) {
        code = TN_DICTIONARY_OK;
    } else if ((uint64_t)status.st_size > SIZE_MAX) {
        code = TN_DICTIONARY_NO_MEMORY;
    } else {
        size_t bytes = (size_t)status.st_size;
        void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
        code = memory == MAP_FAILED ? TN_DICTIONARY_NO_MEMORY : TN_DICTIONARY_OK;
        if (code == TN_DICTIONARY_OK)
            *map = (mapping){memory, bytes};
    }
    int why = errno;
    close(file);
    errno = why;
    return code;
}

int tn_dictionary_of_memory(const void *file, uint64_t bytes, const void *index,
                            uint64_t index_bytes, tn_dictionary **out) {
    crc_tables tables;
    fill_tables(&tables);
    tn_dictionary *dictionary = TN_CALLOC(1, sizeof *dictionary);
    if (dictionary == NULL)
        return TN_DICTIONARY_NO_MEMORY;
    int code = read_file(dictionary, file, bytes, &tables);
    if (code == TN_DICTIONARY_OK && index != NULL)
        code = read_index(dictionary, index, index_bytes, &tables);
    if (code == TN_DICTIONARY_OK)
        *out = dictionary;
    else
        TN_FREE(dictionary);
    return code;
}

int tn_dictionary_open(const char *path, const char *index, tn_dictionary **out) {
    mapping file = {NULL, 0}, lines = {NULL, 0};
    tn_dictionary *dictionary;
    int code = map_file(path, TN_DICTIONARY_NO_FILE, &file);
    if (code == TN_DICTIONARY_OK && index != NULL)
        code = map_file(index, TN_DICTIONARY_NO_INDEX, &lines);
    if (code == TN_DICTIONARY_OK && index != NULL && lines.memory == NULL)
        code = TN_DICTIONARY_BAD_INDEX;
    if (code == TN_DICTIONARY_OK)
        code = tn_dictionary_of_memory(file.memory, file.bytes, lines.memory, lines.bytes,
                                       &dictionary);
    if (code != TN_DICTIONARY_OK) {
        int why = errno;
        if (file.memory != NULL)
            munmap(file.memory, file.bytes);
        if (lines.memory != NULL)
            munmap(lines.memory, lines.bytes);
        errno = why;
        return code;
    }
    dictionary->file_map = file;
    dictionary->index_map = lines;
    *out = dictionary;
    return TN_DICTIONARY_OK;
}

void tn_dictionary_close(tn_dictionary *dictionary) {
    if (dictionary == NULL)
        return;
    if (dictionary->file_map.memory != NULL)
        munmap(dictionary->file_map.memory, dictionary->file_map.bytes);
    if (dictionary->index_map.memory != NULL)
        munmap(dictionary->index_map.memory, dictionary->index_map.bytes);
    TN_FREE(dictionary->made_index);
    TN_FREE(dictionary);
}

int tn_dictionary_stack(const tn_dictionary *const *layers, uint32_t n, tn_dictionary **out) {
    if (n < 1 || n > TN_DICTIONARY_LAYERS)
        return TN_DICTIONARY_BAD_STACK;
    const tn_dictionary_facts *of = &layers[0]->facts;
    for (uint32_t k = 0; k < n; k++) {
        const tn_dictionary_facts *other = &layers[k]->facts;
        if (layers[k]->file == NULL || (k + 1 < n && !other->delta) || other->salt != of->salt ||
            other->linear != of->linear || other->width != of->width || other->cvm != of->cvm ||
            other->precision != of->precision)
            return TN_DICTIONARY_BAD_STACK;
    }
    tn_dictionary *stack = TN_CALLOC(1, sizeof *stack);
    if (stack == NULL)
        return TN_DICTIONARY_NO_MEMORY;
    stack->facts = *of;
    stack->facts.records = stack->facts.removed = 0;
    stack->facts.delta = layers[n - 1]->facts.delta;
    for (uint32_t k = 0; k < n; k++) {
        stack->layers[k] = layers[k]->layers[0];
        stack->facts.records += layers[k]->facts.records;
        stack->facts.removed += layers[k]->facts.removed;
        stack->facts.indexed &= layers[k]->facts.indexed;
    }
    stack->n_layers = n;
    *out = stack;
    return TN_DICTIONARY_OK;
}

void tn_dictionary_about(const tn_dictionary *dictionary, tn_dictionary_facts *facts) {
    *facts = dictionary->facts;
}

/* ---- Finding a record --------------------------------------------------- */

INLINE const uint8_t *record_at(const layer *in, uint64_t place) {
    return in->records + place * in->record;
}

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
        uint64_t found = load64(record);
        if (found == hash)
            return record;
        if (found < hash) {
            low = middle + 1;
            least_hash = found;
        } else {
            high = middle;
            most_hash = found;
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

/* What a line of the index says of a hash: it is that of the record `first` + one of the bits set,
 * or of none; but when there are `unsure`, any from `first` on. */
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

#define RING (4 * AHEAD) /* of ids that are under way: those of three groups */

/* `step` is 0 when all ids are looked up in one dictionary, into one array of rows; else 1. */
INLINE void lookup(const tn_dictionary *const *dictionaries, uint64_t step, const uint64_t *ids,
                   uint64_t n, float *rows, float *const *each_row, uint8_t *found) {
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
            if (found != NULL)
                found[i] = (uint8_t)word;
        }
    }
}

void tn_dictionary_lookup(const tn_dictionary *dictionary, const uint64_t *ids, uint64_t n,
                          float *rows, uint8_t *found) {
    lookup(&dictionary, 0, ids, n, rows, NULL, found);
}

void tn_dictionary_lookup_each(const tn_dictionary *const *dictionaries, const uint64_t *ids,
                               uint64_t n, float *const *rows, uint8_t *found) {
    lookup(dictionaries, 1, ids, n, NULL, rows, found);
}

/* ---- Records ------------------------------------------------------------ */

int tn_dictionary_records(const tn_dictionary *dictionary, uint64_t first, uint64_t n,
                          uint64_t *hashes, uint8_t *removed, void *payloads) {
    const layer *in = &dictionary->layers[0];
    uint32_t stride = dictionary->facts.stride;
    if (dictionary->file == NULL || first > in->n || n > in->n - first)
        return TN_DICTIONARY_BAD_VALUE;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *record = record_at(in, first + i);
        if (hashes != NULL)
            hashes[i] = load64(record);
        if (removed != NULL)
            removed[i] = in->payload == 12 && load32(record + 8) != 0;
        if (payloads != NULL)
            memcpy((uint8_t *)payloads + i * stride, record + in->payload, stride);
    }
    return TN_DICTIONARY_OK;
}

static int all_zeros(const uint8_t *at, uint32_t n) {
    uint8_t any = 0;
    for (uint32_t i = 0; i < n; i++)
        any |= at[i];
    return any == 0;
}

/* Whether a record is one that can stand after a hash (of the record before it). */
static int right_record(const tn_dictionary *dictionary, const uint8_t *record, int is_first,
                        uint64_t before, uint64_t *removed) {
    const layer *in = &dictionary->layers[0];
    if (!is_first && load64(record) <= before)
        return 0;
    if (in->payload == 8)
        return 1;
    uint32_t flag = load32(record + 8);
    *removed += flag;
    return flag == 0 || (flag == 1 && all_zeros(record + 12, dictionary->facts.stride));
}

static int make_index(const tn_dictionary *dictionary, uint8_t **out);

int tn_dictionary_verify(const tn_dictionary *dictionary, uint64_t *place) {
    const layer *in = &dictionary->layers[0];
    if (dictionary->file == NULL)
        return TN_DICTIONARY_BAD_VALUE;
    crc_tables tables;
    fill_tables(&tables);
    uint64_t body = in->n * in->record, i = 0, before = 0, removed = 0, unused;
    uint64_t *seen = place != NULL ? place : &unused;
    const uint8_t *sums = in->records + body;
    for (uint64_t done = 0; done < body;) {
        uint64_t bytes = least(body - done, BLOCK);
        *seen = HEADER + done;
        if (crc32_of(&tables, in->records + done, bytes) != load32(sums + done / BLOCK * 4))
            return TN_DICTIONARY_DAMAGED;
        done += bytes;
        for (; (i + 1) * in->record <= done; i++) { /* while they are in the cache */
            const uint8_t *record = record_at(in, i);
            *seen = HEADER + i * in->record;
            if (!right_record(dictionary, record, i == 0, before, &removed))
                return TN_DICTIONARY_DAMAGED;
            before = load64(record);
        }
    }
    *seen = 0;
    tn_dictionary again; /* header and trailer, as when it was opened */
    uint64_t bytes = HEADER + body + 4 * blocks_of(body) + TRAILER;
    int code = read_file(&again, dictionary->file, bytes, &tables);
    if (code != TN_DICTIONARY_OK || removed != dictionary->facts.removed)
        return TN_DICTIONARY_DAMAGED;
    if (dictionary->index == NULL)
        return TN_DICTIONARY_OK;
    uint8_t *right;
    code = make_index(dictionary, &right);
    if (code != TN_DICTIONARY_OK)
        return code;
    if (memcmp(right, dictionary->index, tn_dictionary_index_size(in->n)) != 0)
        code = TN_DICTIONARY_BAD_INDEX;
    TN_FREE(right);
    return code;
}

/* ---- Making an index ---------------------------------------------------- */

int tn_dictionary_index_add(void *index, uint64_t records, uint64_t first, uint64_t before,
                            const uint64_t *hashes, uint64_t n) {
    if (records > MOST_RECORDS || first > records || n > records - first)
        return TN_DICTIONARY_BAD_VALUE;
    uint8_t *lines = (uint8_t *)index + HEADER;
    uint64_t parts = lines_of(records) * PARTS;
    uint64_t next = first ? scaled(before, parts) / PARTS + 1 : 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t hash = hashes[i], part = scaled(hash, parts);
        uint32_t rank = (uint32_t)(first + i);
        if (rank > 0 && hash <= before)
            return TN_DICTIONARY_BAD_ORDER;
        for (; next <= part / PARTS; next++)
            memcpy(lines + next * LINE + LINE_RANK, &rank, 4);
        uint8_t *line = lines + part / PARTS * LINE;
        uint32_t tag = rank - load32(line + LINE_RANK);
        if (tag < TAGS)
            line[tag] = (uint8_t)hash;
        for (uint64_t q = part % PARTS; q < PARTS; q++)
            line[LINE_ENDS + q] = (uint8_t)(tag < TAGS ? tag + 1 : TAGS + 1);
        before = hash;
    }
    return TN_DICTIONARY_OK;
}

int tn_dictionary_index_finish(void *index, uint64_t records, uint64_t last, uint32_t header_crc,
                               uint32_t trailer_crc) {
    if (records > MOST_RECORDS)
        return TN_DICTIONARY_BAD_VALUE;
    uint8_t *lines = (uint8_t *)index + HEADER;
    uint32_t rank = (uint32_t)records;
    uint64_t n = lines_of(records);
    for (uint64_t next = records ? scaled(last, n * PARTS) / PARTS + 1 : 0; next <= n; next++)
        memcpy(lines + next * LINE + LINE_RANK, &rank, 4);
    index_header header = {.version = VERSION,
                           .header = HEADER,
                           .records = records,
                           .lines = n,
                           .header_crc = header_crc,
                           .trailer_crc = trailer_crc};
    crc_tables tables;
    fill_tables(&tables);
    memcpy(header.magic, INDEX_MAGIC, sizeof INDEX_MAGIC);
    memcpy(index, &header, HEADER);
    header.crc = crc32_of(&tables, index, HEADER - 4);
    memcpy(index, &header, HEADER);
    return TN_DICTIONARY_OK;
}

static int make_index(const tn_dictionary *dictionary, uint8_t **out) {
    const layer *in = &dictionary->layers[0];
    uint64_t bytes = tn_dictionary_index_size(in->n), hashes[CHUNK], before = 0;
    if (bytes > SIZE_MAX)
        return TN_DICTIONARY_NO_MEMORY;
    uint8_t *index = TN_ALIGNED_ALLOC(LINE, (size_t)bytes);
    if (index == NULL)
        return TN_DICTIONARY_NO_MEMORY;
    memset(index, 0, (size_t)bytes);
    int code = TN_DICTIONARY_OK;
    for (uint64_t first = 0; first < in->n && code == TN_DICTIONARY_OK; first += CHUNK) {
        uint64_t n = least(in->n - first, CHUNK);
        tn_dictionary_records(dictionary, first, n, hashes, NULL, NULL);
        code = tn_dictionary_index_add(index, in->n, first, before, hashes, n);
        before = hashes[n - 1];
    }
    if (code == TN_DICTIONARY_OK)
        code = tn_dictionary_index_finish(index, in->n, before, dictionary->header_crc,
                                          dictionary->trailer_crc);
    if (code == TN_DICTIONARY_OK)
        *out = index;
    else
        TN_FREE(index);
    return code == TN_DICTIONARY_BAD_ORDER ? TN_DICTIONARY_DAMAGED : code;
}

int tn_dictionary_make_index(tn_dictionary *dictionary) {
    uint8_t *index;
    if (dictionary->file == NULL)
        return TN_DICTIONARY_BAD_VALUE;
    if (dictionary->index != NULL)
        return TN_DICTIONARY_OK;
    int code = make_index(dictionary, &index);
    if (code != TN_DICTIONARY_OK)
        return code;
    dictionary->made_index = index;
    use_index(dictionary, index);
    return TN_DICTIONARY_OK;
}
