"""Which keys have a row, and what is read of them, wherever they are owned."""

import base64

import numpy as np
from numpy.typing import NDArray

from tnctl.cluster.messages import commands
from tnctl.cluster.messages.replies import new_read, parse_read_reply
from tnctl.cluster.messages.shapes import shapes
from tnctl.cluster.node import Node
from tnctl.cluster.transport.frames import Kind
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.model.parameters import moving_statistics
from tnctl.tables import SparseTable
from tnctl.tables.plans import HASHES_PER_SHARD

Groups = NDArray[np.uint16]
Ids = NDArray[np.uint64]
KEYS_AT_A_TIME = 1 << 20  # a command has at most 64 MiB
ROWS_AT_A_TIME = 1 << 12  # a message has at most 1 GiB, and a row up to 65,536 floats


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
    own_keys, *of_others = _by_owner(node, own_table, groups, ids)
    replies = [
        node.command(rank, _command(table, groups[keys], ids[keys]))
        for rank, keys in zip(node.membership.owners[1:], of_others, strict=True)
    ]
    has_row = np.zeros(len(ids), np.bool_)
    has_row[own_keys] = own_table.contains(groups[own_keys], ids[own_keys])
    for keys, reply in zip(of_others, replies, strict=True):
        received = np.frombuffer(reply.result(), np.uint8)
        if len(received) != len(keys):
            raise Failure(f"a worker answered for {len(received)} keys instead of {len(keys)}")
        has_row[keys] = received != 0
    return has_row


def rows(node: Node, model: Model, table: int, groups: Groups, ids: Ids) -> NDArray[np.float32]:
    """On rank 0: what is read of n keys of a table, by its number: float32 [n, floats read].

    Keys without a row read zeros. Each owner is asked for its keys, while nothing trains.
    """
    stored = model.tables[table]
    rows = np.empty((len(ids), stored.read_floats), np.float32)
    of_model = shapes(model, node.workers, moving_statistics(model), node.servers)
    for at in range(0, len(ids), ROWS_AT_A_TIME):
        part = slice(at, at + ROWS_AT_A_TIME)
        replies = []
        by_owner = _by_owner(node, stored, groups[part], ids[part])
        for owner, keys in enumerate(by_owner):
            counts = [0] * len(model.tables)
            counts[table] = len(keys)
            body, read = new_read(of_model[owner], counts, dense=False)
            read.keys[table].ids[:] = ids[part][keys]
            read.keys[table].groups[:] = groups[part][keys]
            replies.append((counts, node.request(node.membership.owners[owner], Kind.READ, body)))
        for owner, (keys, (counts, reply)) in enumerate(zip(by_owner, replies, strict=True)):
            received = parse_read_reply(of_model[owner], counts, False, reply.result())
            rows[part][keys] = received.tables[table]
    return rows


def _by_owner(
    node: Node, own_table: SparseTable, groups: Groups, ids: Ids
) -> list[NDArray[np.int64]]:
    """The places of the keys of each owner, in the order of `Membership.owners`."""
    first = node.membership.first_shards[:-1]
    starts = np.array(first, np.uint64) * np.uint64(HASHES_PER_SHARD)
    # Of two that begin at the same place the first owns nothing.
    owners = np.searchsorted(starts, own_table.hashes(groups, ids), side="right") - 1
    return [np.flatnonzero(owners == number) for number in range(len(first))]


def _command(table: int, groups: Groups, ids: Ids) -> commands.FindKeys:
    return commands.FindKeys(
        table=table, groups=_base64(groups.astype("<u2")), ids=_base64(ids.astype("<u8"))
    )


def _base64(numbers: NDArray[np.integer]) -> str:
    return base64.b64encode(numbers.tobytes()).decode()
