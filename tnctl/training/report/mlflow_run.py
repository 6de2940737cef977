"""Figures of a run as a run of MLflow, through MLflow's client; nothing waits for its server."""

import importlib.util
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tnctl.errors import refuse_if, shortened
from tnctl.masking import masked
from tnctl.progress import say
from tnctl.saved_conf import conf_to_json
from tnctl.schema import Conf, completed
from tnctl.training.run_folder import Log

EVENT = "mlflow"  # of log.jsonl, by which a run that is resumed goes on in its run of MLflow
EXPERIMENT = "tnctl"
LONGEST_VALUE = 500  # characters of a parameter that every server takes
LONGEST_REASON = 200
# Numbers of parameters and of metrics that a server takes in a call.
PARAMETERS_AT_ONCE, METRICS_AT_ONCE = 100, 1000
GONE = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")  # of another server; deleted
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
        while self._waiting:
            part = self._waiting[:METRICS_AT_ONCE]
            self._client.log_batch(self._id, metrics=[Metric(*metric) for metric in part])
            del self._waiting[: len(part)]
        if status != "RUNNING":
            self._client.set_terminated(self._id, status)

    def _opened(self, step: int) -> Any:
        """A client, for which the run is there and under way."""
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        client = MlflowClient(self._uri)
        try:
            if self._id is not None:
                client.update_run(self._id, "RUNNING")
                return client
        except MlflowException as error:
            if error.error_code not in GONE:
                raise
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        experiment = client.get_experiment_by_name(name)
        number = client.create_experiment(name) if experiment is None else experiment.experiment_id
        output: str = masked(self._conf.output)
        self._id = client.create_run(
            number, run_name=output.rstrip("/").rpartition("/")[2], tags={"tnctl.output": output}
        ).info.run_id
        self._log.add(EVENT, step=step, run_id=self._id)
        self._log_parameters(client)
        return client

    def _log_parameters(self, client: Any) -> None:
        from mlflow.entities import Param

        given = [Param(*pair) for pair in parameters(self._conf).items()]
        for start in range(0, len(given), PARAMETERS_AT_ONCE):
            client.log_batch(self._id, params=given[start : start + PARAMETERS_AT_ONCE])


def parameters(conf: Conf) -> dict[str, str]:
    """The values of a conf by key, without secrets; of inputs only what is not the default."""
    values = conf_to_json(conf)
    names = {section: dict.fromkeys(values[section], {}) for section in ("slots", "numeric")}
    defaults = completed(names)
    of_inputs = dict(_flat({section: defaults[section] for section in names}))
    return {
        key: str(value)[:LONGEST_VALUE]
        for key, value in _flat(values)
        if key not in of_inputs or value != of_inputs[key]
    }


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}".lstrip("."))
    else:
        yield key, value
