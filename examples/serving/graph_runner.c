/* graph_runner.c - runs a graph that was compiled ahead of time */
#include "graph_runner.h"

#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "message.h"

static graph_functions library;

/* Which outputs a head has. */
typedef struct {
    uint32_t logits, predictions;
} head_outputs;

typedef struct {
    tnctl_graph *graph;
    const void **inputs; /* [inputs of the library] */
    float **outputs;     /* [outputs of the library]; NULL: not wanted */
    head_outputs *heads;
} compiled_graph;

static int is_made_from(const char *folder, char *error) {
    char *text = NULL;
    json_document document = {0};
    const json_value *serving = read_json_file(folder, "serving.json", &text, &document, error);
    const json_value *aot = serving ? json_get(serving, "aot") : NULL;
    const json_value *identity = aot ? text_of(aot, "identity") : NULL;
    int same = identity != NULL && json_is(identity, library.identity());
    if (serving != NULL && !same) {
        refuse(error, "the compiled graph was not made from %s: build it again, with GRAPH=%s",
               folder, folder);
    }
    json_free(&document);
    free(text);
    return same;
}

/* Finds the memory of each input of the graph; it stays where it is. */
static int connect_inputs(compiled_graph *graph, const raw_inputs *from, char *error) {
    for (uint32_t i = 0; i < library.inputs(); i++) {
        const char *name = library.input_name(i);
        for (uint32_t j = 0; j < from->n_packed; j++) {
            const packed_input *packed = &from->packed[j];
            if (strcmp(packed->name, name) == 0 && packed->columns == library.input_columns(i) &&
                packed->integers == library.input_is_int32(i)) {
                graph->inputs[i] = packed->data;
            }
        }
        if (graph->inputs[i] == NULL) {
            return refuse(error, "input %s of the graph is another one than serving.json says",
                          name);
        }
    }
    return 1;
}

/* The output of a name, of one number a row; or NONE_SUCH. */
#define NONE_SUCH UINT32_MAX
static uint32_t output_of(const char *name) {
    for (uint32_t i = 0; i < library.outputs(); i++) {
        if (strcmp(library.output_name(i), name) == 0 && library.output_columns(i) == 1) {
            return i;
        }
    }
    return NONE_SUCH;
}

static int connect_outputs(compiled_graph *graph, const raw_inputs *from, char *error) {
    for (uint32_t i = 0; i < from->n_heads; i++) {
        uint32_t logits = output_of(from->heads[i].logits);
        uint32_t predictions = output_of(from->heads[i].predictions);
        if (logits == NONE_SUCH || predictions == NONE_SUCH) {
            return refuse(error, "the graph has no output of head %s", from->heads[i].name);
        }
        graph->heads[i] = (head_outputs){logits, predictions};
    }
    return 1;
}

static void close_graph(void *handle) {
    compiled_graph *graph = handle;
    library.free(graph->graph);
    free(graph->inputs);
    free(graph->outputs);
    free(graph->heads);
    free(graph);
}

static int make_graph(compiled_graph *graph, const raw_inputs *from, char *error) {
    graph->inputs = zeros(library.inputs(), sizeof *graph->inputs, error);
    graph->outputs = zeros(library.outputs(), sizeof *graph->outputs, error);
    graph->heads = zeros(from->n_heads, sizeof *graph->heads, error);
    if (graph->inputs == NULL || graph->outputs == NULL || graph->heads == NULL) {
        return 0;
    }
    int32_t code = library.create(&graph->graph);
    if (code != TNCTL_GRAPH_OK) {
        return refuse(error, "%s", library.message(code));
    }
    return connect_inputs(graph, from, error) && connect_outputs(graph, from, error);
}

static void *open_graph(const char *folder, const raw_inputs *from, uint32_t threads,
                        char error[ERROR_BYTES]) {
    if (threads != 1) {
        refuse(error, "a compiled graph runs on one thread: leave --threads out");
        return NULL;
    }
    if (from->n_heads == 0) {
        refuse(error, "%s has no head that gives scores", folder);
        return NULL;
    }
    if (!is_made_from(folder, error)) {
        return NULL;
    }
    compiled_graph *graph = zeros(1, sizeof *graph, error);
    if (graph != NULL && !make_graph(graph, from, error)) {
        close_graph(graph);
        return NULL;
    }
    return graph;
}

static int run_graph(void *handle, const raw_inputs *inputs, float *logits, float *predictions,
                     char error[ERROR_BYTES]) {
    compiled_graph *graph = handle;
    for (uint32_t i = 0; i < inputs->n_heads; i++) {
        graph->outputs[graph->heads[i].logits] = logits + (size_t)i * inputs->rows;
        graph->outputs[graph->heads[i].predictions] = predictions + (size_t)i * inputs->rows;
    }
    int32_t code = library.score(graph->graph, inputs->rows, graph->inputs, graph->outputs);
    return code == TNCTL_GRAPH_OK || refuse(error, "%s", library.message(code));
}

const graph_runner *compiled_graph_runner(const graph_functions *functions) {
    static const graph_runner runner = {open_graph, run_graph, close_graph};
    library = *functions;
    return &runner;
}
