/* saved_model.c - a SavedModel through TensorFlow's C API */
#include "saved_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorflow/c/c_api.h>

#include "fields.h"
#include "message.h"
#include "signature.h"

#define MOST_HEADS 64

/* Rows of one user from which it pays to compute what depends on the user once. */
#define FEWEST_ITEMS 16

/* A signature: its inputs in the order of raw_inputs, and logits of all heads, then predictions. */
typedef struct {
    TF_Output *inputs;
    TF_Tensor **tensors;
    uint32_t n_inputs;
    TF_Output outputs[2 * MOST_HEADS];
} call;

typedef struct {
    TF_Graph *graph;
    TF_Session *session;
    TF_Status *status;
    TF_Buffer *run_options;
    call packed, rank; /* rank without inputs: the graph has no such signature */
    uint32_t n_heads;
} saved_model;

/* Inputs are used where they are, and stay with whoever made them. */
static void keep(void *data, size_t length, void *argument) {
    (void)data;
    (void)length;
    (void)argument;
}

static int failed(TF_Status *status, const char *what, char *error) {
    if (TF_GetCode(status) == TF_OK) {
        return 0;
    }
    refuse(error, "%s: %.300s", what, TF_Message(status));
    for (char *at = error; *at; at++) {
        *at = *at == '\n' ? ' ' : *at;
    }
    return 1;
}

/* The tensor of the signature's input or output of this name. */
static int find(const saved_model *model, const signature *signature, int output, const char *name,
                TF_Output *out, char *error) {
    char tensor[TENSOR_BYTES];
    if (!signature_tensor(signature, output, name, tensor)) {
        return refuse(error, "a signature of the graph has no %s '%s'", output ? "output" : "input",
                      name);
    }
    char *colon = strrchr(tensor, ':');
    out->index = colon ? atoi(colon + 1) : 0;
    if (colon) {
        *colon = 0;
    }
    out->oper = TF_GraphOperationByName(model->graph, tensor);
    return out->oper != NULL || refuse(error, "the graph has no operation '%.200s'", tensor);
}

/* TensorFlow does not compare what an input is given with its shape. */
static int has_columns(const saved_model *model, TF_Output input, uint32_t columns, char *error) {
    int64_t shape[2] = {0, 0};
    if (TF_GraphGetTensorNumDims(model->graph, input, model->status) == 2) {
        TF_GraphGetTensorShape(model->graph, input, shape, 2, model->status);
    }
    return shape[1] == columns ||
           refuse(error, "an input of the graph has not the %u columns of serving.json", columns);
}

/* An input of packed has two sides in rank: side 2i of the items, and side 2i + 1 of the user. */
static int is_user(uint32_t side) {
    return side % 2;
}

static int is_of_side(const rank_columns *columns, uint32_t side) {
    return columns->packed == side / 2 && columns->of_user == is_user(side);
}

static uint32_t columns_of_side(const raw_inputs *inputs, uint32_t side) {
    uint32_t columns = 0;
    for (uint32_t i = 0; i < inputs->n_ranked; i++) {
        columns += is_of_side(&inputs->ranked[i], side) ? inputs->ranked[i].columns : 0;
    }
    return columns;
}

/* Where each input of a signature goes and each output comes from; by name, for their order is any.
 */
static int find_all(const saved_model *model, const char *name, call *call,
                    const raw_inputs *inputs, const TF_Buffer *meta_graph, char *error) {
    signature of_call;
    if (!signature_find(meta_graph->data, meta_graph->length, name, &of_call)) {
        return refuse(error, "the graph has no signature %s", name);
    }
    uint32_t sides = 2 * inputs->n_packed;
    call->inputs = zeros(sides, sizeof *call->inputs, error);
    call->tensors = zeros(sides, sizeof *call->tensors, error);
    if (call->inputs == NULL || call->tensors == NULL) {
        return 0;
    }
    for (uint32_t side = 0; side < sides; side++) {
        char input[TENSOR_BYTES];
        uint32_t columns = is_user(side) ? 0 : inputs->packed[side / 2].columns;
        columns = call == &model->rank ? columns_of_side(inputs, side) : columns;
        snprintf(input, sizeof input, "%s%s", inputs->packed[side / 2].name,
                 is_user(side) ? "_user" : "");
        if (columns > 0 &&
            (!find(model, &of_call, 0, input, &call->inputs[call->n_inputs], error) ||
             !has_columns(model, call->inputs[call->n_inputs++], columns, error))) {
            return 0;
        }
    }
    for (uint32_t i = 0; i < inputs->n_heads; i++) {
        const model_head *head = &inputs->heads[i];
        TF_Output *predictions = &call->outputs[inputs->n_heads + i];
        if (!find(model, &of_call, 1, head->logits, &call->outputs[i], error) ||
            !find(model, &of_call, 1, head->predictions, predictions, error)) {
            return 0;
        }
    }
    return 1;
}

static void close_model(void *graph) {
    saved_model *model = graph;
    if (model->session != NULL) {
        TF_CloseSession(model->session, model->status);
        TF_DeleteSession(model->session, model->status);
    }
    free(model->packed.inputs);
    free(model->packed.tensors);
    free(model->rank.inputs);
    free(model->rank.tensors);
    TF_DeleteBuffer(model->run_options);
    TF_DeleteGraph(model->graph);
    TF_DeleteStatus(model->status);
    free(model);
}

/* graph_runner.open for a SavedModel. close_model accepts a model without a session, so every
 * failure after the first ends there. */
static void *open_model(const char *folder, const raw_inputs *inputs, uint32_t threads,
                        char error[ERROR_BYTES]) {
    if (inputs->n_heads > MOST_HEADS || threads > 127) {
        refuse(error, "there are more heads or threads than this program takes");
        return NULL;
    }
    saved_model *model = calloc(1, sizeof *model);
    if (model == NULL) {
        refuse(error, "there is no memory for the graph");
        return NULL;
    }
    model->graph = TF_NewGraph();
    model->status = TF_NewStatus();
    TF_SessionOptions *options = TF_NewSessionOptions();
    TF_Buffer *meta_graph = TF_NewBuffer();
    /* A ConfigProto: intra_op_parallelism_threads (field 2) and inter_op_ (field 5). */
    const unsigned char config[] = {0x10, (unsigned char)threads, 0x28, 1};
    /* RunOptions: inter_op_thread_pool (field 3) -1, so that a run stays in its caller's thread. */
    const unsigned char on_caller[] = {0x18, 0xff, 0xff, 0xff, 0xff, 0xff,
                                       0xff, 0xff, 0xff, 0xff, 0x01};
    const char *const tags[] = {"serve"};
    model->run_options = TF_NewBufferFromString(on_caller, sizeof on_caller);
    TF_SetConfig(options, config, sizeof config, model->status);
    int opened = !failed(model->status, folder, error);
    if (opened) {
        model->session = TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, model->graph,
                                                      meta_graph, model->status);
        opened = !failed(model->status, folder, error) &&
                 find_all(model, "packed", &model->packed, inputs, meta_graph, error) &&
                 (inputs->n_ranked == 0 ||
                  find_all(model, "rank", &model->rank, inputs, meta_graph, error));
        model->n_heads = inputs->n_heads;
    }
    TF_DeleteSessionOptions(options);
    TF_DeleteBuffer(meta_graph);
    if (!opened) {
        close_model(model);
        return NULL;
    }
    return model;
}

/* Packed inputs are used where they are; `keep` leaves them to their owner. */
static void make_packed(const raw_inputs *inputs, TF_Tensor **tensors) {
    for (uint32_t i = 0; i < inputs->n_packed; i++) {
        const packed_input *input = &inputs->packed[i];
        const int64_t shape[] = {inputs->rows, input->columns};
        size_t bytes = (size_t)inputs->rows * input->columns * sizeof(float);
        tensors[i] = TF_NewTensor(input->integers ? TF_INT32 : TF_FLOAT, shape, 2, input->data,
                                  bytes, keep, NULL);
    }
}

/* Columns of a row; floats, or integers of the same size. */
static const float *columns_of(const raw_inputs *inputs, const rank_columns *columns,
                               uint32_t row) {
    const packed_input *packed = &inputs->packed[columns->packed];
    return (const float *)packed->data + (size_t)row * packed->columns + columns->at;
}

/* Whether all rows have the inputs of one user. */
static int is_one_user(const raw_inputs *inputs) {
    for (uint32_t i = 0; i < inputs->n_ranked; i++) {
        const rank_columns *columns = &inputs->ranked[i];
        size_t bytes = columns->columns * sizeof(float);
        for (uint32_t row = 1; columns->of_user && row < inputs->rows; row++) {
            if (memcmp(columns_of(inputs, columns, 0), columns_of(inputs, columns, row), bytes) !=
                0) {
                return 0;
            }
        }
    }
    return 1;
}

static void make_ranked(const raw_inputs *inputs, TF_Tensor **tensors) {
    for (uint32_t side = 0; side < 2 * inputs->n_packed; side++) {
        uint32_t width = columns_of_side(inputs, side), rows = is_user(side) ? 1 : inputs->rows;
        if (width == 0) {
            continue;
        }
        const int64_t shape[] = {rows, width};
        TF_DataType type = inputs->packed[side / 2].integers ? TF_INT32 : TF_FLOAT;
        TF_Tensor *tensor = TF_AllocateTensor(type, shape, 2, (size_t)rows * width * sizeof(float));
        float *to = TF_TensorData(tensor);
        for (uint32_t row = 0; row < rows; row++) {
            for (uint32_t i = 0; i < inputs->n_ranked; i++) {
                const rank_columns *columns = &inputs->ranked[i];
                if (is_of_side(columns, side)) {
                    memcpy(to, columns_of(inputs, columns, row), columns->columns * sizeof(float));
                    to += columns->columns;
                }
            }
        }
        *tensors++ = tensor;
    }
}

/* graph_runner.run for a SavedModel: rows of one user are ranked. */
static int run_model(void *graph, const raw_inputs *inputs, float *logits, float *predictions,
                     char error[ERROR_BYTES]) {
    saved_model *model = graph;
    int is_ranked = model->rank.n_inputs > 0 && inputs->rows >= FEWEST_ITEMS && is_one_user(inputs);
    call *call = is_ranked ? &model->rank : &model->packed;
    TF_Tensor *out[2 * MOST_HEADS] = {NULL};
    int n_outputs = 2 * (int)model->n_heads, ran = 0;
    (is_ranked ? make_ranked : make_packed)(inputs, call->tensors);
    TF_SessionRun(model->session, model->run_options, call->inputs, call->tensors,
                  (int)call->n_inputs, call->outputs, out, n_outputs, NULL, 0, NULL, model->status);
    if (!failed(model->status, "the graph", error)) {
        ran = 1;
        for (int i = 0; i < n_outputs && ran; i++) {
            size_t bytes = inputs->rows * sizeof(float), head = (size_t)i % model->n_heads;
            float *to = (i < (int)model->n_heads ? logits : predictions) + head * inputs->rows;
            if (TF_TensorByteSize(out[i]) != bytes) {
                ran = refuse(error, "the graph gave another number of scores than rows");
            } else {
                memcpy(to, TF_TensorData(out[i]), bytes);
            }
        }
    }
    for (uint32_t i = 0; i < call->n_inputs; i++) {
        TF_DeleteTensor(call->tensors[i]);
    }
    for (int i = 0; i < n_outputs; i++) {
        TF_DeleteTensor(out[i]);
    }
    return ran;
}

const graph_runner saved_model_runner = {open_model, run_model, close_model};
