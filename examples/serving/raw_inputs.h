/* raw_inputs.h - from rows of raw values to the inputs of the graph's signature `packed`
 *
 *     raw_inputs *inputs = raw_inputs_open("graph", "embeddings", 32, error);
 *     for each row                                   // a JSON object of raw values
 *         if (!raw_inputs_add(inputs, row, error))   // ids and numbers
 *             puts(error);
 *     raw_inputs_pool(inputs);                       // rows of the embeddings, pooled
 *     ... inputs->packed[i].data: [rows, columns] ...
 *     raw_inputs_clear(inputs);                      // the next batch
 *
 * It opens what `tnctl split-graph` and `tnctl export-embeddings format=dictionary` wrote; the
 * formats are told in docs/formats: graph.md, embeddings.md, ids.md, dictionary.md.
 *
 * One raw_inputs belongs to one thread. Dictionaries are mapped files, so several raw_inputs share
 * their memory.
 */
#ifndef RAW_INPUTS_H
#define RAW_INPUTS_H

#include <stddef.h>
#include <stdint.h>

#include "json.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Room for a message: one line, always ended. */
#define ERROR_BYTES 512

/* One input of the signature: x, linear, sequences (float) or lengths (int32_t). */
typedef struct {
    const char *name;
    uint32_t columns;
    int integers;
    void *data; /* [most_rows, columns] on a 64-byte boundary, always at this place */
} packed_input;

/* Neighboring columns of an input of packed, which signature `rank` takes of the user alone, in
 * input NAME_user, or of each item, in input NAME. */
typedef struct {
    uint32_t packed, at, columns; /* which input, and which of its columns */
    int of_user;
} rank_columns;

/* One head of the model, the main one first, and the outputs of the signature that it has. */
typedef struct {
    const char *name;
    const char *logits;      /* "logits", with several heads "logits_NAME" */
    const char *predictions; /* "predictions", ... */
} model_head;

typedef struct raw_inputs {
    packed_input packed[4];
    uint32_t n_packed;
    const rank_columns *ranked; /* none where the graph has no signature rank */
    uint32_t n_ranked;
    const model_head *heads;
    uint32_t n_heads;
    uint32_t rows, most_rows; /* of the batch at hand */
    struct raw_inputs_parts *parts;
} raw_inputs;

/* NULL when a file is missing, damaged or does not belong to the others; `error` says why. */
raw_inputs *raw_inputs_open(const char *graph, const char *embeddings, uint32_t most_rows,
                            char error[ERROR_BYTES]);
void raw_inputs_close(raw_inputs *inputs); /* NULL is fine */

/* Adds a row; the values are not needed afterwards. 0, and no row more, when a value is not what
 * its column must hold. There must be room for a row. */
int raw_inputs_add(raw_inputs *inputs, const json_value *row, char error[ERROR_BYTES]);

/* Fills `packed` for the rows at hand. 0 when there is no memory. */
int raw_inputs_pool(raw_inputs *inputs, char error[ERROR_BYTES]);

void raw_inputs_clear(raw_inputs *inputs);

/* The ids that row `row` of the batch has in a slot, and (NULL without) their weights; -1 when no
 * slot of that name has rows. */
int64_t raw_inputs_ids(const raw_inputs *inputs, uint32_t row, const json_value *slot,
                       const uint64_t **ids, const float **weights);

/* Which columns of an input are filled: a graph that is a part of a model does not read all of x.
 * NULL: all of them. */
const uint8_t *raw_inputs_filled(const raw_inputs *inputs, const char *input);

#ifdef __cplusplus
}
#endif

#endif
