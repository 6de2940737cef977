"""URLs that a file names and not the user: which of them may be opened.

fsspec can do far more than read files: some of its protocols run templates or code that a file
holds, start commands, or write copies to this machine. A user may name any of them; a URL in a
checkpoint or an export may come from a stranger, and is opened only by these rules.
"""

# Each reads and lists files of one storage and writes nothing but what it is asked to write. They
# take nothing from the URL but the host, the user and the path.
PROTOCOLS = (
    "file", "local", "memory", "http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss",
    "adl", "hdfs", "webhdfs", "ftp",
)  # fmt: skip
CHAIN = "::"  # between a URL and the one in which it lies: zip://a.csv::https://host/b.zip


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
