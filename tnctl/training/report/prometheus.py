"""Figures of runs as a text file, as node_exporter's textfile collector reads it.

The format is Prometheus' text-based exposition format, version 0.0.4. docs/operations.md has alerts
on these figures.
"""

import re
import time

from tnctl import files
from tnctl.errors import UserError, refuse_if
from tnctl.masking import masked
from tnctl.progress import say

EXPORT = "tnctl_export_timestamp_seconds"
# Type and help of each figure, by its name, in the order of the file.
FIGURES = {
    "tnctl_running": ("gauge", "1 while a process trains the run, 0 after its end."),
    "tnctl_exit_code": ("gauge", "Exit code of the last process that trained the run."),
    "tnctl_update_timestamp_seconds": ("gauge", "When training last wrote these figures."),
    "tnctl_success_timestamp_seconds": ("gauge", "When training last ended with exit code 0."),
    "tnctl_checkpoint_timestamp_seconds": ("gauge", "When saving of the newest checkpoint began."),
    EXPORT: ("gauge", "When the newest export or publication was complete."),
    "tnctl_day_timestamp_seconds": ("gauge", "The newest day that is trained, 00:00 UTC."),
    "tnctl_day_examples": ("gauge", "Examples of the newest day that is trained."),
    "tnctl_gate_refused": ("gauge", "1 if the last process refused a day, else 0."),
    "tnctl_gate_accepted": ("gauge", "Findings of the gate on the newest day, accepted."),
    "tnctl_steps": ("gauge", "Steps of the run."),
    "tnctl_rows": ("gauge", "Rows of all tables."),
    "tnctl_evicted_rows": ("gauge", "Rows that rules of life have evicted since the run began."),
    "tnctl_run_seconds": ("gauge", "Seconds that processes have trained the run."),
    "tnctl_auc": ("gauge", "Area under the ROC curve."),
    "tnctl_ne": ("gauge", "Normalised entropy."),
    "tnctl_copc": ("gauge", "Clicks over predicted clicks."),
}
METRICS = ("auc", "ne", "copc")
LINE = re.compile(r'(\w+)(\{run="(?:[^"\\]|\\.)*".*\}) (nan|-?inf|-?[\d.]+(?:e[-+]?\d+)?)')
MOST_BYTES = 1 << 24
Samples = dict[tuple[str, str], float]


def labels(output: str, **others: str) -> str:
    """The labels of a figure of the run in `output`: `{run="…",…}`."""
    pairs = {"run": masked(output), **others}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def put(url: str, samples: Samples) -> None:
    """Set figures, by name and labels, in the file; its others stay, as of other commands.

    Raises UserError for a file that is not of tnctl, Failure for one that cannot be written.
    """
    merged = _read(url) | samples
    lines = []
    for name, (kind, meaning) in FIGURES.items():
        of_name = {key: value for key, value in merged.items() if key[0] == name}
        if of_name:
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{of_run} {float(value)!r}" for (_, of_run), value in of_name.items()]
    files.write_bytes(url, "".join(f"{line}\n" for line in lines).encode())


def _read(url: str) -> Samples:
    """The figures of a file; none without it, or in an empty one."""
    is_link, text = files.is_link(url), ""
    if not is_link and files.exists(url):
        text = files.read_bytes(url, most=MOST_BYTES).decode(errors="replace")
    refuse_if(
        is_link or (text != "" and not text.startswith("# HELP tnctl_")),
        f"{url} is not a file that tnctl wrote, and is not replaced. Move it away, or choose "
        "another monitor.prometheus",
    )
    matches = filter(None, map(LINE.fullmatch, text.split("\n")))
    return {(match[1], match[2]): float(match[3]) for match in matches}


def exported(url: str, output: str) -> None:
    """Note that an export of the run in `output` is complete; what fails here does not undo it."""
    try:
        put(url, {(EXPORT, labels(output)): time.time()})
    except UserError as error:
        say(f"warning: {error}. The export is complete")
