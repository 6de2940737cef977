"""The limits of what is read from files. Within them every reader takes linear time.

docs/data.md ("Limits") says what happens beyond them, and the memory that they leave to a file.
"""

# Bytes of a line of text without its end, of the payload of a TFRecord record, of a text that is
# split. The values of a row at their limit, of 20 digits each, take a third of it.
LINE_BYTES = 16 << 20

# Values of one column in one row, ids of all slots in one row, columns of a header. Histories of
# users have up to some ten thousands; an id of a batch takes about 700 bytes in training.
ROW_VALUES = 1 << 18

# Ids of one window of rows: 1 GiB, or 512 ids in each row of a window of the default size.
WINDOW_IDS = 1 << 27

# Values of the lists in one row group of Parquet. Before they are decoded nothing shows how many
# are in one row.
GROUP_VALUES = 1 << 28

# Bytes of a vocabulary file: it is kept in memory, and in every checkpoint.
VOCABULARY_BYTES = 64 << 20

# Bytes of a conf file. The YAML reader takes some seconds for so many.
CONF_BYTES = 1 << 20

# Bytes of a manifest or another JSON document of a folder: vocabularies may be in it.
MANIFEST_BYTES = 256 << 20


def mebibytes(size: int) -> str:
    """A limit of bytes as messages name it."""
    return f"{size >> 20:,} MiB"
