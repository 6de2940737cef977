"""`life`: when ids get rows, what is counted of them, and when rows are removed."""

from dataclasses import dataclass

from tnctl.errors import refuse_if
from tnctl.schema.declarations import Section, choice, key, number


@dataclass
class Admission(Section):
    """When an id gets a row; until then it reads zeros and takes no memory."""

    after: int = number(
        1, 1, 255, "the occurrence of an id in the data that makes its row (1: the first)"
    )
    probability: float = number(
        1.0,
        1e-6,
        1,
        "instead of `after`: the chance of each occurrence, a function of seed, id and number",
    )

    def check(self) -> None:
        refuse_if(
            self.after > 1 and self.probability < 1,
            "takes `after` or `probability`, not both. Received: "
            f"after={self.after} and probability={self.probability}",
        )


@dataclass
class Shows(Section):
    """How often ids were shown and clicked (the first label), decayed day by day."""

    keep: bool = key(
        False, "keep show and click of each row; eviction by them, and cvm, keep them too"
    )
    decay: float = number(0.98, 0, 1, "what a day (of daily training) leaves of show and click")
    cvm: bool = key(
        False,
        "show and ln(click+1) - ln(show+1) follow each embedding, as inputs that nothing "
        "trains; slots of width 0 have none",
    )


@dataclass
class Eviction(Section):
    """Which rows are removed: at each day's end, at each epoch's without days."""

    unseen_days: int | None = number(
        None,
        1,
        2**31,
        "rows without an update for more days (of daily training) than this",
        unit="days",
    )
    unseen_steps: int | None = number(
        None, 1, 2**31, "rows without an update for more steps than this"
    )
    show: float | None = number(None, 0, 1_000_000_000, "rows whose decayed show is below this")
    logic: str = choice(
        "or",
        ("or", "and"),
        "or: below show, or unseen (TensorNet's logic 0); and: below show and unseen (1)",
    )
    score: float | None = number(
        None,
        0,
        1_000_000_000,
        "rows whose (show - click) * nonclick + click * click_weight is below this (Paddle's)",
    )
    nonclick: float = number(0.1, 0, 1_000_000, "in score, the weight of a show without a click")
    click_weight: float = number(1.0, 0, 1_000_000, "in score, the weight of a click")
    rows: int | None = number(
        None,
        1,
        2**40,
        "the most rows of each share group: above it the least valuable are removed at once, down "
        "to 15/16",
    )
    bytes: int | None = number(
        None, 1024, 2**50, "the same bound in bytes of rows, without their index", unit="bytes"
    )
    every_steps: int | None = number(None, 1, 2**31, "also remove rows every N steps")

    def check(self) -> None:
        refuse_if(
            self.rows is not None and self.bytes is not None,
            "is bounded by `rows` or by `bytes`, not by both",
        )
        for weight in ("nonclick", "click_weight") if self.score is None else ():
            refuse_if(
                getattr(self, weight) != getattr(Eviction, weight),
                f"{weight} is a weight in score; give score too",
            )
        unseen = self.unseen_days is not None or self.unseen_steps is not None
        refuse_if(
            self.logic == "and" and not (self.show is not None and unseen),
            "logic=and needs show, and unseen_days or unseen_steps",
        )
        refuse_if(
            self.every_steps is not None and not self.removes,
            "every_steps says how often; say which rows too: unseen_steps, unseen_days, show "
            "or score",
        )

    @property
    def removes(self) -> bool:
        """Whether it has a rule, beside the bound."""
        rules = (self.unseen_days, self.unseen_steps, self.show, self.score)
        return any(rule is not None for rule in rules)

    @property
    def bounds(self) -> bool:
        """Whether it has a bound."""
        return self.rows is not None or self.bytes is not None


@dataclass
class GroupLife(Section):
    """The life of one share group's rows, where a part of it differs from the others'."""

    admission: Admission | None = key(None, "when an id gets a row")
    shows: Shows | None = key(None, "show and click")
    eviction: Eviction | None = key(None, "which rows are removed")


@dataclass(frozen=True)
class RowLife:
    """The life of one share group's rows, complete."""

    admission: Admission
    shows: Shows
    eviction: Eviction

    @property
    def waits(self) -> bool:
        """Whether ids are counted before they get a row."""
        return self.admission.after > 1 or self.admission.probability < 1

    @property
    def counts(self) -> bool:
        """Whether rows keep show and click."""
        by_shows = self.eviction.show is not None or self.eviction.score is not None
        return self.shows.keep or self.shows.cvm or by_shows

    @property
    def eventful(self) -> bool:
        """Whether anything is on: else a row is made at once, counts nothing and stays."""
        return self.waits or self.counts or self.eviction.removes or self.eviction.bounds


@dataclass
class Life(Section):
    """The life of rows, from the first occurrence of an id to their removal."""

    admission: Admission = key(Admission, "when an id gets a row")
    shows: Shows = key(Shows, "show and click")
    eviction: Eviction = key(Eviction, "which rows are removed")
    sketch: int = number(
        16_777_216,
        65_536,
        2**36,
        "bytes, per table, of the sketch that counts ids that have no row yet",
        unit="bytes",
    )
    groups: dict[str, GroupLife] = key(
        dict, "for single share groups: a part given here replaces the part for all"
    )
