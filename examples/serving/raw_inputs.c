/* raw_inputs.c - a batch of rows: ids and numbers first, then rows of the embeddings, pooled */
#include "raw_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fields.h"
#include "ids.h"
#include "message.h"
#include "parts.h"

#define ALIGNMENT 64 /* TensorFlow uses memory in place that is so aligned */
#define BLOCK 16     /* examples whose rows are looked up together and stay in the nearest cache */

/* ---- Opening ------------------------------------------------------------ */

/* Zeros: columns of x that the graph does not read may hold anything finite. */
static void *aligned_zeros(size_t bytes) {
    size_t whole = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    void *memory = aligned_alloc(ALIGNMENT, whole);
    return memory ? memset(memory, 0, whole) : NULL;
}

/* The memory of the graph's inputs. */
static int make_inputs(raw_inputs *inputs, char *error) {
    raw_inputs_parts *parts = inputs->parts;
    const description *description = &parts->description;
    inputs->n_packed = description->n_packed;
    memcpy(inputs->packed, description->packed, sizeof inputs->packed);
    inputs->ranked = description->ranked;
    inputs->n_ranked = description->n_ranked;
    for (uint32_t i = 0; i < inputs->n_packed; i++) {
        packed_input *input = &inputs->packed[i];
        input->data = aligned_zeros((size_t)inputs->most_rows * input->columns * sizeof(float));
        if (input->data == NULL) {
            return refuse(error, "there is no memory for a batch of %u rows", inputs->most_rows);
        }
        if (strcmp(input->name, "x") == 0) {
            parts->x = input->data;
            parts->x_columns = input->columns;
        } else if (strcmp(input->name, "linear") == 0) {
            parts->linear = input->data;
        } else if (strcmp(input->name, "sequences") == 0) {
            parts->sequences = input->data;
            parts->sequences_columns = input->columns;
        } else {
            parts->lengths = input->data;
            parts->lengths_columns = input->columns;
        }
    }
    return 1;
}

/* Marks columns of x; 0 when it has no such columns. */
static int fill_columns(const raw_inputs_parts *parts, uint32_t at, uint32_t columns) {
    if ((size_t)at + columns > parts->x_columns) {
        return 0;
    }
    memset(parts->filled + at, 1, columns);
    return 1;
}

/* Every column that is written must be inside of its input. */
static int check_places(raw_inputs_parts *parts, char *error) {
    const description *description = &parts->description;
    int inside = 1;
    parts->filled = zeros(parts->x_columns, 1, error);
    for (uint32_t i = 0; parts->filled && i < description->n_slots; i++) {
        const slot *slot = &description->slots[i];
        size_t columns = (size_t)slot->max_length * slot->columns;
        inside &= slot->length_at == NONE || slot->length_at < parts->lengths_columns;
        inside &= slot->at != NONE || !slot->indicator;
        if (slot->at == NONE) {
            continue;
        }
        if (slot->pooling == POOLING_NONE) {
            inside &= slot->at + columns <= parts->sequences_columns;
        } else {
            inside &= fill_columns(parts, slot->at, slot->columns);
        }
    }
    for (uint32_t i = 0; parts->filled && i < description->n_numbers; i++) {
        inside &= fill_columns(parts, description->numbers[i].at, description->numbers[i].width);
    }
    return parts->filled && (inside || refuse(error, "serving.json: an input is outside of its "
                                                     "signature"));
}

/* The memory that encoding needs. */
static int make_room(raw_inputs *inputs, char *error) {
    raw_inputs_parts *parts = inputs->parts;
    const description *description = &parts->description;
    size_t widest = 0;
    for (uint32_t i = 0; i < description->n_slots; i++) {
        const slot *slot = &description->slots[i];
        widest = slot->indicator && slot->columns > widest ? slot->columns : widest;
    }
    parts->values = zeros(description->n_columns, sizeof *parts->values, error);
    parts->expected = zeros(description->n_columns, sizeof *parts->expected, error);
    parts->sums = zeros(widest, sizeof *parts->sums, error);
    parts->cells =
        zeros((size_t)inputs->most_rows * description->n_slots, sizeof *parts->cells, error);
    return parts->values && parts->expected && parts->sums && parts->cells &&
           find_paths(parts, error);
}

raw_inputs *raw_inputs_open(const char *graph, const char *embeddings, uint32_t most_rows,
                            char error[ERROR_BYTES]) {
    raw_inputs *inputs = zeros(1, sizeof *inputs, error);
    if (inputs == NULL) {
        return NULL;
    }
    inputs->most_rows = most_rows;
    inputs->parts = zeros(1, sizeof *inputs->parts, error);
    if (inputs->parts == NULL || !description_read(&inputs->parts->description, graph, error) ||
        !make_inputs(inputs, error) || !check_places(inputs->parts, error) ||
        !make_room(inputs, error) ||
        !embeddings_open(&inputs->parts->embeddings, embeddings, &inputs->parts->description,
                         error)) {
        raw_inputs_close(inputs);
        return NULL;
    }
    fill_log1p(inputs->parts->log1p_of);
    inputs->heads = inputs->parts->description.heads;
    inputs->n_heads = inputs->parts->description.n_heads;
    return inputs;
}

static void free_scissors(scissors *scissors) {
    free(scissors->values);
    json_free(&scissors->document);
    free(scissors->text);
}

void raw_inputs_close(raw_inputs *inputs) {
    raw_inputs_parts *parts = inputs ? inputs->parts : NULL;
    if (parts != NULL) {
        embeddings_close(&parts->embeddings);
        description_free(&parts->description);
        free_scissors(&parts->of_values);
        free_scissors(&parts->of_weights);
        free(parts->values);
        free(parts->expected);
        free_paths(parts);
        free(parts->ids.ids);
        free(parts->ids.weights);
        free(parts->aside.ids);
        free(parts->aside.weights);
        free(parts->cells);
        free(parts->sums);
        free(parts->filled);
        free(parts->floats);
        free(parts->wanted);
        free(parts->dictionaries);
        free(parts->targets);
        free(parts);
    }
    for (uint32_t i = 0; inputs && i < inputs->n_packed; i++) {
        free(inputs->packed[i].data);
    }
    free(inputs);
}

/* ---- Rows --------------------------------------------------------------- */

int raw_inputs_add(raw_inputs *inputs, const json_value *row, char error[ERROR_BYTES]) {
    raw_inputs_parts *parts = inputs->parts;
    if (inputs->rows == inputs->most_rows) {
        return refuse(error, "the batch is full");
    }
    if (row->kind != JSON_OBJECT) {
        return refuse(error, "a row must be a JSON object, its keys the columns");
    }
    size_t used = parts->ids.used;
    if (!take_values(parts, row, error)) {
        return 0;
    }
    if (!encode_ids(parts, inputs->rows, error) || !encode_numbers(parts, inputs->rows, error)) {
        parts->ids.used = used;
        return 0;
    }
    inputs->rows++;
    return 1;
}

void raw_inputs_clear(raw_inputs *inputs) {
    inputs->rows = 0;
    inputs->parts->ids.used = 0;
}

int64_t raw_inputs_ids(const raw_inputs *inputs, uint32_t row, const json_value *slot_name,
                       const uint64_t **ids, const float **weights) {
    const raw_inputs_parts *parts = inputs->parts;
    const description *description = &parts->description;
    for (uint32_t i = 0; i < description->n_slots; i++) {
        const slot *slot = &description->slots[i];
        if (slot->group && same_text(slot->name, slot_name)) {
            const cell *of = &parts->cells[(size_t)row * description->n_slots + i];
            *ids = parts->ids.ids + of->first;
            *weights = slot->weights == NONE ? NULL : parts->ids.weights + of->first;
            return (int64_t)of->count;
        }
    }
    return -1;
}

const uint8_t *raw_inputs_filled(const raw_inputs *inputs, const char *input) {
    return strcmp(input, "x") == 0 ? inputs->parts->filled : NULL;
}

/* ---- Pooling ------------------------------------------------------------ */

static size_t row_floats(const slot *slot) {
    return (size_t)slot->linear + slot->columns;
}

/* Memory for n things of what may already be enough. */
static int grow(void **memory, size_t *room, size_t n, size_t size) {
    if (n > *room || *memory == NULL) {
        free(*memory);
        *room = 2 * n + 64;
        *memory = malloc(*room * size);
    }
    return *memory != NULL;
}

/* Memory for the lookups of a block of rows. */
static int make_block(raw_inputs_parts *parts, size_t ids, size_t floats) {
    return grow((void **)&parts->floats, &parts->floats_room, floats, sizeof *parts->floats) &&
           grow((void **)&parts->wanted, &parts->wanted_room, ids, sizeof *parts->wanted) &&
           grow((void **)&parts->targets, &parts->targets_room, ids, sizeof *parts->targets) &&
           grow((void **)&parts->dictionaries, &parts->dictionaries_room, ids,
                sizeof *parts->dictionaries);
}

/* Gets the rows of all ids of some examples at once, for then many reads are under way at the same
 * time: one after the other into `floats`, the slots in the order of `pooled`. */
static int look_up(raw_inputs_parts *parts, uint32_t first, uint32_t last) {
    const description *description = &parts->description;
    size_t ids = 0, floats = 0, n = 0;
    for (uint32_t row = first; row < last; row++) {
        const cell *cells = parts->cells + (size_t)row * description->n_slots;
        for (uint32_t i = 0; i < description->n_pooled; i++) {
            uint32_t number = description->pooled[i];
            ids += cells[number].count;
            floats += cells[number].count * row_floats(&description->slots[number]);
        }
    }
    if (!make_block(parts, ids, floats)) {
        return 0;
    }
    float *at = parts->floats;
    for (uint32_t row = first; row < last; row++) {
        const cell *cells = parts->cells + (size_t)row * description->n_slots;
        for (uint32_t i = 0; i < description->n_pooled; i++) {
            uint32_t number = description->pooled[i];
            const uint64_t *of = parts->ids.ids + cells[number].first;
            const tn_dictionary *dictionary = parts->embeddings.of_slot[number];
            size_t count = cells[number].count, width = row_floats(&description->slots[number]);
            if (dictionary == NULL) { /* a group that the export's filter left out */
                memset(at, 0, count * width * sizeof *at);
                at += count * width;
                continue;
            }
            for (size_t c = 0; c < count; c++, at += width) {
                parts->wanted[n] = of[c];
                parts->dictionaries[n] = dictionary;
                parts->targets[n++] = at;
            }
        }
    }
    tn_dictionary_lookup_each(parts->dictionaries, parts->wanted, n, parts->targets, NULL);
    return 1;
}

/* As many floats as an embedding has: in parts of four, the last one over the one before. */
static inline void copy_floats(float *to, const float *from, size_t n) {
    if (n < 4) {
        for (size_t j = 0; j < n; j++) {
            to[j] = from[j];
        }
        return;
    }
    for (size_t j = 0; j < n - 4; j += 4) {
        memcpy(to + j, from + j, 4 * sizeof *to);
    }
    memcpy(to + n - 4, from + n - 4, 4 * sizeof *to);
}

/* What a sum over the ids is divided by. */
static float divisor(const slot *slot, const float *weights, size_t count) {
    if (slot->pooling == POOLING_SUM || slot->pooling == POOLING_NONE) {
        return 1;
    }
    float sum = (float)count;
    if (weights != NULL) {
        sum = 0;
        for (size_t k = 0; k < count; k++) {
            sum += slot->pooling == POOLING_MEAN ? weights[k] : weights[k] * weights[k];
        }
    }
    return slot->pooling == POOLING_MEAN ? sum : sqrtf(sum);
}

/* `width` floats of each of `count` rows, pooled in the order of the ids; those of one row start
 * `step` after those of the row before. */
static void pool(const slot *slot, const float *rows, size_t step, const float *weights,
                 size_t count, size_t width, float *to) {
    memset(to, 0, width * sizeof *to);
    float by = divisor(slot, weights, count);
    if (!(by > 0)) {
        return; /* no ids, or weights that nothing sensible divides */
    }
    for (size_t k = 0; k < count; k++, rows += step) {
        for (size_t j = 0; j < width; j++) {
            to[j] += weights ? weights[k] * rows[j] : rows[j];
        }
    }
    for (size_t j = 0; j < width && by != 1; j++) {
        to[j] /= by;
    }
}

/* The embeddings one after the other, and how many. */
static void put_sequence(const raw_inputs_parts *parts, const slot *slot, uint32_t row,
                         const float *rows, size_t count) {
    if (slot->at != NONE) {
        float *to = parts->sequences + row * parts->sequences_columns + slot->at;
        for (size_t k = 0; k < count; k++, to += slot->columns) {
            memcpy(to, rows + k * row_floats(slot) + slot->linear, slot->columns * sizeof *to);
        }
        memset(to, 0, (slot->max_length - count) * slot->columns * sizeof *to);
    }
    if (slot->length_at != NONE) {
        parts->lengths[row * parts->lengths_columns + slot->length_at] = (int32_t)count;
    }
}

/* One example, whose ids have these rows; returns where those of the next one are. */
static const float *pool_row(const raw_inputs_parts *parts, uint32_t row, const float *rows) {
    const description *description = &parts->description;
    const cell *cells = parts->cells + (size_t)row * description->n_slots;
    float *x = parts->x + row * parts->x_columns;
    float linear = 0, pooled;
    for (uint32_t i = 0; i < description->n_pooled; i++) {
        const slot *slot = &description->slots[description->pooled[i]];
        const cell *of = &cells[description->pooled[i]];
        const float *weights = slot->weights == NONE ? NULL : parts->ids.weights + of->first;
        size_t step = row_floats(slot);
        if (slot->pooling == POOLING_NONE) {
            for (size_t k = 0; k < of->count && slot->linear; k++) {
                linear += rows[k * step];
            }
            put_sequence(parts, slot, row, rows, of->count);
        } else if (of->count == 1 && weights == NULL) {
            if (slot->linear) {
                linear += rows[0];
            }
            if (slot->at != NONE) {
                copy_floats(x + slot->at, rows + slot->linear, slot->columns);
            }
        } else {
            if (slot->linear) {
                pool(slot, rows, step, weights, of->count, 1, &pooled);
                linear += pooled;
            }
            if (slot->at != NONE) {
                pool(slot, rows + slot->linear, step, weights, of->count, slot->columns,
                     x + slot->at);
            }
        }
        rows += of->count * step;
    }
    if (parts->linear != NULL) {
        parts->linear[row] = linear;
    }
    return rows;
}

int raw_inputs_pool(raw_inputs *inputs, char error[ERROR_BYTES]) {
    raw_inputs_parts *parts = inputs->parts;
    for (uint32_t first = 0; first < inputs->rows; first += BLOCK) {
        uint32_t last = inputs->rows - first < BLOCK ? inputs->rows : first + BLOCK;
        if (!look_up(parts, first, last)) {
            return refuse(error, "there is no memory for the rows of a batch");
        }
        const float *rows = parts->floats;
        for (uint32_t row = first; row < last; row++) {
            rows = pool_row(parts, row, rows);
        }
    }
    return 1;
}
