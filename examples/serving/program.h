/* program.h - what both scoring programs share: options, lines in, lines out, --check, --benchmark
 *
 * A program is this and a way to run the graph.
 */
#ifndef PROGRAM_H
#define PROGRAM_H

#include "raw_inputs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    /* Makes the graph of a folder ready for batches of up to inputs->most_rows; NULL and a message
     * when it cannot. The inputs stay where they are for as long as the graph lives. */
    void *(*open)(const char *folder, const raw_inputs *inputs, uint32_t threads,
                  char error[ERROR_BYTES]);
    /* Runs it on the inputs->rows rows of inputs->packed. logits and predictions are
     * [n_heads, rows]. 0 and a message when it fails. */
    int (*run)(void *graph, const raw_inputs *inputs, float *logits, float *predictions,
               char error[ERROR_BYTES]);
    void (*close)(void *graph);
} graph_runner;

/* The program: main returns what it returns. */
int score_program(int argc, char **argv, const graph_runner *runner);

#ifdef __cplusplus
}
#endif

#endif
