/* message.h - error messages: one line each */
#ifndef MESSAGE_H
#define MESSAGE_H

#include <stddef.h>

#include "raw_inputs.h"

/* Writes a message as printf does and returns 0, which is what callers return then. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int refuse(char error[ERROR_BYTES], const char *format, ...);

/* A text as messages show it: in quotes, on one line, its first characters. */
#define QUOTED_BYTES 64
const char *quoted(char out[QUOTED_BYTES], const char *text, size_t length);

#endif
