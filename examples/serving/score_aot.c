/* score_aot.c - scores rows of raw values with a graph that was compiled ahead of time
 *
 *     tnctl split-graph output=run aot=[1,32,256]
 *     make score_aot GRAPH=run/graph
 *     ./score_aot run/graph run/embeddings < rows.jsonl
 *
 * The network is part of the program, so it scores for the one graph it was built from. docs/aot.md
 * tells the rest.
 */
#include "graph_runner.h"

#define LINKED(name) .name = tnctl_graph_##name,

int main(int argc, char **argv) {
    static const graph_functions functions = {GRAPH_FUNCTIONS(LINKED)};
    return score_program(argc, argv, compiled_graph_runner(&functions));
}
