"""`tnctl fold`: a full export and its deltas, written as the full export that they amount to."""

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
from tnctl.serving.rows.embeddings import FileEmbeddings, open_embeddings
from tnctl.serving.rows.export_document import ExportManifest, FileGroup, RowsManifest
from tnctl.serving.rows.export_formats import server_format
from tnctl.serving.rows.file_format import StoredGroup, hashes_of, record_dtype
from tnctl.serving.rows.precision import RowShape, error_of_chain
from tnctl.serving.rows.selection import Group


def fold(url: str, to: str) -> ExportManifest:
    """Write the chain whose newest export is `url` as one full export to `to`; its manifest.

    The data files and the golden rows are byte for byte equal to a full export of the newest
    checkpoint: rows are copied as they are stored. Nothing is whole in memory. Raises UserError for
    what cannot be folded, Failure for a broken chain, a damaged file, and when the storage refuses.
    """
    if server_format(url) or server_format(to):
        raise UserError(
            "deltas in Redis are applied in place, so there is nothing to fold. Received: "
            f"embeddings={url} to={to}"
        )
    with closing(open_embeddings(url)) as chain:
        assert isinstance(chain, FileEmbeddings)
        golden = chain.golden()
        with outputs.output_folder(to, EMBEDDINGS, chain.folders) as output:
            inventory = output.inventory()
            content = replace(
                chain.manifest,
                kind="full",
                base=None,
                number=0,
                groups=write(chain, inventory),
                files=inventory.files,
                sha256="",
                version=RowsManifest.VERSION,
                values=None,  # which exports of earlier versions may have
            )
            with closing(FileEmbeddings([(output.folder, content)])) as written:
                if golden is not None:
                    check(chain, written, golden)
                    inventory.write(GOLDEN, golden)
            return inventory.complete(content)


def write(chain: FileEmbeddings, inventory: Inventory) -> tuple[FileGroup, ...]:
    """Write the files of every group; returns their entries of the manifest."""
    entries = []
    format = chain.manifest.file_format
    of_chain = {
        newest.group: [
            e for _, content in chain.exports for e in content.groups if e.group == newest.group
        ]
        for newest in chain.manifest.groups
    }
    counts = {name: sum(e.rows + e.removed for e in stored) for name, stored in of_chain.items()}
    with Display("fold", sum(counts.values())) as display:
        done = read = 0
        for newest in chain.manifest.groups:
            name, shape, stored = newest.group, newest.shape, chain.stored(newest.group)
            # Room for all rows of the chain, unless the format needs the exact number first.
            rows = sum(entry.rows for entry in of_chain[name])
            if format.counts_first:
                rows = sum(len(records) for records in merged(name, shape, stored))
            group, rows = Group(name, newest.table, 0, shape, int(newest.salt), rows, 0), 0
            with ExitStack() as stack:
                writer = format.open_writer(stack, inventory, group, delta=False)
                for records in merged(name, shape, stored):
                    ids, payload = (np.ascontiguousarray(records[key]) for key in ("id", "payload"))
                    writer.add(ids, hashes_of(name, ids), payload, None)
                    rows += len(ids)
                    display.update(read + rows, f"{done + rows:,} rows")
                writer.finish()
            done, read = done + rows, read + counts[name]
            error = error_of_chain(*zip(*((e.error, e.rows) for e in of_chain[name]), strict=True))
            names = format.names(name, 0)
            entries.append(replace(newest, rows=rows, removed=0, **names, error=error, parts=None))
        display.update(read, f"{done:,} rows of {len(chain.exports)} exports to {inventory.to}")
        display.finish()
    # In the order of a full export.
    inventory.files = dict(sorted(inventory.files.items()))
    return tuple(entries)


def merged(group: str, shape: RowShape, stored: Sequence[StoredGroup]) -> Iterator[NDArray[Any]]:
    """The rows of a group in a chain: the newest of each key, without those that were removed.

    `stored` are the group's files in its exports, the newest first. Arrays [n] of
    record_dtype, ascending by hash.
    """
    sources = [source for files_ in stored for source in files_.sources(len(stored))]
    for block in merging.newest(sources, merging.Keys({0: group})):
        for records in block.of(range(len(sources)), record_dtype(shape)):
            yield records[~records["removed"]]


def check(chain: FileEmbeddings, written: FileEmbeddings, golden: bytes) -> None:
    """Raise Failure unless the golden rows' ids have the same rows in the chain and as written."""
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
    for group, ids_of_group in ids.items():
        wanted = np.unique(np.array(ids_of_group, np.uint64))
        lookups = (export.lookup(group, wanted) for export in (chain, written))
        if any(a.tobytes() != b.tobytes() for a, b in zip(*lookups, strict=True)):
            raise Failure(
                f"the folded rows of group {group} are not those of the chain. Nothing was "
                "folded: try again, or export in full"
            )
