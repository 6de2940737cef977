"""`tnctl.open` and `tnctl.ids`: a trained model, to be asked from Python."""

import copy
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tnctl import files
from tnctl.api.calls import COMPOSING, Url, in_one_line, overrides_of, text_of
from tnctl.errors import Failure, UserError, did_you_mean, quoted
from tnctl.saved_conf import conf_of
from tnctl.schema import Conf

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from tnctl.checkpoint.chain import Checkpoint
    from tnctl.evaluation.inference import Inference
    from tnctl.evaluation.model_readers import LocalReader
    from tnctl.training.report.report_document import Report


def open(
    output: Url | None = None, *, checkpoint: Url | None = None, overrides: Sequence[str] = ()
) -> "Run":
    """The model of a run's newest complete checkpoint, or of the one in a folder.

    `output` is the folder or URL of the run, `checkpoint` that of one checkpoint; the run may be
    under way. The conf is the checkpoint's own, with `overrides`. The model is loaded when it is
    first used. Raises UserError, and Failure when there is no such model or it is damaged.
    """
    from tnctl.cli.checkpoint_choice import with_checkpoint

    given = overrides_of(overrides)
    if any(override.startswith("output=") for override in given):
        raise UserError("output= is among the overrides. Give it as the first argument")
    if output is not None:
        given += overrides_of([f"output={text_of(output, 'output')}"])
    if checkpoint is not None:
        given.append(f"checkpoint={text_of(checkpoint, 'checkpoint')}")
    opened: list[Run] = []

    def keep(checkpoint: "Checkpoint", conf: Conf, _: dict[str, str]) -> int:
        opened.append(Run(checkpoint, conf, conf.output if output is not None else None))
        return 0

    with in_one_line(), COMPOSING:
        with_checkpoint(given, ("checkpoint",), keep)
    return opened[0]


def ids(run: "Url | Run", slot: str, values: Any) -> "np.ma.MaskedArray[Any, np.dtype[np.uint64]]":
    """The ids of values of a slot, bit for bit those of training: uint64 [n] for values [n].

    `run` is the folder or URL of a run, whose newest complete checkpoint is taken, or of a
    checkpoint, or a `Run`. Only the manifest and the conf of the checkpoint are read, no table of
    rows, and TensorFlow is not imported. `values` are what `Run.embeddings` takes: each is one
    value of the data, not a list of several, and for a cross a tuple. The array is masked where
    a value has no id: a missing one, padding, a text that is not in a vocabulary without oov, an
    integer from `size` on. With missing=value these have the id of missing values, except padding
    of a sequence. The ids are those of the column `id` in the exported file of the slot's share
    group. Raises UserError for a slot that the conf lacks and for values that are no column;
    Failure for a value that cannot be an id, such as a text for buckets, and when there is no
    complete checkpoint.
    """
    import numpy as np

    from tnctl.data.arrow_tables import ids_of_values

    with in_one_line():
        if isinstance(run, Run):
            checkpoint, conf = run._checkpoint, run._conf
        else:
            checkpoint = _checkpoint_at(text_of(run, "run"))
            conf = conf_of(checkpoint.conf(), checkpoint.folder)
        if slot not in list(conf.slots):
            raise UserError(f"no slot {quoted(str(slot))}. {did_you_mean(str(slot), conf.slots)}")
        of_values = ids_of_values(conf, checkpoint.statistics, slot, values)
        return np.ma.MaskedArray(of_values.ids, ~of_values.has_id)


def _checkpoint_at(url: str) -> "Checkpoint":
    """The checkpoint in a folder, or the newest of the run in it. Raises Failure without one."""
    from tnctl.checkpoint import chain, listing

    _, name = listing.folder_meant(url)
    return chain.newest_or_fail(url) if name is None else chain.open_checkpoint(url)


class Run:
    """The model of a checkpoint, which is only read; made by `tnctl.open` and `tnctl.train`.

    Methods may be called from several threads, one after the other at a time.
    """

    def __init__(self, checkpoint: "Checkpoint", conf: Conf, output: str | None) -> None:
        self._checkpoint, self._conf, self._output = checkpoint, conf, output
        # A model has buffers for one batch.
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Run({self.checkpoint!r})"

    @property
    def checkpoint(self) -> str:
        """The folder or URL of the checkpoint."""
        return self._checkpoint.folder

    @property
    def step(self) -> int:
        """The step that the checkpoint was saved after."""
        return self._checkpoint.step

    @property
    def conf(self) -> Conf:
        """The conf of the checkpoint, with the overrides; a copy."""
        return copy.deepcopy(self._conf)

    @property
    def report(self) -> "Report":
        """The results of the run, report.json; its keys are attributes: docs/train.md.

        Raises Failure when the run is not finished, or the file damaged.
        """
        from tnctl import limits
        from tnctl.documents import DocumentError
        from tnctl.training.report.report_document import Report
        from tnctl.training.run_folder import REPORT

        if self._output is None:
            raise UserError("a checkpoint has no report, and its run has. Open the run: output=URL")
        url = files.join(self._output, REPORT)
        if not files.exists(url):
            raise Failure(
                f"{self._output} has no {REPORT}, which is written when training ends. Train it "
                "to its end"
            )
        try:
            return Report.parse(files.read_bytes(url, most=limits.MANIFEST_BYTES))
        except DocumentError as error:
            raise Failure(
                f"{url} is damaged ({error}). Train again with the same conf: nothing but the "
                "report is made anew"
            ) from error

    @cached_property
    def network(self) -> Any:
        """The dense model, a keras.Model in float32 with weights of its own.

        Its inputs are what rows are pooled into ([B, columns], by name in `network.inputs`), its
        outputs the logits by head, and the towers, neither corrected for data.negatives nor
        recalibrated. It computes in graphs (`network.predict`, tf.function), not eagerly. What is
        done to it does not change what `predict` returns.
        """
        from tnctl.model.building import build_network

        with in_one_line(), self._lock:
            model = self._reader.model
            network, _ = build_network(model.conf, model.layout, "float32")
            network.set_weights(model.inference_network.get_weights())
            return network

    def predict(self, table: Any) -> "pa.Table":
        """The scores of the rows of a table, in their order, as `tnctl predict` computes them.

        `table` is a DataFrame of pandas or polars, a Table of pyarrow, or anything that exports a
        stream of Arrow (`__arrow_c_stream__`), with the columns that the conf reads, but labels.
        Returns the columns `prediction` (float64) and `logit` (float32), of several heads
        `prediction_<head>` and `logit_<head>`; without rows an empty table. Of a DataFrame of
        pandas the result has the index, which `to_pandas` returns. Raises UserError for what is
        no table, and Failure for a missing column or the first value that cannot be read.
        """
        from tnctl.evaluation.predictions import predict_table

        with in_one_line(), self._lock:
            return predict_table(self._inference, self._conf, table)

    def embeddings(self, slot: str, values: Any) -> "pa.Table":
        """The trained row of each value of a slot: what stands in the data, not its id.

        `values` is a list, or an array of numpy, pandas, polars or pyarrow; for a cross each value
        is a tuple with a value for each part. Returns the columns `value`; `id` (uint64, null where
        a value has none, as missing ones); `known`, whether the model has a row of it; `linear`
        (float32), if rows have a linear weight; and `embedding`, a list of float32 with the counts
        of life.shows.cvm at its end, if they have one. Without a row they are zeros. Raises
        UserError and Failure.
        """
        from tnctl.evaluation.model_readers import value_rows

        with in_one_line(), self._lock:
            return value_rows(self._reader, slot, values)

    @cached_property
    def _reader(self) -> "LocalReader":
        from tnctl.evaluation.model_readers import LocalReader

        return LocalReader(self._checkpoint, self._conf)

    @cached_property
    def _inference(self) -> "Inference":
        return self._reader.inference(self._conf.train.batch_rows)
