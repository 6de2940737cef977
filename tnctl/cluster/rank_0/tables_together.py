"""Tables for TensorNet that all workers write on command of rank 0, each some of the files."""

from tnctl.cluster.messages import export_commands
from tnctl.cluster.node import Node
from tnctl.cluster.rank_0.writing_together import write_together
from tnctl.cluster.workers.export_parts import write_tables
from tnctl.errors import Failure
from tnctl.outputs import Output
from tnctl.tensornet.exporting import Share, TablesRequest, WrittenPart


class ClusterTables:
    """All workers, as what writes the tables of an export. Rank 0 has it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def write(self, request: TablesRequest, output: Output) -> list[WrittenPart]:
        """Write the files of all tables into a folder: what each worker wrote, by rank."""
        node, checkpoint = self._node, request.checkpoint
        command = export_commands.WriteTables(
            checkpoint=export_commands.Manifested(
                folder=checkpoint.folder, sha256=checkpoint.manifest.sha256
            ),
            folder=output.folder,
            tables=request.given,
            ranks=request.ranks,
        )
        every = Share(request.ranks)
        parts = write_together(
            node,
            output,
            [name for table in request.tables for name in every.names(table.name)],
            command,
            export_commands.TablesWritten,
            lambda: write_tables(node, request, output.folder, output.to),
        )
        if any(len(part.rows) != len(request.tables) for part in parts):
            raise Failure("a worker has written other tables")
        return [WrittenPart(part.files, part.rows) for part in parts]
