/* scoring.h - what the parts of a scoring program share */
#ifndef SCORING_H
#define SCORING_H

#include <stdio.h>

#include "program.h"

/* What scores a batch of rows. */
typedef struct {
    const graph_runner *runner;
    void *graph;
    raw_inputs *inputs;
    int tensornet;               /* rows are lines of TensorNet, not of JSON */
    float *logits, *predictions; /* [n_heads, most_rows] */
} scorer;

/* Pools the rows of the batch and runs the graph. 0 and a message. */
int score_batch(scorer *scorer, char error[ERROR_BYTES]);

/* The row of a line, whose values are in `document`. The line may be changed, and must live as
 * long. NULL and a message. */
const json_value *read_row(const scorer *scorer, json_document *document, char *line, size_t length,
                           char error[ERROR_BYTES]);

/* lines.c: lines of a file, read as they come. */
typedef struct {
    int file;
    char *data;
    size_t at, end, room;
    size_t number; /* of the last line given, from 1 */
    int ended;
} line_reader;

typedef enum { LINE, WAITING, ENDED, BROKEN } line_state;

/* The next line, without its end and followed by a 0; it may be changed. WAITING: the next line is
 * not there yet, and lines_wait would wait for it. BROKEN: errno says why. */
line_state lines_next(line_reader *lines, char **line, size_t *length);
int lines_wait(line_reader *lines); /* 0 when that fails */

/* golden_check.c: --check; benchmark.c: --benchmark. They return the program's exit code. */
int check_golden_rows(scorer *scorer, const char *path, char error[ERROR_BYTES]);
int benchmark(scorer *scorer, uint32_t rounds, char error[ERROR_BYTES]);

#endif
