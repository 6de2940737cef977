"""Which keys have a row, wherever they are owned."""

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster import commands
from tnctl.cluster.node import Node
from tnctl.cluster.shapes import first_shards
from tnctl.errors import Failure
from tnctl.tables import SparseTable
from tnctl.tables.shards import HASHES_PER_SHARD

Groups = NDArray[np.uint16]
Ids = NDArray[np.uint64]
KEYS_AT_A_TIME = 1 << 20  # a command has at most 64 MiB


def contains(
    node: Node, own_table: SparseTable, table: int, groups: Groups, ids: Ids
) -> NDArray[np.bool_]:
    """On rank 0: which of n keys of a table, by its number, have a row: bool [n].

    Each owner is asked for its keys. `own_table` is the part of this worker.
    """
    answers = []
    for at in range(0, max(len(ids), 1), KEYS_AT_A_TIME):
        part = slice(at, at + KEYS_AT_A_TIME)
        answers.append(_contains(node, own_table, table, groups[part], ids[part]))
    return np.concatenate(answers)


def _contains(
    node: Node, own_table: SparseTable, table: int, groups: Groups, ids: Ids
) -> NDArray[np.bool_]:
    starts = np.array(first_shards(node.workers)[:-1], np.uint64) * np.uint64(HASHES_PER_SHARD)
    owners = np.searchsorted(starts, own_table.hashes(groups, ids), side="right") - 1
    own_keys, *of_others = (np.flatnonzero(owners == rank) for rank in range(node.workers))
    replies = [
        node.command(rank, _command(table, groups[keys], ids[keys]))
        for rank, keys in enumerate(of_others, 1)
    ]
    has_row = np.zeros(len(ids), np.bool_)
    has_row[own_keys] = own_table.contains(groups[own_keys], ids[own_keys])
    for keys, reply in zip(of_others, replies, strict=True):
        received = np.frombuffer(reply.result(), np.uint8)
        if len(received) != len(keys):
            raise Failure(f"a worker answered for {len(received)} keys instead of {len(keys)}")
        has_row[keys] = received != 0
    return has_row


def found(tables: Sequence[SparseTable], command: commands.FindKeys) -> bytes:
    """On another rank: the reply to a command. Raises Failure for one that does not fit."""
    try:
        groups = np.frombuffer(base64.b64decode(command.groups, validate=True), "<u2")
        ids = np.frombuffer(base64.b64decode(command.ids, validate=True), "<u8")
        return tables[command.table].contains(groups, ids).tobytes()
    except (ValueError, IndexError) as error:
        raise Failure(f"a message of another worker is wrong: {error}") from error


def _command(table: int, groups: Groups, ids: Ids) -> commands.FindKeys:
    return commands.FindKeys(
        table=table, groups=_base64(groups.astype("<u2")), ids=_base64(ids.astype("<u8"))
    )


def _base64(numbers: NDArray[np.integer]) -> str:
    return base64.b64encode(numbers.tobytes()).decode()
