"""`tnctl rollback`."""

from tnctl.cli import arguments
from tnctl.cli.checkpoint_choice import output_of
from tnctl.errors import UserError, refuse_if

TAKES = ("step", "day")
USAGE = """output=RUN step=N | day=DAY

The run is then as it was when it had trained N steps, or DAY and the days before: checkpoints
saved later go to RUN/rolled_back, and log, report and record of days go back. The next train
resumes there."""


def run(given: list[str]) -> int:
    """Go back to a checkpoint of a run."""
    taken, rest = arguments.part(given, TAKES)
    output = output_of(rest)
    if output is None or len(rest) > 1:
        raise UserError(f"give output=RUN and step=N or day=DAY. Received: {' '.join(given)}")
    refuse_if(len(taken) != 1, "give either step=N or day=DAY: which checkpoint to go back to")
    step = arguments.count(taken, "step", 0) if "step" in taken else None
    from tnctl.progress import say
    from tnctl.training.run_folder import roll_back

    checkpoint, moved = roll_back(output, step, taken.get("day"))
    for folder in moved:
        say(f"moved to {folder}")
    say(f"{output} is as it was at {checkpoint.folder}: `tnctl train` trains on from there")
    return 0
