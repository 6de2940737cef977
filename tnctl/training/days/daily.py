"""Daily training: which days are left, what each looks like, and how the model does on it before.

A checkpoint carries the record: an entry for every day that was begun. Whatever is not in it is
trained, in order; so running the same command again does nothing, or goes on.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tnctl import files
from tnctl.data.day_records import DayRecord, Fingerprint, OfDay
from tnctl.data.days import (
    calendar,
    comes_before,
    conf_of_day,
    day_number,
    days_of,
    in_order,
    none_there,
)
from tnctl.data.days import in_words as named
from tnctl.data.pieces import EmptyError, EmptyFileError
from tnctl.data.sources import fingerprints
from tnctl.errors import Failure
from tnctl.evaluation.evaluate import labelled_heads, metrics_line
from tnctl.evaluation.metrics import scalars
from tnctl.masking import bare
from tnctl.model.building import Model
from tnctl.progress import say, waiting
from tnctl.schema import Conf
from tnctl.training.days import gate
from tnctl.training.days.day_figures import DayFigures
from tnctl.training.report import Report, number_of
from tnctl.training.workers import Workers


def plan(conf: Conf, record: Sequence[DayRecord], accept: bool) -> list[str]:
    """The days that are left, in the order to train them; one that was begun is the first.

    Days that are not there are named, and so are trained ones whose files have changed. Raises
    Failure when there is no day at all, and for a day that comes late unless `accept`.
    """
    listed = days_of(conf)
    begun = [entry.day for entry in record if entry.last_step is None]
    trained = [entry.day for entry in record]
    if not listed.there and not record:
        raise none_there(conf)
    known = {calendar(day) or day for day in trained}
    left = [day for day in listed.there if (calendar(day) or day) not in known]
    newest = in_order(trained)[-1] if trained else None
    late = [day for day in left if newest is not None and comes_before(day, newest)]
    if late and not accept:
        raise Failure(
            f"data.train: {named(late)} came late, {newest} is trained already. With accept=true "
            "it is trained now, as the newest; or leave it out in data.days"
        )
    tell(conf, record, left, listed.absent, listed.later)
    return begun + left


def tell(
    conf: Conf, record: Sequence[DayRecord], left: list[str], absent: list[str], later: list[str]
) -> None:
    """Name the days that are not trained, and why."""
    newest = in_order(entry.day for entry in record)[-1:] if record else []
    gaps = [day for day in absent if not newest or comes_before(newest[0], day)]
    if gaps and left:
        say(f"data.train: {named(gaps)} left out: there is no file")
    if later:
        say(f"data.train: {named(later)} not there yet: the same command trains on when they are")
    for entry in record:
        if entry.last_step is not None and (url := changed_file(conf, entry)) is not None:
            say(
                f"data.train: {entry.day} is trained already and is not again: {url} is new or "
                "has changed since"
            )


def changed_file(conf: Conf, entry: DayRecord) -> str | None:
    """A file of a trained day that is not as it was trained; old days may be gone, all of them.

    Files are known by their own names: the folder may be reached by another path than then.
    """
    trained = [seen(file) for file in entry.files or ()]
    if not trained:
        return None
    try:
        there = fingerprints(conf_of_day(conf, entry.day), "train")
    except files.AbsentError:
        return None
    return next((file.file for file in there if seen(file) not in trained), None)


def seen(file: Fingerprint) -> Fingerprint:
    """A file as it is told from others."""
    return replace(file, file=bare(file.file).rsplit("/", 1)[-1])


class Daily:
    """The days of a run. `left` are to be trained, `record` is what checkpoints carry of all."""

    def __init__(self, conf: Conf, record: Sequence[DayRecord], accept: bool) -> None:
        self.conf, self.accept = conf, accept
        self.record = list(record)
        self.left = plan(conf, record, accept)

    @property
    def under_way(self) -> str | None:
        """The day that was begun and not ended."""
        begun = [entry.day for entry in self.record if entry.last_step is None]
        return begun[0] if begun else None

    @property
    def first(self) -> str:
        """The day that a new run begins with."""
        return self.left[0] if self.left else self.record[-1].day

    def all_are_in(self, report: Report) -> bool:
        """Whether a report tells of every day on record."""
        return [day.day for day in report.days or ()] == [entry.day for entry in self.record]

    def begin(self, day: str, workers: Workers, steps: int, previous: int) -> DayRecord:
        """Look at a day, evaluate the model on it, and put it on record; returns its entry.

        `previous` is the number of the day before, 0 where there is none.
        One pass over its data. On the first day of a new model there is nothing to evaluate.
        Raises Failure when the day is empty, or not as days were before, unless `accept`.
        """
        conf = conf_of_day(self.conf, day)
        there = fingerprints(conf, "train")
        recent = self._recent()
        edges = {name: values for other in recent for name, values in other.edges().items()}
        figures = DayFigures(workers.model, edges)
        new = not steps and not any(table.rows for table in workers.model.tables)
        metrics = None
        unusual: list[str] = []
        try:
            with waiting(f"looking at {day}"):
                metrics = workers.look(conf, figures, scored=not new)
            looked = figures.result()
            unusual = self._judge(day, looked, recent, metrics, workers.model)
        except (EmptyError, EmptyFileError) as error:
            if isinstance(error, EmptyFileError) and len(there) > 1:
                raise
            looked, unusual = figures.result(), ["it has no row"]
            if not self.accept:
                raise Failure(
                    f"{day} has no row ({there[0].file}). Nothing is trained on it; write its "
                    "files again, or accept=true to go on without it"
                ) from error
        if not looked.examples:
            say(f"{day} has no row and is passed over (accept=true)")
        elif unusual:
            say(f"{day} is trained as it is (accept=true): {'; '.join(unusual)}")
        entry = DayRecord(
            day=day,
            number=day_number(day, previous),
            first_step=steps + 1,
            last_step=None,
            rows=looked.examples,
            before=None if metrics is None else scalars(metrics),
            new_ids={
                name: round(1 - figure.known, 6)
                for name, figure in looked.inputs.items()
                if figure.known is not None and not new
            },
            accepted=unusual,
            files=there,
            statistics=looked if looked.examples else None,
        )
        self.record.append(entry)
        self._forget()
        if metrics is not None:
            shown = metrics_line(metrics)
            say(f"{day}  before it is trained: {shown}  {looked.examples:,} examples")
        return entry

    def evicted(self, removed: dict[str, int]) -> None:
        """Rows, by group, were removed at the end of the day under way."""
        if removed:
            known = self.record[-1].evicted or {}
            total = {name: known.get(name, 0) + rows for name, rows in removed.items()}
            self.record[-1] = replace(self.record[-1], evicted=known | total)

    def end(self, steps: int) -> DayRecord:
        """The day under way is trained, up to `steps`; returns its summary."""
        entry = self.record[-1] = replace(self.record[-1], last_step=steps)
        self.left = [day for day in self.left if day != entry.day]
        return entry.summary()

    def summaries(self) -> list[DayRecord]:
        """Every day, as a report has it."""
        return [entry.summary() for entry in self.record]

    def _recent(self) -> list[OfDay]:
        """What the last gate.days days looked like, the oldest first."""
        statistics = [entry.statistics for entry in self.record if entry.statistics is not None]
        return statistics[-self.conf.gate.days :]

    def _judge(
        self,
        day: str,
        looked: OfDay,
        recent: list[OfDay],
        metrics: dict[str, Any] | None,
        model: Model,
    ) -> list[str]:
        """What is accepted though it is not as it was. Raises Failure when it is not accepted."""
        names = [entry.day for entry in self.record if entry.statistics is not None]
        for name, other in zip(names[-len(recent) :], recent, strict=True):
            if looked.same_rows(other):
                say(f"{day} seems to have the very rows of {name}: is it the right data?")
        if not self.conf.gate.enabled:
            return []
        findings = gate.findings(self.conf.gate, looked, recent)
        auc = None if metrics is None else metrics.get("auc")
        if auc is not None and looked.labels:
            label = list(looked.labels)[labelled_heads(model)[0][2]]
            clicks = looked.labels[label] * looked.examples
            recorded = self.record[-self.conf.gate.days :]
            known = [number_of(entry.before or {}, "auc") for entry in recorded]
            earlier = [value for value in known if value is not None]
            if gate.turned_round(auc, earlier, clicks, looked.examples - clicks):
                findings.insert(0, gate.backwards(auc, earlier))
        if findings and not self.accept:
            raise Failure(
                f"{day} looks broken: {gate.in_words(findings)}. Nothing is trained on it; mend "
                "its files, or accept=true to train it as it is"
            )
        return [finding.sentence for finding in findings]

    def _forget(self) -> None:
        """Drop what only the gate needs from days that it looks at no longer."""
        with_rows = [n for n, entry in enumerate(self.record) if entry.statistics is not None]
        for number in with_rows[: -self.conf.gate.days]:
            self.record[number] = self.record[number].summary()
