/* score.c - scores rows of raw values with an exported model, through TensorFlow's C API
 *
 *     score GRAPH EMBEDDINGS < rows.jsonl
 *
 *     json        lines of JSON
 *     raw_inputs  raw values -> ids and numbers -> rows of the embeddings -> inputs of the graph
 *     saved_model the graph
 *     program     options and the loop over lines
 */
#include "saved_model.h"

int main(int argc, char **argv) {
    return score_program(argc, argv, &saved_model_runner);
}
