/* signature.h - the names of a SavedModel's tensors
 *
 * TensorFlow's C API gives the MetaGraphDef of a SavedModel as bytes; this reads the little of it
 * that is needed, without protobuf.
 */
#ifndef SIGNATURE_H
#define SIGNATURE_H

#include <stddef.h>

#define TENSOR_BYTES 256

/* A SignatureDef, inside of the bytes that it was found in. */
typedef struct {
    const unsigned char *at, *end;
} signature;

/* The signature of a name; 0 when there is none. */
int signature_find(const void *meta_graph, size_t length, const char *name, signature *out);

/* The tensor, such as "StatefulPartitionedCall:0", of an input (or output) of a signature. */
int signature_tensor(const signature *signature, int output, const char *name,
                     char tensor[TENSOR_BYTES]);

#endif
