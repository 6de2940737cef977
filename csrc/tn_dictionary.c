/* tn_dictionary.c - opening, stacking and verifying dictionaries; see tn_dictionary.h.
 *
 * Nothing that was read from a file is believed: the sizes in a header are used only after its
 * checksum and all of them together agree with the size of the file. */
#define _DEFAULT_SOURCE
#define _FILE_OFFSET_BITS 64

#include "tn_dictionary.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tn_dictionary_index.h"

#define CHUNK 4096 /* hashes that are given to an index together */

static const char FILE_MAGIC[8] = {'t', 'n', 'c', 't', 'l', 'd', 'i', 'c'};

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

/* Checks the header and trailer of a file of `bytes` bytes and describes it in `dictionary`,
 * which from then on points into `file` and owns nothing of it. The size must be exactly that of
 * the header's records, so later reads of records and checksums stay inside. The records
 * themselves are not read here (tn_dictionary_verify does): opening takes the same time for any
 * number of them, apart from the checksums in the trailer. */
static int read_file(tn_dictionary *dictionary, const uint8_t *file, uint64_t bytes,
                     const tn_dictionary_crc_tables *tables) {
    file_header header;
    if (bytes < sizeof FILE_MAGIC || memcmp(file, FILE_MAGIC, sizeof FILE_MAGIC) != 0)
        return TN_DICTIONARY_NOT_ONE;
    if (bytes < HEADER + TRAILER)
        return TN_DICTIONARY_DAMAGED;
    memcpy(&header, file, HEADER);
    if (tn_dictionary_crc32(tables, file, HEADER - 4) != header.crc)
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
        load32(end - 4) != tn_dictionary_crc32(tables, end - trailer, trailer - 4))
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

static void use_index(tn_dictionary *dictionary, const uint8_t *index) {
    layer *only = &dictionary->layers[0];
    dictionary->index = index;
    dictionary->facts.indexed = 1;
    only->parts = lines_of(only->n) * PARTS;
    only->lines = only->n ? index + HEADER : NULL; /* so that whoever asks one has a record */
}

/* Checks that `index` was made for the dictionary that read_file described, by its size and by
 * the checksums of the file's header and trailer that it repeats. Its lines are not read:
 * lookups clamp what they take from them. */
static int read_index(tn_dictionary *dictionary, const uint8_t *index, uint64_t bytes,
                      const tn_dictionary_crc_tables *tables) {
    index_header header;
    uint64_t records = dictionary->facts.records;
    if (bytes != tn_dictionary_index_size(records))
        return TN_DICTIONARY_BAD_INDEX;
    memcpy(&header, index, HEADER);
    if (memcmp(header.magic, TN_DICTIONARY_INDEX_MAGIC, sizeof TN_DICTIONARY_INDEX_MAGIC) != 0 ||
        header.version != VERSION || header.header != HEADER || header.records != records ||
        header.lines != lines_of(records) || header.header_crc != dictionary->header_crc ||
        header.trailer_crc != dictionary->trailer_crc ||
        header.crc != tn_dictionary_crc32(tables, index, HEADER - 4))
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
    tn_dictionary_crc_tables tables;
    tn_dictionary_fill_tables(&tables);
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
                        uint64_t last_hash, uint64_t *removed) {
    const layer *in = &dictionary->layers[0];
    if (!is_first && load64(record) <= last_hash)
        return 0;
    if (in->payload == 8)
        return 1;
    uint32_t flag = load32(record + 8);
    *removed += flag;
    return flag == 0 || (flag == 1 && all_zeros(record + 12, dictionary->facts.stride));
}

/* ---- Making an index ---------------------------------------------------- */

/* Makes the index of the first layer's records in new memory, which the caller frees. Hashes out
 * of order are TN_DICTIONARY_DAMAGED. tn_dictionary_verify also calls it, to compare the bytes
 * with the index that is there: equal records give equal bytes. */
static int make_index(const tn_dictionary *dictionary, uint8_t **out) {
    const layer *in = &dictionary->layers[0];
    uint64_t bytes = tn_dictionary_index_size(in->n), hashes[CHUNK], last_hash = 0;
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
        code = tn_dictionary_index_add(index, in->n, first, last_hash, hashes, n);
        last_hash = hashes[n - 1];
    }
    if (code == TN_DICTIONARY_OK)
        code = tn_dictionary_index_finish(index, in->n, last_hash, dictionary->header_crc,
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

/* ---- Verifying ----------------------------------------------------------- */

int tn_dictionary_verify(const tn_dictionary *dictionary, uint64_t *place) {
    const layer *in = &dictionary->layers[0];
    if (dictionary->file == NULL)
        return TN_DICTIONARY_BAD_VALUE;
    tn_dictionary_crc_tables tables;
    tn_dictionary_fill_tables(&tables);
    uint64_t body = in->n * in->record, i = 0, last_hash = 0, removed = 0, unused;
    uint64_t *seen = place != NULL ? place : &unused;
    const uint8_t *sums = in->records + body;
    for (uint64_t done = 0; done < body;) {
        uint64_t bytes = least(body - done, BLOCK);
        *seen = HEADER + done;
        if (tn_dictionary_crc32(&tables, in->records + done, bytes) !=
            load32(sums + done / BLOCK * 4))
            return TN_DICTIONARY_DAMAGED;
        done += bytes;
        for (; (i + 1) * in->record <= done; i++) { /* while they are in the cache */
            const uint8_t *record = record_at(in, i);
            *seen = HEADER + i * in->record;
            if (!right_record(dictionary, record, i == 0, last_hash, &removed))
                return TN_DICTIONARY_DAMAGED;
            last_hash = load64(record);
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
