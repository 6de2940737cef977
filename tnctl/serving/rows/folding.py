"""`tnctl fold`: a full export and its deltas, written as the full export that they amount to."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import numpy as np

from tnctl import files, outputs
from tnctl.checkpoint import merging
from tnctl.checkpoint.chain import GOLDEN
from tnctl.checkpoint.golden_lines import parse_lines
from tnctl.documents import DocumentError
from tnctl.errors import Failure, UserError
from tnctl.manifest import DamagedError, Inventory
from tnctl.ownership import EMBEDDINGS
from tnctl.progress import Display
from tnctl.serving.rows import server_format
from tnctl.serving.rows.embeddings import FileEmbeddings, open_embeddings
from tnctl.serving.rows.export_document import ExportManifest, FileGroup, RowsManifest
from tnctl.serving.rows.precision import Records, error_of_rows
from tnctl.serving.rows.row_formats import hashes_of, record_dtype
from tnctl.serving.rows.selection import SelectedGroup


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
    entries: list[FileGroup] = []
    format, of_chain = chain.manifest.file_format, defaultdict(list)
    for entry in (entry for _, content in chain.exports for entry in content.groups):
        of_chain[entry.group].append(entry)
    total = sum(entry.rows + entry.removed for stored in of_chain.values() for entry in stored)
    with Display("fold", total) as display:
        done = read = 0
        for newest in chain.manifest.groups:
            name, stored = newest.group, of_chain[newest.group]
            # Room for all rows of the chain, unless the format needs the exact number first.
            rows = sum(entry.rows for entry in stored)
            if format.counts_first:
                rows = sum(map(len, merged(newest, chain)))
            group = SelectedGroup(name, newest.table, 0, newest.shape, int(newest.salt), rows)
            first = done
            with ExitStack() as stack:
                writer = format.open_writer(stack, inventory, group, delta=False)
                for records in merged(newest, chain):
                    ids, payload = (np.ascontiguousarray(records[key]) for key in ("id", "payload"))
                    writer.add(ids, hashes_of(name, ids), payload, None)
                    done += len(ids)
                    display.update(read + done - first, f"{done:,} rows")
                writer.finish()
            read += sum(entry.rows + entry.removed for entry in stored)
            error = error_of_rows([(entry.error, entry.rows) for entry in stored])
            files_ = format.names(name, 0) | {"parts": None}
            entries.append(replace(newest, rows=done - first, removed=0, error=error, **files_))
        display.update(read, f"{done:,} rows of {len(chain.exports)} exports to {inventory.to}")
        display.finish()
    # In the order of a full export.
    inventory.files = dict(sorted(inventory.files.items()))
    return tuple(entries)


def merged(group: FileGroup, chain: FileEmbeddings) -> Iterator[Records]:
    """The rows of a group in a chain: the newest of each key, without those that were removed.

    Arrays [n] of record_dtype, ascending by hash.
    """
    stored = chain.stored(group.group)
    sources = [source for files_ in stored for source in files_.sources(len(stored))]
    for block in merging.newest(sources, merging.KeyHashes({0: group.group})):
        for records in block.of(range(len(sources)), record_dtype(group.shape)):
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
                f"the folded rows of group {group} are not those of the chain. Export in full"
            )
