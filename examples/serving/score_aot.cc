// score_aot.cc - scores rows of raw values with a graph that was compiled ahead of time
//
//     tnctl split-graph output=run aot=[1,32,256]
//     make score_aot GRAPH=run/graph
//     ./score_aot run/graph run/embeddings < rows.jsonl
//
// The network is part of the program, so it scores for the one graph it was built from. docs/aot.md
// tells the rest.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "compiled.h"
#include "program.h"

extern "C" {
#include "fields.h"
#include "message.h"
}

namespace {

// Places of inputs and outputs in a graph. They are found by name, for each graph: they change from
// one compilation to the next, also between the sizes of one model.
struct Input {
    int place;
    const packed_input *from;
};

struct Head {
    int logits, predictions;
};

struct Size {
    std::size_t rows;
    std::unique_ptr<tensorflow::XlaCompiledCpuFunction> graph;
    std::vector<Input> inputs;
    std::vector<Head> heads;
};

// One thread's graphs, the smallest first.
using Graphs = std::vector<Size>;

constexpr std::size_t kBytes = 4; // of a float or an int32

bool is_of_this_program(const char *folder, char *error) {
    char *text = nullptr;
    json_document document = {};
    const json_value *serving = read_json_file(folder, "serving.json", &text, &document, error);
    const json_value *aot = serving == nullptr ? nullptr : json_get(serving, "aot");
    bool same = false;
    if (serving != nullptr) {
        const json_value *identity = aot == nullptr ? nullptr : text_of(aot, "identity");
        same = identity != nullptr && json_is(identity, tnctl::kIdentity);
        if (!same) {
            refuse(error, "this program was not built from %s: build it again, with GRAPH=%s",
                   folder, folder);
        }
    }
    json_free(&document);
    free(text);
    return same;
}

// Finds the inputs and outputs of a graph. Every input that it has must be one of `from`.
bool connect(Size *size, const raw_inputs *from, char *error) {
    for (uint32_t i = 0; i < from->n_packed; i++) {
        const packed_input &input = from->packed[i];
        int place = size->graph->LookupArgIndex(std::string("feed_") + input.name);
        if (place < 0) {
            continue; // nothing in the graph depends on it
        }
        std::size_t bytes = size->rows * input.columns * kBytes;
        if (static_cast<std::size_t>(size->graph->arg_size(place)) != bytes) {
            return refuse(error, "input %s of the graph has another width than serving.json says",
                          input.name);
        }
        size->inputs.push_back({place, &input});
    }
    if (size->inputs.size() != static_cast<std::size_t>(size->graph->num_args())) {
        return refuse(error, "the graph has an input that serving.json does not name");
    }
    for (uint32_t i = 0; i < from->n_heads; i++) {
        int logits = size->graph->LookupResultIndex(std::string("fetch_") + from->heads[i].logits);
        int predictions =
            size->graph->LookupResultIndex(std::string("fetch_") + from->heads[i].predictions);
        if (logits < 0 || predictions < 0) {
            return refuse(error, "the graph has no output of head %s", from->heads[i].name);
        }
        size->heads.push_back({logits, predictions});
    }
    return true;
}

void *open_graphs(const char *folder, const raw_inputs *inputs, uint32_t threads,
                  char error[ERROR_BYTES]) {
    if (threads != 1) {
        refuse(error, "a compiled graph runs on one thread: leave --threads out");
        return nullptr;
    }
    if (inputs->n_heads == 0) {
        refuse(error, "%s has no head that gives scores", folder);
        return nullptr;
    }
    if (!is_of_this_program(folder, error)) {
        return nullptr;
    }
    auto graphs = std::make_unique<Graphs>();
    for (tnctl::Compiled &compiled : tnctl::compiled_graphs()) {
        Size size{compiled.rows, std::move(compiled.graph), {}, {}};
        if (!connect(&size, inputs, error)) {
            return nullptr;
        }
        graphs->push_back(std::move(size));
    }
    return graphs.release();
}

// The graph that takes the next of `rows` rows. Padding to the next size is cheaper than many small
// batches when little of it stays empty.
Size &size_for(Graphs &graphs, std::size_t rows) {
    auto larger = std::find_if(graphs.begin(), graphs.end(),
                               [rows](const Size &size) { return size.rows >= rows; });
    if (larger == graphs.end()) {
        return graphs.back();
    }
    bool full = 4 * rows >= 3 * larger->rows;
    return full || larger == graphs.begin() ? *larger : *(larger - 1);
}

bool run_piece(Size &size, std::size_t at, std::size_t rows) {
    for (const Input &input : size.inputs) {
        std::size_t bytes = input.from->columns * kBytes;
        const char *from = static_cast<const char *>(input.from->data);
        char *to = static_cast<char *>(size.graph->arg_data(static_cast<std::size_t>(input.place)));
        std::memcpy(to, from + at * bytes, rows * bytes);
        std::memset(to + rows * bytes, 0, (size.rows - rows) * bytes);
    }
    return size.graph->Run();
}

const float *results(const Size &size, int place) {
    return static_cast<const float *>(size.graph->result_data(static_cast<std::size_t>(place)));
}

int run_graphs(void *handle, const raw_inputs *inputs, float *logits, float *predictions,
               char error[ERROR_BYTES]) {
    Graphs &graphs = *static_cast<Graphs *>(handle);
    std::size_t all = inputs->rows;
    for (std::size_t at = 0; at < all;) {
        Size &size = size_for(graphs, all - at);
        std::size_t rows = std::min(size.rows, all - at);
        if (!run_piece(size, at, rows)) {
            return refuse(error, "the graph could not be run");
        }
        for (std::size_t i = 0; i < size.heads.size(); i++) {
            std::copy_n(results(size, size.heads[i].logits), rows, logits + i * all + at);
            std::copy_n(results(size, size.heads[i].predictions), rows, predictions + i * all + at);
        }
        at += rows;
    }
    return 1;
}

void close_graphs(void *handle) {
    delete static_cast<Graphs *>(handle);
}

} // namespace

int main(int argc, char **argv) {
    const graph_runner runner = {open_graphs, run_graphs, close_graphs};
    return score_program(argc, argv, &runner);
}
