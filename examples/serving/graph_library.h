/* graph_library.h - a graph that was compiled ahead of time, in C
 *
 * libtnctl_graph.so has these functions and no others:
 *
 *     make graph_library GRAPH=the folder of `tnctl split-graph aot=[1,32]`
 *
 * Any language that calls C can load it (dlopen, ctypes); docs/aot.md has an example. The inputs
 * and outputs are those of signature `packed` in serving.json: rows of embeddings that were looked
 * up and pooled, and numbers. Each is an array [rows, columns], rows one after the other.
 *
 * Nothing is printed, no exception leaves a function, and there is no state but that of a
 * tnctl_graph, which belongs to one thread at a time. Names and texts live as long as the library.
 */
#ifndef TNCTL_GRAPH_LIBRARY_H
#define TNCTL_GRAPH_LIBRARY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a function that was there is another one, or gone: compare before anything else. */
#define TNCTL_GRAPH_INTERFACE 1
uint32_t tnctl_graph_interface(void);

/* What functions return that can fail. */
#define TNCTL_GRAPH_OK 0
#define TNCTL_GRAPH_NULL 1      /* an argument is NULL that must not be */
#define TNCTL_GRAPH_NO_MEMORY 2 /* there is not enough memory */
#define TNCTL_GRAPH_DAMAGED 3   /* code and header of the compiled graph do not belong together */
#define TNCTL_GRAPH_FAILED 4    /* the graph did not run */

/* One line, in English, of any code. */
const char *tnctl_graph_message(int32_t code);

/* aot.identity of the serving.json that it was made from: compare it with that of the folder. */
const char *tnctl_graph_identity(void);

/* The sizes of batches that it was compiled for, ascending; 0 for one that is not there. */
uint32_t tnctl_graph_sizes(void);
uint32_t tnctl_graph_size_rows(uint32_t size);

/* Inputs and outputs, each in the order of its names. NULL and 0 for one that is not there. An
 * input that no output depends on is left out. Outputs are floats. */
uint32_t tnctl_graph_inputs(void);
const char *tnctl_graph_input_name(uint32_t input);
uint32_t tnctl_graph_input_columns(uint32_t input);
int32_t tnctl_graph_input_is_int32(uint32_t input); /* 0: it is of floats */
uint32_t tnctl_graph_outputs(void);
const char *tnctl_graph_output_name(uint32_t output);
uint32_t tnctl_graph_output_columns(uint32_t output);

/* The buffers of one thread. *graph is NULL after an error. */
typedef struct tnctl_graph tnctl_graph;
int32_t tnctl_graph_create(tnctl_graph **graph);
void tnctl_graph_free(tnctl_graph *graph); /* NULL is fine */

/* Scores any number of rows. inputs[i] is the array of input i, outputs[i] that which output i is
 * written to, or NULL where it is not wanted. Inputs are read, and may stand anywhere. After an
 * error outputs may have been written in part. */
int32_t tnctl_graph_score(tnctl_graph *graph, size_t rows, const void *const *inputs,
                          float *const *outputs);

#ifdef __cplusplus
}
#endif

#endif
