/* score_library.c - scores rows of raw values with a compiled graph that it loads
 *
 *     tnctl split-graph output=run aot=[1,32,256]
 *     make graph_library GRAPH=run/graph
 *     make score_library
 *     ./score_library ./libtnctl_graph.so run/graph run/embeddings < rows.jsonl
 *
 * For a new model only the library is built again. docs/aot.md tells the rest.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "graph_runner.h"
#include "message.h"

/* A function of the library into a pointer to it, as ISO C has no cast from one to the other. */
static int find(void *library, const char *name, void *pointer, size_t size, char *error) {
    void *address = dlsym(library, name);
    if (address == NULL) {
        return refuse(error, "it has no function %s", name);
    }
    memcpy(pointer, &address, size);
    return 1;
}

#define FIND(name) &&find(library, "tnctl_graph_" #name, &out->name, sizeof out->name, error)

/* The version of the interface first: with another one the functions may be others. */
static int load(const char *path, graph_functions *out, char *error) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        return refuse(error, "%s", reason ? reason : "it cannot be loaded");
    }
    if (1 FIND(interface) && out->interface() != TNCTL_GRAPH_INTERFACE) {
        return refuse(error, "it has version %u of the interface, and this program is of %u",
                      out->interface(), TNCTL_GRAPH_INTERFACE);
    }
    return 1 GRAPH_FUNCTIONS(FIND);
}

int main(int argc, char **argv) {
    char error[ERROR_BYTES] = "";
    graph_functions functions = {0};
    if (argc < 2) {
        fprintf(stderr,
                "usage: %s LIBRARY GRAPH EMBEDDINGS ...\n"
                "LIBRARY is the file of `make graph_library`; without a slash in its name it is "
                "searched as the system does. What follows is as with score_aot.\n",
                argv[0]);
        return 2;
    }
    if (!load(argv[1], &functions, error)) {
        fprintf(stderr, "%s: %s: %s\n", argv[0], argv[1], error);
        return 1;
    }
    argv[1] = argv[0]; /* what follows is a command line of score_program */
    return score_program(argc - 1, argv + 1, compiled_graph_runner(&functions));
}
