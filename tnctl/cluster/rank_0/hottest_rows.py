"""The rows that most batches of a pass ask for, as rank 0 lists those of all owners."""

from collections.abc import Sequence

from tnctl.cluster.messages import commands
from tnctl.cluster.messages.hot_key_commands import HotKey, HotKeyList, ListHotKeys
from tnctl.cluster.node import Node
from tnctl.cluster.owners.hot_keys import HotKeys
from tnctl.errors import Failure
from tnctl.model.building import Model
from tnctl.training.exchange_figures import HotRow

LISTED = 20


def hottest_rows(node: Node, model: Model, own_keys: HotKeys) -> list[HotRow]:
    """The hottest rows of all owners, while training pauses; `own_keys` are those of rank 0.

    Owners begin to count again.
    """
    replies = node.command_writers(ListHotKeys(most=LISTED))
    lists = [own_keys.take_top(LISTED), *commands.replies_of(HotKeyList, replies)]
    return hottest_of(model, lists)


def hottest_of(model: Model, lists: Sequence[HotKeyList]) -> list[HotRow]:
    """The hottest of the keys that each owner has listed. Raises Failure for a key of no group."""
    # Each batch has keys of most owners, and an owner knows only of batches with keys of its own.
    batches = max(1, *(owner.batches for owner in lists))
    requested = max(1, sum(owner.requested for owner in lists))
    names = [
        {number: name for name, number in layout.groups.items()} for layout in model.layout.tables
    ]
    keys = sorted(
        (key for owner in lists for key in owner.keys),
        key=lambda key: (-key.batches, key.table, key.group, int(key.id)),
    )
    rows = []
    for key in keys[:LISTED]:
        if key.table >= len(names) or key.group not in names[key.table]:
            raise Failure(
                f"a message of another worker is wrong: it has a key of group {key.group} of table "
                f"{key.table}"
            )
        group = names[key.table][key.group]
        rows.append(
            HotRow(
                group=group,
                id=key.id,
                value=_value(model, group, key),
                batches=round(min(key.batches / batches, 1.0), 4),
                keys=round(min(key.batches / requested, 1.0), 6),
            )
        )
    return rows


def _value(model: Model, group: str, key: HotKey) -> str | None:
    """The text of an id of a group whose slots share one vocabulary."""
    slots = {name: slot for name, slot in model.conf.slots.items() if (slot.group or name) == group}
    lists = [model.statistics.lists_of(name, slot).vocabulary for name, slot in slots.items()]
    first = lists[0] if lists else None
    if first is None or any(other != first for other in lists) or int(key.id) >= len(first):
        return None
    return first[int(key.id)]
