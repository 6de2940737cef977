"""The pages about coming from other systems: their confs train, on the data that they show."""

import json
import re
from pathlib import Path

import pytest
import yaml

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = ("from-paddle", "from-easyrec", "from-feature-columns")
TIMES = 30  # that the rows of a page are there: it shows a few, and one batch is trained
SECTIONS = "slots|numeric|embedding|optimizer|data|train|evaluation|save|life|cluster|warm"


def saved(page: str, folder: Path) -> list[str]:
    """Save the conf and the data of a page as it says; its commands."""
    text = (DOCS / f"{page}.md").read_text()
    [(name, conf)] = re.findall(r"`(\w+\.yaml)`:\n\n```yaml\n(.*?)```", text, re.S)
    (folder / name).write_text(conf)
    [(sentence, sample)] = re.findall(r"^(.*)\n\n```data\n(.*?)```", text, re.S | re.M)
    sentence = sentence.splitlines()[-1]
    data = yaml.safe_load(conf)["data"]
    lines = sample.splitlines(keepends=True)
    has_header = data.get("format", "csv") == "csv" and data.get("header", True)
    head, rows = (lines[:1], lines[1:]) if has_header else ([], lines)
    names = re.findall(r"`(data/\S+)`", sentence)
    assert len(names) == 2
    for file in names:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("".join([*head, *rows * TIMES]))
    return re.findall(r"^    tnctl (.*)$", text, re.M)


@pytest.mark.parametrize("page", PAGES)
def test_the_conf_of_a_page_trains(ran, tmp_path, page):
    train, *_ = saved(page, tmp_path)
    ran(*train.split(), cwd=tmp_path)
    [output] = re.findall(r"output=(\S+)", train)
    report = json.loads((tmp_path / output / "report.json").read_text())
    assert report["steps"] == 2
    *_, checkpoint = sorted((tmp_path / output / "checkpoints").iterdir())
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    rows = {g["name"]: g["rows"] for table in manifest["tables"] for g in table["groups"]}
    assert rows
    assert all(rows.values()), rows


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs(cli, tmp_path, page):
    commands = saved(page, tmp_path)
    assert len(commands) == 4
    for command in commands:
        done = cli(*command.split(), cwd=tmp_path)
        assert done.code == 0, f"{command}\n{done.err}"


@pytest.mark.parametrize("page", [*PAGES, "tensornet"])
def test_keys_that_pages_name_are_there(page):
    sections = re.split(r"^### ", (DOCS / "conf.md").read_text(), flags=re.M)
    known: set[str] = set()
    for section in sections[1:]:
        head, _, table = section.partition("\n")
        for name in re.findall(r"`([\w.]+)`", head):
            known |= {
                name,
                *(f"{name}.{key}" for key in re.findall(r"^\| `(\w+)` \|", table, re.M)),
            }
    text = (DOCS / f"{page}.md").read_text()
    named = set(re.findall(rf"`((?:{SECTIONS})\.[\w.]+)[`:]", text))
    assert len(named) > 5
    assert not {key for key in named if key not in known}
