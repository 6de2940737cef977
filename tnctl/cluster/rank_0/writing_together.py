"""Files of an output that all workers write on command of rank 0, each its own."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from tnctl import files
from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.errors import Failure, refuse_if
from tnctl.manifest import FileEntry
from tnctl.outputs import Output


class WithFiles(Protocol):
    """What a worker says of the files that it wrote."""

    @property
    def files(self) -> dict[str, FileEntry]:
        """The entries of the manifest, by name."""


First = TypeVar("First", bound=WithFiles)
Reply = TypeVar("Reply", bound=Any)


def write_together(
    node: Node,
    output: Output,
    names: Collection[str],
    command: commands.Command,
    reply: type[Reply],
    write: Callable[[], First],
) -> list[First | Reply]:
    """Let the others obey a command while rank 0 calls `write`; what all say, by rank.

    `names` are the files that all of them write. Raises UserError when a worker has written to
    another folder, Failure when it has written other files.
    """
    output.claims.add(names)
    output.is_shared = node.workers > 1
    replies = node.command_others(command)
    with node.named():
        parts: list[First | Reply] = [write()]
    parts += commands.replies_of(reply, replies)
    output.is_shared = False
    if {name for part in parts for name in part.files} != set(names):
        raise Failure("a worker has written other files than its part has")
    _check_seen(output, parts)
    return parts


def _check_seen(output: Output, parts: Sequence[WithFiles]) -> None:
    """Refuse a folder that is another one for some worker. Raises UserError."""
    for rank, part in enumerate(parts):
        for name, entry in part.files.items():
            url = files.join(output.folder, name)
            refuse_if(
                not files.exists(url) or files.size(url) != entry.bytes,
                f"to={output.to}: worker 0 does not see {name}, which worker {rank} wrote "
                "there. Name a folder of a storage that all workers share",
            )
