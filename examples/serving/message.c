/* message.c - error messages: one line each */
#include "message.h"

#include <stdarg.h>
#include <stdio.h>

int refuse(char error[ERROR_BYTES], const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, ERROR_BYTES, format, arguments);
    va_end(arguments);
    return 0;
}

const char *quoted(char out[QUOTED_BYTES], const char *text, size_t length) {
    size_t at = 0;
    out[at++] = '\'';
    for (size_t i = 0; i < length; i++) {
        if (at + sizeof "\\xff...'" > QUOTED_BYTES) {
            at += (size_t)snprintf(out + at, QUOTED_BYTES - at, "...");
            break;
        }
        unsigned char c = (unsigned char)text[i];
        int printed = c >= 0x20 && c < 0x7f;
        at += (size_t)snprintf(out + at, QUOTED_BYTES - at, printed ? "%c" : "\\x%02x", c);
    }
    out[at++] = '\'';
    out[at] = 0;
    return out;
}
