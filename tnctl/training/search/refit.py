"""The best conf of a search, trained on training and validation data together."""

from dataclasses import replace
from typing import Any

from tnctl import files
from tnctl.data import batch_sizes
from tnctl.data.sources import row_range, split_of
from tnctl.errors import refuse_if
from tnctl.schema import Conf, Data
from tnctl.training.report.report_document import Report
from tnctl.training.run import train

SPLITS = ("train", "validation")


def folder_of(number: int) -> str:
    """The folder under the output of the search; another best trial has another one."""
    return f"refit-{number:04d}"


def refit(conf: Conf, output: str, number: int, passes: int, golden: int) -> Report:
    """Train the conf of trial `number` on all data but data.test, or resume that, to its end."""
    output = files.join(output, folder_of(number))
    conf, _ = batch_sizes.resolved(conf)  # `passes` are the best with the batch size of the trial
    return train(replace(conf_of_all_data(conf, passes), output=output), golden=golden)


def passes_of_best(report: Report) -> int:
    """How many passes the model took that a run has kept.

    Where the best model is of the middle of a pass, those up to the nearest end of one.
    """
    if report.best is None or not report.best.kept:
        return len(report.epochs)
    step = report.best.step
    return min(report.epochs, key=lambda epoch: abs(epoch.step - step)).epoch


def conf_of_all_data(conf: Conf, passes: int) -> Conf:
    """A conf whose training data has data.validation too; nothing decides when training ends.

    Raises UserError where that cannot be said in one conf.
    """
    refuse_if(
        conf.data.prepared is not None,
        "sweep.refit=true needs the files of data.train and data.validation, and data.prepared has "
        "each apart. Leave one of them out",
    )
    refuse_if(
        conf.optimizer.schedule.name == "plateau",
        "sweep.refit=true leaves no validation data, by which optimizer.schedule.name=plateau "
        "goes. Leave one of them out",
    )
    evaluation = replace(
        conf.evaluation, every_steps=None, patience=None, keep="last", recalibrate=False
    )
    return replace(
        conf,
        data=with_validation(conf.data),
        evaluation=evaluation,
        train=replace(conf.train, epochs=passes),
    )


def with_validation(data: Data) -> Data:
    """The data with the rows of data.validation in data.train. Raises UserError."""
    if data.is_cut("validation"):
        return replace(data, split=replace(data.split, validation=0.0))
    refuse_if(
        data.is_cut("train"),
        f"sweep.refit=true trains on data.validation, of which data.split.test={data.split.test} "
        "would then take rows too. Give data.test=FILES, or data.split.validation",
    )
    return replace(data, train=joined(data), validation=None)


def joined(data: Data) -> Any:
    """data.train and data.validation as one value of data.train."""
    first, second = (split_of(data, split) for split in SPLITS)
    if data.is_generated:
        ranges = [row_range(data, name) for name in SPLITS]
        (start, middle), (begin, end) = sorted(ranges)
        refuse_if(
            middle != begin,
            "sweep.refit=true needs ranges of generated rows that adjoin. Received: "
            f"data.train={first.spec} and data.validation={second.spec}",
        )
        return f"{start}:{end}"
    refuse_if(
        first.skip_rows != second.skip_rows,
        "sweep.refit=true reads data.train and data.validation in one way, and they have other "
        f"skip_rows. Received: {first.skip_rows} and {second.skip_rows}",
    )
    names = [*_names(first.spec), *_names(second.spec)]
    return {"files": names, "skip_rows": first.skip_rows}


def _names(spec: Any) -> list[Any]:
    return [spec] if isinstance(spec, str) else list(spec or [])
