"""`tnctl fold`: a full export and its deltas, written as the full export that they amount to."""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, outputs
from tnctl.checkpoint import merging
from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.golden_lines import parse_lines
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError, Inventory
from tnctl.ownership import EMBEDDINGS
from tnctl.progress import Display
from tnctl.serving.embeddings import (
    REDIS,
    FileEmbeddings,
    of_content,
    open_embeddings,
)
from tnctl.serving.export_document import (
    ExportManifest,
    FileGroup,
    PrecisionError,
)
from tnctl.serving.selection import Group
from tnctl.serving.stored import StoredGroup, hashes_of, record_dtype
from tnctl.serving.writers import open_writer


def fold(url: str, to: str) -> ExportManifest:
    """Write the chain whose newest export is `url` as one full export to `to`; its manifest.

    The data files and golden rows are byte for byte those of a full export of the newest
    checkpoint: rows are taken as they are stored. Nothing is whole in memory. Raises UserError for
    what cannot be folded, Failure for a broken chain, a damaged file, and when the storage refuses.
    """
    if url.startswith(REDIS) or to.startswith(REDIS):
        raise UserError(
            "deltas in Redis are applied in place, so there is nothing to fold. Received: "
            f"embeddings={url} to={to}"
        )
    with closing(open_embeddings(url)) as chain:
        assert isinstance(chain, FileEmbeddings)
        newest = chain.manifest
        golden = chain.golden()
        with outputs.output_folder(to, EMBEDDINGS, chain.folders) as output:
            inventory = output.inventory()
            content = replace(
                newest,
                kind="full",
                base=None,
                number=0,
                groups=write(chain, inventory),
                files=inventory.files,
                sha256="",
            )
            with closing(of_content(output.folder, content)) as written:
                if golden is not None:
                    check(chain, written, golden)
                    inventory.write(GOLDEN, golden)
            return inventory.complete(content)


def write(chain: FileEmbeddings, inventory: Inventory) -> tuple[FileGroup, ...]:
    """Write the files of every group; what the manifest says of them."""
    entries = []
    total = sum(entry.rows + entry.removed for one in chain.chain for entry in one.groups)
    with Display("fold", total) as display:
        done = read = 0
        for entry in chain.manifest.groups:
            group = folded_group(chain, entry)
            rows = 0
            with ExitStack() as stack:
                encoding = chain.manifest.encoding
                writer = open_writer(encoding, stack, inventory, group, delta=False)
                for records in merged(group.name, chain.stored(group.name)):
                    ids = np.ascontiguousarray(records["id"])
                    payload = np.ascontiguousarray(records["payload"])
                    writer.add(ids, hashes_of(group.name, ids), payload, None)
                    rows += len(ids)
                    display.update(read + rows, f"{done + rows:,} rows")
                of_files = writer.finish()
            done += rows
            of_chain = entries_of(chain, group.name)
            read += sum(one.rows + one.removed for one in of_chain)
            error = worst([one.error for one in of_chain], [one.rows for one in of_chain])
            entries.append(replace(entry, rows=rows, removed=0, **of_files, error=error))
        display.update(read, f"{done:,} rows of {len(chain.chain)} exports to {inventory.to}")
        display.finish()
    # In the order of a full export.
    inventory.files = dict(sorted(inventory.files.items()))
    return tuple(entries)


def folded_group(chain: FileEmbeddings, entry: FileGroup) -> Group:
    """A group as the writers want it: of a dictionary the number of rows comes first.

    The others only make room for as many: no more than the chain has.
    """
    name, stored = entry.group, chain.stored(entry.group)
    if chain.manifest.encoding == "dictionary":
        rows = sum(len(records) for records in merged(name, stored))
    else:
        rows = sum(one.rows for one in entries_of(chain, name))
    return Group(name, entry.table, 0, entry.shape, int(entry.salt), rows, 0)


def entries_of(chain: FileEmbeddings, group: str) -> list[FileGroup]:
    """What the manifests of a chain say of a group."""
    return [entry for content in chain.chain for entry in content.groups if entry.group == group]


def merged(group: str, stored: Sequence[StoredGroup]) -> Iterator[NDArray[Any]]:
    """What a chain has of a group: the newest of each key, without those that were removed.

    `stored` are the group's files in its exports, the newest first. Arrays of record_dtype,
    ascending by hash.
    """
    sources = [source for one in stored for source in one.sources(len(stored))]
    dtype = record_dtype(stored[0].shape)
    for block in merging.newest(sources, merging.Keys({0: group})):
        for records in block.of(range(len(sources)), dtype):
            yield records[~records["removed"]]


def worst(errors: Sequence[PrecisionError | None], rows: Sequence[int]) -> PrecisionError | None:
    """The error of all rows that a chain wrote, also of those that were written again later."""
    known = [(error, n) for error, n in zip(errors, rows, strict=True) if error is not None]
    if not known:
        return None
    squares = sum(error.rms**2 * n for error, n in known)
    return PrecisionError(
        max=max(error.max for error, _ in known),
        rms=math.sqrt(squares / max(sum(n for _, n in known), 1)),
        bound=max(error.bound for error, _ in known),
    )


def check(chain: FileEmbeddings, written: FileEmbeddings, golden: bytes) -> None:
    """Raise Failure unless what was written gives the rows of the golden ids as the chain does."""
    groups = {entry.slot: entry.group for entry in chain.manifest.slots}
    ids: dict[str, list[int]] = {}
    try:
        lines = parse_lines(golden.splitlines())
    except DocumentError as error:
        what = f"{files.join(chain.folder, GOLDEN)}, {error}"
        raise DamagedError(chain.folder, what, "Export again") from error
    for line in lines:
        for slot, texts in line.ids.items():
            if slot in groups:
                ids.setdefault(groups[slot], []).extend(map(int, texts))
    for group, some in ids.items():
        wanted = np.unique(np.array(some, np.uint64))
        for one, other in zip(
            chain.lookup(group, wanted), written.lookup(group, wanted), strict=True
        ):
            if one.tobytes() != other.tobytes():
                raise Failure(
                    f"the folded rows of group {group} are not those of the chain. Nothing was "
                    "folded: try again, or export in full"
                )
