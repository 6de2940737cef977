"""A trained model: what is asked of it from Python and by commands. `tnctl.Run`, `tnctl.ids`."""

import contextlib
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

from tnctl import files, outputs
from tnctl.api.artefacts import PREFIX, has_rows, require_serving
from tnctl.api.calls import GOLDEN_ROWS, KEPT_VERSIONS, Url, choice, in_one_line, text_of
from tnctl.errors import Failure, UserError, did_you_mean, quoted, refuse_if
from tnctl.model import quiet_tensorflow
from tnctl.saved_conf import conf_of
from tnctl.schema import Conf, Data
from tnctl.serving.rows import file_formats, server_format

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from tnctl.checkpoint.chain import Checkpoint
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.evaluation.importance import Importance
    from tnctl.evaluation.inference import Inference
    from tnctl.evaluation.model_readers import LocalReader
    from tnctl.serving.graph.graph_document import GraphManifest
    from tnctl.serving.publishing import Version
    from tnctl.serving.rows.export_document import Filter, RowsManifest
    from tnctl.serving.verification import CheckedFigure
    from tnctl.training.report.report_document import Report

PREDICTION_FORMATS = ("parquet", "csv", "jsonl")


def ids(run: "Url | Run", slot: str, values: Any) -> "np.ma.MaskedArray[Any, np.dtype[np.uint64]]":
    """The ids of values of a slot, bit for bit as in training: uint64 [n] for values [n].

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

    def __init__(
        self,
        checkpoint: "Checkpoint",
        conf: Conf,
        output: str | None,
        processes: "ClusterProcesses | None" = None,
    ) -> None:
        """`output` is the folder of the run, None of a checkpoint alone.

        `processes` are the workers that read the model and write an export, by default this one.
        """
        self._checkpoint, self._conf, self._output = checkpoint, conf, output
        self._processes = processes
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
    def heads(self) -> tuple[str, ...]:
        """The names of what is predicted."""
        return tuple(self._checkpoint.manifest.heads)

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
        with self._tensorflow():
            from tnctl.model.building import build_network

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
        with self._tensorflow():
            from tnctl.evaluation.predictions import predict_table

            return predict_table(self._inference, self._conf, table)

    def predict_files(
        self, to: Url | None = None, kind: str | None = None, *, overwrite: bool = False
    ) -> int:
        """Write the scores of data.test, else of data.validation; returns the number of rows.

        `to` is a file or URL, by default predictions.KIND in the output of the run, and `kind` is
        parquet, csv or jsonl, by default as the name of `to` says, else parquet. An existing file
        is replaced with `overwrite`, or when it is the default one. Columns are those of data.carry
        and of `predict`. Raises UserError and Failure.
        """
        split = self.check_predictions(to, kind, overwrite)
        path, kind, is_own = self.place_of_predictions(to, kind)
        reads = [link.folder for link in self._checkpoint.chain()]
        if self._conf.recipe_name.endswith(".py"):
            reads.append(self._conf.recipe_name)
        with self._tensorflow():
            from tnctl.evaluation import predictions
            from tnctl.progress import say

            reader = self._reader
            with contextlib.closing(reader.predictions(split)) as tables:
                rows = predictions.predict(
                    reader.model, tables, self._conf, split, path, kind, reads, overwrite or is_own
                )
            say(
                f"{rows:,} predictions of data.{split} by the model of "
                f"{self._checkpoint.step_in_words} written to {path}"
            )
            return rows

    def check_predictions(self, to: Url | None, kind: str | None, overwrite: bool) -> str:
        """The split that `predict_files` scores. Raises UserError and Failure as it does.

        For another file at the place of the output, and data that is not there.
        """
        from tnctl.data import column_names, sources
        from tnctl.evaluation import predictions

        conf = self._conf
        split = split_given(conf.data, "score")
        predictions.check_carried(conf.data.carry, self.heads)
        needed = [*column_names.columns_read(conf, labelled=False), *conf.data.carry]
        sources.require(conf, [split], list(dict.fromkeys(needed)))
        path, _, is_own = self.place_of_predictions(to, kind)
        outputs.refuse_overlap([path], sources.files_read(conf, [split]))
        outputs.check_file(path, is_own or overwrite)
        return split

    def place_of_predictions(self, to: Url | None, kind: str | None) -> tuple[str, str, bool]:
        """The file that `predict_files` writes, its format, and whether it is the run's own."""
        from tnctl import ownership
        from tnctl.training.run_folder import PREDICTIONS

        path = None if to is None else text_of(to, "to")
        by_name = [name for name in PREDICTION_FORMATS if str(path).endswith(f".{name}")]
        kind = choice("format", kind or [*by_name, "parquet"][0], PREDICTION_FORMATS)
        if path is not None:
            return path, kind, False
        path = self.place_of(f"{PREDICTIONS}.{kind}")
        return path, kind, ownership.is_run(self._conf.output)

    def place_of(self, name: str) -> str:
        """A file or folder in the output of the run. Raises UserError for a checkpoint alone."""
        refuse_if(
            self._output is None,
            "with checkpoint= alone give to=URL too: a checkpoint does not say where this command "
            "may write",
        )
        return files.join(self._conf.output, name)

    def evaluate(self) -> dict[str, Any]:
        """What `tnctl evaluate` prints: metrics of data.test, else of data.validation.

        Plain values: `checkpoint`, `split`, with position.slot `served_without`, the metrics, and
        `by` with evaluation.by. Raises UserError without such data, and Failure when it cannot be
        read.
        """
        split = self.check_evaluation()
        with self._tensorflow():
            from tnctl.documents import plain
            from tnctl.evaluation.split_scoring import figures_by_value
            from tnctl.progress import waiting

            reader = self._reader
            with waiting(f"evaluating on data.{split}"):
                metrics = reader.metrics(split)
                if self._conf.evaluation.by:
                    metrics["by"] = plain(figures_by_value(self._inference, self._conf, split))
        metrics.pop("histogram", None)  # long, and for the page of a run
        position = self._conf.position.slot
        without = {"served_without": f"slots.{position}"} if position else {}
        return {"checkpoint": self.checkpoint, "split": split, **without, **metrics}

    def check_evaluation(self) -> str:
        """The split that `evaluate` takes. Raises UserError without one, Failure without data."""
        from tnctl.data import column_names, sources
        from tnctl.evaluation.split_scoring import columns_of

        conf = self._conf
        split = split_given(conf.data, "evaluate on")
        columns = [*column_names.columns_read(conf), *columns_of(conf).values()]
        sources.require(conf, [split], columns)
        return split

    def importance(self) -> "Importance":
        """What each input is worth, by its values shuffled: `tnctl ablate`.

        On data.validation, else on data.test. Raises UserError and Failure.
        """
        from tnctl.data import column_names, sources
        from tnctl.evaluation.importance import MEASURED_SPLITS, permutation_importance

        split = split_given(self._conf.data, "score", MEASURED_SPLITS)
        sources.require(self._conf, [split], column_names.columns_read(self._conf))
        with self._tensorflow():
            from tnctl.progress import waiting

            inference = self._inference
            with waiting(f"scoring data.{split} with each input shuffled"):
                return permutation_importance(inference, self._conf, split)

    def embeddings(self, slot: str, values: Any) -> "pa.Table":
        """The trained row of each value of a slot: what stands in the data, not its id.

        `values` is a list, or an array of numpy, pandas, polars or pyarrow; for a cross each value
        is a tuple with a value for each part. Returns the columns `value`; `id` (uint64, null where
        a value has none, as missing ones); `known`, whether the model has a row of it; `linear`
        (float32), if rows have a linear weight; and `embedding`, a list of float32 with the counts
        of life.shows.cvm at its end, if they have one. Without a row they are zeros. Raises
        UserError and Failure.
        """
        with self._tensorflow():
            from tnctl.evaluation.model_readers import value_rows

            return value_rows(self._reader, slot, values)

    def split_graph(
        self,
        to: Url | None = None,
        *,
        head: str | None = None,
        frozen: bool = False,
        linear: str = "sum",
        golden: int = GOLDEN_ROWS,
        sizes: Sequence[int] | str = (),
        target_cpu: str | None = None,
        rows: str | None = None,
        precision: str | None = None,
    ) -> "GraphManifest":
        """Write the dense graph to a folder or URL, by default output/graph: `tnctl split-graph`.

        `sizes` are the batch sizes of aot=, as a list or its text. With `rows` "inside" the graph
        has the rows too, in a `precision` of exports, and takes ids. Returns the content of
        serving.json. Raises UserError and Failure.
        """
        refuse_if(
            target_cpu is not None and not sizes,
            "target_cpu= says what aot= compiles for; give aot=[1,32] too",
        )
        refuse_if(
            precision is not None and rows is None,
            "precision= is of rows: give rows=inside too, or export-embeddings precision=",
        )
        refuse_if(
            rows is not None and sizes != (),
            "aot= compiles the dense graph, without rows. Leave out aot= or rows=inside",
        )
        to = self.place_of("graph") if to is None else text_of(to, "to")
        outputs.check_folder(to)
        with self._tensorflow():
            from tnctl.progress import say, waiting
            from tnctl.serving.graph import aot
            from tnctl.serving.graph.splitting import Linear, report_graph, split
            from tnctl.serving.rows.precision import PRECISIONS

            inside = None
            if rows is not None:
                choice("rows", rows, ("inside",))
                inside = choice("precision", precision or "float32", PRECISIONS)
            text = sizes if isinstance(sizes, str) else ",".join(map(str, sizes))
            with waiting("splitting the graph"):
                manifest = split(
                    self._checkpoint,
                    self._conf,
                    to,
                    head=head,
                    frozen=frozen,
                    linear=choice("linear", linear, get_args(Linear)),
                    golden=golden,
                    sizes=aot.sizes_of(text) if text or sizes == "" else (),
                    target_cpu=target_cpu or aot.TARGET_CPU,
                    inside=inside,
                )
            report_graph(manifest)
            say(f"graph of {self._checkpoint.step_in_words} written to {to}")
            return manifest

    def export_embeddings(
        self,
        to: Url | None = None,
        *,
        encoding: str | None = None,
        precision: str = "float32",
        filter: "Filter | None" = None,
        since: Url | None = None,
        golden: int = GOLDEN_ROWS,
        prefix: str | None = None,
        grace: int | None = None,
    ) -> "RowsManifest":
        """Write the rows to a folder or URL: `tnctl export-embeddings`.

        `to` is by default output/embeddings, of a delta (`since`) output/embeddings-STEP;
        `encoding` is the format of files. Returns the manifest. Raises UserError and Failure.
        """
        since = None if since is None else text_of(since, "since")
        to = self.place_of_export(to, encoding, since, {"prefix": prefix, "grace": grace})
        with self._tensorflow():
            from tnctl.serving.rows.embeddings import GRACE
            from tnctl.serving.rows.export import export
            from tnctl.serving.rows.export_document import Filter
            from tnctl.serving.rows.precision import PRECISIONS

            manifest = export(
                self._checkpoint,
                self._conf,
                to,
                encoding=encoding,
                precision=choice("precision", precision, PRECISIONS),
                filter=filter or Filter(),
                since=since,
                golden=golden,
                writers=None if self._processes is None else self._processes.writers(),
                prefix=PREFIX if prefix is None else prefix,
                grace=GRACE if grace is None else grace,
            )
            self._monitor_export()
            return manifest

    def publish(
        self,
        to: Url,
        *,
        keep: int = KEPT_VERSIONS,
        encoding: str | None = None,
        precision: str = "float32",
        full: bool = False,
    ) -> "Version":
        """Write graph and rows to a new version at `to`, and put it in force: `tnctl publish`.

        `keep` versions stay. All rows are written when `full`, else a delta if there can be one.
        Returns the version in force. Raises UserError and Failure; then it is the one before.
        """
        to = text_of(to, "to")
        self.place_of_export(to, encoding, None, {})
        refuse_if(server_format(to), "to= is a folder or URL of versions, and not a Redis")
        with self._tensorflow():
            from tnctl.serving import publishing
            from tnctl.serving.rows.precision import PRECISIONS

            version = publishing.publish(
                self._checkpoint,
                self._conf,
                to,
                keep=keep,
                encoding=encoding,
                precision=choice("precision", precision, PRECISIONS),
                full=full,
            )
            self._monitor_export()
            return version

    def _monitor_export(self) -> None:
        if self._conf.monitor.prometheus is not None:
            from tnctl.training.report.prometheus import exported

            exported(self._conf.monitor.prometheus, self._output or self.checkpoint)

    def place_of_export(
        self,
        to: Url | None,
        encoding: str | None,
        since: str | None,
        of_redis: Mapping[str, str | int | None],
    ) -> str:
        """Where an export goes. Raises UserError for arguments that do not go together.

        `of_redis` are the arguments that only an export to Redis takes.
        """
        name = "embeddings" if since is None else f"embeddings-{self.step}"
        to = self.place_of(name) if to is None else text_of(to, "to")
        if server_format(to):
            start = self._conf.cluster.start
            refuse_if(
                start is not None,
                f"cluster={start} is for exports to files: rows in Redis are written by one "
                "process, which needs no room for all of them. Leave it out",
            )
            refuse_if(
                encoding is not None,
                "format= is of files; rows in Redis have one form. Leave it out",
            )
            return to
        refuse_if(encoding == "redis", "format= is of files. Give to=redis://HOST:PORT/DB")
        refuse_if(
            encoding == "tensornet",
            "tnctl no longer writes TensorNet's tables. format=text has their columns, without the "
            "optimizer's state",
        )
        if encoding is not None:
            choice("format", encoding, file_formats())
        outputs.check_folder(to)
        for key, value in of_redis.items():
            refuse_if(
                value is not None, f"{key}= is of Redis. Give to=redis://HOST:PORT/DB with it"
            )
        refuse_if(
            since == "current" or server_format(since or ""),
            "since= is of Redis, and a delta in files needs a base in files. Name its folder, or "
            "give to=redis://HOST:PORT/DB",
        )
        return to

    def verify_serving(
        self,
        graph: Url | None = None,
        embeddings: Url | None = None,
        *,
        prefix: str = PREFIX,
        endpoint: str | None = None,
    ) -> "list[CheckedFigure]":
        """Compare a graph and embeddings with the model: `tnctl verify-serving`.

        By default output/graph and output/embeddings; a graph with the rows inside needs no
        embeddings. With `endpoint`, the URL of a running service, golden rows are sent to it too.
        Raises UserError and Failure.
        """
        graph, embeddings = self.check_serving(graph, embeddings)
        checkpoint = self._checkpoint
        with self._tensorflow():
            from tnctl.progress import waiting
            from tnctl.serving import verification

            with waiting("comparing serving with training"):
                figures = verification.verify(
                    checkpoint, self._conf, graph, embeddings, prefix, self._load
                )
                if endpoint is not None:
                    figures += verification.verify_endpoint(
                        endpoint, graph, embeddings, prefix, checkpoint
                    )
                return figures

    def check_serving(self, graph: Url | None, embeddings: Url | None) -> tuple[str, str | None]:
        """The graph and the embeddings, by default those in the output; None: rows are inside.

        Raises Failure when they, or columns of the data that they are compared on, are not there.
        """
        from tnctl.data import column_names, sources

        output = self._conf.output
        graph = files.join(output, "graph") if graph is None else text_of(graph, "graph")
        if embeddings is None and not has_rows(graph):
            embeddings = files.join(output, "embeddings")
        embeddings = None if embeddings is None else text_of(embeddings, "embeddings")
        require_serving(graph, embeddings)
        with contextlib.suppress(files.AbsentError):  # for which the comparison knows a way out
            sources.require(self._conf, ["validation"], column_names.columns_read(self._conf))
        return graph, embeddings

    @contextlib.contextmanager
    def _tensorflow(self) -> Iterator[None]:
        """One call at a time, for which TensorFlow is imported."""
        with in_one_line(), self._lock:
            quiet_tensorflow()
            yield

    def _load(self, checkpoint: "Checkpoint", conf: Conf) -> "LocalReader":
        from tnctl.evaluation.model_readers import LocalReader

        return (self._processes.readers if self._processes else LocalReader)(checkpoint, conf)

    @cached_property
    def _reader(self) -> "LocalReader":
        return self._load(self._checkpoint, self._conf)

    @cached_property
    def _inference(self) -> "Inference":
        return self._reader.inference(self._conf.train.batch_rows)


def split_given(data: Data, what: str, splits: Sequence[str] = ()) -> str:
    """The first of some splits that the conf has data for. Raises UserError without one."""
    from tnctl.evaluation.split_scoring import REPORTED_SPLITS, first_given

    splits = splits or REPORTED_SPLITS
    split = first_given(data, splits)
    if split is None:
        given = " or ".join(f"data.{name}=FILES" for name in splits)
        raise UserError(f"there is nothing to {what}. Give {given}")
    return split
