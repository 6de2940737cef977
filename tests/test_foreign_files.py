"""No command removes or replaces a file that tnctl did not write: through the command line."""

import json
import os
import shutil

import pytest
from conftest import ROOT
from generated_folders import stored

from tnctl import manifest


@pytest.fixture
def refused(cli):
    """A command that must be refused in one line, and change nothing below a folder."""

    def run(folder, *arguments, said):
        contents = stored(folder)
        done = cli(*arguments, cwd=folder)
        assert done.code == 2, done.err
        assert said in done.last
        assert stored(folder) == contents

    return run


def test_prepare_into_the_folder_of_its_input(workspace, refused):
    """The input lay in ud/train/raw, and `train` is a name that prepared data has too."""
    (workspace / "ud/train/raw").mkdir(parents=True)
    for name in ("train.csv", "validation.csv", "test.csv"):
        shutil.move(workspace / "clicks" / name, workspace / "ud/train/raw")
    arguments = ["prepare", "conf=small.yaml", "data.root=ud/train/raw"]
    for to in ("ud", "ud/train", "ud/train/raw", "./x/../ud"):
        refused(workspace, *arguments, f"to={to}", said="which this command reads")
    (workspace / "link").symlink_to("ud")
    refused(workspace, *arguments, "to=link", said="which this command reads")


def test_an_export_over_a_checkpoint(run_copy, refused):
    shutil.copytree(run_copy / "run", run_copy / "other")
    steps = sorted((run_copy / "run/checkpoints").iterdir())
    for to in (
        f"run/checkpoints/{steps[-1].name}", f"run/checkpoints/{steps[-1].name}/graph",
        "run/checkpoints", "run", ".",
    ):  # fmt: skip
        refused(run_copy, "export-embeddings", "output=run", f"to={to}", said="to=")
    to = f"other/checkpoints/{steps[-1].name}"
    for command in ("export-embeddings", "split-graph"):
        refused(run_copy, command, "output=run", f"to={to}", said="did not write there")
    url = f"run/checkpoints/{steps[-1].name}"
    for to in (url, "run/checkpoints", f"{url}/inner", "run"):
        refused(run_copy, "checkpoint", "compact", url, f"to={to}", said="to")


@pytest.mark.parametrize(
    "files_",
    [
        {"thesis.tex": 1, "photos": 2},
        {"thesis.tex": {"bytes": 4, "sha256": "0" * 64}},
        {"../outside": {"bytes": 4, "sha256": "0" * 64}},
    ],
)
def test_a_foreign_manifest(run_copy, refused, files_):
    mine = run_copy / "mine"
    (mine / "photos").mkdir(parents=True)
    (mine / "photos/cat.jpg").write_text("mine")
    (mine / "thesis.tex").write_text("mine")
    body = {"format": "tnctl embeddings", "version": 1, "files": files_}
    for content in (json.dumps({"files": files_}).encode(), manifest.sealed(body)):
        (mine / "manifest.json").write_bytes(content)
        for command in ("export-embeddings", "split-graph"):
            refused(run_copy, command, "output=run", "to=mine", said="did not write there")


def test_overwrite_leaves_what_is_not_of_the_run(workspace, cli):
    """Folders named like checkpoints, links among them, and files beside ours."""
    train = ["train", "conf=small.yaml", "output=run", "recipe=lr", "data.train=test.csv"]
    assert cli(*train, cwd=workspace).code == 0
    run = workspace / "run"
    outside = workspace / "outside"
    (outside / "tables").mkdir(parents=True)
    (outside / "dense.bin").write_text("mine")
    (run / "checkpoints/step-0000000099").symlink_to(outside)
    (run / "checkpoints/step-by-step").mkdir()
    (run / "checkpoints/step-by-step/dense.bin").write_text("mine")
    (run / "notes.txt").write_text("mine")
    (run / "checkpoints/notes.txt").write_text("mine")
    assert cli("export-embeddings", "output=run", "to=outside/embeddings", cwd=workspace).code == 0
    (run / "embeddings").symlink_to(outside / "embeddings")
    newest = max((run / "checkpoints").glob("step-00000000[0-8]*"))
    for name in ("best", f"{newest.name}-kept", "step-colleague"):
        shutil.copytree(newest, run / "checkpoints" / name)
    (newest / "notes.txt").write_text("mine")
    (run / "tensorboard").mkdir(exist_ok=True)
    (run / "tensorboard/mine").write_text("mine")
    kept = stored(outside)
    assert cli("evaluate", "output=run", cwd=workspace).code == 0
    assert cli(*train, "overwrite=true", "seed=2", cwd=workspace).code == 0
    assert stored(outside) == kept
    assert (run / "checkpoints/step-0000000099").is_symlink()
    for name in ("best", f"{newest.name}-kept", "step-colleague"):
        assert (run / "checkpoints" / name / "manifest.json").is_file()
    for name in (
        "notes.txt", "checkpoints/notes.txt", "checkpoints/step-by-step/dense.bin",
        f"checkpoints/{newest.name}/notes.txt",
        "tensorboard/mine",
    ):  # fmt: skip
        assert (run / name).read_text() == "mine"
    assert cli("evaluate", "output=run", cwd=workspace).code == 0
    # And a file at a path that the run writes to is refused before anything.
    shutil.rmtree(run)
    run.mkdir()
    (run / "log.jsonl").write_text("mine")
    for more in ([], ["overwrite=true"]):
        done = cli(*train, *more, cwd=workspace)
        assert done.code == 2 and "run holds log.jsonl" in done.last
        assert stored(run) == {"log.jsonl": b"mine"}


def test_a_run_writes_through_no_link(run_copy, refused):
    """Where a run writes a file or folder, a link of the user's is refused before anything."""
    run, moved = run_copy / "run", run_copy / "moved"
    train = ["train", "conf=small.yaml", "output=run"]
    for name in ("log.jsonl", "report.json", "report.html"):
        (run / name).rename(moved)
        (run / name).symlink_to(moved)
        refused(run_copy, *train, "overwrite=true", said=f"run holds {name}")
        (run / name).unlink()
        moved.rename(run / name)
    (run / "checkpoints").rename(moved)
    (run / "checkpoints").symlink_to(moved)
    for more in ([], ["overwrite=true"]):
        refused(run_copy, *train, *more, said="run/checkpoints is a symbolic link")
    (run / "checkpoints").unlink()
    (run / "checkpoints").write_text("mine")
    refused(run_copy, *train, "overwrite=true", said="run/checkpoints is a file")


def test_a_checkpoint_that_is_a_link_is_not_pruned(run_copy, ran):
    checkpoints = run_copy / "run/checkpoints"
    [newest] = sorted(checkpoints.iterdir())[-1:]
    shutil.copytree(newest, run_copy / "elsewhere")
    for name in ("step-0000000001", "step-0000000098"):  # neither is counted
        (checkpoints / name).symlink_to(run_copy / "elsewhere")
    contents = stored(run_copy)
    done = ran("checkpoint", "prune", "run", "keep=1", "yes=true", cwd=run_copy)
    for name in ("step-0000000001", "step-0000000098"):
        assert f"kept {name}: a symbolic link" in done.err
    assert stored(run_copy) == contents


def test_overwrite_keeps_the_old_run_until_a_model_can_be_made(run_copy, refused, cli):
    train = ["train", "conf=small.yaml", "output=run", "overwrite=true"]
    refused(run_copy, *train, "slots.user_id.widht=3", said="widht")
    contents = stored(run_copy)
    for wrong, said in {
        "data.train=nowhere.csv": "was not found",
        "data.root=nowhere": "was not found",
        "+slots.more={column: none}": "has no column 'none'",
    }.items():
        done = cli(*train, wrong, cwd=run_copy)
        assert done.code == 1 and said in done.last
        assert stored(run_copy) == contents


def test_a_checkpoint_alone_does_not_say_where_to_write(run_copy, refused):
    checkpoint = max((run_copy / "run/checkpoints").iterdir())
    for command in ("split-graph", "export-embeddings", "predict"):
        arguments = [command, f"checkpoint=run/checkpoints/{checkpoint.name}"]
        refused(run_copy, *arguments, said="give to=URL too")


def test_training_into_its_own_data(workspace, refused):
    (workspace / "run").mkdir()
    shutil.move(workspace / "clicks", workspace / "run/checkpoints")
    refused(
        workspace, "train", "conf=small.yaml", "output=run", "overwrite=true",
        "data.root=run/checkpoints", said="output=run/checkpoints contains",
    )  # fmt: skip


def test_a_warm_start_from_a_checkpoint_around_the_output(run_copy, refused):
    checkpoint = max((run_copy / "run/checkpoints").iterdir())
    refused(
        run_copy, "train", "conf=small.yaml", f"output=run/checkpoints/{checkpoint.name}/new",
        f"warm.start=run/checkpoints/{checkpoint.name}", said="which this command reads",
    )  # fmt: skip


@pytest.mark.long
def test_predictions_over_other_files(run_copy, cli, ran, refused):
    predict = ["predict", "output=run", "data.test=test.csv", "format=csv"]
    (run_copy / "mine.csv").write_text("mine")
    for to in ("mine.csv", "nowhere/../mine.csv"):
        refused(run_copy, *predict, f"to={to}", said="is there already")
    refused(run_copy, *predict, "to=clicks/test.csv", "overwrite=true", said="this command reads")
    for _ in range(2):  # a file of the run
        ran(*predict, cwd=run_copy)
    assert (run_copy / "run/predictions.csv").read_text().startswith('"prediction"')
    (run_copy / "run/log.jsonl").unlink()
    refused(run_copy, *predict, said="run/predictions.csv is there already")
    assert cli(*predict, "to=mine.csv", "overwrite=true", cwd=run_copy).code == 0


def test_predictions_over_the_code_of_the_recipe(workspace, cli, refused):
    (workspace / "my.py").write_text((ROOT / "recipes/lr.py").read_text())
    train = ["train", "conf=small.yaml", "recipe=my.py", "data.train=test.csv", "output=run"]
    assert cli(*train, cwd=workspace).code == 0
    refused(
        workspace, "predict", "output=run", "recipe.name=my.py", "to=my.py", "format=csv",
        "overwrite=true", said="to=my.py is my.py, which this command reads",
    )  # fmt: skip


def test_scores_over_the_file_of_the_standard_input(run_copy, cli):
    assert cli("split-graph", "output=run", "to=graph", "golden=1", cwd=run_copy).code == 0
    assert cli("export-embeddings", "output=run", "to=emb", "golden=1", cwd=run_copy).code == 0
    rows = run_copy / "rows.csv"
    shutil.copy(run_copy / "clicks/test.csv", rows)
    standard_input = os.dup(0)
    try:
        with rows.open() as stream:
            os.dup2(stream.fileno(), 0)
        done = cli(
            "score", "graph=graph", "embeddings=emb", "format=csv", "to=rows.csv",
            "overwrite=true", cwd=run_copy,
        )  # fmt: skip
    finally:
        os.dup2(standard_input, 0)
        os.close(standard_input)
    assert done.code == 2 and "which this command reads" in done.last
    assert rows.read_bytes() == (run_copy / "clicks/test.csv").read_bytes()


def test_results_without_the_log_of_a_run(run_copy, refused):
    (run_copy / "run/log.jsonl").unlink()
    refused(
        run_copy, "train", "conf=small.yaml", "output=run", "overwrite=true",
        said="run holds report.json, which tnctl did not write",
    )  # fmt: skip
