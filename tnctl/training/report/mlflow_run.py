"""Figures of a run as a run of MLflow, through MLflow's client; nothing waits for its server."""

import contextlib
import importlib.util
import os
import time
from collections.abc import Mapping
from typing import Any

from tnctl.errors import refuse_if, shortened
from tnctl.masking import masked
from tnctl.progress import say
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf
from tnctl.training.run_folder import Log

EVENT = "mlflow"  # of log.jsonl, by which a run that is resumed goes on in its run of MLflow
EXPERIMENT = "tnctl"
LONGEST_VALUE = 500  # characters of a parameter that every server takes
LONGEST_REASON = 200
AT_ONCE = 1000  # metrics that a server takes in a call; parameters, a tenth
# Training waits for a server that is away for seconds, where MLflow would for minutes. Usage is
# not reported to anyone.
SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


def require(uri: str | None) -> None:
    """Raise UserError when a run of MLflow is asked for and its client is not installed."""
    refuse_if(
        uri is not None and importlib.util.find_spec("mlflow") is None,
        "monitor.mlflow needs a package that is not installed: pip install 'tnctl[mlflow]'",
    )


class MlflowRun:
    """A run of MLflow, made or continued at the first `send`. What fails is sent the next time."""

    def __init__(self, uri: str, conf: Conf, log: Log) -> None:
        """The run that `log` names, else a new one; MLflow's own variables say the experiment."""
        for name, value in SETTINGS.items():
            os.environ.setdefault(name, value)
        self._uri, self._conf, self._log = uri, conf, log
        ids = (line.get("run_id") for line in reversed(log.events) if line["event"] == EVENT)
        self._id = next(ids, None)
        self._client: Any = None
        self._waiting: list[tuple[str, float, int, int]] = []
        self._warned = False

    def add(self, step: int, figures: Mapping[str, float]) -> None:
        """Note figures after a step, by names such as `validation/auc`."""
        now = int(1000 * time.time())
        self._waiting += [(name, value, now, step) for name, value in figures.items()]

    def send(self, step: int, status: str = "RUNNING") -> None:
        """Send what is noted, and the status of the run; a failure is a line, and no error."""
        try:
            self._send(step, status)
        except Exception as error:  # of MLflow, HTTP, a database: none of them ends training
            if not self._warned:
                reason = shortened(str(error), LONGEST_REASON)
                say(f"warning: {self._uri} takes no figures: {reason}. Training goes on")
            self._warned = True

    def _send(self, step: int, status: str) -> None:
        from mlflow.entities import Metric

        if self._client is None:
            self._client = self._opened(step)
        while part := self._waiting[:AT_ONCE]:
            self._client.log_batch(self._id, [Metric(*metric) for metric in part])
            del self._waiting[: len(part)]
        if status != "RUNNING":
            self._client.set_terminated(self._id, status)

    def _opened(self, step: int) -> Any:
        """A client, for which the run is there and under way."""
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        client = MlflowClient(self._uri)
        if self._id is not None:
            with contextlib.suppress(MlflowException):  # of another server, or deleted there
                client.update_run(self._id, "RUNNING")
                return client
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = client.get_experiment_by_name(name)
        number = client.create_experiment(name) if experiment is None else experiment.experiment_id
        output: str = masked(self._conf.output)
        self._id = client.create_run(
            number, run_name=output.rstrip("/").rpartition("/")[2], tags={"tnctl.output": output}
        ).info.run_id
        self._log.add(EVENT, step=step, run_id=self._id)
        given = [Param(*pair) for pair in parameters(conf_to_json(self._conf)).items()]
        for start in range(0, len(given), AT_ONCE // 10):
            client.log_batch(self._id, params=given[start : start + AT_ONCE // 10])
        return client


def parameters(value: Any, key: str = "") -> dict[str, str]:
    """Plain values of a conf by key, without what is null or false, of which inputs have much."""
    if not isinstance(value, Mapping):
        return {} if value is None or value is False else {key: str(value)[:LONGEST_VALUE]}
    parts = [parameters(inner, f"{key}.{name}".lstrip(".")) for name, inner in value.items()]
    return {name: text for part in parts for name, text in part.items()}
