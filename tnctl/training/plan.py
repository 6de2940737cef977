"""What `tnctl train` does with an output, decided before anything is changed or TensorFlow runs.

A conf is refused by its keys (`check`) and by its files (`check_files`). What an output has says
whether a run is new, resumed, finished, or finished but for its baseline (`plan`), and which days
are left (`days_left`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tnctl import files
from tnctl.checkpoint.chain import FOLDER as CHECKPOINTS
from tnctl.checkpoint.chain import Checkpoint, differing_keys, newest_first, open_checkpoint
from tnctl.data import row_split, sources
from tnctl.data.bad_rows import SPLITS
from tnctl.data.batch_sizes import as_saved
from tnctl.data.column_names import columns_read
from tnctl.data.day_records import DayRecord, Fingerprint
from tnctl.data.days import (
    calendar,
    comes_before,
    conf_of_day,
    daily,
    days_of,
    folders_of_days,
    in_order,
    most_days,
    none_there,
)
from tnctl.data.days import in_words as named
from tnctl.data.sources import Source
from tnctl.errors import Failure, UserError, refuse_if
from tnctl.evaluation.split_scoring import columns_of, first_given, reported_splits
from tnctl.manifest import DamagedError
from tnctl.masking import bare
from tnctl.progress import say
from tnctl.saved_conf import conf_to_json
from tnctl.schema import AUTO, Conf
from tnctl.training import baseline, row_life, run_folder, schedule
from tnctl.training.report import mlflow_run
from tnctl.training.report.report_document import Report
from tnctl.training.run_folder import NOT_COMPARED
from tnctl.training.state import FROM_SCRATCH
from tnctl.training.warm import warm_start


@dataclass(frozen=True)
class Plan:
    """What is done with an output; `conf` has all that the run of a checkpoint was begun with.

    - new: a run is begun, from scratch or warm
    - resume: the run of `checkpoint` is trained on, on the days of `left` where it trains days
    - baseline: it is trained, and gets what its `report` lacks, the baseline
    - finished: nothing is left to be done, for the reason in words `why`
    """

    kind: Literal["new", "resume", "baseline", "finished"]
    conf: Conf
    checkpoint: Checkpoint | None = None
    damaged: tuple[str, ...] = ()
    """newer checkpoints, whose manifest or conf is damaged"""
    left: tuple[str, ...] = ()
    report: Report | None = None
    why: str = ""


def plan(conf: Conf, overwrite: bool, accept: bool) -> Plan:
    """What is done with the output of a conf; with `overwrite` nothing there is looked at.

    Raises UserError for a run of another conf, Failure where no checkpoint can be resumed, and for
    a day that comes late unless `accept`.
    """
    checkpoint, damaged = (None, ()) if overwrite else resumable(conf)
    if checkpoint is None:
        return Plan("new", conf)
    conf = as_saved(conf, checkpoint.conf())
    left = days_left(conf, checkpoint.days, accept) if daily(conf) else []
    resumed = Plan("resume", conf, checkpoint, damaged, tuple(left))
    if left or has_more_passes(conf, checkpoint):
        return resumed
    report = run_folder.finished(conf.output)
    days = [day.day for day in checkpoint.days]
    # A run may have stopped after its last day was trained and before the report was written.
    if report is None or (daily(conf) and [day.day for day in report.days or ()] != days):
        return resumed
    if conf.baseline.enabled and not report.baseline:
        return replace(resumed, kind="baseline", report=report)
    why = "is trained on every day that is there" if daily(conf) else "is finished"
    if is_given_more_passes(conf, checkpoint):
        why = f"stopped early, by evaluation.patience={conf.evaluation.patience}"
    return replace(resumed, kind="finished", report=report, why=why)


def resumable(conf: Conf) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint to resume from, None for a new run, and newer ones that are damaged.

    A run may go on with more passes than it was begun with. Raises UserError when the folder has a
    run of another conf.
    """
    # A run that was started warm is resumed without warm.start too.
    skipped = NOT_COMPARED if conf.warm.start else {*NOT_COMPARED, "warm"}
    damage: DamagedError | None = None
    damaged: list[str] = []
    passed_over = False
    for folder in newest_first(files.join(conf.output, CHECKPOINTS)):
        try:
            checkpoint = open_checkpoint(folder)
            saved = checkpoint.conf()
            differing = differing_keys(conf_to_json(as_saved(conf, saved)), saved)
        except DamagedError as error:
            say(str(error))
            damage = damage or error
            damaged.append(folder)
            continue
        if "train.epochs" in differing and is_given_more_passes(conf, checkpoint):
            differing.remove("train.epochs")
        if differing := [key for key in differing if not {key, key.split(".")[0]} & skipped]:
            raise UserError(
                f"{conf.output} has a run of another conf; these keys differ: "
                f"{', '.join(differing)}. Choose another output, or {FROM_SCRATCH}"
            )
        # More passes cannot begin at the best model of an earlier step, but before it.
        is_earlier = checkpoint.step < checkpoint.manifest.steps_trained
        if is_earlier and has_more_passes(conf, checkpoint):
            passed_over = True
            continue
        return checkpoint, tuple(damaged)
    if damage is not None:
        raise nothing_whole(conf.output, damage)
    if passed_over:
        raise Failure(
            f"{conf.output} kept the best model of its run, and no checkpoint from which training "
            f"could go on. Choose another output, or {FROM_SCRATCH}"
        )
    return None, ()


def has_more_passes(conf: Conf, checkpoint: Checkpoint) -> bool:
    """Whether a run goes on with more passes than it was begun with: not one that stopped early."""
    patience = conf.evaluation.patience
    stopped_early = (
        checkpoint.manifest.finished
        and patience is not None
        and checkpoint.manifest.metrics.watch.without >= patience
    )
    return not stopped_early and is_given_more_passes(conf, checkpoint)


def is_given_more_passes(conf: Conf, checkpoint: Checkpoint) -> bool:
    """Whether a conf has more passes than the run of a checkpoint was begun with.

    Training by days goes on with each new day, and with as many passes as before.
    """
    saved = checkpoint.conf()["train"]["epochs"]
    if saved == conf.train.epochs or daily(conf):
        return False
    # A run that was begun with auto has those that it has trained.
    return conf.train.most_passes > (checkpoint.position.epoch if saved == AUTO else saved)


def nothing_whole(output: str, damage: DamagedError) -> Failure:
    return Failure(
        f"{output} has no checkpoint that is whole: {damage.what}. Copy one there from elsewhere, "
        f"or {FROM_SCRATCH}"
    )


def days_left(conf: Conf, record: Sequence[DayRecord], accept: bool) -> list[str]:
    """The days that a run has left, in the order to train them; one that was begun is the first.

    Reports days without files, and trained days whose files have changed. Raises Failure when
    there is no day at all, and for a day that comes late unless `accept`.
    """
    listed = days_of(conf)
    # Files of trained days may be removed, but not the folder that new ones are expected in.
    if not listed.there and not (record and any(map(files.exists, folders_of_days(conf)))):
        raise none_there(conf)
    trained = [entry.day for entry in record]
    newest = in_order(trained)[-1] if trained else None
    known = {calendar(day) or day for day in trained}
    left = [day for day in listed.there if (calendar(day) or day) not in known]
    for name, mature_days in conf.data.late_labels.items() if not record else ():
        refuse_if(
            mature_days >= (most := most_days(conf.data)),
            f"label {name} has mature_days={mature_days}, and data.days={conf.data.days} has "
            f"{most} days: it is never mature. Leave the end of data.days open, or take more days",
        )
    late = [day for day in left if newest is not None and comes_before(day, newest)]
    if late and not accept:
        raise Failure(
            f"data.train: {named(late)} came late, {newest} is trained already. With accept=true "
            "it is trained now, as the newest; or leave it out in data.days"
        )
    gaps = [day for day in listed.absent if newest is None or comes_before(newest, day)]
    if gaps and left:
        say(f"data.train: {named(gaps)} left out: there is no file")
    if listed.later:
        say(
            f"data.train: {named(listed.later)} not there yet: run the same command again when "
            "they are"
        )
    for entry in record:
        waits = None in (entry.late or {}).values()  # its files will have a label that is known
        is_trained = entry.last_step is not None and not waits
        if is_trained and (url := changed_file(conf, entry)) is not None:
            say(
                f"data.train: {entry.day} is trained already and is not again: {url} is new or "
                "has changed since"
            )
    return [entry.day for entry in record if entry.last_step is None] + left


def changed_file(conf: Conf, entry: DayRecord) -> str | None:
    """A file of a trained day that has changed since, or is new; None where files are removed.

    Files are compared by name and not by path: the folder may be reached by another path now.
    """
    trained = [named_by_file(file) for file in entry.files or ()]
    if not trained:
        return None
    try:
        current = Source(conf_of_day(conf, entry.day), "train").fingerprints()
    except files.AbsentError:
        return None
    return next((file.file for file in current if named_by_file(file) not in trained), None)


def named_by_file(file: Fingerprint) -> Fingerprint:
    return replace(file, file=bare(file.file).rsplit("/", 1)[-1])


def check(conf: Conf, overwrite: bool, accept: bool) -> None:
    """Refuse a conf that cannot be trained, by its keys. Raises UserError, Failure."""
    check_rules(conf)
    warm_start.check(conf, overwrite)
    baseline.check(conf)
    mlflow_run.require(conf.monitor.mlflow)
    if accept and not daily(conf):
        raise UserError("accept=true is for days: data.train has no {day}. Leave it out")


def check_rules(conf: Conf) -> None:
    """Refuse a conf whose sections do not go together in training. Raises UserError."""
    row_split.check(conf.data)
    for rules in (schedule, row_life):
        rules.check(conf)


def check_files(conf: Conf, overwrite: bool) -> None:
    """Refuse an output that cannot be written, and data that is not there or lacks a column.

    Of each split the beginning of the first file is read. The data of a run that is resumed is not
    looked at: what is trained already need not be there. Raises UserError, Failure.
    """
    is_new = overwrite or not any(newest_first(files.join(conf.output, CHECKPOINTS)))
    with files.locked(conf.output, is_written=is_new):
        run_folder.check(conf)
    if is_new:
        splits = [split for split in SPLITS if split != "test" or conf.evaluation.test]
        sources.require(conf, splits, columns_read(conf))
        if conf.evaluation.by:
            reported = first_given(conf.data, reported_splits(conf.evaluation))
            refuse_if(
                reported is None,
                "evaluation.by is of data.test or data.validation, and neither is given",
            )
            sources.require(conf, [str(reported)], list(columns_of(conf).values()))
