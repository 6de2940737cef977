"""TensorNet's tables, read into a checkpoint, beside a writer of its own."""

import gzip
import itertools
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import tensornet_files as tn

import tnctl
from tnctl.checkpoint import rows as checkpoint_rows
from tnctl.checkpoint.chain import newest_or_fail, open_checkpoint
from tnctl.checkpoint.rows import shows_as_read, unseen_days
from tnctl.errors import Failure, UserError
from tnctl.tensornet import dense_weights, joined_records, table_files
from tnctl.tensornet.table_files import ADAGRAD, ADAM, FTRL, RULES, RowForm

ROOT = Path(__file__).parent.parent
CONF = """\
defaults: [schema, {recipe: wide_deep}, _self_]
compat: tensornet
recipe: {hidden: [4]}
embedding: {width: 3, initial: {scale: 0.1}}
slots:
  user: {ids: integer, group: signs}
  items: {ids: integer, group: signs, pooling: mean, separator: "|"}
optimizer:
  linear: {name: adagrad, learning_rate: 0.01}
  embedding: {name: adagrad, learning_rate: 0.01}
  dense: {name: adam, learning_rate: 0.001}
life:
  shows: {keep: true, decay: 0.98}
train: {batch_size: 64, threads: 1}
data: {train: train.csv}
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a conf and some data of it."""
    (tmp_path / "mine.yaml").write_text(CONF)
    signs = itertools.cycle(tn.signs(60))
    lines = [f"{n % 3 % 2},{next(signs)},{next(signs)}|{next(signs)}\n" for n in range(300)]
    (tmp_path / "train.csv").write_text("label,user,items\n" + "".join(lines))
    return tmp_path


def tables(count=60, exact=False, **more):
    """The two tables of CONF."""
    optimizer = more.get("optimizer", "AdaGrad")
    wide, deep = (tn.rows(count, dim, optimizer, exact=exact) for dim in (1, 3))
    return [tn.Table("wide", 1, wide, **more), tn.Table("deep", 3, deep, **more)]


def imported(cli, folder, *more):
    done = cli("import", "tensornet=tn", "conf=mine.yaml", "output=run", *more, cwd=folder)
    assert done.code == 0, done.err
    return done


def stored_rows(folder, output="run"):
    """{sign: record}, show and click as they read, age in days, of the only table."""
    checkpoint = newest_or_fail(str(folder / output))
    [table] = checkpoint.manifest.tables
    stored = {}
    for records in checkpoint_rows.stream(checkpoint, table.name):
        counts = np.zeros((2, len(records)))
        if table.life.shows:
            counts = shows_as_read(records, table, checkpoint.clock.days)
        ages = unseen_days(records["changed"], checkpoint.clock.days)
        for record, show, click, age in zip(records, *counts, ages, strict=True):
            stored[int(record["id"])] = (record, show, click, int(age))
    return checkpoint, stored


def check_equal(folder, written):
    """The checkpoint has exactly the rows that were written, to the precision of their text."""
    checkpoint, stored = stored_rows(folder)
    assert set(stored) == {row.sign for table in written for row in table.rows}
    for table in written:
        segment = "linear" if table.dim == 1 else "embedding"
        for row in table.rows:
            record, show, click, age = stored[row.sign]
            assert record[segment].tolist() == [tn.float32(w) for w in row.weights]
            if table.optimizer == "AdaGrad":
                assert record[f"{segment}.accumulator"].tolist() == row.state
                assert show == pytest.approx(row.show, rel=2e-7)
                assert click == pytest.approx(row.click if table.cvm else 0, rel=2e-7)
                assert age == (0 if table.old else row.age)
            else:
                first, second = ("m", "v") if table.optimizer == "Adam" else ("z", "n")
                assert record[f"{segment}.{first}"].tolist() == row.state[: table.dim]
                assert record[f"{segment}.{second}"].tolist() == row.state[table.dim :]
    return checkpoint


# ---- From TensorNet ---------------------------------------------------------


DIALECTS = [
    (1, {}),
    (3, {"cvm": True}),
    (2, {"old": True, "names": "sparse_block_{}.gz"}),
    (1, {"names": "sparse_block_{}_txt.gz"}),
    (1, {"names": "block_{}"}),
    (2, {"form": "bin"}),
    (1, {"form": "bin", "cvm": True, "names": "sparse_block_{}_bin.gz"}),
    (1, {"form": "bin", "tool": True, "names": "sparse_block_{}.gz"}),
    (2, {"form": "bin", "names": "block_{}"}),
    (2, {"optimizer": "Adam"}),
    (1, {"optimizer": "Ftrl", "form": "bin"}),
]
AT_ALL_TIMES = 1  # the others are imported with the long tests; all are read by the next test


@pytest.mark.parametrize(("ranks", "more"), DIALECTS)
def test_every_dialect_is_read_exactly(tmp_path, ranks, more):
    """Rows of all files are those that were written, bit by bit."""
    rule = next(r for r in RULES if r.name == more.get("optimizer", "AdaGrad"))
    [_, deep] = tables(200, exact=more.get("form") == "bin", **more)
    tn.Weights([deep], ranks).write(tmp_path)
    [source] = table_files.source_at(str(tmp_path)).tables.values()
    assert (source.name, source.ranks, len(source.files)) == ("deep", ranks, 8 * ranks)
    blocks = [list(table_files.rows_of(url, RowForm(rule, 3))) for url in source.files]
    read = {int(row["id"]): row for rows in blocks for block in rows for row in block}
    assert sum(len(block) for rows in blocks for block in rows) == len(deep.rows) == len(read)
    for row in deep.rows:
        record = read[row.sign]
        assert record["weights"].tolist() == row.weights
        states = [value for name in rule.states for value in record[name].tolist()]
        assert states == row.state
        expected = (row.show, 0 if deep.old else row.age, row.click if deep.cvm else 0)
        assert (record["show"], record["age"], record["click"]) == expected


@pytest.mark.parametrize(
    ("ranks", "more"),
    [
        pytest.param(*dialect, marks=[] if at == AT_ALL_TIMES else pytest.mark.long)
        for at, dialect in enumerate(DIALECTS[:-2])
    ],
)
def test_all_rows_arrive(cli, folder, ranks, more):
    written = tables(**more)
    tn.Weights(written, ranks).write(folder / "tn")
    keys = ["life.shows.cvm=true"] if more.get("cvm") else []
    imported(cli, folder, *keys)
    check_equal(folder, written)


@pytest.mark.parametrize(
    ("optimizer", "form"),
    [
        pytest.param("Adam", "text", marks=pytest.mark.long),
        pytest.param("Adam", "bin", marks=pytest.mark.long),
        pytest.param("Ftrl", "text", marks=pytest.mark.long),
        ("Ftrl", "bin"),
    ],
)
def test_adam_and_ftrl(cli, folder, optimizer, form):
    written = tables(optimizer=optimizer, form=form)
    tn.Weights(written).write(folder / "tn")
    name = optimizer.lower()
    keys = [f"optimizer.{part}.name={name}" for part in ("linear", "embedding")]
    if name == "ftrl":  # what TensorNet has where nobody says otherwise
        settings = ("learning_rate=0.01", "beta=1", "l1=0.1", "l2=1")
        keys += [f"{key.rpartition('.')[0]}.{setting}" for key in keys for setting in settings]
        wrong = [*keys, "optimizer.embedding.l1=0.3"]
        done = cli("import", "tensornet=tn", "conf=mine.yaml", "output=run", *wrong, cwd=folder)
        assert done.code == 2
        assert "trained weights of table deep do not follow from its z and n" in done.last
    imported(cli, folder, *keys)
    check_equal(folder, written)


def test_days_go_on(cli, ran, folder):
    """The day that TensorNet trained last is not trained again; ages and shows count on."""
    tn.Weights(tables()).write(folder / "tn")
    text = (folder / "train.csv").read_text()
    for day in ("2020-05-10", "2020-05-12"):
        (folder / f"{day}.csv").write_text(text)
    daily = ("conf=mine.yaml", "output=run", "data.train={day}.csv")
    done = ran("import", "tensornet=tn", *daily, cwd=folder)
    assert "2020-05-10 and the days before it count as trained" in done.err
    ran("train", *daily, cwd=folder)
    _, stored = stored_rows(folder)
    assert {age for _, _, _, age in stored.values()} == {0}
    assert stored_days(folder) == ["2020-05-10", "2020-05-12"]
    (folder / "2020-05-09.csv").write_text(text)
    done = cli("train", *daily, cwd=folder)
    assert done.code == 1
    assert "2020-05-09 came late" in done.last


def stored_days(folder):
    return [entry.day for entry in newest_or_fail(str(folder / "run")).days]


# ---- Tables and the conf ----------------------------------------------------


def test_rows_in_one_of_two_tables(cli, folder, monkeypatch):
    """Their other weights equal a new row's; shows that differ are the embedding's.

    The tables are cut into two parts, and a file of each, as large ones are.
    """
    monkeypatch.setattr(joined_records, "BYTES_PER_PART", 1)
    monkeypatch.setattr(joined_records, "MOST_PARTS", 2)
    monkeypatch.setattr(checkpoint_rows, "BYTES_PER_FILE", 1)
    wide, deep = tables()
    wide.rows, deep.rows = wide.rows[:50], deep.rows[10:]
    wide.rows[20].show, deep.rows[10].show = 7.0, 8.0
    tn.Weights([wide, deep]).write(folder / "tn")
    done = imported(cli, folder)
    assert "20 rows are in one of two tables" in done.err
    assert "1 rows have other shows or days in two tables" in done.err
    checkpoint, stored = stored_rows(folder)
    assert len(stored) == 60
    halves = checkpoint.manifest.tables[0].files
    assert len(halves) == 2 and all(file.rows for file in halves)
    shared = wide.rows[20].sign
    assert stored[shared][1] == pytest.approx(8.0, rel=1e-6)
    record = stored[wide.rows[0].sign][0]
    assert record["embedding"].any()
    assert not record["embedding.accumulator"].any()
    assert record["linear"].tolist() == wide.rows[0].weights


def test_tables_by_names(cli, ran, folder):
    """Tables of one dim need names; those that are not named are left out, and said so."""
    twins = [tn.Table(name, 3, tn.rows(20, 3)) for name in ("0", "1")]
    tn.Weights([*twins, tn.Table("wide", 1, tn.rows(20, 1))]).write(folder / "tn")
    command = ("import", "tensornet=tn", "conf=mine.yaml", "output=run")
    done = cli(*command, cwd=folder)
    assert done.code == 2
    assert "tables 0 and 1 both have dim 3" in done.last
    done = ran(*command, "tables=1:signs.embedding", cwd=folder)
    assert "table 0 is left out" in done.err
    assert "signs.linear is initialised" in done.err


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["embedding.width=4"], "table deep has dim 3, and the rows of this conf have signs.l"),
        (["tables=deep:linear"], "table deep has dim 3, and signs.linear has the width 1"),
        (["tables=deep"], "tables= is NAME:GROUP.SEGMENT"),
        (["tables=none:linear"], "has no table none. It has deep, wide"),
        (["tables=deep:embeding"], "Did you mean 'signs.embedding'"),
        (["tables=deep:embedding,wide:embedding"], "twice"),
        (["optimizer.embedding.name=ftrl"], "table deep was trained with AdaGrad"),
        (["optimizer.embedding.name=sgd"], "TensorNet's tables do not have"),
        (["optimizer.embedding.weight_decay=0.1"], "has a weight_decay"),
        (["slots.user.ids=hash", "slots.items.ids=hash"], "slots.user.ids is hash"),
        (["slots.user.group=user"], "may have items.linear"),
        (["optimizer.updates=all", "life.shows.keep=false"], "optimizer.updates=all"),
        (["+slots.more={column: user, vectors: none, width: 2}"], "Import without this slot"),
        (["output=tn/run"], "lies in"),
    ],
)  # fmt: skip
def test_what_does_not_correspond_is_refused(cli, folder, keys, words):
    tn.Weights(tables(8)).write(folder / "tn")
    if "user.group" in keys[0]:
        keys = ["slots.user.group=user", "slots.items.group=items"]
        words = "TensorNet's keys do not say which slot they are of"
    done = cli("import", "tensornet=tn", "conf=mine.yaml", "output=run", *keys, cwd=folder)
    assert done.code == 2, done.err
    assert words in done.last
    assert not list((folder / "run").rglob("manifest.json"))


def test_an_output_with_a_run_is_refused(cli, folder):
    tn.Weights(tables(8)).write(folder / "tn")
    imported(cli, folder)
    done = cli("import", "tensornet=tn", "conf=mine.yaml", "output=run", cwd=folder)
    assert done.code == 2
    assert "run has a run already" in done.last
    for keys, words in (
        (["conf=mine.yaml"], "give tensornet=URL"),
        (["tensornet=tn"], "give conf=NAME"),
        (["tensornet=none", "conf=mine.yaml"], "has no folder sparse_table"),
    ):
        done = cli("import", *keys, "output=new", cwd=folder)
        assert (done.code, words in done.last) == (2, True), done.err


# ---- Dense weights ----------------------------------------------------------


def dense_rows(count, optimizer):
    draw = np.random.default_rng(3)
    columns = 3 if optimizer == "Adam" else 4
    values = draw.normal(size=(count, columns)).round(4)
    return np.abs(values).tolist()


@pytest.mark.long
@pytest.mark.parametrize("optimizer", ["Adam", "AdaGrad"])
def test_dense_weights_in_a_given_order(cli, ran, folder, optimizer):
    tn.Weights(tables(8), 1).write(folder / "tn")
    done = imported(cli, folder)
    manifest = newest_or_fail(str(folder / "run")).manifest
    variables = {entry.name: entry for entry in manifest.dense.variables}
    total = sum(entry.size for entry in variables.values())
    rows = dense_rows(total, optimizer)
    dense = tn.Dense(optimizer, rows, powers=(0.9**7, 0.999**7))
    tn.Weights(tables(8), 3, dense=dense).write(folder / "tn3")
    keys = ["optimizer.dense.name=adagrad", "optimizer.dense.momentum_decay=0.5"]
    keys = keys if optimizer == "AdaGrad" else []
    command = ("import", "tensornet=tn3", "conf=mine.yaml", *keys)

    done = ran(*command, "output=new", cwd=folder)
    [order] = re.findall(r"such as dense=(\S+)", done.err)
    assert sorted(order.split(",")) == sorted(variables)

    done = ran(*command, "output=all", f"dense={order}", cwd=folder)
    checkpoint = newest_or_fail(str(folder / "all"))
    assert checkpoint.manifest.dense.step == (7 if optimizer == "Adam" else 1)
    from tnctl.checkpoint import dense_file

    parts = dense_file.variables(checkpoint.folder, checkpoint.manifest)
    expected, start = np.array(rows, np.float32), 0
    for name in order.split(","):
        end = start + variables[name].size
        for at in range(expected.shape[1]):
            assert parts[at][name].reshape(-1).tolist() == expected[start:end, at].tolist()
        start = end

    for given, words in (
        ("nothing", "no variable 'nothing'"),
        (order.partition(",")[2], "misses"),
    ):
        done = cli(*command, "output=other", f"dense={given}", cwd=folder)
        assert (done.code, words in done.last) == (2, True), done.err
    done = cli(*command, "output=other", f"dense={order}", "recipe.hidden=[5]", cwd=folder)
    assert (done.code, "dense weights, and this conf's network has" in done.last) == (2, True)


def test_damaged_dense_tables(tmp_path):
    tn.Dense("Adam", dense_rows(40, "Adam")).write(tmp_path, 1)
    path = tmp_path / "dense_table/0/0"
    text = path.read_text()
    assert len(dense_weights.read([str(path)], 40).weights) == 40
    for damaged in (
        text[:200], text[:-30], "", "x", text.replace("array_size:5", "array_size:6", 1),
        text.replace("array_size:5", "array_size:999999999999", 1), text.replace("\t", " "),
        text.replace("beta2_power:0.999", "beta2_power:nan", 1), text + text, text * 400,
        text.replace("opt_name:Adam", "opt_name:Ftrl", 1), text.replace("opt_name", "name", 1),
        text.replace("opt_name:Adam", "opt_name:AdaGrad", 1), "\0" * 500,
        text[:110] + "nan" + text[113:],
    ):  # fmt: skip
        path.write_text(damaged)
        with pytest.raises(Failure) as error:
            dense_weights.read([str(path)], 40)
        assert str(path) in str(error.value)
    path.write_text(text)
    with pytest.raises(UserError, match="40 dense weights, and this conf's network has 41"):
        dense_weights.read([str(path)], 41)


# ---- Damaged and hostile input ----------------------------------------------

FORMS = {
    "text": (ADAGRAD, {"optimizer": "AdaGrad"}),
    "clicks": (ADAGRAD, {"optimizer": "AdaGrad", "cvm": True}),
    "bin": (ADAGRAD, {"optimizer": "AdaGrad", "form": "bin"}),
    "adam": (ADAM, {"optimizer": "Adam"}),
    "ftrl bin": (FTRL, {"optimizer": "Ftrl", "form": "bin"}),
}


def block_of(name, count=40):
    """The bytes of a block of 3 weights, and the form of its rows."""
    rule, more = FORMS[name]
    made = tn.Table("deep", 3, [], **more)
    return made.block(tn.rows(count, 3, more["optimizer"])), RowForm(rule, 3)


def read(path, form):
    return sum(len(rows) for rows in table_files.rows_of(str(path), form))


@pytest.mark.parametrize("name", FORMS)
def test_a_block_cut_at_any_byte(tmp_path, name):
    data, form = block_of(name, 4)
    path = tmp_path / "block_0"
    path.write_bytes(data)
    assert read(path, form) == 4
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(Failure, match=re.escape(str(path))):
            read(path, form)


@pytest.mark.parametrize("name", FORMS)
def test_a_compressed_block_cut_at_any_byte(tmp_path, name):
    data, form = block_of(name)
    packed, path = gzip.compress(data), tmp_path / "block_0.gz"
    path.write_bytes(packed)
    assert read(path, form) == 40
    for end in range(0, len(packed) - 1, 7):
        path.write_bytes(packed[:end])
        with pytest.raises(Failure, match=re.escape(str(path))):
            read(path, form)


@pytest.mark.parametrize("name", FORMS)
def test_damaged_bytes(tmp_path, name):
    """Each change is refused in a line, or gives as many rows of possible numbers."""
    data, form = block_of(name)
    path, draw = tmp_path / "block_0", np.random.default_rng(7)
    for _ in range(100):
        damaged = bytearray(data)
        for place in draw.integers(0, len(data), draw.integers(1, 4)):
            damaged[place] = draw.integers(0, 256)
        path.write_bytes(damaged)
        try:
            read(path, form)
        except Failure as error:
            assert str(path) in str(error)
            assert len(str(error)) < 1500


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"opt", b"opt_name:AdaGrad\n", b"opt_name:AdaGrad\ndim:3", b"\0" * 3,
        b"opt_name:AdaGrad\ndim:99999999999999\n", b"opt_name:AdaGrad\ndim:-3\n",
        b"opt_name:Adam\ndim:3\n1\t3\t1\t1\t1\t1\t1\t1\t\n", b"opt_name:AdaGrad\ndim:4\n",
        struct.pack("<i", 2**31 - 1), struct.pack("<i", -1) + b"\1" * 400, struct.pack("<i", 8),
        b"opt_name:AdaGrad\ndim:3\n1\t3\t1\t1\t1\t1\t1\t1\tx\n",
        b"opt_name:AdaGrad\ndim:3\n1\t2\t1\t1\t1\t1\t1\t1\t\n",
        b"opt_name:AdaGrad\ndim:3\n-1\t3\t1\t1\t1\t1\t1\t1\t\n",
        b"opt_name:AdaGrad\ndim:3\n18446744073709551616\t3\t1\t1\t1\t1\t1\t1\t\n",
        b"opt_name:AdaGrad\ndim:3\n1\t3\tnan\t1\t1\t1\t1\t1\t\n",
        b"opt_name:AdaGrad\ndim:3\n1\t3\t1e60\t1\t1\t1\t1\t1\t\n",
        b"opt_name:AdaGrad\ndim:3\n1\t3\t1\t1\t1\t-1\t1\t1\t\n",
        b"opt_name:AdaGrad\ndim:3\n1\t3\t1\t1\t1\t1\t1\t-1\t\n",
        b"opt_name:AdaGrad\ndim:3\n1\t3\t1\t1\t1\t1\t1\t2147483647\t\n",
        b"opt_name:AdaGrad\ndim:3\n1\t3\t1\t1\n", b"opt_name:AdaGrad\ndim:3\n" + b"\t" * 100_000,
        b"opt_name:AdaGrad\ndim:3\n1\t3\t1\t1\t1\t1\t1\t1\t\n1\t3\t1\n",
        b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.", b"PK\3\4" + b"\0" * 100,
    ],
)  # fmt: skip
def test_hostile_blocks(tmp_path, data):
    path = tmp_path / "block_0"
    path.write_bytes(data + b"\n" * data.endswith(b"\n"))  # as a block ends
    with pytest.raises(Failure, match=re.escape(str(path))):
        read(path, RowForm(ADAGRAD, 3))


def test_a_bomb_is_refused(tmp_path):
    """300 MiB of zeros in 300 KiB: reading stops at the limit."""
    path = tmp_path / "block_0.gz"
    with gzip.open(path, "wb") as file:
        file.write(struct.pack("<i", 3))
        for _ in range(300):
            file.write(b"\0" * (1 << 20))
    with pytest.raises(Failure):
        read(path, RowForm(ADAGRAD, 3))


def with_another_dim(path):
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text.replace(b"\t3\t", b"\t4\t", 1)))


def a_link_instead(path):
    path.unlink()
    path.symlink_to("/dev/zero")


# Damage to the folder of a checkpoint, by the path of a rank in it; the last two are of its rows.
DAMAGE = {
    "block": lambda rank: (rank / "block_3.gz").unlink(),
    "rank": lambda rank: shutil.rmtree(rank),
    "twice": lambda rank: shutil.copy(rank / "block_0.gz", rank / "sparse_block_0.gz"),
    "stray": lambda rank: (rank / "part-0").write_text("x"),
    "link": lambda rank: a_link_instead(rank / "block_3.gz"),
    "no day": lambda rank: (rank.parents[3] / "_checkpoint").write_text('{"dt": "../../etc"}'),
    "json": lambda rank: (rank.parents[3] / "_checkpoint").write_text("[" * 10_000),
    "not a table": lambda rank: (rank.parents[1] / "x").write_text(""),
    "damaged": lambda rank: (rank / "block_0.gz").write_bytes(b"\0" * 100),
    "two ranks": lambda rank: shutil.copytree(rank, rank.parent / "rank_2"),
    "damaged block": lambda rank: with_another_dim(rank / "block_0.gz"),
}


def write_damaged(folder, change):
    tn.Weights(tables(24)).write(folder)
    DAMAGE[change](folder / "2020-05-10/sparse_table/deep/rank_0")


@pytest.mark.parametrize("change", [*DAMAGE][:-2])
def test_damaged_folders(tmp_path, change):
    write_damaged(tmp_path / "tn", change)
    with pytest.raises(Failure) as error:
        for table in table_files.source_at(str(tmp_path / "tn")).tables.values():
            for url in table.files:
                list(table_files.rows_of(url, RowForm(ADAGRAD, int(table.name == "deep") * 2 + 1)))
    assert str(tmp_path / "tn") in str(error.value)


@pytest.mark.parametrize("change", ["two ranks", "damaged block"])
def test_a_damaged_import_leaves_nothing(cli, folder, change):
    """One line, exit code 1, and nothing that looks like a checkpoint."""
    write_damaged(folder / "tn", change)
    done = cli("import", "tensornet=tn", "conf=mine.yaml", "output=run", cwd=folder)
    assert done.code == 1, done.err
    assert "deep" in done.last
    assert not list(folder.rglob("*step-*"))


def test_empty_tables_from_python(folder, monkeypatch):
    """Blocks without rows are none: the run begins without any."""
    tn.Weights(tables(0)).write(folder / "tn")
    monkeypatch.chdir(folder)
    run = tnctl.import_tensornet(tnctl.compose("mine.yaml", ["output=run"]), Path("tn"))
    assert (run.step, open_checkpoint(run.checkpoint).manifest.rows) == (1, 0)
    with pytest.raises(UserError, match="give a conf"):
        tnctl.import_tensornet("mine.yaml", "tn")


# ---- The page ---------------------------------------------------------------


def write_examples(folder, days):
    """TensorNet's data: TFRecord files of tf.Example, a list of signs for each slot."""
    import tensorflow as tf

    signs = itertools.cycle(sign for sign in tn.signs(60) if sign < 2**63)
    for day in days:
        (folder / day).mkdir(parents=True)
        with tf.io.TFRecordWriter(str(folder / day / "tf-0")) as file:
            for number in range(200):
                example = tf.train.Example()
                values = {"label": [number % 3 % 2]}
                values |= {slot: [next(signs) for _ in range(number % 3)] for slot in "1234"}
                for name, numbers in values.items():
                    example.features.feature[name].int64_list.value.extend(numbers)
                file.write(example.SerializeToString())


def test_the_conversion_of_the_page(ran, tmp_path):
    """The conf and the commands of docs/tensornet.md, on weights and data as it describes them."""
    text = (ROOT / "docs/tensornet.md").read_text()
    [conf] = re.findall(r"```yaml\n(.*?)```", text, re.S)
    commands = re.findall(r"^    tnctl ((?:import|train|export).*moved.*)$", text, re.M)
    assert [command.split()[0] for command in commands] == ["import", "train", "export-embeddings"]
    (tmp_path / "moved.yaml").write_text(conf)
    linear, deep = (tn.Table(n, dim, tn.rows(60, dim)) for n, dim in (("linear", 1), ("deep", 8)))
    dense = tn.Dense("Adam", dense_rows(50, "Adam"))
    tn.Weights([linear, deep], dense=dense).write(tmp_path / "model")
    write_examples(tmp_path / "data", ["2020-05-10", "2020-05-11"])
    for command in commands:
        done = ran(*command.split(), cwd=tmp_path)
        if command.startswith("import"):
            assert "2020-05-10 and the days before it count as trained" in done.err
    checkpoint = newest_or_fail(str(tmp_path / "runs/moved"))
    assert [day.day for day in checkpoint.days] == ["2020-05-10", "2020-05-11"]
    assert (checkpoint.days[1].rows, checkpoint.manifest.rows) == (200, 60)
    trained = {row.sign for row in deep.rows if row.sign < 2**63}
    _, stored = stored_rows(tmp_path, "runs/moved")
    assert all((age == 0) == (sign in trained) for sign, (*_, age) in stored.items())
