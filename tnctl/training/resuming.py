"""What a run is resumed from: its newest whole checkpoint, if conf and data are the same."""

import contextlib
import itertools
from collections.abc import Collection, Iterator
from datetime import UTC, datetime

from tnctl import files, manifest, ownership
from tnctl.checkpoint import dense_file
from tnctl.checkpoint.chain import name_of, split
from tnctl.checkpoint.load import Checkpoint, load, open_checkpoint
from tnctl.data.day_records import Fingerprint
from tnctl.data.days import conf_of_day
from tnctl.data.sources import fingerprints
from tnctl.errors import Failure, UserError, quoted
from tnctl.file_urls import is_plain
from tnctl.manifest import DamagedError
from tnctl.masking import bare, bare_conf, is_masked
from tnctl.model.building import Model
from tnctl.model.graph import conf_to_json
from tnctl.ownership import CHECKPOINT
from tnctl.progress import say
from tnctl.schema import Conf, differences
from tnctl.training import pass_sums
from tnctl.training.run_folder import CHECKPOINTS, DAMAGED
from tnctl.training.state import RunState

# Keys, and parts with all their keys, that may be others when a run is gone on with: the model and
# the figures of the report come out the same.
NOT_COMPARED = {
    "output",
    "save",
    "gate",
    "data.days",
    "train.threads",
    "train.tensorboard",
    "train.profile",
}


def start(conf: Conf) -> Checkpoint | None:
    """The checkpoint to go on from, or None for a new run.

    Raises UserError when the folder has a run of another conf.
    """
    # Whoever has started warm once need not say so again.
    skipped = NOT_COMPARED if conf.warm.start else {*NOT_COMPARED, "warm"}
    damage: DamagedError | None = None
    for folder in newest_first(conf.output):
        try:
            checkpoint = open_checkpoint(folder)
            differing = differences(bare_conf(conf_to_json(conf)), bare_conf(checkpoint.conf()))
        except DamagedError as error:
            say(str(error))
            damage = damage or error
            continue
        if differing := [key for key in differing if not {key, key.split(".")[0]} & skipped]:
            raise UserError(
                f"{conf.output} has a run of another conf; these keys differ: "
                f"{', '.join(differing)}. Choose another output, or overwrite=true to start anew"
            )
        return checkpoint
    if damage is not None:
        raise nothing_whole(conf.output, damage)
    return None


def newest_first(output: str) -> Iterator[str]:
    """The folders of checkpoints that have a manifest."""
    above = files.join(output, CHECKPOINTS)
    for name in reversed(files.list_folder(above)):
        folder = files.join(above, name)
        if files.exists(files.join(folder, manifest.NAME)):
            yield folder


def nothing_whole(output: str, damage: DamagedError) -> Failure:
    return Failure(
        f"{output} has no checkpoint that is whole: {damage.what}. Copy one there from elsewhere, "
        "or overwrite=true to start anew"
    )


def load_newest(conf: Conf, checkpoint: Checkpoint) -> tuple[Checkpoint, Model]:
    """The model to go on with, and the checkpoint it is of: `checkpoint`, or one before it.

    When its files are damaged the one before is taken, and so on, and that is said; those that are
    passed over are moved to `damaged` under the output. Raises Failure when none is left, or when
    data that training was in the middle of has changed.
    """
    damage: DamagedError | None = None
    passed: list[str] = []
    for folder in newest_first(conf.output):
        # Of those that are newer, the manifest or the conf is damaged.
        if folder <= checkpoint.folder:
            try:
                candidate = open_checkpoint(folder)
                check_data(conf, candidate)
                pass_sums.read(candidate, classes=True)  # not to find out later that it is damaged
                model = load(candidate, conf)
            except DamagedError as error:
                say(str(error))
                damage = damage or error
            else:
                for damaged in passed:
                    set_aside(conf.output, damaged)
                return candidate, model
        passed.append(folder)
    assert damage is not None
    raise nothing_whole(conf.output, damage)


def set_aside(output: str, folder: str) -> None:
    """Move a checkpoint that cannot be used out of the way of those to come.

    Files in it that tnctl did not write stay.
    """
    checkpoint = ownership.survey(folder, CHECKPOINT)
    if files.is_link(folder) or not checkpoint.owned:
        say(f"{folder} cannot be used, and stays: nothing says that tnctl wrote its files")
        return
    name = split(folder)[1]
    taken = set(files.list_folder(files.join(output, DAMAGED)))
    names = (name if number == 1 else f"{name}.{number}" for number in itertools.count(1))
    to = files.join(output, f"{DAMAGED}/{next(free for free in names if free not in taken)}")
    ownership.move(checkpoint, CHECKPOINT, to)
    say(f"{folder} cannot be used, and is now {to}")


def check_data(conf: Conf, checkpoint: Checkpoint) -> None:
    """Raise Failure when data has changed that a checkpoint is in the middle of.

    Of data that was passed over whole nothing is read again.
    """
    if not checkpoint.data:
        return
    earlier = {file.file: file for file in bare(list(checkpoint.data))}
    way = way_on(conf.output, checkpoint)
    try:
        there = fingerprints(conf_of_day(conf, checkpoint.position.day), "train")
    except files.AbsentError as error:
        names = [entry.file for entry in checkpoint.data if is_plain(entry.file)]
        names = [name for name in names if not is_masked(name)]
        gone = next((name for name in names if not files.exists(name)), None)
        if gone is None:
            raise
        raise Failure(
            f"{gone} is gone, and training stopped in the middle of it. Put it back, or {way}"
        ) from error
    current = {file.file: file for file in bare(list(there))}
    for name in [*earlier, *current]:
        if earlier.get(name) != current.get(name):
            raise Failure(
                f"{name} is not what training stopped in the middle of: it was "
                f"{_in_words(earlier.get(name))}, and is {_in_words(current.get(name))}. Put the "
                f"old one back, or {way}"
            )
    if list(earlier) != list(current):
        raise Failure(
            "the files of data.train come in another order than before training stopped. Name "
            f"them as before, or {way}"
        )


def way_on(output: str, checkpoint: Checkpoint) -> str:
    """What can be done when the data of the pass under way cannot be had as it was."""
    later: list[str] = []
    for folder in newest_first(output):
        name = split(folder)[1]
        if name < checkpoint.name:
            with contextlib.suppress(Failure):
                candidate = open_checkpoint(folder)
                candidate.chain()
                if (
                    candidate.position.window == candidate.position.offset == 0
                    and not candidate.data
                ):
                    those = later[0] if len(later) == 1 else f"{later[-1]} to {later[0]}"
                    return (
                        f"remove the checkpoints of this pass ({those}) and say the same command: "
                        "it goes on from the end of the one before"
                    )
        later.append(name)
    return "overwrite=true to start anew"


def _in_words(fingerprint: Fingerprint | None) -> str:
    if fingerprint is None:
        return "not among the files of data.train"
    size = "unknown" if fingerprint.bytes is None else f"{fingerprint.bytes:,}"
    words = f"of {size} bytes"
    if fingerprint.etag is not None:
        return f"{words} with etag {quoted(fingerprint.etag)}"
    modified = fingerprint.modified
    if isinstance(modified, int):
        with contextlib.suppress(ValueError, OverflowError, OSError):  # of no such year
            modified = datetime.fromtimestamp(modified / 1e9, UTC).isoformat(sep=" ")
    return words if modified is None else f"{words}, modified {modified}"


def newest_of_step(output: str, step: int) -> str | None:
    """The folder of the last complete checkpoint that was saved after so many steps."""
    start = name_of(step)
    folders = (folder for folder in newest_first(output) if split(folder)[1].startswith(start))
    return next(folders, None)


def state_of(conf: Conf, checkpoint: Checkpoint) -> RunState:
    """The state of a run that is resumed, with the best of the models that are still there.

    Where the checkpoint of the best model is lost, the best is that of those that are left.
    """
    state = RunState.of_checkpoint(checkpoint, conf)
    stopping = state.stopping
    if conf.evaluation.keep != "best" or state.trained or stopping.best is None:
        return state
    monitor, higher = conf.evaluation.monitor, conf.evaluation.higher_is_better
    values = {evaluation.step: evaluation.figure(monitor) for evaluation in state.evaluations}
    known = {step: value for step, value in values.items() if value is not None}
    by_value = sorted(known, key=lambda step: known[step], reverse=higher)
    needed = names_of_chain(checkpoint.folder)
    lost = stopping.best_step
    if is_whole(conf.output, lost, needed):
        return state
    for step in by_value:
        if step != lost and is_whole(conf.output, step, needed):
            stopping.best, stopping.best_step = known[step], step
            say(f"the best model, of step {lost:,}, is lost; that of step {step:,} is the best now")
            return state
    stopping.best, stopping.best_step = None, 0
    say(f"the best model, of step {lost:,}, is lost; the next evaluation is the best anew")
    return state


def is_whole(output: str, step: int, needed: Collection[str], read: bool = False) -> bool:
    """Whether there is a checkpoint of so many steps that a model can be loaded from.

    Files must be there in their sizes and, with `read`, with their checksums. What is damaged is
    told and set aside, unless its name is one of `needed`.
    """
    while (folder := newest_of_step(output, step)) is not None:
        try:
            _check_whole(open_checkpoint(folder), read)
        except DamagedError as error:
            say(str(error))
            if split(folder)[1] in needed:
                return False
            set_aside(output, folder)
        else:
            return True
    return False


def _check_whole(checkpoint: Checkpoint, read: bool) -> None:
    """Raise DamagedError unless all that a model is loaded from is there."""
    for link in checkpoint.chain():
        tables = link.manifest.tables
        names = [entry.file for table in tables for entry in table.files]
        if link is checkpoint:
            names += [table.sketch.file for table in tables if table.sketch is not None]
            names.append(dense_file.NAME)
        for name in names:
            with manifest.present(link.folder, link.manifest, name):
                if read:
                    manifest.check_stored(link.folder, link.manifest, name, "Take another")
                    continue
                url, expected = files.join(link.folder, name), link.manifest.files[name].bytes
                if (size := files.size(url)) != expected:
                    what = f"{url} is damaged: {size:,} bytes, the manifest says {expected:,}"
                    raise DamagedError(link.folder, what, "Take another checkpoint")


def names_of_chain(folder: str) -> set[str]:
    """The names of a checkpoint and of those that it is built on, none when it is damaged."""
    try:
        return {link.name for link in open_checkpoint(folder).chain()}
    except Failure:
        return set()
