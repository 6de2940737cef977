/* tensornet_line.h - lines of TensorNet's serving demo as rows of raw values
 *
 *     id TAB slot \x01 sign [\x02 sign ...] [TAB slot \x01 sign ...] ...
 *
 * The row has a column for each slot, of the slot's name, with a list of integers, as TensorNet's
 * training data have it: the row {"1": [5, -7], "2": [9]} for a line with the slots 1 and 2. The id
 * is passed over. A slot that the line does not have is missing; of one that comes twice the last
 * counts.
 */
#ifndef TENSORNET_LINE_H
#define TENSORNET_LINE_H

#include "json.h"

/* The values point into the line, which must live as long as they. NULL when it is no such line;
 * document->problem says what is wrong, at character document->at. */
const json_value *tensornet_line(json_document *document, const char *line, size_t length);

#endif
