"""Which filters and which earlier exports a checkpoint can be exported with."""

from collections.abc import Mapping

import numpy as np

from tnctl.checkpoint import tombstones
from tnctl.checkpoint.chain import Checkpoint
from tnctl.errors import UserError, did_you_mean
from tnctl.saved_conf import conf_of
from tnctl.schema import Slot
from tnctl.serving.rows.export_document import Filter, RowsManifest
from tnctl.serving.rows.precision import RowShape


def chosen_groups(checkpoint: Checkpoint, slots: Mapping[str, Slot], filter: Filter) -> set[str]:
    """The names of the groups that a filter's slots read; `slots` are the conf's.

    Raises UserError.
    """
    tables = checkpoint.manifest.tables
    exported = [slot for table in tables for slot in table.slots]
    for slot in filter.slots or ():
        if slot not in exported:
            raise UserError(f"no slot {slot} with rows to export. {did_you_mean(slot, exported)}")
    wanted = exported if filter.slots is None else filter.slots
    chosen = {slots[slot].group or slot for slot in wanted}
    if filter.min_show is not None and not 0 <= filter.min_show < np.inf:
        raise UserError(f"min_show must be a number from 0 on. Received: {filter.min_show}")
    if filter.top is not None and filter.top < 1:
        raise UserError(f"top must be a whole number from 1 on. Received: {filter.top}")
    for table in tables if filter.counts else ():
        names = [group.name for group in table.groups if group.name in chosen]
        if names and not table.life.shows:
            key = "min_show" if filter.min_show is not None else "top"
            raise UserError(
                f"{key} needs rows that keep their show, and those of {names[0]} do not. "
                "Train with life.shows.keep=true, or leave it out"
            )
    return chosen


def check_since(
    checkpoint: Checkpoint, filter: Filter, precision: str, since: RowsManifest
) -> None:
    """Raise UserError unless a checkpoint continues the training of an earlier export's."""
    folder, step, sessions = since.checkpoint.folder, since.clock.step, since.sessions
    for key, then, now in (
        ("precision", since.precision, precision), ("filter", since.filter, filter)
    ):  # fmt: skip
        if then != now:
            raise UserError(
                f"the export of since= has {key} {then}, and this one {now}. Give the same, "
                "or export in full without since="
            )
    later = checkpoint.sessions[len(sessions) :]
    continued = sessions and checkpoint.sessions[: len(sessions)] == sessions
    if not continued or (later and later[0][1] - 1 < step):
        raise UserError(
            f"the export of since= ({folder}) was exported from another training than "
            f"{checkpoint.folder}: export in full, without since="
        )
    if step > checkpoint.step:
        raise UserError(
            f"the export of since= is of step {step:,} ({folder}), which is after step "
            f"{checkpoint.step:,} of {checkpoint.folder}. Name a later checkpoint"
        )
    kept = conf_of(checkpoint.conf(), checkpoint.folder).save.tombstone_days
    calendar = checkpoint.clock.days or checkpoint.calendar
    if tombstones.first_step_kept(calendar, kept) > step + 1:
        raise UserError(
            f"the export of since= is of step {step:,} ({folder}), and what was removed since is "
            f"kept for {kept} days only (save.tombstone_days): export in full, without since="
        )


def check_shapes(shapes: dict[str, RowShape], since: RowsManifest) -> None:
    """Raise UserError unless the groups and the kinds of their rows are the same in `since`."""
    for name in since.shapes | shapes:
        if since.shapes.get(name) != shapes.get(name):
            raise UserError(
                f"the export of since= has other groups or other rows: {name} differs. Export in "
                "full, without since="
            )
