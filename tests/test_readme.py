"""The five-minute tour of README.md: every command runs, in its order."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def commands() -> list[str]:
    """The indented `tnctl …` lines of the tour."""
    tour = README.read_text().split("## Five minutes")[1].split("\n## ")[0]
    return re.findall(r"^    (tnctl .*)$", tour, re.M)


def test_the_first_two_commands_do_all_the_set_up() -> None:
    blocks = re.findall(r"^    (\S+ \S+)", README.read_text(), re.M)
    assert blocks[:2] == ["make demo", "make test"]


def test_every_command_of_the_tour_runs(tmp_path: Path) -> None:
    found = commands()
    assert len(found) >= 7
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in found:
        done = subprocess.run(
            command.split(), cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert "Traceback" not in done.stderr
    assert (tmp_path / "runs/first/report.json").is_file()
    assert (tmp_path / "runs/first/graph/serving.json").is_file()
    assert (tmp_path / "runs/first/embeddings/manifest.json").is_file()
