"""TensorBoard files of a run: scalars, histograms, tables, the graph, and a profile of steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram import summary_v2 as histograms
from tensorboard.plugins.scalar import summary_v2 as scalars

from tnctl import files
from tnctl.evaluation.importance import sampled_norms
from tnctl.model.building import Model
from tnctl.ownership import Claims
from tnctl.training import events
from tnctl.training.event_file import EventFile
from tnctl.training.run_folder import TENSORBOARD
from tnctl.training.state import RunState

ROWS_SAMPLED = 1 << 14


class EventFiles(EventFile):
    """Writes what happens in training."""

    def scalars(self, steps: int, values: dict[str, float]) -> None:
        """Write numbers, by their tags such as `train/loss`."""
        for tag, value in values.items():
            self._summary(steps, scalars.scalar_pb(tag, value))

    def metrics(self, steps: int, metrics: dict[str, Any], name: str = "validation") -> None:
        """Write an evaluation's metrics that are numbers, of other heads under their names."""
        for prefix, values in {
            name: metrics,
            **{f"{name}/{head}": values for head, values in metrics.get("heads", {}).items()},
        }.items():
            numbers = {
                f"{prefix}/{key}": float(value)
                for key, value in values.items()
                if isinstance(value, int | float)
            }
            self.scalars(steps, numbers)

    def weights(self, steps: int, model: Model) -> None:
        """Write histograms of every dense weight, and of the norms of each table's embeddings."""
        for name, weights in zip(model.variable_names, model.dense.weights, strict=True):
            self._histogram(steps, f"dense/{name}", weights)
        for layout, table in zip(model.layout.tables, model.tables, strict=True):
            if layout.width and table.rows:
                _, norms = sampled_norms(table, ROWS_SAMPLED)
                self._histogram(steps, f"norms/{layout.name}", norms)

    def graph(self, model: Model) -> None:
        """Write the inference network of the dense model, for TensorBoard's graph tab."""
        network = model.inference_network
        specs = [
            tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in network.inputs
        ]
        scores = tf.function(lambda *inputs: network(list(inputs), training=False), autograph=False)
        graph = scores.get_concrete_function(*specs).graph.as_graph_def(add_shapes=True)
        self.add(Event(graph_def=graph.SerializeToString()), 0)

    def _histogram(self, steps: int, tag: str, values: NDArray[Any]) -> None:
        self._summary(steps, histograms.histogram_pb(tag, values.reshape(-1)))

    def _summary(self, steps: int, summary: Any) -> None:
        # The summaries of TensorFlow and of TensorBoard are two classes with one serialized form.
        same = Summary.FromString(summary.SerializeToString())
        self.add(Event(summary=same), steps)


class Profiler:
    """Writes a profile of the steps from the first to the last of `steps`, counted from 1."""

    def __init__(self, output: str, steps: Sequence[int], state: RunState, claims: Claims) -> None:
        """`claims` records the names of the files before they are written."""
        self._url = files.join(output, TENSORBOARD)
        self._first, self._last = steps
        self._state, self._claims = state, claims
        self._looked_at = state.steps
        self._folder: files.TemporaryFolder | None = None  # while the profiler runs

    def see(self, event: events.Event) -> None:
        """Start or stop the profiler."""
        match event:
            case events.BetweenSteps() if self._is_due():
                self._folder = files.TemporaryFolder("profile")
                with files.translated(self._url, "written"):
                    tf.profiler.experimental.start(self._folder.name)
            case events.StepDone() if self._state.steps >= self._last:
                self.close()

    def _is_due(self) -> bool:
        earlier, self._looked_at = self._looked_at, self._state.steps + 1
        return earlier < self._first <= self._looked_at

    def close(self) -> None:
        """Write the profile of the steps so far, if the profiler runs."""
        if self._folder is None:
            return
        folder, self._folder = self._folder, None
        with files.translated(self._url, "written"):
            tf.profiler.experimental.stop()
        root = Path(folder.name, "plugins")
        names = [path.relative_to(root.parent).as_posix() for path in sorted(root.rglob("*.*"))]
        self._claims.add([f"{TENSORBOARD}/{name}" for name in names])
        files.upload_folder(root, files.join(self._url, "plugins"))
        folder.cleanup()
