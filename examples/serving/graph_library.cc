// graph_library.cc - a graph that was compiled ahead of time, in C (graph_library.h)
//
// It is compiled for one graph: compiled.h is in its folder. The weights are in the code, so the
// graphs of all threads share them.
#include "graph_library.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "compiled.h"

namespace {

using tnctl::kInputs;
using tnctl::kOutputs;

constexpr std::size_t kBytes = 4; // of a float or an int32
constexpr int kAbsent = -1;

// One size of batch. Places are found by name, for each size: they change from one compilation to
// the next, also between the sizes of one model.
struct Size {
    std::size_t rows;
    std::unique_ptr<tensorflow::XlaCompiledCpuFunction> code;
    std::array<int, kInputs.size()> inputs;   // kAbsent: nothing depends on it
    std::array<int, kOutputs.size()> outputs; // never kAbsent
};

} // namespace

// One thread's graphs, the smallest first.
struct tnctl_graph {
    std::vector<Size> sizes;
};

namespace {

// Finds inputs and outputs; false when they are not those of the header.
bool connect(Size &size) {
    int connected = 0;
    for (std::size_t i = 0; i < kInputs.size(); i++) {
        int place = size.code->LookupArgIndex(std::string("feed_") + kInputs[i].name);
        size.inputs[i] = place < 0 ? kAbsent : place;
        if (place < 0) {
            continue;
        }
        std::size_t bytes = size.rows * kInputs[i].columns * kBytes;
        if (static_cast<std::size_t>(size.code->arg_size(place)) != bytes) {
            return false;
        }
        connected++;
    }
    if (connected != size.code->num_args()) {
        return false;
    }
    for (std::size_t i = 0; i < kOutputs.size(); i++) {
        int place = size.code->LookupResultIndex(std::string("fetch_") + kOutputs[i].name);
        std::size_t bytes = size.rows * kOutputs[i].columns * kBytes;
        if (place < 0 || static_cast<std::size_t>(size.code->result_size(place)) != bytes) {
            return false;
        }
        size.outputs[i] = place;
    }
    return true;
}

// The graph that takes the next of `rows` rows. Padding to the next size is cheaper than many small
// batches when little of it stays empty.
Size &size_for(std::vector<Size> &sizes, std::size_t rows) {
    auto larger = std::find_if(sizes.begin(), sizes.end(),
                               [rows](const Size &size) { return size.rows >= rows; });
    if (larger == sizes.end()) {
        return sizes.back();
    }
    bool full = 4 * rows >= 3 * larger->rows;
    return full || larger == sizes.begin() ? *larger : *(larger - 1);
}

// Scores `rows` rows from row `at` on, which is no more than the size has.
bool run_piece(Size &size, std::size_t at, std::size_t rows, const void *const *inputs,
               float *const *outputs) {
    for (std::size_t i = 0; i < kInputs.size(); i++) {
        if (size.inputs[i] == kAbsent) {
            continue;
        }
        std::size_t bytes = kInputs[i].columns * kBytes;
        const char *from = static_cast<const char *>(inputs[i]) + at * bytes;
        char *to =
            static_cast<char *>(size.code->arg_data(static_cast<std::size_t>(size.inputs[i])));
        std::memcpy(to, from, rows * bytes);
        std::memset(to + rows * bytes, 0, (size.rows - rows) * bytes);
    }
    if (!size.code->Run()) {
        return false;
    }
    for (std::size_t i = 0; i < kOutputs.size(); i++) {
        if (outputs[i] == nullptr) {
            continue;
        }
        std::size_t columns = kOutputs[i].columns;
        const void *from = size.code->result_data(static_cast<std::size_t>(size.outputs[i]));
        std::memcpy(outputs[i] + at * columns, from, rows * columns * kBytes);
    }
    return true;
}

} // namespace

uint32_t tnctl_graph_interface(void) {
    return TNCTL_GRAPH_INTERFACE;
}

const char *tnctl_graph_message(int32_t code) {
    switch (code) {
    case TNCTL_GRAPH_OK:
        return "no error";
    case TNCTL_GRAPH_NULL:
        return "an argument is NULL that must not be";
    case TNCTL_GRAPH_NO_MEMORY:
        return "there is not enough memory for the graph";
    case TNCTL_GRAPH_DAMAGED:
        return "code and header of the compiled graph do not belong together: split the graph "
               "again";
    case TNCTL_GRAPH_FAILED:
        return "the graph could not be run";
    default:
        return "an unknown error";
    }
}

const char *tnctl_graph_identity(void) {
    return tnctl::kIdentity;
}

uint32_t tnctl_graph_sizes(void) {
    return tnctl::kRows.size();
}

uint32_t tnctl_graph_size_rows(uint32_t size) {
    return size < tnctl::kRows.size() ? tnctl::kRows[size] : 0;
}

uint32_t tnctl_graph_inputs(void) {
    return kInputs.size();
}

const char *tnctl_graph_input_name(uint32_t input) {
    return input < kInputs.size() ? kInputs[input].name : nullptr;
}

uint32_t tnctl_graph_input_columns(uint32_t input) {
    return input < kInputs.size() ? kInputs[input].columns : 0;
}

int32_t tnctl_graph_input_is_int32(uint32_t input) {
    return input < kInputs.size() && kInputs[input].integers;
}

uint32_t tnctl_graph_outputs(void) {
    return kOutputs.size();
}

const char *tnctl_graph_output_name(uint32_t output) {
    return output < kOutputs.size() ? kOutputs[output].name : nullptr;
}

uint32_t tnctl_graph_output_columns(uint32_t output) {
    return output < kOutputs.size() ? kOutputs[output].columns : 0;
}

int32_t tnctl_graph_create(tnctl_graph **graph) {
    if (graph == nullptr) {
        return TNCTL_GRAPH_NULL;
    }
    *graph = nullptr;
    try {
        auto made = std::make_unique<tnctl_graph>();
        for (tnctl::Compiled &compiled : tnctl::compiled_graphs()) {
            Size size{compiled.rows, std::move(compiled.graph), {}, {}};
            if (!connect(size)) {
                return TNCTL_GRAPH_DAMAGED;
            }
            made->sizes.push_back(std::move(size));
        }
        *graph = made.release();
        return TNCTL_GRAPH_OK;
    } catch (const std::bad_alloc &) {
        return TNCTL_GRAPH_NO_MEMORY;
    } catch (...) {
        return TNCTL_GRAPH_FAILED;
    }
}

void tnctl_graph_free(tnctl_graph *graph) {
    delete graph;
}

int32_t tnctl_graph_score(tnctl_graph *graph, size_t rows, const void *const *inputs,
                          float *const *outputs) {
    if (graph == nullptr || inputs == nullptr || outputs == nullptr) {
        return TNCTL_GRAPH_NULL;
    }
    if (rows > 0 && std::any_of(inputs, inputs + kInputs.size(),
                                [](const void *input) { return input == nullptr; })) {
        return TNCTL_GRAPH_NULL;
    }
    for (std::size_t at = 0; at < rows;) {
        Size &size = size_for(graph->sizes, rows - at);
        std::size_t next = std::min(size.rows, rows - at);
        try {
            if (!run_piece(size, at, next, inputs, outputs)) {
                return TNCTL_GRAPH_FAILED;
            }
        } catch (...) {
            return TNCTL_GRAPH_FAILED;
        }
        at += next;
    }
    return TNCTL_GRAPH_OK;
}
