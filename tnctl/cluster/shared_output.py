"""Whether all workers see the same output: a file that rank 0 writes there, and the others read."""

import secrets

from tnctl import files
from tnctl.cluster.messages import commands
from tnctl.cluster.node import Node
from tnctl.errors import refuse_if
from tnctl.ownership import WORKER_LOGS

NAME = "seen-by-all"  # in the folder of the workers' logs
MOST_BYTES = 1 << 10


def check(node: Node, output: str) -> None:
    """On rank 0: refuse an output that is another folder for some worker. Raises UserError."""
    name, content = f"{WORKER_LOGS}/{NAME}", secrets.token_hex(16)
    url = files.join(output, name)
    files.write_bytes(url, content.encode(), durable=False)
    try:
        replies = node.command_members(commands.SeeOutput(name=name, content=content))
        for rank, reply in enumerate(replies, 1):
            refuse_if(
                not commands.reply_of(commands.Seen, reply.result()).seen,
                f"output={output}: {node.membership.name(rank)} does not see the file that "
                "worker 0 wrote there. Choose a folder of a storage that all workers share",
            )
    finally:
        files.remove_file(url)


def sees(output: str, name: str, content: str) -> bool:
    """On another rank: whether the file is there and has the content. Raises Failure."""
    try:
        return files.read_bytes(files.join(output, name), most=MOST_BYTES) == content.encode()
    except files.AbsentError:
        return False
