/* tn_message.c - the one table of messages. */
#include "tnctl.h"

const char *tn_message(int code) {
    switch (code) {
    case TN_OK:
        return "TN_OK: done";
    case TN_NO_MEMORY:
        return "TN_NO_MEMORY: an allocation failed";
    case TN_BAD_VALUE:
        return "TN_BAD_VALUE: an argument is out of its range";
    case TN_NO_GROUP:
        return "TN_NO_GROUP: the table has no such group";
    case TN_NOT_FINITE:
        return "TN_NOT_FINITE: a gradient is NaN, infinite or beyond 2^58; nothing was applied";
    case TN_BAD_ORDER:
        return "TN_BAD_ORDER: records are not in ascending (hash, group) order";
    case TN_KEY_EXISTS:
        return "TN_KEY_EXISTS: a record's key is already in the table";
    case TN_NO_BATCH:
        return "TN_NO_BATCH: call tn_find (with insert, for gradients) before";
    case TN_NO_THREAD:
        return "TN_NO_THREAD: a thread could not be started";
    case TN_TABLE_FULL:
        return "TN_TABLE_FULL: a shard has no row numbers left";
    case TN_TOO_LONG:
        return "TN_TOO_LONG: a record is beyond TN_TFRECORD_LIMIT";
    case TN_NOT_OWNED:
        return "TN_NOT_OWNED: a key is of a shard that the table does not own";
    default:
        return "unknown code";
    }
}
