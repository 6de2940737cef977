/* graph_runner.h - what runs a graph that was compiled ahead of time, for score_program
 *
 * The functions of graph_library.h are given as pointers: a program is linked with them, or loads
 * them.
 */
#ifndef GRAPH_RUNNER_H
#define GRAPH_RUNNER_H

#include "graph_library.h"
#include "program.h"

/* Those that the runner calls, without tnctl_graph_. */
#define GRAPH_FUNCTIONS(each)                                                                      \
    each(interface) each(message) each(identity) each(inputs) each(input_name) each(input_columns) \
        each(input_is_int32) each(outputs) each(output_name) each(output_columns) each(create)     \
            each(free) each(score)

#define GRAPH_POINTER(name) __typeof__(tnctl_graph_##name) *name;
typedef struct {
    GRAPH_FUNCTIONS(GRAPH_POINTER)
} graph_functions;
#undef GRAPH_POINTER

/* The runner of these functions; there is one in a program. */
const graph_runner *compiled_graph_runner(const graph_functions *functions);

#endif
