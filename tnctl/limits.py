"""The limits of what is read from files, and of the URLs that a file names and not the user.

Within its limits every reader takes linear time. docs/data.md ("Limits") says what happens beyond
them, and the memory that they leave to a file.

fsspec can do far more than read files: some of its protocols run templates or code that a file
holds, start commands, or write copies to this machine. A user may name any of them; a URL in a
checkpoint or an export may come from a stranger, and is opened only by these rules.
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

# Bytes of a conf file. The YAML reader takes some seconds for a file of this size.
CONF_BYTES = 1 << 20

# Bytes of a manifest or another JSON document of a folder: vocabularies may be in it.
MANIFEST_BYTES = 256 << 20

# Each reads and lists files of one storage and writes nothing but what it is asked to write. They
# take nothing from the URL but the host, the user and the path.
PROTOCOLS = (
    "file", "local", "memory", "http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss",
    "adl", "hdfs", "webhdfs", "ftp",
)  # fmt: skip
CHAIN = "::"  # between a URL and the one in which it lies: zip://a.csv::https://host/b.zip


def mebibytes(size: int) -> str:
    """A limit of bytes as messages name it."""
    return f"{size >> 20:,} MiB"


def size(count: float) -> str:
    """Bytes as a person reads them."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:,.1f} {unit}"
    return f"{count / 1024:,.0f} KiB" if count >= 1024 else f"{count:,.0f} B"


def is_plain(url: str) -> bool:
    """Whether a URL is a path, or of one of `PROTOCOLS`, and no chain of URLs."""
    if CHAIN in url:
        return False
    protocol, separator, _ = url.partition("://")
    # data: is the one protocol that fsspec knows without slashes.
    return protocol in PROTOCOLS if separator else not url.startswith("data:")


def protocols_of(url: str) -> list[str]:
    """The protocols in a URL or a chain of URLs, as fsspec reads it."""
    links = url.split(CHAIN)
    bare = links if len(links) > 1 else []  # `simplecache::…`: a protocol without a path
    return [*bare, *(part for link in links for part in link.split("://")[:-1])]
