/* lines.c - lines of a file or a pipe, as they come */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scoring.h"

/* Whether a read would return at once. */
static int is_ready(const line_reader *lines) {
    struct pollfd file = {.fd = lines->file, .events = POLLIN};
    return poll(&file, 1, 0) > 0;
}

/* Reads what is there, after what is there already. */
static int read_more(line_reader *lines) {
    if (lines->at > 0) {
        memmove(lines->data, lines->data + lines->at, lines->end - lines->at);
        lines->end -= lines->at;
        lines->at = 0;
    }
    if (lines->room - lines->end < 2) {
        size_t room = lines->room ? 2 * lines->room : 1 << 18;
        char *data = realloc(lines->data, room);
        if (data == NULL) {
            return 0;
        }
        lines->data = data;
        lines->room = room;
    }
    for (;;) {
        ssize_t n = read(lines->file, lines->data + lines->end, lines->room - lines->end - 1);
        if (n >= 0) {
            lines->ended = n == 0;
            lines->end += (size_t)n;
            return 1;
        }
        if (errno != EINTR) {
            return 0;
        }
    }
}

line_state lines_next(line_reader *lines, char **line, size_t *length) {
    for (;;) {
        size_t left = lines->end - lines->at;
        char *from = left ? lines->data + lines->at : NULL;
        char *end = left ? memchr(from, '\n', left) : NULL;
        if (lines->ended && left == 0) {
            return ENDED;
        }
        if (lines->ended && end == NULL) {
            end = from + left;
        }
        if (end != NULL) {
            *line = from;
            *length = (size_t)(end - from);
            lines->at += *length + (end < lines->data + lines->end);
            lines->number++;
            *end = 0;
            return LINE;
        }
        if (lines->data != NULL && !is_ready(lines)) {
            return WAITING;
        }
        if (!read_more(lines)) {
            return BROKEN;
        }
    }
}

int lines_wait(line_reader *lines) {
    return read_more(lines);
}
