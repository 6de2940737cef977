"""Every command of README.md runs, in order; outputs that documents show are what is printed."""

import csv
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tnctl import progress

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
COMMAND = re.compile(r"^    (tnctl .*)$")
ANY_LINES = "…"


class Step(NamedTuple):
    """A command of a page, and the lines of output that the page shows below it, if any."""

    command: str
    shown: list[str]


def steps_of(page: Path) -> list[Step]:
    """The indented `tnctl` lines of a page, each with the block ```text that follows it."""
    steps: list[Step] = []
    block: list[str] | None = None
    previous = ""
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            follows = line == "```text" and COMMAND.match(previous)
            block = steps[-1].shown if follows else None
        elif block is not None:
            block.append(line)
        elif match := COMMAND.match(line):
            steps.append(Step(match[1], []))
        previous = line if line else previous
    return steps


def masked(line: str) -> str:
    """A line without what differs between machines: figures, units, bars and widths of columns."""
    line = re.sub(r"[▏▎▍▌▋▊▉█]+", "", line)
    line = re.sub(r"[-+]?\d[\d,.]*(e[-+]\d+)?%?", "0", line)
    line = re.sub(r"\b(B|KiB|MiB|GiB)\b", "bytes", line)
    line = re.sub(r"\b0 (s|min|h|days?)\b", "0 seconds", line)
    return " ".join(line.split())


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether the printed lines are those shown, where `…` is any number of lines."""
    if not shown:
        return not printed
    if shown[0] == ANY_LINES:
        return any(matches(shown[1:], printed[at:]) for at in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and matches(shown[1:], printed[1:])


def write_clicks(folder: Path) -> None:
    """The files that clicks.yaml and daily.yaml of README.md read."""
    draw = random.Random(1)

    def rows(count: int) -> list[list[object]]:
        return [
            [draw.randrange(2), f"u{draw.randrange(90)}", f"i{draw.randrange(50)}",
             "|".join(draw.sample("abcdef", draw.randrange(4))), draw.randrange(18, 80),
             round(draw.uniform(1, 99), 2), draw.randrange(24)]
            for _ in range(count)
        ]  # fmt: skip

    for name, count in (("train-0.csv.gz", 900), ("train-1.csv.gz", 900), ("validation.csv", 300),
                        ("2026-11-01/a.csv", 600), ("2026-11-02/a.csv", 600)):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["clicked", "user", "item", "tags", "age", "price", "hour"])
            writer.writerows(rows(count))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the files that a reader of README.md has saved."""
    folder = tmp_path_factory.mktemp("readme")
    write_clicks(folder / "clicks")
    blocks = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.S)
    for name, block in zip(("clicks.yaml", "daily.yaml"), blocks, strict=True):
        (folder / name).write_text(block)
    return folder


@pytest.fixture(scope="module")
def tour(cli: Any, folder: Path) -> list[tuple[Step, Any]]:
    """Each command of README.md with its result."""
    with pytest.MonkeyPatch.context() as patch:
        # A slow machine prints a line of progress every ten seconds.
        patch.setattr(progress, "SECONDS_BETWEEN_LINES", float("inf"))
        return [(step, cli(*step.command.split()[1:], cwd=folder)) for step in steps_of(README)]


def check_output(step: Step, result: Any) -> None:
    """The shown block is the standard output, then the standard error, with figures masked."""
    assert result.code == 0, f"{step.command}\n{result.err}"
    assert "Traceback" not in result.err
    shown = [masked(line) for line in step.shown]
    printed = [masked(line) for line in (result.out + result.err).splitlines()]
    assert not shown or matches(shown, printed), (
        f"{step.command} prints something else than the page shows:\n{result.out}{result.err}"
    )


def aucs(lines: list[str]) -> list[float]:
    """Every AUC in lines of output: after the word, and in the table of a sweep below it."""
    text = "\n".join(lines)
    names = re.findall(r"(?:^AUC .*|\bauc|\breference)  *(0\.\d+)", text, re.M)
    return [float(auc) for auc in names + re.findall(r"^recipe=\w+ +(0\.\d+)", text, re.M)]


def test_the_first_two_commands_do_all_the_set_up() -> None:
    commands = re.findall(r"^    (make \S+|pip .*|source \S+)", README.read_text(), re.M)
    assert commands == ["make demo", "make test", "source .venv/bin/activate"]


def test_the_program_that_loads_a_graph_scores_a_row(
    tour: Any, folder: Path, ran: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del tour  # has written the graph
    [program] = re.findall(r"```python\n(import tensorflow.*?)```", README.read_text(), re.S)
    monkeypatch.chdir(folder)
    values: dict[str, Any] = {}
    exec(program, values)
    rows = [
        {"user": "u1", "item": "i7", "tags": "a|c", "age": 31, "price": 9.5, "hour": 20},
        {"user": "u2", "item": "i7", "tags": "", "age": None, "price": 9.5, "hour": 21},
    ]
    (folder / "two.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ran("score", "graph=runs/clicks/online", "input=two.jsonl", "to=scored.jsonl", cwd=folder)
    scored = map(json.loads, (folder / "scored.jsonl").read_text().splitlines())
    predictions = values["scores"]["predictions"].numpy().tolist()
    assert [line["prediction"] for line in scored] == pytest.approx(predictions, abs=1e-6)


def test_every_command_of_the_readme_runs_and_prints_what_is_shown(tour: Any, folder: Path) -> None:
    assert len(tour) >= 14
    assert sum(bool(step.shown) for step, _ in tour) >= 4
    compared = 0
    for step, result in tour:
        check_output(step, result)
        if "deepfm" in step.command and step.shown:  # generated clicks, the same everywhere
            shown = aucs(step.shown)
            # What the page leaves out by `…` comes before the lines that it shows.
            printed = aucs((result.out + result.err).splitlines())[-len(shown) :]
            assert printed == pytest.approx(shown, abs=0.003), step.command
            compared += len(shown)
    assert compared == 9
    for name in ("report.json", "predictions.parquet", "graph/serving.json",
                 "embeddings/manifest.json"):  # fmt: skip
        assert (folder / "runs/first" / name).is_file(), name
    assert (folder / "runs/clicks/report.json").is_file()
    assert (folder / "runs/daily/report.json").is_file()


def keys_of(value: Any) -> set[str]:
    """The keys of a JSON value, except names that the conf gives: of tables, inputs, groups."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if not isinstance(value, dict):
        return set()
    named = {"tables", "importance", "life", "new_ids", "evicted"}
    keys = set(value)
    for key, inner in value.items():
        if key in named and isinstance(inner, dict):
            inner = list(inner.values())
        keys |= keys_of(inner)
    return keys


@pytest.mark.usefixtures("tour")
def test_every_key_of_report_and_log_is_documented(folder: Path) -> None:
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("train.md", "daily.md"))
    for run in ("first", "clicks", "daily"):
        report = json.loads((folder / "runs" / run / "report.json").read_text())
        lines = (folder / "runs" / run / "log.jsonl").read_text().splitlines()
        keys = keys_of(report) | keys_of([json.loads(line) for line in lines])
        assert len(keys) > 30
        assert [key for key in sorted(keys) if f"`{key}`" not in pages] == [], run


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
@pytest.mark.usefixtures("tour")
def test_outputs_in_documents_are_what_is_printed(page: Path, cli: Any, folder: Path) -> None:
    for step in steps_of(page):
        if step.shown:
            check_output(step, cli(*step.command.split()[1:], cwd=folder))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a 0", ANY_LINES, "c"], ["a 0", "x", "y", "c"], True),
        (["a 0", ANY_LINES, "c"], ["a 0", "c"], True),
        (["a 0", "c"], ["a 0", "x", "c"], False),
        (["a 0"], ["a 0", "c"], False),
        ([ANY_LINES, "b"], ["a"], False),
    ],
)
def test_any_lines(shown: list[str], printed: list[str], same: bool) -> None:
    assert matches(shown, printed) is same


def test_masked_lines_keep_their_words() -> None:
    assert masked("epoch 1/1  1,000 rows  auc 0.84 (4.0 MiB)") == masked(
        "epoch 1/1  9 rows  auc 0.8399    (93 KiB)"
    )
    assert masked("saving a checkpoint") != masked("saved a checkpoint")
