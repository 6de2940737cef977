/* signature.c - the names of a SavedModel's tensors */
#include "signature.h"

#include <stdint.h>
#include <string.h>

/* MetaGraphDef { map<string, SignatureDef> signature_def = 5; }
 * SignatureDef { map<string, TensorInfo> inputs = 1; map<string, TensorInfo> outputs = 2; }
 * TensorInfo   { string name = 1; ... }
 * An entry of a map is a message { key = 1; value = 2; }. */
enum { META_GRAPH_SIGNATURES = 5, SIGNATURE_INPUTS = 1, SIGNATURE_OUTPUTS = 2, TENSOR_NAME = 1 };
enum { MAP_KEY = 1, MAP_VALUE = 2 };

typedef signature message;

static int read_varint(message *from, uint64_t *out) {
    *out = 0;
    for (int shift = 0; shift < 64 && from->at < from->end; shift += 7) {
        unsigned char byte = *from->at++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            return 1;
        }
    }
    return 0;
}

/* Reads past one field; `inside` is what it holds when it is a text or a message. 0 at the end. */
static int next_field(message *from, uint64_t *number, message *inside) {
    uint64_t key, size;
    *inside = (message){NULL, NULL};
    if (!read_varint(from, &key)) {
        return 0;
    }
    *number = key >> 3;
    switch (key & 7) {
    case 0:
        return read_varint(from, &size);
    case 1:
        size = 8;
        break;
    case 5:
        size = 4;
        break;
    case 2:
        if (!read_varint(from, &size)) {
            return 0;
        }
        break;
    default:
        return 0;
    }
    if (size > (uint64_t)(from->end - from->at)) {
        return 0;
    }
    *inside = (message){from->at, from->at + size};
    from->at += size;
    return 1;
}

/* The value of a key in the map that is field `number`. */
static int find_in_map(message in, uint64_t number, const char *key, message *out) {
    uint64_t field;
    message entry, part;
    while (next_field(&in, &field, &entry)) {
        if (field != number || entry.at == NULL) {
            continue;
        }
        message value = {NULL, NULL};
        int same = 0;
        while (next_field(&entry, &field, &part)) {
            size_t length = (size_t)(part.end - part.at);
            if (field == MAP_KEY && part.at != NULL) {
                same = length == strlen(key) && memcmp(part.at, key, length) == 0;
            } else if (field == MAP_VALUE) {
                value = part;
            }
        }
        if (same && value.at != NULL) {
            *out = value;
            return 1;
        }
    }
    return 0;
}

int signature_find(const void *meta_graph, size_t length, const char *name, signature *out) {
    const unsigned char *from = meta_graph;
    return find_in_map((message){from, from + length}, META_GRAPH_SIGNATURES, name, out);
}

int signature_tensor(const signature *signature, int output, const char *name,
                     char tensor[TENSOR_BYTES]) {
    uint64_t number;
    message info, part;
    if (!find_in_map(*signature, output ? SIGNATURE_OUTPUTS : SIGNATURE_INPUTS, name, &info)) {
        return 0;
    }
    while (next_field(&info, &number, &part)) {
        size_t length = (size_t)(part.end - part.at);
        if (number == TENSOR_NAME && part.at != NULL && length < TENSOR_BYTES) {
            memcpy(tensor, part.at, length);
            tensor[length] = 0;
            return 1;
        }
    }
    return 0;
}
