"""The five-minute tour of README.md: every command runs, in its order."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"


def commands() -> list[str]:
    """The indented `tnctl …` lines of the tour."""
    tour = README.read_text().split("## Five minutes")[1].split("\n## ")[0]
    return re.findall(r"^    (tnctl .*)$", tour, re.M)


def test_the_first_two_commands_do_all_the_set_up() -> None:
    blocks = re.findall(r"^    (\S+ \S+)", README.read_text(), re.M)
    assert blocks[:2] == ["make demo", "make test"]


def test_every_command_of_the_tour_runs(here: Any, tmp_path: Path) -> None:
    found = commands()
    assert len(found) >= 7
    for command in found:
        done = here(*command.split()[1:], cwd=tmp_path)
        assert done.code == 0, f"{command}\n{done.err}"
        assert "Traceback" not in done.err
    assert (tmp_path / "runs/first/report.json").is_file()
    assert (tmp_path / "runs/first/graph/serving.json").is_file()
    assert (tmp_path / "runs/first/embeddings/manifest.json").is_file()
