"""TensorBoard files of a run: scalars, histograms, the graph, and a profile of some steps."""

import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram import summary_v2 as histograms
from tensorboard.plugins.scalar import summary_v2 as scalars
from tensorboard.summary.writer.record_writer import RecordWriter

from tnctl import files
from tnctl.evaluation.input_figures import sampled_norms
from tnctl.model.building import Model
from tnctl.ownership import Claims
from tnctl.schema import Conf
from tnctl.training import run_folder

ROWS_SAMPLED = 1 << 14


class EventFiles:
    """Writes event files into `tensorboard` under the output of a run.

    They are appended to a local file; for another storage to one in a temporary folder, which is
    copied at each `flush`.
    """

    def __init__(self, conf: Conf, steps: int, claims: Claims) -> None:
        """Events of an earlier process after `steps` no longer count.

        `claims` takes the names of the files before they are written.
        """
        self._url = files.join(conf.output, run_folder.TENSORBOARD)
        self._claims = claims
        local = files.local_path(self._url)
        self._spool = None
        if local is None:
            self._spool = files.TemporaryFolder("tensorboard")
            local = Path(self._spool.name)
        self.folder = local
        self._profile = conf.train.profile
        self._profiling = False
        self._writer: RecordWriter | None = None
        self._profiled: files.TemporaryFolder | None = None
        if conf.train.tensorboard:
            host = re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())
            name = f"events.out.tfevents.{time.time():.6f}.{host}.{os.getpid()}"
            claims.add([f"{run_folder.TENSORBOARD}/{name}"])
            with files.translated(self._url, "written"):
                self.folder.mkdir(parents=True, exist_ok=True)
                self._stream = (self.folder / name).open("ab")
                self._writer = RecordWriter(self._stream)
            # The first event of a file names its version; a restart drops what comes after it.
            self._add(Event(file_version="brain.Event:2"), 0)
            start = SessionLog(status=SessionLog.START)
            self._add(Event(session_log=start), steps + 1)

    def scalars(self, steps: int, values: dict[str, float]) -> None:
        """Numbers by their tags, such as `train/loss`."""
        for tag, value in values.items():
            self._summary(steps, scalars.scalar_pb(tag, value))

    def metrics(self, steps: int, metrics: dict[str, Any], of_what: str = "validation") -> None:
        """The metrics of an evaluation, of other heads under their names."""
        self.scalars(steps, {f"{of_what}/{name}": v for name, v in numbers(metrics).items()})
        for head, of in metrics.get("heads", {}).items():
            self.scalars(steps, {f"{of_what}/{head}/{n}": v for n, v in numbers(of).items()})

    def histogram(self, steps: int, tag: str, values: NDArray[Any]) -> None:
        """The distribution of some numbers."""
        self._summary(steps, histograms.histogram_pb(tag, values.reshape(-1)))

    def weights(self, steps: int, model: Model) -> None:
        """Histograms of every dense weight, and of the norms of each table's embeddings."""
        if self._writer is None:
            return
        for name, weights in zip(model.variable_names, model.dense.weights, strict=True):
            self.histogram(steps, f"dense/{name}", weights)
        for layout, table in zip(model.layout.tables, model.tables, strict=True):
            if layout.width and table.rows:
                _, norms = sampled_norms(table, ROWS_SAMPLED)
                self.histogram(steps, f"norms/{layout.name}", norms)

    def graph(self, model: Model) -> None:
        """The dense model, as TensorBoard's graph tab shows it."""
        if self._writer is None:
            return
        network = model.inference_network
        specs = [
            tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype) for tensor in network.inputs
        ]

        @tf.function(autograph=False)
        def scores(*inputs: tf.Tensor) -> Any:
            return network(list(inputs), training=False)

        graph = scores.get_concrete_function(*specs).graph.as_graph_def(add_shapes=True)
        self._add(Event(graph_def=graph.SerializeToString()), 0)

    def before_step(self, step: int) -> None:
        """Starts the profiler when `step`, from 1, is the first to be profiled."""
        if self._profile is not None and step == self._profile[0]:
            self._profiled = files.TemporaryFolder("profile")
            with files.translated(self._url, "written"):
                tf.profiler.experimental.start(self._profiled.name)
            self._profiling = True

    def after_step(self, step: int) -> None:
        """Writes the profile when `step` was the last of it."""
        if self._profiling and self._profile is not None and step >= self._profile[1]:
            self._stop_profiler()

    def _stop_profiler(self) -> None:
        self._profiling = False
        assert self._profiled is not None
        with files.translated(self._url, "written"):
            tf.profiler.experimental.stop()
        root = Path(self._profiled.name, "plugins")
        names = [path.relative_to(root.parent).as_posix() for path in sorted(root.rglob("*.*"))]
        names = [f"{run_folder.TENSORBOARD}/{name}" for name in names]
        self._claims.add(names)
        files.upload_folder(root, str(self.folder / "plugins"))
        self._profiled.cleanup()

    def flush(self) -> None:
        """Everything so far is in the files of the output afterwards."""
        if self._writer is not None:
            with files.translated(self._url, "written"):
                self._writer.flush()
        if self._spool is not None:
            files.upload_folder(self._spool.name, self._url)

    def close(self) -> None:
        """Ends the files; a profile that was begun is kept."""
        if self._profiling:
            self._stop_profiler()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._spool is not None:
            files.upload_folder(self._spool.name, self._url)
            self._spool.cleanup()
            self._spool = None

    def _summary(self, steps: int, summary: Any) -> None:
        # TensorFlow's messages and TensorBoard's own are of two classes with one meaning.
        same = Summary.FromString(summary.SerializeToString())
        self._add(Event(summary=same), steps)

    def _add(self, event: Any, steps: int) -> None:
        if self._writer is not None:
            event.step, event.wall_time = steps, time.time()
            with files.translated(self._url, "written"):
                self._writer.write(event.SerializeToString())


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are numbers."""
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
