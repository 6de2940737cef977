"""What rank 0 tells the other workers to do: JSON documents, checked where they come in."""

import json
import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Union, cast

from tnctl import documents
from tnctl.checkpoint.owners import GroupPart, PartRequest
from tnctl.cluster.messages.export_commands import ExportCommand
from tnctl.cluster.messages.reading_commands import Predict, SendPredictions
from tnctl.cluster.messages.server_commands import Drain, MakeDense, SetDense
from tnctl.cluster.transport.frames import Body
from tnctl.data.statistics_document import Statistics
from tnctl.data.unit_records import Progress, Remainder
from tnctl.documents import Count, Name, Share, Text, Uint32
from tnctl.errors import Failure
from tnctl.model.parameter_tables import Recalibration


@dataclass(frozen=True, kw_only=True)
class SetDays:
    """Set the days of the tables' clock: (day, first step)."""

    command: Literal["set_days"] = "set_days"
    days: tuple[tuple[Uint32, Uint32], ...]


@dataclass(frozen=True, kw_only=True)
class SetCounting:
    """Say whether occurrences count in the tables from now on."""

    command: Literal["set_counting"] = "set_counting"
    counting: bool


@dataclass(frozen=True, kw_only=True)
class SeeOutput:
    """Read a file that rank 0 wrote into the output; the reply is a `Seen`."""

    command: Literal["see_output"] = "see_output"
    name: documents.RelativePath
    content: Text


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Further texts of a slot's vocabulary, for the next `Build`."""

    command: Literal["vocabulary"] = "vocabulary"
    slot: Name
    values: list[str]


@dataclass(frozen=True, kw_only=True)
class Build:
    """Make a model with initial weights; the reply is a `Built`.

    `statistics` are without vocabularies, which `Vocabulary` has sent. `batch_size` is rank 0's.
    """

    command: Literal["build"] = "build"
    statistics: Statistics
    batch_size: Count


@dataclass(frozen=True, kw_only=True)
class StartWarm:
    """Give the model that was built what a warm start begins with; the reply is a `Warmed`.

    `sha256` is the digest of the manifest of the checkpoint in `folder`.
    """

    command: Literal["start_warm"] = "start_warm"
    folder: Text
    sha256: documents.Sha256


@dataclass(frozen=True, kw_only=True)
class Load:
    """Load this worker's shards and all dense weights of a checkpoint; the reply is a `Loaded`."""

    command: Literal["load"] = "load"
    folder: Text
    batch_size: Count
    working_folder: bool  # whether rank 0's paths start from there


@dataclass(frozen=True, kw_only=True)
class Start:
    """Take part from now on in the training of the model that was made."""

    command: Literal["start"] = "start"
    steps: Uint32


@dataclass(frozen=True, kw_only=True)
class TakeUnits:
    """Further units, or what is left of them, for the next `StartPass` or `Evaluate`."""

    command: Literal["take_units"] = "take_units"
    remainders: tuple[Remainder, ...]


@dataclass(frozen=True, kw_only=True)
class StartPass:
    """Begin to read the units that were sent before; the reply is a `PassStarted`."""

    command: Literal["start_pass"] = "start_pass"
    day: Text | None
    passes: Count


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train steps until rank 0 pauses; the reply is a `Trained`."""

    command: Literal["train"] = "train"


@dataclass(frozen=True, kw_only=True)
class EndPass:
    """Read no further."""

    command: Literal["end_pass"] = "end_pass"


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Score the units of a split that were sent before; the reply is a `UnitsScored`.

    `moving` has the moving statistics of batch norms, which rank 0 keeps; `recalibration` is that
    of the model, by head.
    """

    command: Literal["evaluate"] = "evaluate"
    split: Text
    moving: tuple[tuple[float, ...], ...]
    recalibration: dict[Name, Recalibration] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FindKeys:
    """Which of n keys of a table have a row; the reply is n bytes, 0 or 1."""

    command: Literal["find_keys"] = "find_keys"
    table: Count
    groups: str  # base64 of little-endian numbers: uint16 [n]
    ids: str  # the same of uint64 [n]


@dataclass(frozen=True, kw_only=True)
class SumNorms:
    """Add up the norms of embeddings, for the report; the reply is a `Norms`."""

    command: Literal["sum_norms"] = "sum_norms"


@dataclass(frozen=True, kw_only=True)
class SendScores:
    """The reply is a block (scores.py) of the examples scored last; the last block drops them."""

    command: Literal["send_scores"] = "send_scores"
    first: Count
    rows: Count


@dataclass(frozen=True, kw_only=True)
class EndPeriod:
    """Evict as a day or an epoch ends; the reply is an `Evicted`."""

    command: Literal["end_period"] = "end_period"


@dataclass(frozen=True, kw_only=True)
class CountRows:
    """Count rows and ids; the reply is a `TableCounts`."""

    command: Literal["count_rows"] = "count_rows"


@dataclass(frozen=True, kw_only=True)
class DenseStates:
    """The reply is one of the optimizer's states of the dense slice, float32, by its place."""

    command: Literal["dense_states"] = "dense_states"
    place: Count


@dataclass(frozen=True, kw_only=True)
class MeasurePart:
    """The reply is the `PartSize` of this worker's part of a checkpoint."""

    command: Literal["measure_part"] = "measure_part"
    is_delta: bool


@dataclass(frozen=True, kw_only=True)
class StagePart:
    """Write this worker's part of a checkpoint; the reply is its `StagedPart`."""

    command: Literal["stage_part"] = "stage_part"
    request: PartRequest


@dataclass(frozen=True, kw_only=True)
class FinishPart:
    """Bring the files of the part to their place; the reply is the `WrittenPart`."""

    command: Literal["finish_part"] = "finish_part"


@dataclass(frozen=True, kw_only=True)
class CommitPart:
    """The manifest is there."""

    command: Literal["commit_part"] = "commit_part"


@dataclass(frozen=True, kw_only=True)
class AbandonPart:
    """There will be no manifest."""

    command: Literal["abandon_part"] = "abandon_part"


@dataclass(frozen=True, kw_only=True)
class Stop:
    """To rank 0: this worker received a signal that asks to stop, and rank 0 saves and ends all."""

    command: Literal["stop"] = "stop"
    signal: Count


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """To rank 0: the tables of this worker may not have room to grow, and `reason` says why."""

    command: Literal["shortage"] = "shortage"
    rank: Count
    reason: Text


@dataclass(frozen=True, kw_only=True)
class LeaseUnit:
    """To rank 0: this worker reads another unit; the reply is `TakeUnits`, empty without any."""

    command: Literal["lease_unit"] = "lease_unit"


@dataclass(frozen=True, kw_only=True)
class End:
    """The run is finished: the process ends."""

    command: Literal["end"] = "end"


Command = Union[  # noqa: UP007 - a union of many lines
    Vocabulary, Build, StartWarm, Load, Start, TakeUnits, StartPass, Train, EndPass, Evaluate,
    SendScores, FindKeys, SumNorms, SetDays, SetCounting, EndPeriod, CountRows, DenseStates,
    MeasurePart, StagePart, FinishPart, CommitPart, AbandonPart, SeeOutput, Stop, LeaseUnit,
    Shortage, End, Predict, SendPredictions, MakeDense, SetDense, Drain, ExportCommand,
]  # fmt: skip
KINDS: dict[str, Any] = {
    kind.__dataclass_fields__["command"].default: kind for kind in cast(Any, Command).__args__
}
_START = re.compile(rb'\{"command": "([a-z_]+)"')  # as `encode` writes it
# Units or texts of one command. Parsing keeps all threads of a process from running, and so the
# heartbeats: 10,000 units take 0.1 s.
PER_COMMAND = 10_000
# Run by the thread that completes checkpoints, while the main thread trains.
OF_CHECKPOINTS = frozenset({"finish_part", "commit_part", "abandon_part"})


# ---- Replies -----------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Seen:
    """Whether the file is there and has the content."""

    seen: bool


@dataclass(frozen=True, kw_only=True)
class Built:
    """The digest of all that is dense, which must be that of rank 0, and the rows by table."""

    dense: documents.Sha256
    rows: tuple[Count, ...]


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The model of a checkpoint is made; or, for rank 0 to take another one, what is damaged."""

    built: Built | None = None
    damage: Text = ""


@dataclass(frozen=True, kw_only=True)
class Warmed:
    """The same digest, and the rows of this worker by share group."""

    dense: documents.Sha256
    rows: dict[str, Count]


@dataclass(frozen=True, kw_only=True)
class PassStarted:
    """Whether there is a batch."""

    has_batch: bool


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How far this worker is in the pass, None before its first batch.

    `skipped` counts the rows so far that cannot be read, the first for the reason `reason`.
    """

    progress: Progress | None
    skipped: Count
    reason: Text


@dataclass(frozen=True, kw_only=True)
class UnitsScored:
    """What a worker has of the units that it scored.

    `rows` are the examples of each unit, `arrays` the names of their arrays. `skipped` rows could
    not be read, the first of them for `reason`; the others are counts over all examples, by
    input of the model.
    """

    rows: tuple[Count, ...]
    arrays: tuple[Name, ...]
    skipped: Count
    reason: Text = ""
    examples: Count
    present: dict[str, Count]
    ids: dict[str, Count]


@dataclass(frozen=True, kw_only=True)
class Evicted:
    """Rows removed by share group, and the shares of `eviction.miscounted` by table."""

    rows: dict[str, Count] = field(default_factory=dict)
    miscounted: dict[str, Share] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TableCount:
    """Rows and bytes of a worker's part of a table, and the counts of its share groups."""

    rows: Count
    bytes: Count
    groups: tuple[GroupPart, ...]


@dataclass(frozen=True, kw_only=True)
class TableCounts:
    """The counts of each table."""

    tables: tuple[TableCount, ...]


@dataclass(frozen=True, kw_only=True)
class Norms:
    """By slot, how many embeddings were looked at, and the sum of their norms."""

    slots: dict[str, tuple[Count, documents.Finite]]


@dataclass(frozen=True, kw_only=True)
class Done:
    """Nothing else to say."""


def encode(document: Any) -> bytes:
    """The JSON of a command or reply."""
    return json.dumps(documents.plain(document)).encode()


def name_of(body: Body) -> str:
    """The name of a command, without a look at what follows it. Raises Failure for what is none."""
    start = _START.match(body)
    name = "" if start is None else start[1].decode()
    if name not in KINDS:
        raise Failure("a command is unknown: do all workers have the same version of tnctl?")
    return name


def command_of(body: bytes) -> Command:
    """The command in a body. Raises Failure."""
    return cast(Command, reply_of(KINDS[name_of(body)], body))


def reply_of(kind: type[documents.Document], body: Any) -> documents.Document:
    """The document of a kind in a body. Raises Failure."""
    try:
        return documents.parse(kind, bytes(body))
    except documents.DocumentError as error:
        raise Failure(f"a message of another worker is wrong: {error}") from error


def replies_of(
    kind: type[documents.Document], futures: Sequence[Future[Body]]
) -> list[documents.Document]:
    """The documents of a kind that are the results of futures. Raises Failure."""
    return [reply_of(kind, future.result()) for future in futures]
