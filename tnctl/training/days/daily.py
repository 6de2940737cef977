"""Daily training: which days are left, what each looks like, and how the model does on it before.

A checkpoint has the record: an entry for every day that was begun. The days that are not in it are
trained, in order; so repeating the same command resumes a run, and changes nothing once all days
are trained.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tnctl import files
from tnctl.checkpoint.document import Position, number_of
from tnctl.data.day_records import DayRecord, LateLabel, OfDay
from tnctl.data.days import (
    conf_of_day,
    day_number,
)
from tnctl.data.file_pieces import EmptyError, EmptyFileError
from tnctl.data.sources import Source
from tnctl.errors import Failure
from tnctl.evaluation.metrics import Scored, scalars
from tnctl.evaluation.platt_scaling import recalibrated
from tnctl.evaluation.split_scoring import Counts, labelled_heads, metrics_line
from tnctl.model.building import Model
from tnctl.model.parameter_tables import Recalibration, total_rows
from tnctl.progress import say, waiting
from tnctl.schema import Conf
from tnctl.training import schedule
from tnctl.training.days import gate
from tnctl.training.days.day_figures import DayFigures
from tnctl.training.loop import (
    DayEnds,
    DayLooked,
    DayStarts,
    Events,
    LateTrained,
    RowsEvicted,
    Visit,
    train_passes,
)
from tnctl.training.state import RunState
from tnctl.training.workers import Workers

SHARE_OF_DAY = 0.15  # of what would have been best for a day: how far a model is recalibrated


class Daily:
    """The days of a run. `left` are to be trained, `record` is what checkpoints have of all."""

    def __init__(
        self, conf: Conf, record: Sequence[DayRecord], left: Sequence[str], accept: bool
    ) -> None:
        self.conf, self.accept = conf, accept
        self.record, self.left = list(record), list(left)
        self.late, self.prompt = conf.data.late_labels, conf.data.prompt_labels

    @property
    def under_way(self) -> str | None:
        """The day that was begun and not ended."""
        return next((entry.day for entry in self.record if entry.last_step is None), None)

    @property
    def first(self) -> str:
        """The day that a new run begins with."""
        return self.left[0] if self.left else self.record[-1].day

    def begin(self, day: str, workers: Workers, steps: int, previous: int) -> DayRecord:
        """Evaluate the model on a day, compare the day to earlier ones, and return its new record.

        `previous` is the number of the day before, or 0. A new model's first day is not evaluated.
        Raises Failure, unless `accept`, for a day that is empty or not as days were before.
        """
        conf = conf_of_day(self.conf, day)
        data = Source(conf, "train").fingerprints()
        looks = [entry.statistics for entry in self.record if entry.statistics is not None]
        recent = looks[-self.conf.gate.days :]
        edges = {name: values for earlier in recent for name, values in earlier.edges().items()}
        rows = total_rows(workers.figures())
        figures = DayFigures(workers.model, edges, workers.contains if rows else None)
        is_new, scored = not steps and not rows, None
        try:
            with waiting(f"looking at {day}"):
                scored = workers.look(conf, figures, scored=not is_new)
            scored = scored and of_labels(scored, workers.model, self.prompt)
            metrics = None if scored is None else scored.metrics()
            looked = figures.result()
            unusual = self._judge(day, looked, recent, metrics, workers.model)
        except (EmptyError, EmptyFileError) as error:
            if isinstance(error, EmptyFileError) and len(data) > 1:
                raise
            if not self.accept:
                raise gate.DayRefused(
                    f"{day} has no row ({data[0].file}). Nothing is trained on it; write its "
                    "files again, or accept=true to train without it"
                ) from error
            metrics, looked, unusual = None, figures.result(), [gate.Anomaly("it has no row", 1.0)]
        sentences = [finding.sentence for finding in unusual]
        if not looked.examples:
            say(f"{day} has no row and is passed over (accept=true)")
        elif unusual:
            say(f"{day} is trained all the same (accept=true): {'; '.join(sentences)}")
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
                if figure.known is not None and not is_new
            },
            accepted=sentences,
            files=data,
            statistics=looked if looked.examples else None,
            changes={change.name: change.changes for change in unusual if change.changes} or None,
            late=dict.fromkeys(self.late) if self.late and looked.examples else None,
        )
        self.record.append(entry)
        self._shorten_record()
        if scored is not None and metrics is not None:
            line = f"{metrics_line(metrics)}  {looked.examples:,} examples"
            say(f"{day}  before it is trained: {line}")
            recalibrate_for_next_day(self.conf, workers.model, day, scored)
        return entry

    def due(self) -> tuple[int, list[str]] | None:
        """The place in the record of the first day to be trained on late labels, and which.

        Those that were begun, else those that are mature on the day under way; None without any.
        """
        for place, entry in enumerate(self.record[:-1]):
            late = {name: of for name, of in (entry.late or {}).items() if name in self.late}
            begun = [name for name, of in late.items() if of is not None and of.last_step is None]
            age = self.record[-1].number - entry.number
            mature = [name for name, of in late.items() if of is None and self.late[name] <= age]
            if begun or mature:
                return place, begun or mature
        return None

    def begin_late(self, place: int, labels: list[str], workers: Workers, steps: int) -> bool:
        """Evaluate the model on a day of the record before it is trained on late labels.

        False where the day has no row or no file any more, which raises Failure unless `accept`.
        """
        entry, scored, model, data = self.record[place], None, workers.model, None
        conf, named = conf_of_day(self.conf, entry.day), ", ".join(labels)
        try:
            with waiting(f"looking at {entry.day} for {named}"):
                data = Source(conf, "train").fingerprints()
                scored = workers.look(conf, Counts(model.layout), scored=True)
        except (EmptyError, files.AbsentError) as error:
            if not self.accept:
                raise Failure(
                    f"{entry.day} is to be trained on {named} now, and has no row any more. Put "
                    "its files back, or accept=true to go on without"
                ) from error
            say(f"{entry.day} has no row any more and is passed over for {named} (accept=true)")
        late = dict(entry.late or {})
        for name in labels:
            figures = None
            if scored is not None:
                figures = scalars(of_labels(scored, model, [name]).metrics())
                line = f"{metrics_line(figures)}  {len(scored.labels):,} examples"
                say(f"{entry.day}  before it is trained on {name}: {line}")
            late[name] = LateLabel(self.record[-1].day, steps + 1, None, figures)
        # The files may have been written again, with these labels.
        known = entry.files if entry.files is None or scored is None else data
        self.record[place] = replace(entry, late=late, files=known)
        if scored is not None:
            of_late = of_labels(scored, model, labels)
            recalibrate_for_next_day(self.conf, model, entry.day, of_late)
        return scored is not None

    def end_late(self, place: int, labels: list[str], steps: int) -> DayRecord:
        """Record that a day is trained on late labels, up to `steps`; return its summary."""
        entry = self.record[place]
        late = {
            name: replace(of, last_step=steps) if of is not None and name in labels else of
            for name, of in (entry.late or {}).items()
        }
        self.record[place] = replace(entry, late=late)
        return self.record[place].summary()

    def _shorten_record(self) -> None:
        """Drop what only the gate needs of days that are too old to be compared to."""
        with_rows = [i for i, entry in enumerate(self.record) if entry.statistics is not None]
        for index in with_rows[: -self.conf.gate.days]:
            self.record[index] = self.record[index].summary()

    def add_evicted(self, removed: dict[str, int]) -> None:
        """Record rows, by group, that were removed at the end of the day under way."""
        if removed:
            known = self.record[-1].evicted or {}
            total = {name: known.get(name, 0) + rows for name, rows in removed.items()}
            self.record[-1] = replace(self.record[-1], evicted=known | total)

    def end(self, steps: int) -> DayRecord:
        """Record that the day under way is trained, up to `steps`; return its summary."""
        entry = self.record[-1] = replace(self.record[-1], last_step=steps)
        self.left = [day for day in self.left if day != entry.day]
        return entry.summary()

    def _judge(
        self,
        day: str,
        looked: OfDay,
        recent: list[OfDay],
        metrics: dict[str, Any] | None,
        model: Model,
    ) -> list[gate.Anomaly]:
        """What the gate finds in an accepted day. Raises Failure for findings not accepted."""
        names = [entry.day for entry in self.record if entry.statistics is not None]
        for name, earlier in zip(names[-len(recent) :], recent, strict=True):
            if looked.same_rows(earlier):
                say(f"{day} seems to have the very rows of {name}: is it the right data?")
        if not self.conf.gate.enabled:
            return []
        findings = gate.findings(self.conf.gate, looked, recent, gate.ordinary(self.record))
        auc = None if metrics is None else metrics.get("auc")
        if auc is not None and looked.labels:
            label = list(self.conf.data.all_labels)[labelled_heads(model, self.prompt)[0][2]]
            independent = looked.examples / gate.label_effect(label, recent)
            clicks = looked.labels[label] * independent
            known = self.record[-self.conf.gate.days :]
            aucs = (number_of(entry.before or {}, "auc") for entry in known)
            usual = [value for value in aucs if value is not None]
            if gate.turned_round(auc, usual, clicks, independent - clicks):
                findings.insert(0, gate.backwards(auc, usual))
        if findings and not self.accept:
            raise gate.DayRefused(
                f"{day} looks broken: {gate.in_words(findings)}. Nothing is trained on it; repair "
                "its files, or accept=true to train it all the same"
            )
        return findings


def recalibrate_for_next_day(conf: Conf, model: Model, day: str, scored: Scored) -> None:
    """Correct a model, if a conf wants it, by the predictions of a day before it is trained.

    It goes a share of the way, for one day is noisy, and what is wrong on every day is corrected
    after some.
    """
    if not schedule.recalibrates(conf):
        return
    fitted, _ = recalibrated(scored, day)
    for head, of_day in fitted.items():
        earlier = model.recalibration.get(head, Recalibration(slope=1.0, intercept=0.0))
        corrected = of_day.after(earlier, SHARE_OF_DAY)
        model.recalibration = model.recalibration | {head: corrected}
        of_head = f" head {head}" if len(model.trained_heads) > 1 else ""
        say(
            f"{day}  recalibrated{of_head} for the next day: slope {corrected.slope:.4f}, "
            f"intercept {corrected.intercept:+.4f}"
        )


def of_labels(scored: Scored, model: Model, labels: Sequence[str]) -> Scored:
    """The same examples with the heads of some labels; a reference goes with the main head."""
    heads = [head for head, _, _ in labelled_heads(model, labels)]
    chosen = [scored.heads.index(head) for head in heads]
    logits, of_heads = scored.logits[:, chosen], scored.labels[:, chosen]
    reference = scored.reference if 0 in chosen else None
    return replace(scored, heads=heads, logits=logits, labels=of_heads, reference=reference)


def train_days(conf: Conf, state: RunState, workers: Workers, daily: Daily) -> Events:
    """Train every day that is left; a day that was begun before is resumed.

    Raises Failure for a day that may not be trained, and what `train_passes` raises.
    """
    while daily.left:
        if daily.under_way is None:
            started = time.perf_counter()
            record = _begin_day(state, workers, daily)
            yield DayLooked(record, time.perf_counter() - started)
        yield from _train_late(conf, state, workers, daily)
        record = daily.record[-1]
        if record.rows:
            conf_of_record = conf_of_day(conf, record.day)
            visit = Visit(daily.prompt if daily.late else None, record.rows)
            yield DayStarts(conf_of_record)
            with contextlib.closing(train_passes(conf_of_record, state, workers, visit)) as passes:
                for event in passes:
                    if isinstance(event, RowsEvicted):
                        daily.add_evicted(event.removed)
                    yield event
        else:
            daily.add_evicted(workers.end_of_period())
        summary = daily.end(state.steps)
        state.position = Position(passes=state.position.passes)
        yield DayEnds(summary, is_last=not daily.left)


def _train_late(conf: Conf, state: RunState, workers: Workers, daily: Daily) -> Events:
    """Train earlier days on the labels that are mature now, the oldest first.

    They come before the day under way, so that what is trained last is the newest.
    """
    while (due := daily.due()) is not None:
        place, labels = due
        entry, started = daily.record[place], time.perf_counter()
        is_resumed = state.position.day == entry.day
        is_there = is_resumed or daily.begin_late(place, labels, workers, state.steps)
        seconds = time.perf_counter() - started
        if not is_resumed:
            state.position = Position(entry.day, passes=state.position.passes)
        if is_there:
            conf_of_record = conf_of_day(conf, entry.day)
            yield DayStarts(conf_of_record)
            visit = Visit(tuple(labels), entry.rows, again=True)
            yield from train_passes(conf_of_record, state, workers, visit)
        record = daily.end_late(place, labels, state.steps)
        state.position = Position(daily.record[-1].day, passes=state.position.passes)
        yield LateTrained(record, seconds)


def _begin_day(state: RunState, workers: Workers, daily: Daily) -> DayRecord:
    """Begin the first day that is left, on the clock of the tables too."""
    previous = state.clock_days[-1][0] if state.clock_days else 0
    record = daily.begin(daily.left[0], workers, state.steps, previous)
    # On the first day also rows of a warm start from a run without days are of this day.
    state.clock_days.append((record.number, record.first_step if state.clock_days else 1))
    workers.set_days(state.clock_days)
    state.position = replace(state.position, day=record.day)
    return record
