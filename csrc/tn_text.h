/* tn_text.h - what the parts of reading delimited text share. */
#ifndef TN_TEXT_H
#define TN_TEXT_H

#include <string.h>

#include "tn_cpu.h"
#include "tnctl.h"

typedef unsigned char byte;

static inline uint64_t load_word(const byte *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

#define EACH_BYTE UINT64_C(0x0101010101010101)
#define HIGH_BITS UINT64_C(0x8080808080808080)
#define LOW_BITS UINT64_C(0x7f7f7f7f7f7f7f7f)

/* Whether the two characters of a format differ from line ends and from each other. */
static inline int is_readable(const tn_text_format *format) {
    return format->delimiter != '\n' && format->delimiter != '\r' && format->quote != '\n' &&
           format->quote != '\r' && format->quote != format->delimiter;
}

#endif
