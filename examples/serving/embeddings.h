/* embeddings.h - an export of embeddings: dictionaries, one per share group */
#ifndef EMBEDDINGS_H
#define EMBEDDINGS_H

#include "../../csrc/tn_dictionary.h"
#include "description.h"

#define LONGEST_CHAIN TN_DICTIONARY_LAYERS

typedef struct {
    const json_value *name;
    tn_dictionary *layers[LONGEST_CHAIN]; /* the newest first */
    uint32_t n_layers;
    tn_dictionary *stack;      /* of several layers, else NULL */
    const tn_dictionary *rows; /* the stack, or the only layer; NULL: the export has none */
} embedding_group;

typedef struct {
    char *texts[LONGEST_CHAIN]; /* manifests, the newest first */
    json_document documents[LONGEST_CHAIN];
    embedding_group *groups;
    uint32_t n_groups;
    const tn_dictionary **of_slot; /* [slots], NULL where there are no rows */
} embeddings;

/* Opens an export in format `dictionary`, with all that it is a delta of, and finds the rows of
 * every slot. 0 and a message; to be closed in any case. `out` starts as zeros. */
int embeddings_open(embeddings *out, const char *folder, const description *description,
                    char error[ERROR_BYTES]);
void embeddings_close(embeddings *embeddings);

#endif
