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
#include <elf.h>
#include <stdio.h>
#include <string.h>

#include "graph_runner.h"
#include "message.h"

/* Whether a file ends before its last part, the table of sections, as after a copy that was cut
 * short. The system would load it, and end the process at the first page that is not there. */
static int is_cut_short(const char *path) {
    Elf64_Ehdr header;
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return 0; /* dlopen searches it, or says why not */
    }
    int read = fread(&header, sizeof header, 1, file) == 1 && fseek(file, 0, SEEK_END) == 0;
    long end = read ? ftell(file) : -1;
    fclose(file);
    if (end < 0 || memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
        return 0;
    }
    uint64_t size = (uint64_t)end, table = (uint64_t)header.e_shnum * header.e_shentsize;
    return header.e_shoff > size || size - header.e_shoff < table;
}

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
    if (is_cut_short(path)) {
        return refuse(error, "the file is cut short: copy it, or build it, again");
    }
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
