"""TensorBoard's event files of a run: scalars, histograms, tables, and the graph.

TensorFlow is imported for a graph only.
"""

import os
import re
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from tnctl import files
from tnctl.evaluation.importance import sampled_norms
from tnctl.training.report.report_document import TENSORBOARD, tagged

if TYPE_CHECKING:
    from tnctl.model.building import Model

ROWS_SAMPLED = 1 << 14


class EventFile:
    """Writes an event file into `tensorboard` under the output of a run.

    It is appended to a local file; for another storage to one in a temporary folder, which is
    copied at each `flush`.
    """

    def __init__(self, output: str, steps: int) -> None:
        """Events of an earlier process after `steps` no longer count."""
        self._url = files.join(output, TENSORBOARD)
        local = files.local_path(self._url)
        self._spool = files.TemporaryFolder("tensorboard") if local is None else None
        folder = local if self._spool is None else Path(self._spool.name)
        assert folder is not None
        host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
        name = f"events.out.tfevents.{time.time():.6f}.{host}.{os.getpid()}"
        with files.translated(self._url, "written"):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter((folder / name).open("ab"))
        # The first event of a file names its version; a restart drops what comes after its step.
        self.add(Event(file_version="brain.Event:2"), 0)
        self.add(Event(session_log=SessionLog(status=SessionLog.START)), steps + 1)

    def flush(self) -> None:
        """Make all events so far visible in the output."""
        with files.translated(self._url, "written"):
            self._writer.flush()
        if self._spool is not None:
            files.upload_folder(self._spool.name, self._url)

    def close(self) -> None:
        """End the file."""
        self.flush()
        self._writer.close()
        if self._spool is not None:
            self._spool.cleanup()

    def add(self, event: Any, steps: int) -> None:
        """Write an event that happened after `steps`."""
        event.step, event.wall_time = steps, time.time()
        with files.translated(self._url, "written"):
            self._writer.write(event.SerializeToString())

    def scalars(self, steps: int, values: dict[str, float]) -> None:
        """Write numbers, by their tags such as `train/loss`."""
        for tag, value in values.items():
            self._summary(steps, scalar_pb(tag, value))

    def metrics(self, steps: int, metrics: dict[str, Any], name: str = "validation") -> None:
        """Write an evaluation's metrics that are numbers, of other heads under their names."""
        self.scalars(steps, tagged(name, metrics))

    def weights(self, steps: int, model: "Model") -> None:
        """Write histograms of every dense weight, and of the norms of each table's embeddings."""
        for name, weights in zip(model.variable_names, model.dense.weights, strict=True):
            self._histogram(steps, f"dense/{name}", weights)
        for layout, table in zip(model.layout.tables, model.tables, strict=True):
            if layout.width and table.rows:
                _, norms = sampled_norms(table, ROWS_SAMPLED)
                self._histogram(steps, f"norms/{layout.name}", norms)

    def graph(self, model: "Model") -> None:
        """Write the inference network of the dense model, for TensorBoard's graph tab."""
        import tensorflow as tf

        network = model.inference_network
        specs = [
            tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in network.inputs
        ]
        scores = tf.function(lambda *inputs: network(list(inputs), training=False), autograph=False)
        graph = scores.get_concrete_function(*specs).graph.as_graph_def(add_shapes=True)
        self.add(Event(graph_def=graph.SerializeToString()), 0)

    def _histogram(self, steps: int, tag: str, values: NDArray[Any]) -> None:
        self._summary(steps, histogram_pb(tag, values.reshape(-1)))

    def _summary(self, steps: int, summary: Any) -> None:
        # The summaries of TensorFlow and of TensorBoard are two classes with one serialized form.
        same = Summary.FromString(summary.SerializeToString())
        self.add(Event(summary=same), steps)
