"""What the tests of limits share: confs over one file, reading it, the memory that takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import Failure, UserError
from tnctl.schema import Conf, Data, Label, Slot, Train

# Of each format of lines: a header, a row of a value, the columns of value and label.
TEXT = {
    "csv": (b"a,y\n", b"%s,0\n", "a", "y"),
    "jsonl": (b"", b'{"a": "%s", "y": 0}\n', "a", "y"),
    "libsvm": (b"", b"0 %s\n", "features", "label"),
    "paddle": (b"", b"y:0 a:%s\n", "a", "y"),
}
# What separates the values of a row, what stands around them.
LISTS = {
    "csv": (b"|", b"%s"),
    "jsonl": (b",", b"[%s]"),
    "libsvm": (b" ", b"%s"),
    "paddle": (b" a:", b"%s"),
}


def conf_of(url, format, slots=None, numeric=None, window=1 << 16, **data):
    column, label = TEXT.get(format, ("", "", "a", "y"))[2:]
    separator = "|" if format == "csv" else None
    return Conf(
        recipe={"name": "lr"},
        slots={"a": Slot(column=column, separator=separator)} if slots is None else slots,
        numeric=numeric or {},
        data=Data(train=str(url), format=format, window=window, label=Label(column=label), **data),
        train=Train(batch_size=8),
    )


def read(conf):
    """All windows of data.train."""
    return list(each(conf))


def each(conf):
    """The windows of data.train, one after the other."""
    features = Features(conf, [(list(conf.slots), [1] * len(conf.slots))], Statistics())
    return windows(Source(conf, "train"), features)


def refused(conf, *words, kind=Failure):
    with pytest.raises(UserError) as caught:
        read(conf)
    text = str(caught.value)
    assert type(caught.value) is kind or isinstance(caught.value, kind)
    assert "\n" not in text and len(text) < 500
    for word in words:
        assert word in text, text


def row_of(format, value):
    return TEXT[format][1].replace(b"%s", value)


def list_of(format, count):
    between, around = LISTS[format]
    row = TEXT[format][1]
    if format == "jsonl":
        row = b'{"a": %s, "y": 0}\n'
    return row.replace(b"%s", around.replace(b"%s", between.join([b"7"] * count)))


MEMORY = """
import os, sys
from pathlib import Path
os.sched_getaffinity = lambda _: set(range(8))  # as many blocks at once as on a large machine
sys.path.insert(0, sys.argv[1])
from bounded import conf_of, each
from tnctl.errors import UserError
def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
for name, kind in (pair.split("=") for pair in sys.argv[2:]):
    before = peak()
    try:
        outcome = sum(window.rows for window in each(conf_of(name, kind)))
    except UserError as error:
        outcome = str(error)
    print(f"{peak() - before:.0f} {kind} {outcome}", flush=True)
"""


def memory_of(named):
    """The memory, in MiB, that reading files takes one after the other, and what came of each."""
    pairs = [f"{path}={kind}" for path, kind in named]
    command = [sys.executable, "-c", MEMORY, str(Path(__file__).parent), *pairs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return sum(float(peak) for peak, _, _ in lines), [outcome for _, _, outcome in lines]
