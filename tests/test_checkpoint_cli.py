"""`tnctl checkpoint list | inspect | verify | diff | compact | prune`, against dicts of rows."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dict_checkpoints
import numpy as np
import pytest

from tnctl import documents, files, manifest
from tnctl.checkpoint import inspection, listing, pruning, rows
from tnctl.checkpoint.chain import open_checkpoint
from tnctl.checkpoint.document import CheckpointManifest, Parent
from tnctl.cli.checkpoint import FIND


@pytest.fixture(scope="module")
def _history(tmp_path_factory):
    output = tmp_path_factory.mktemp("history") / "run"
    return dict_checkpoints.history(str(output), files=4)


@pytest.fixture
def home(_history, tmp_path):
    """A folder with the output of a run: four checkpoints, one full one and three deltas."""
    shutil.copytree(Path(_history[0].folder).parent.parent, tmp_path / "run")
    return tmp_path


@pytest.fixture
def saved(_history):
    """What they were made of."""
    return _history


def step(number):
    return f"run/checkpoints/step-{number:010d}"


def report_of(cli, *arguments, cwd, code=0):
    """What a command says as JSON."""
    done = cli("checkpoint", *arguments, "--json", cwd=cwd)
    assert done.code == code, done.err
    return json.loads(done.out)


def resealed(folder, change):
    """Change a manifest and give it the checksum that it then needs."""
    path = Path(folder) / "manifest.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    change(content)
    path.write_bytes(manifest.sealed(content))


def test_list(cli, saved, home):
    entries = report_of(cli, "list", "run", cwd=home)
    assert [entry["step"] for entry in entries] == [10, 20, 30, 40]
    assert [entry["kind"] for entry in entries] == ["full", "delta", "delta", "delta"]
    assert [entry["parent"] for entry in entries][1] == "step-0000000010"
    assert [entry["rows"] for entry in entries] == [len(checkpoint.rows) for checkpoint in saved]
    assert [entry["best"] for entry in entries] == [False, True, False, False]
    assert [entry["value"] for entry in entries] == [0.51, 0.52, 0.53, 0.54]
    for entry in entries:
        stored = [p for p in (home / entry["folder"]).rglob("*") if p.is_file()]
        stored = [p for p in stored if p.name != "manifest.json"]
        assert entry["bytes"] == sum(p.stat().st_size for p in stored)
        assert entry["day"] == "2021-07-24"
    for url in ("run/", "run/checkpoints", str(home / "run"), f"file://{home}/run"):
        steps = [entry["step"] for entry in report_of(cli, "list", url, cwd=home)]
        assert steps == [10, 20, 30, 40]
    done = cli("checkpoint", "list", "run", cwd=home)
    assert (done.code, done.err) == (0, "")
    assert "delta of 30" in done.out
    assert done.out.count("best") == 1


def test_weights_that_were_not_evaluated_have_no_metrics(cli, home):
    """The newest checkpoint is of step 40; the last evaluation was before."""

    def evaluated_before(content):
        content["metrics"]["evaluations"][0]["step"] = 35

    resealed(home / step(40), evaluated_before)
    assert [entry["value"] for entry in report_of(cli, "list", "run", cwd=home)][-1] is None
    assert report_of(cli, "inspect", step(40), cwd=home)["metrics"] == {}
    assert "metrics" not in cli("checkpoint", "inspect", "run", cwd=home).out


def test_list_names_what_cannot_be_used(cli, home):
    data = bytearray((home / step(20) / "manifest.json").read_bytes())
    data[100] ^= 1
    (home / step(20) / "manifest.json").write_bytes(data)
    (home / step(50)).mkdir()
    problems = [entry["problem"] for entry in report_of(cli, "list", "run", cwd=home)]
    assert problems[0] is None
    assert "is damaged" in problems[1]
    assert problems[2] == f"{step(30)} is a delta of step-0000000020, which is not there or damaged"
    assert "step-0000000030" in problems[3]
    assert "never completed" in problems[4]
    done = cli("checkpoint", "list", "run", cwd=home)
    assert done.out.count("not usable: ") == 4
    # What the others work on is the newest that can be used, but for verify.
    done = cli("checkpoint", "inspect", "run", "--json", cwd=home)
    assert json.loads(done.out)["step"] == 10
    assert f"; using {step(10)}" in done.err
    done = cli("checkpoint", "verify", "run", cwd=home)
    assert (done.code, "step-0000000020" in done.line) == (1, True)


def test_a_time_that_is_none_is_named(cli, home):
    for odd in ("yesterday", "2026-11-26T20:00:00"):
        resealed(home / step(40), lambda content, odd=odd: content.update(saved=odd))
        done = cli("checkpoint", "list", "run", cwd=home)
        assert (done.code, done.out.count("key 'saved' should be a time")) == (0, 1)


def test_list_without_the_conf(cli, home):
    (home / step(40) / "conf.json").write_text("{}")
    entries = report_of(cli, "list", "run", cwd=home)
    assert {(entry["monitor"], entry["problem"]) for entry in entries} == {(None, None)}


def test_a_parent_that_was_replaced_is_noticed(cli, home):
    resealed(home / step(10), lambda content: content.update(finished=True))
    problems = [entry["problem"] for entry in report_of(cli, "list", "run", cwd=home)]
    assert "another step-0000000010" in problems[1]
    done = cli("checkpoint", "verify", step(40), cwd=home)
    assert done.code == 1
    assert done.line.startswith(f"{step(20)} is a delta of another")


@pytest.mark.parametrize("number", range(4))
def test_inspect(cli, saved, home, number):
    was = saved[number]
    inspection = report_of(cli, "inspect", step(was.step), cwd=home)
    assert inspection["step"] == was.step
    assert len(inspection["chain"]) == number + 1
    [table] = inspection["tables"]
    rows = np.array(list(was.rows.values()), dict_checkpoints.DTYPE)
    norms = np.sqrt((rows["embedding"].astype(np.float64) ** 2).sum(1))
    assert table["rows"] == len(rows)
    assert table["tombstones"] == len(was.removed)
    assert table["record_bytes"] == dict_checkpoints.DTYPE.itemsize
    assert table["not_finite"] == 0
    day_of = {s: max([d for d, first in dict_checkpoints.DAYS if first <= s]) for s in range(1, 41)}
    unseen = np.array([day_of[was.step] - day_of[int(changed)] for changed in rows["changed"]])
    shows = rows["show"][:, 0] * dict_checkpoints.DECAY**unseen
    for group in table["groups"]:
        mine = rows["group"] == dict_checkpoints.GROUPS[group["name"]]
        assert group["rows"] == mine.sum()
        assert group["admitted"] == mine.sum() + 7
        assert (group["waiting"], group["evicted"]) == (3, 7)
        assert group["mean_norm"] == pytest.approx(norms[mine].mean())
        assert group["most_norm"] == pytest.approx(norms[mine].max())
        assert group["shows"] == pytest.approx(shows[mine].sum())
        clicks = rows["click"][mine, 0] * dict_checkpoints.DECAY ** unseen[mine]
        assert group["clicks"] == pytest.approx(clicks.sum())
    for name, values in (
        ("norms", norms),
        ("shows", shows),
        ("age_steps", was.step - rows["changed"].astype(int)),
        ("age_days", unseen),
    ):
        assert sum(entry["rows"] for entry in table[name]) == len(rows)
        for entry in table[name]:
            inside = (values >= entry["from"]) & (values < max(entry["below"], 1e-300))
            assert entry["rows"] == inside.sum(), (name, entry)
    order = np.argsort(-norms, kind="stable")[:10]
    assert [entry["norm"] for entry in table["largest"]] == pytest.approx(norms[order])
    assert {entry["id"] for entry in table["largest"]} == set(rows["id"][order].tolist())
    kernel, bias = inspection["dense"]["variables"]
    assert kernel["norm"] == pytest.approx(np.sqrt((was.kernel.astype(np.float64) ** 2).sum()))
    assert bias["norm"] == 0
    assert inspection["metrics"]["validation.auc"] == 0.5 + was.step / 1000


def test_inspect_prints_values_and_tables_without_histograms(cli, home):
    report = report_of(cli, "inspect", "run", cwd=home)
    done = cli("checkpoint", "inspect", "run", cwd=home)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    for line in ("step: 40", "    count: 9", "  name: embedding3", "      learning_rate: 0.05",
                 "  not_finite: 0", "  validation.auc: 0.54", "days: 3 entries"):  # fmt: skip
        assert line in lines
    [table] = report["tables"]
    at = lines.index("  groups:") + 1
    heads, *rows = (line.split() for line in lines[at : at + 1 + len(table["groups"])])
    assert heads == list(table["groups"][0])
    assert [row[:2] for row in rows] == [[g["name"], str(g["rows"])] for g in table["groups"]]
    first = table["largest"][0]
    assert [str(first["id"]), first["group"], f"{first['norm']:.6g}"] in map(str.split, lines)
    assert "age_steps" not in done.out and "None" not in done.out


def test_inspect_finds_what_is_not_finite(cli, tmp_path):
    chance = np.random.default_rng(0)
    rows = {(0, i): dict_checkpoints.record(chance, (0, i), 3) for i in range(50)}
    rows[0, 7]["embedding"][1] = np.nan
    rows[0, 9]["linear.accumulator"] = np.inf
    dict_checkpoints.write(
        tmp_path / step(10), 10, list(rows.values()), rows, {}, np.full(6, np.inf, "<f4")
    )
    inspection = report_of(cli, "inspect", "run", cwd=tmp_path)
    [table] = inspection["tables"]
    assert table["not_finite"] == 2
    assert table["not_finite_first"]["id"] in (7, 9)
    assert inspection["dense"]["not_finite"] == 6
    assert "  not_finite: 2\n" in cli("checkpoint", "inspect", "run", cwd=tmp_path).out


def test_verify(cli, home):
    report = report_of(cli, "verify", "run", cwd=home)
    assert report["findings"] == []
    assert report["chain"] == [step(number) for number in (10, 20, 30, 40)]
    done = cli("checkpoint", "verify", "run", cwd=home)
    assert (done.code, "is whole" in done.line) == (0, True)


DAMAGED = (
    "manifest.json", "dense.bin", "conf.json", "golden.jsonl", "extra/running",
    "graph/saved_model.pb", f"tables/{dict_checkpoints.TABLE}/00001.rows",
    f"tables/{dict_checkpoints.TABLE}/tombstones.bin",
    f"tables/{dict_checkpoints.TABLE}/sketch.bin",
)  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("damage", ["cut", "longer", "gone", "flip"])
@pytest.mark.parametrize("number", [20, 40])
def test_verify_names_a_damaged_file(cli, home, name, damage, number):
    path = home / step(number) / name
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 4
    path.write_bytes({"cut": data[:-3], "longer": data + b"\0"}.get(damage, data))
    if damage == "gone":
        path.unlink()
    done = cli("checkpoint", "verify", step(40), cwd=home)
    assert done.code == 1
    assert str(Path(step(number)) / (name if name != "manifest.json" else "")) in done.line


def test_verify_has_a_line_for_every_finding(cli, home):
    for name in DAMAGED[1:]:
        (home / step(40) / name).write_bytes(b"nothing")
    done = cli("checkpoint", "verify", "run", cwd=home)
    assert done.code == 1
    assert len(done.err.splitlines()) == len(DAMAGED) - 1
    for name in DAMAGED[1:]:
        assert name in done.err


@pytest.fixture
def tiny(tmp_path):
    """A checkpoint of two rows and a removed one."""
    chance = np.random.default_rng(0)
    rows = {(0, i): dict_checkpoints.record(chance, (0, i), 3) for i in range(2)}
    folder = tmp_path / step(10)
    dict_checkpoints.write(folder, 10, list(rows.values()), rows, {(1, 5): 4}, np.ones(6, "<f4"))
    return folder


def flipped_bytes(folder, every):
    """Flip a bit of a byte of a file, again and again; what was flipped and was not found."""
    missed = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        data = path.read_bytes()
        for at in sorted({*range(0, len(data), every), len(data) - 1}):
            damaged = bytearray(data)
            damaged[at] ^= 1 << (at % 8)
            path.write_bytes(damaged)
            report = inspection.verify(str(folder))
            if len(report.findings) != 1 or str(folder) not in report.findings[0]:
                missed.append((path.name, at, report.findings))
        path.write_bytes(data)
    return missed


def test_verify_finds_flipped_bytes(tiny):
    assert flipped_bytes(tiny, 41) == []


@pytest.mark.long
def test_verify_finds_every_flipped_byte(tiny):
    assert flipped_bytes(tiny, 1) == []


def changed(name, change):
    """Change a file of a checkpoint, and its size and checksum in the manifest."""

    def apply(folder):
        path = folder / name
        data = change(bytearray(path.read_bytes()))
        path.write_bytes(data)
        inventory = manifest.Inventory(str(folder))
        inventory.write(name, bytes(data))
        resealed(folder, lambda content: content["files"].update(documents.plain(inventory.files)))

    return apply


ROWS = f"tables/{dict_checkpoints.TABLE}/00000.rows"
SIZE = dict_checkpoints.DTYPE.itemsize


def put(at, value):
    return lambda data: data[:at] + value + data[at + len(value) :]


def golden_with(**more):
    return changed("golden.jsonl", lambda _: dict_checkpoints.golden_line("u1", **more) * 2)


def table_of(change):
    return lambda folder: resealed(folder, lambda content: change(content["tables"][0]))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (changed(ROWS, lambda data: data[:-SIZE]), "need"),
        (changed(ROWS, lambda data: data[:-1]), "rows or counters need"),
        (changed(ROWS, put(0, b"tnctlrov")), "is not the file that the manifest describes"),
        (changed("dense.bin", lambda data: data[:-4]), "its variables need"),
        (changed("dense.bin", put(0, b"T")), "is not a dense file"),
        (changed("golden.jsonl", lambda data: data * 2), "4 rows, the manifest says 2"),
        (changed("golden.jsonl", lambda _: b"{\n{\n"), "no valid JSON"),
        (changed("golden.jsonl", lambda data: data[: len(data) // 2] + b"{}\n"), "line 2: no line"),
        (golden_with(ids=["1"]), "line 1: no line of golden rows"),
        (changed("conf.json", lambda _: b"{"), "is no valid JSON"),
        (table_of(lambda part: part["files"][0].update(rows=3)), "rows or counters need"),
        (
            lambda folder: resealed(folder, lambda content: content["clock"].update(step=11)),
            "is of step 11",
        ),
    ],
)  # fmt: skip
def test_verify_finds_what_checksums_cannot(cli, tiny, tmp_path, damage, said):
    damage(tiny)
    done = cli("checkpoint", "verify", "run", cwd=tmp_path)
    assert done.code == 1
    assert said in done.err
    assert "Traceback" not in done.err


def test_diff(cli, ran, saved, home):
    difference = report_of(cli, "diff", step(10), "run", cwd=home)
    old, new = saved[0].rows, saved[3].rows
    assert difference["steps"] == [10, 40]
    both = [key for key in old if key in new]
    moved = {key for key in both if old[key].tobytes()[16:] != new[key].tobytes()[16:]}
    for group in difference["groups"]:
        number = dict_checkpoints.GROUPS[group["group"]]
        assert group["removed"] == sum(k[0] == number and k not in new for k in old)
        assert group["added"] == sum(k[0] == number and k not in old for k in new)
        assert group["changed"] == sum(k[0] == number for k in moved)
        assert group["same"] == sum(k[0] == number for k in both) - group["changed"]
    assert difference["dense"][0]["distance"] == pytest.approx(0.75 * np.sqrt(6), rel=1e-6)
    assert difference["conf"] == {"seed": [10, 40]}
    assert difference["metrics"]["validation.auc"] == [0.51, 0.54]
    done = ran("checkpoint", "diff", step(10), "run", cwd=home)
    assert "  seed: 10 -> 40\n" in done.out
    [user] = [group for group in difference["groups"] if group["group"] == "user"]
    assert list(map(str, user.values())) in map(str.split, done.out.splitlines())


def test_diff_with_itself_is_nothing(cli, home):
    difference = report_of(cli, "diff", "run", step(40), cwd=home)
    assert not any(
        group[k] for group in difference["groups"] for k in ("added", "removed", "changed")
    )
    assert difference["conf"] == {}
    assert "the confs are the same" in cli("checkpoint", "diff", "run", "run", cwd=home).out


LEFT_OUT = ("show", "click", "linear.accumulator")


def test_diff_of_runs_whose_groups_have_other_numbers_and_rows_other_fields(
    cli, saved, home, monkeypatch
):
    monkeypatch.setattr(dict_checkpoints, "GROUPS", {"item": 0, "brand": 1, "user": 2})
    names = [name for name in dict_checkpoints.DTYPE.names if name not in LEFT_OUT]
    fields = [(name, dict_checkpoints.DTYPE.fields[name][0]) for name in names]
    monkeypatch.setattr(dict_checkpoints, "DTYPE", np.dtype(fields))
    numbers = {0: 2, 1: 0}  # of user and item in the one, in the other
    there = {}
    for (group, id_), row in list(saved[3].rows.items())[::2]:
        if group in numbers:
            there[numbers[group], id_] = other = np.zeros((), dict_checkpoints.DTYPE)
            for name in names:
                other[name] = row[name]
            other["group"] = numbers[group]
    there[1, 1] = other.copy()
    there[1, 1]["group"], there[1, 1]["id"] = 1, 1
    dict_checkpoints.write(home / "other", 40, list(there.values()), there, {}, saved[3].kernel)
    difference = report_of(cli, "diff", "run", "other", cwd=home)
    by_name = {group["group"]: group for group in difference["groups"]}
    for name, number in (("user", 0), ("item", 1)):
        mine = sum(group == number for group, _ in saved[3].rows)
        kept = sum(group == numbers[number] for group, _ in there)
        assert by_name[name]["same"] == kept
        assert by_name[name]["removed"] == mine - kept
        assert by_name[name]["changed"] == by_name[name]["added"] == 0
    assert by_name["shop"]["removed"] == sum(group == 5 for group, _ in saved[3].rows)
    assert by_name["brand"]["added"] == 1


def test_diff_of_other_tables_and_variables(cli, saved, home, monkeypatch):
    monkeypatch.setattr(dict_checkpoints, "TABLE", "embedding7")
    monkeypatch.setattr(dict_checkpoints, "VARIABLES", [{"name": "deep/other", "shape": [8]}])
    rows = dict(list(saved[0].rows.items())[:5])
    dict_checkpoints.write(home / "other", 10, list(rows.values()), rows, {}, np.ones(6, "<f4"))
    difference = report_of(cli, "diff", "run", "other", cwd=home)
    assert sum(group["removed"] for group in difference["groups"]) == len(saved[3].rows)
    assert sum(group["added"] for group in difference["groups"]) == 5
    assert "dense deep/kernel" in difference["incomparable"]
    assert "dense deep/other" in difference["incomparable"]


def test_blocks_of_any_size_match(saved, monkeypatch):
    """However the rows come, the same pairs are found."""
    both = [open_checkpoint(saved[n].folder) for n in (0, 3)]
    whole = inspection.compare(*both)
    for size in (1, 200, 1000, 10_000):
        monkeypatch.setattr(rows, "BYTES_PER_READ", size)
        assert inspection.compare(*both) == whole


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_compact(cli, tmp_path, suffix):
    saved = dict_checkpoints.history(str(tmp_path / "run"), suffix=suffix)
    dict_checkpoints.write(
        tmp_path / "whole",
        40,
        list(saved[3].rows.values()),
        saved[3].rows,
        saved[3].removed,
        saved[3].kernel,
        suffix=suffix,
    )
    assert report_of(cli, "compact", "run", "to=folded", cwd=tmp_path)["links"] == 4
    folded = manifest.read(str(tmp_path / "folded"), CheckpointManifest)
    whole = manifest.read(str(tmp_path / "whole"), CheckpointManifest)
    # But for the order of files, and so the checksum.
    assert replace(folded, sha256="") == replace(whole, sha256="")
    from tnctl.checkpoint.load import digest

    digests = {digest(open_checkpoint(str(tmp_path / name))) for name in (step(40), "folded")}
    assert len(digests) == 1
    assert cli("checkpoint", "verify", "folded", cwd=tmp_path).code == 0


def test_compact_refuses(cli, home):
    contents = {path: path.read_bytes() for path in (home / "run").rglob("*") if path.is_file()}
    done = cli("checkpoint", "compact", "run", cwd=home)
    assert (done.code, "needs to=URL" in done.line) == (2, True)
    for to in (step(10), f"./{step(40)}", f"nowhere/../{step(10)}"):
        done = cli("checkpoint", "compact", "run", f"to={to}", cwd=home)
        assert (done.code, "holds a checkpoint already" in done.line) == (2, True)
    (home / "mine").mkdir()
    (home / "mine/notes.txt").write_text("mine")
    done = cli("checkpoint", "compact", "run", "to=mine", cwd=home)
    assert (done.code, "notes.txt" in done.line) == (2, True)
    assert contents == {
        path: path.read_bytes() for path in (home / "run").rglob("*") if path.is_file()
    }


@pytest.mark.parametrize("name", DAMAGED[1:])
def test_compact_of_a_damaged_chain_leaves_no_checkpoint(cli, home, name):
    number = 20 if name.endswith((".rows", "tombstones.bin")) else 40
    path = home / step(number) / name
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    done = cli("checkpoint", "compact", "run", "to=folded", cwd=home)
    assert (done.code, name in done.last) == (1, True)
    assert not (home / "folded/manifest.json").exists()


def test_rows_that_the_manifest_does_not_count(cli, home):
    """A sound file too many or too few is no checkpoint, whoever reads it."""

    def change(content):
        [table] = content["tables"]
        table["rows"] = 1
        for number, group in enumerate(table["groups"]):
            group["rows"] = int(number == 0)

    resealed(home / step(40), change)
    for command in (("compact", "run", "to=folded"), ("diff", step(30), step(40))):
        done = cli("checkpoint", *command, cwd=home)
        assert done.code == 1 and "rows, the manifest says 1" in done.last, done.err
    assert not (home / "folded/manifest.json").exists()


def test_compact_takes_no_older_one_for_a_damaged_newest(cli, home):
    resealed(home / step(40), lambda content: content["parent"].update(sha256="0"))
    done = cli("checkpoint", "compact", "run", "to=folded", cwd=home)
    assert done.code == 1 and "step-0000000040" in done.last
    assert not (home / "folded").exists()


def stored(number, parent=None, problem=None):
    name = f"step-{number:010d}"
    link = parent and Parent(folder=f"step-{parent:010d}", sha256="x")
    return listing.Stored(name, name, SimpleNamespace(parent=link, sha256="x"), problem)


@pytest.mark.parametrize(
    ("checkpoints", "keep", "protected", "removed"),
    [
        ([stored(n) for n in (1, 2, 3)], 1, (), [2, 1]),
        ([stored(n) for n in (1, 2, 3)], 3, (), []),
        ([stored(n) for n in (1, 2, 3)], 0, (), []),
        ([stored(n) for n in (1, 2, 3)], 9, (), []),
        ([stored(n) for n in (1, 2, 3)], 1, (1,), [2]),
        ([stored(1), stored(2, 1), stored(3), stored(4, 3)], 1, (), [2, 1]),
        ([stored(1), stored(2, 1), stored(3), stored(4, 3)], 2, (2,), []),
        ([stored(1), stored(2, 1), stored(3, 2), stored(4, 3), stored(5)], 1, (3,), [4]),
        ([stored(1), stored(2), stored(3, problem="damaged")], 1, (), [1]),
        ([stored(1), stored(2), stored(3, 9), stored(4, 3)], 1, (), [1]),
        ([stored(1, problem="damaged"), stored(2, 1)], 1, (), []),
        ([], 3, (1,), []),
    ],
)  # fmt: skip
def test_what_is_pruned(checkpoints, keep, protected, removed):
    entries = {}
    for entry in checkpoints:
        problem = entry.problem or listing.broken_link(entry, entries)
        entries[entry.name] = replace(entry, problem=problem)
    plan = pruning.plan([*entries.values()], keep, protected)
    assert [checkpoint.step for checkpoint in plan.removed] == removed
    assert {*plan.kept} == {
        checkpoint.name for checkpoint in checkpoints if checkpoint.step not in removed
    }


def test_prune(cli, ran, tmp_path):
    dict_checkpoints.history(str(tmp_path / "run"), steps=(10, 20, 30, 40, 50), full_every=2)
    folders = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    done = ran("checkpoint", "prune", "run", "keep=1", cwd=tmp_path)
    assert "nothing was removed: give yes=true" in done.err
    assert sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir()) == folders
    pruned = report_of(cli, "prune", "run", "keep=1", "yes=true", cwd=tmp_path)
    assert pruned["removed"] == [step(40), step(30)]
    assert pruned["kept"]["step-0000000010"] == "step-0000000020 is built on it"
    left = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert left == [f"step-{number:010d}" for number in (10, 20, 50)]
    for number in (20, 50):
        assert cli("checkpoint", "verify", step(number), cwd=tmp_path).code == 0
    assert report_of(cli, "prune", "run", "keep=1", "yes=true", cwd=tmp_path)["removed"] == []


def test_on_another_storage(cli, home):
    url = f"memory://{home.name}/run"
    files.upload_folder(str(home / "run"), url)
    assert [entry["step"] for entry in report_of(cli, "list", url, cwd=home)] == [10, 20, 30, 40]
    difference = report_of(cli, "diff", url, "run", cwd=home)
    assert not any(group["changed"] + group["added"] for group in difference["groups"])
    assert report_of(cli, "verify", f"{url}/checkpoints", cwd=home)["findings"] == []
    report_of(cli, "compact", url, f"to={url}-folded", cwd=home)
    assert report_of(cli, "verify", f"{url}-folded", cwd=home)["findings"] == []
    assert report_of(cli, "prune", url, "keep=4", cwd=home)["removed"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a command: list, inspect"),
        (["lst", "run"], "Did you mean 'list'?"),
        (["list"], "list takes 1 URL: tnctl checkpoint list URL"),
        (["diff", "run"], "diff takes 2 URLs"),
        (["list", "run", "--yaml"], "no option --yaml"),
        (["list", "output=run"], "give the URL by itself, without output=: run"),
        (["list", "run", "keep=3"], "takes no keep="),
        (["prune", "run"], "needs keep=N"),
        (["prune", "run", "keep=0"], "from 1 on"),
        (["prune", "run", "keep=x"], "whole number"),
        (["prune", "run", "keep=1", "yes=maybe"], "yes is true or false"),
        (["list", step(10)], "is one checkpoint"),
    ],
)
def test_asked_wrongly(cli, home, arguments, said):
    done = cli("checkpoint", *arguments, cwd=home)
    assert (done.code, done.out) == (2, "")
    assert said in done.line


@pytest.mark.parametrize("command", ["list", "inspect", "verify"])
def test_where_nothing_is(cli, tmp_path, command):
    done = cli("checkpoint", command, "nowhere", cwd=tmp_path)
    assert (done.code, done.out) == (1, "")
    assert "nowhere has no checkpoint" in done.line


@pytest.mark.parametrize("name", FIND)
def test_help_of_each(cli, tmp_path, name):
    done = cli("checkpoint", name, "--help", cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert f"usage: tnctl checkpoint {name} URL" in done.out
    assert "--json" in done.out


def test_a_run(cli, process, trained):
    """Of a run that was really trained; and nothing needs TensorFlow."""
    entries = report_of(cli, "list", "run", cwd=trained)
    assert entries[-1]["finished"]
    assert report_of(cli, "verify", "run", cwd=trained)["findings"] == []
    inspected = report_of(cli, "inspect", "run", cwd=trained)
    assert inspected["tables"][0]["rows"] == entries[-1]["rows"]
    assert inspected["dense"]["weights"] > 0
    done = process(
        "checkpoint", "diff", "run", "run", cwd=trained, env={"PYTHONPROFILEIMPORTTIME": "1"}
    )
    assert done.code == 0
    assert " tensorflow\n" not in done.err
