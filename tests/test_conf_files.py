"""What a conf file of one's own can have wrong is one line that names it, and never a traceback."""

import json
import random
import re

import pytest
import yaml
from conftest import CONF

from tnctl import limits, schema, shipped
from tnctl.composing import compose
from tnctl.errors import UserError
from tnctl.model.recipes import source_settings

HEAD = "defaults: [schema, {recipe: lr}, _self_]\n"
SLOTS = HEAD + "slots: {a: {}}\n"
REST = CONF.partition("\n")[2]
OTHER_FORM = "defaults: [schema, {recipe: deepfm}, _self_]\nrecipe: {hidden: {a: 1}}\n"
FILES = {
    # Its defaults.
    REST: "recipe needs a name",
    "defaults: [own, _self_]\n" + REST: "own.yaml is nested too deep, or names itself",
    "defaults: schema\n" + REST: "Its defaults are a list of schema, _self_",
    "defaults: [[schema], _self_]\n": "own.yaml cannot be composed: Unsupported type in defaults",
    "defaults: [schema, {recipe: 3}]\n": "own.yaml cannot be composed: Unsupported item value",
    "defaults: [schema, {recipe: lr, data: criteo}]\n": "own.yaml cannot be composed: In own: Too",
    "defaults: [schema, nope, _self_]\n": "no conf 'nope'",
    "defaults: [schema, {recipes: lr}]\n": "no group 'recipes'",
    "defaults: [schema, {recipe: lrr}]\n": "no recipe 'lrr'. Did you mean 'lr'?",
    "defaults: [schema, {recipe: lr}, {recipe: fm}]\n": "Multiple values for recipe",
    "defaults: [schema, {override recipe: lr}]\n": "Could not override 'recipe'",
    # Its form.
    "": "recipe needs a name",
    "[a, b]\n": "must be a DictConfig, got ListConfig",
    SLOTS + "x: [1\n": "not YAML: line 4, column 1",
    HEAD + "slots:\n\ta: {}\n": "Indent with blanks",
    SLOTS + "slots: {b: {}}\n": "duplicate key slots",
    SLOTS + "seed: *nope\n": "undefined alias",
    SLOTS + "x: " + "[" * 200 + "]" * 200 + "\n": "nested too deep",
    b"\xff\xfe\x00": "not UTF-8",
    (SLOTS + "output: caf\xe9\n").encode("latin-1"): "not UTF-8",
    SLOTS + f"seed: 1{'0' * 5000}\n": "Exceeds the limit",
    # Keys and values of other forms.
    HEAD + "slots: [a]\n": "slots takes no value, its keys do, such as +slots.NAME.column=",
    HEAD + "slots: {a: 3}\n": "slots.a takes no value, its keys do",
    HEAD + "slots: {a: }\n": "slots.a needs a value, and null is none",
    HEAD + "slots: {3: {}}\n": "slots has a name that is no text: 3",
    HEAD + "slots: {yes: {}}\n": "slots has a name that is no text: True",
    SLOTS + "data: {columns: {a: 3}}\n": "data.columns is a list",
    SLOTS + "data: {missing: [null]}\n": "data.missing[0] needs a value",
    SLOTS + "data: {labels: [a]}\n": "data.labels takes no value",
    HEAD + "slots: {a: {}, b: {cross: [{a: 1}, a]}}\n": "slots.b.cross[0] must be text, one value",
    SLOTS + 'train: ""\n': "train takes no value, its keys do",
    SLOTS + "numeric: {b: {transform: null}}\n": "numeric.b.transform needs a value",
    SLOTS + "train.batch_size: 3\n": "no key 'train.batch_size' by one name",
    SLOTS + "recipe: deepfm\n": "recipe takes no value, its keys do",
    SLOTS + "recipe: {name: null}\n": "recipe needs a name",
    SLOTS + "warm: {rename: [a]}\n": "such as warm.rename.NAME=…. Received: warm.rename=['a']",
    SLOTS + "train: {batch_size: big}\n": "train.batch_size must be a whole number",
    SLOTS + "train:\n": "train needs a value, and null is none. Leave it out",
    OTHER_FORM: "own.yaml: recipe.hidden is a list where another file has a mapping",
    SLOTS + "output: !!binary aGk=\n": "output must be text",
    SLOTS + "save: !!set {a, b}\n": "save: Value 'set' is not a supported primitive type",
    SLOTS + "sede: 3\n": "Did you mean 'seed'?",
    # Interpolations.
    SLOTS + "output: ${nope}\n": "output: Interpolation key 'nope' not found. `tnctl train --help`",
    SLOTS + "output: ${data.rot}\n": "Did you mean 'data.root'?",
    SLOTS + "output: ${output}\n": "output: Recursive interpolation detected. Give a plain value",
    SLOTS + "output: ${env:X}\n": "Take ${oc.env:NAME}",
    SLOTS + "output: ${oc.env:NO_SUCH_X}\n": "variable 'NO_SUCH_X' not found\". Set it",
    SLOTS + 'output: "${data.root"\n': "output: no viable alternative at input",
    SLOTS + "seed: ${recipe.name}\n": "seed must be a whole number. Received: seed=lr",
    HEAD + "slots: {a: '${seed}'}\n": "Received: slots.a=1",
}


@pytest.mark.parametrize("content", FILES, ids=lambda content: repr(content)[:60])
def test_a_wrong_file_is_one_line(cli, tmp_path, content):
    path = tmp_path / "own.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = cli("train", "conf=own.yaml", cwd=tmp_path)
    assert done.code == 2, done.err
    assert FILES[content] in done.line
    assert len(done.line) < 500
    assert done.line.startswith("tnctl train: ") and "full_key" not in done.line


GOOD = {
    # The defaults of the schema are below the conf wherever it is named, and where it is not.
    "defaults: [{recipe: lr}, schema, _self_]\nslots: {a: {}}\n": {},
    "defaults: [_self_, {recipe: lr}, schema]\nslots: {a: {}}\nseed: 7\n": {"seed": 7},
    "recipe: {name: lr}\nslots: {a: {}}\nseed: 7\n": {"seed": 7},
    SLOTS + "seed: '7'\n": {"seed": 7},
    "\ufeff" + SLOTS.replace("\n", "\r\n"): {},
    SLOTS + "output: 2024-13-45\n": {"output": "2024-13-45"},
    SLOTS + "output: ${oc.env:NO_SUCH_X,here}\n": {"output": "here"},
    HEAD + "slots: {b: &b {missing: value}, a: *b}\n": {},
    HEAD + "slots: {b: {missing: value}, a: '${slots.b}'}\n": {},
    "defaults: [base, _self_]\nseed: 7\n": {"seed": 7},
}


@pytest.mark.parametrize("content", GOOD, ids=lambda content: repr(content)[:60])
def test_what_can_be_written_too(tmp_path, content):
    (tmp_path / "base.yaml").write_text(SLOTS)
    (tmp_path / "own.yaml").write_bytes(content.encode())
    path = compose.conf_file(str(tmp_path / "own.yaml"))
    conf = compose.compose(path, [])
    assert "a" in conf.slots
    for key, value in GOOD[content].items():
        assert getattr(conf, key) == value


def test_a_wrong_file_of_a_group_or_below(cli, tmp_path):
    """Files that a conf of one's own names are looked at, too."""
    (tmp_path / "data").mkdir()
    (tmp_path / "own.yaml").write_text("defaults: [schema, {recipe: lr}, {data: mine}, _self_]\n")
    for content, words in (
        ("train: [a]\nlabel: [b]\n", "data.label takes no value"),
        ("# @package _global_\nslots: [a]\n", "slots takes no value"),
        ("x: [1\n", "mine.yaml is not YAML: line 2"),
    ):
        (tmp_path / "data/mine.yaml").write_text(content)
        assert words in cli("train", "conf=own.yaml", cwd=tmp_path).line
    base = "defaults: [schema, {recipe: lr}, _self_]\ndata: {train: {files: [a]}}\n"
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "own.yaml").write_text("defaults: [base, _self_]\ndata: {train: [a]}\n")
    words = "own.yaml: data.train is a list where another file has a mapping"
    assert words in cli("train", "conf=own.yaml", cwd=tmp_path).line


OVERRIDES = {
    "slots={a:{}}": "A new one is added with +slots.a=",
    "+slots.user_id=3": "slots.user_id takes no value",
    "+slots.=3": "cannot read the argument +slots.=3",
    "slots.user_id.column=[a]": "slots.user_id.column must be text",
    "train.batch_size.x=3": "is a value and has no keys",
    "+a=b": "no key 'a'. `tnctl train --help`",
    "+=b": "has no key",
    "~slots=x": "~slots takes no value",
    "~data.train": "data.train is always there; ~ takes away what you named, such as ~slots.NAME. "
    "Give data.train=null",
    "~data.split": "data.split is always there; ~ takes away what you named, such as ~slots.NAME. "
    "Give its keys other values",
    "data.split=null": "or give {}, or its keys, such as data.split.",
    "seed=null": "seed needs a value, and null is none. Leave it out, or give one",
    "~recipe=fm": "Could not delete 'recipe=fm'",
    "seed=é": "letters beyond a to z",
    "recipe=": "no recipe ''",
    "recipe=3": "Config group override must be a string",
    "recipe={a:3}": "no key 'recipe.a': recipe deepfm has no setting",
    "+recipe=lr": "Multiple values for recipe",
    "cluster=locl": "no cluster 'locl'. Did you mean 'local'?",
    "data.missing=[null]": "data.missing[0] needs a value",
    "data.label={colum:x}": "Did you mean 'data.label.column'?",
    "train={batch_sze:3}": "Did you mean 'train.batch_size'?",
    "train.batch_size=choice(1,2)": "has several values",
    "train.batch_size=${nope}": "train.batch_size: Interpolation key 'nope' not found",
    "recipe.hidden={}": "recipe.hidden is a list: give it as",
    "+slots.new=null": "slots.new needs a value, and null is none",
    "warm.rename=3": "warm.rename takes no value, its keys do",
    "~train.bach_size": "Did you mean 'train.batch_size'?",
    "warm.rename.a={b:c}": "warm.rename.a must be text",
}


@pytest.mark.parametrize("override", OVERRIDES)
def test_a_wrong_override_is_one_line(cli, tmp_path, override):
    (tmp_path / "own.yaml").write_text(CONF)
    done = cli("train", "conf=own.yaml", override, cwd=tmp_path)
    assert done.code == 2, done.err
    assert OVERRIDES[override] in done.line
    assert len(done.line) < 500 and "full_key" not in done.line


@pytest.mark.parametrize("name", ["own.yml", "schema.yaml"])
def test_a_file_of_another_name(cli, tmp_path, name):
    (tmp_path / name).write_text(CONF)
    done = cli("train", f"conf={name}", cwd=tmp_path)
    assert done.code == 2 and f"Rename {name}" in done.line


def test_a_file_beside_that_is_meant(cli, tmp_path):
    (tmp_path / "own.yaml").write_text(CONF)
    done = cli("train", "conf=own.yml", cwd=tmp_path)
    assert done.code == 2 and "Did you mean 'own.yaml'?" in done.line


def test_a_conf_at_the_limit_of_bytes_and_one_beyond(tmp_path, cli):
    path = tmp_path / "own.yaml"
    path.write_text(SLOTS + "#" * (limits.CONF_BYTES - len(SLOTS)))
    assert cli("train", "conf=own.yaml", "--cfg", "job", cwd=tmp_path).code == 0
    with path.open("a") as file:
        file.write("#")
    done = cli("train", "conf=own.yaml", cwd=tmp_path)
    assert "own.yaml has 1,048,577 bytes, and a conf at most 1,048,576" in done.line
    assert done.code == 2


def test_plain_values_of_another_form():
    """Of a saved conf, which no Hydra has looked at."""
    for values, words in (
        ({"slots": {"a": 3}}, "slots.a takes no value"),
        ({"slots": [3]}, "slots takes no value"),
        ({"data": "x"}, "data takes no value"),
        ({"recipe": "lr"}, "recipe takes no value"),
    ):
        with pytest.raises(UserError, match=words):
            schema.from_values({"recipe": {"name": "lr"}, **values})


# ---- Fuzz

VALUES = (
    "null", "true", "3", "-1", "1.5", ".nan", "1e400", "x", '""', "[]", "[a]", "[null]", "[[1]]",
    "{}", "{a: 1}", "{a: {b: 1}}", "${nope}", "${seed}", "${data}", '"${"', "???", "!!binary aGk=",
    "&a x", "*a", "é", "9" * 23, "|\n  x", "'", '"\\0"', "json", "quantiles", "value",
)  # fmt: skip


def mutated(rng, text):
    """A conf file with some lines left out, swapped or doubled, values and keys of others."""
    lines = text.split("\n")
    keys = re.findall(r"\w+(?=:)", text)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
        line = lines[first]
        at = rng.randrange(len(line) + 1)
        kind = rng.randrange(8)
        if kind == 0 and len(lines) > 1:
            del lines[first]
        elif kind == 1:
            lines[first], lines[second] = lines[second], line
        elif kind == 2:
            lines.insert(second, line)
        elif kind == 3:
            lines[first] = rng.choice(["", " ", "    ", "\t"]) + line.lstrip()
        elif kind == 4:
            lines[first] = line[:at] + rng.choice("{}[]:,#\"'&*!|>%@ \t-") + line[at:]
        elif kind == 5:
            lines[first] = re.sub(r"\w+(?=:)", rng.choice(keys), line, count=1)
        else:
            values = list(re.finditer(r"(?<=: )[\[{].*[\]}]|(?<=: )[^,{}\[\]]+|(?<=, )\w+", line))
            if values:
                value = rng.choice(values)
                lines[first] = line[: value.start()] + rng.choice(VALUES) + line[value.end() :]
    return "\n".join(lines)


def fuzz(folder, seed, rounds):
    """Each mutated file is composed, or refused in one line."""
    composed = 0
    for number in range(rounds):
        rng = random.Random(seed * 1_000_000 + number)
        text = mutated(rng, CONF)
        (folder / "own.yaml").write_text(text)
        try:
            path = compose.conf_file(str(folder / "own.yaml"))
            compose.compose(path, [])
            composed += 1
        except UserError as error:
            said = str(error)
            assert 10 < len(said) < 700, text
            assert "full_key" not in said and "raised while" not in said, (said, text)
    return composed


@pytest.mark.short
def test_fuzz_conf_files(tmp_path):
    assert 3 < fuzz(tmp_path, 1, 40) < 40


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 3))
def test_fuzz_conf_files_long(tmp_path, seed):
    fuzz(tmp_path, seed, 600)


# What BARS found best on Frappe: L2 of rows and numbers, width, and the tower's dropout.
BARS = {
    "lr": (1e-5, 0, None),
    "fm": (5e-6, 10, None),
    "wide_deep": (0.1, 10, 0.6),
    "deepfm": (0.05, 10, 0.2),
    "dcn": (0.05, 10, 0.4),
}


@pytest.mark.parametrize("data", ["frappe_x1", "frappe"])
@pytest.mark.parametrize("recipe", BARS)
def test_a_published_conf_has_the_settings_of_each_recipe(recipe, data):
    arguments = [f"recipe={recipe}", f"data={data}", "data.root=folder"]
    conf = compose.compose(compose.conf_file("frappe_x1"), arguments)
    l2, width, dropout = BARS[recipe]
    assert (conf.recipe["name"], conf.embedding.width) == (recipe, width)
    has_linear = recipe != "dcn"
    of_slots = {(conf.width_of(slot), conf.has_linear(slot)) for slot in conf.slots.values()}
    assert of_slots == {(width, has_linear)}
    if has_linear:
        assert conf.optimizer.linear.l2 == l2
    if width:
        assert conf.optimizer.embedding.l2 == l2
    if dropout is None:
        assert conf.recipe == {"name": recipe, "l2": l2}
    else:
        assert conf.recipe["hidden"] == [400, 400, 400] and conf.recipe["batch_norm"] is True
        assert (conf.recipe["dropout"], conf.recipe["l2"]) == (dropout, 0.0)
    assert conf.optimizer.updates == "all" and conf.optimizer.dense.epsilon == 1e-8
    assert (conf.evaluation.keep, conf.train.batch_size) == ("best", 4096)
    # What the command line says is last.
    given = [*arguments, "optimizer.linear.l2=0.5", "embedding.width=3"]
    conf = compose.compose(compose.conf_file("frappe_x1"), given)
    assert (conf.optimizer.linear.l2, conf.embedding.width) == (0.5, 3)


def test_every_published_setting_is_one_of_its_recipe():
    """A recipe on the command line drops what it does not know, so a mistyped setting too."""
    paths = list((shipped.folder("conf") / "published").glob("*/*.yaml"))
    assert {path.parent.name for path in paths} == set(FILES_OF_SETS)
    for path in paths:
        settings = yaml.safe_load(path.read_text())["recipe"]
        known = source_settings(path.stem)
        assert known is not None and settings and set(settings) <= set(known), path


def numbered(name, count):
    return ",".join(f"{name}{number}" for number in range(1, count + 1))


# The header of each set's files, and a row: @ is its label, and # a digit.
FILES_OF_SETS = {
    "frappe_x1": (
        "label,user,item,daytime,weekday,isweekend,homework,cost,weather,country,city",
        "@,##,##,#,#,#,#,#,#,##,##",
    ),
    "movielenslatest_x1": ("label,user_id,item_id,tag_id", "@,##,##,##"),
    "criteo_x1": (
        f"label,{numbered('I', 13)},{numbered('C', 26)}",
        "@" + ",0.0#" * 13 + ",##" * 26,
    ),
    "avazu_x1": (f"label,{numbered('feat_', 22)}", "@" + ",##" * 22),
    "criteo_x4": (
        f"Label,{numbered('I', 13)},{numbered('C', 26)}",
        "@,,-1,#" + ",1##" * 10 + ",68fd1e6#" * 25 + ",",
    ),
    "avazu_x4": (
        "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
        "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
        "C14,C15,C16,C17,C18,C19,C20,C21",
        "1#,@,1410210#,1005,0,1fbe01f#,f384587#,28905ebd,ecad238#,7801e8d9,07d7df22,a99f214#,"
        "ddd2926#,44956a2#,1,2,1570#,320,50,172#,0,35,-1,7#",
    ),
    "kuaivideo_x1": (
        "timestamp,user_id,item_id,is_click,is_like,is_follow,pos_items,neg_items",
        "1#,#,##,@,0,0,##^##^##,",
    ),
    "microvideo_x1": (
        "user_id,item_id,cate_id,clicked_items,clicked_categories,timestamp,is_click",
        "#,##,#,##^##,#^#,1#,@",
    ),
    "taobaoad_x1": (
        "clk,btag_his,cate_his,brand_his,userid,cms_segid,cms_group_id,final_gender_code,"
        "age_level,pvalue_level,shopping_level,occupation,new_user_class_level,adgroup_id,"
        "cate_id,campaign_id,customer,brand,price,pid,btag",
        "@,1^1^3,##^##^##,##^##,#,#,#,2,#,#,3,0,#,##,##,##,##,##,1#.9,430548_100#,1",
    ),
}
SHORT_SETS = ("frappe_x1", "criteo_x4", "taobaoad_x1")


def keys_of(conf, header, rows):
    """The groups and values of all ids that the slots of a conf see in lines of CSV."""
    keys = set()
    for name, slot in conf.slots.items():
        column = header.split(",").index(slot.column or name)
        for row in rows:
            cell = row.split(",")[column]
            for value in cell.split(slot.separator) if slot.separator else [cell]:
                if slot.boundaries and value:
                    value = sum(float(value) >= bound for bound in slot.boundaries)
                elif slot.ids == "weekday":
                    value = value[:6]
                if value != "" or slot.missing == "value":
                    keys.add((slot.group or name, value))
    return keys


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHORT_SETS else pytest.param(name, marks=pytest.mark.long)
        for name in FILES_OF_SETS
    ],
)
def test_a_published_conf_reads_the_files_of_its_set(ran, tmp_path, name):
    conf = compose.compose(compose.conf_file(name), ["data.root=folder"])
    header, row = FILES_OF_SETS[name]
    rng = random.Random(1)
    for file in {conf.data.train, conf.data.validation, conf.data.test} - {None}:
        rows = [row.replace("@", str(number % 2)) for number in range(40)]
        rows = [re.sub("#", lambda _: str(rng.randrange(10)), line) for line in rows]
        (tmp_path / file).write_text("\n".join([header, *rows, ""]))
        if file == conf.data.train:
            keys = keys_of(conf, header, rows)
    small = ["recipe.hidden=[4]", "embedding.width=4", "train.batch_size=16", "train.epochs=1"]
    small += ["recipe.attention=[4]"] if conf.recipe["name"] == "din" else []
    small += ["life.admission.after=1", "life.sketch=65536", "evaluation.ablate=false"]
    ran("train", f"conf={name}", "data.root=.", "output=run", *small, cwd=tmp_path)
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert (report["steps"], report["examples"]) == (3, 40)
    assert report["split"] == ("test" if conf.data.test else "validation")
    assert sum(table["rows"] for table in report["tables"].values()) == len(keys)
    assert (report["gauc"] is not None) if conf.data.group else "gauc" not in report


@pytest.mark.parametrize(
    ("arguments", "width"),
    [
        ([], 4),  # of the conf's own recipe
        (["recipe=lr"], 0),
        (["recipe=fm"], 4),
        (["recipe=lr", "embedding.width=6"], 6),  # said, so it is meant
        (["recipe.name=lr"], 4),
    ],
)
def test_a_recipe_without_embeddings_keeps_none(tmp_path, arguments, width):
    text = CONF.replace("user_id: {}", "user_id: {width: 12}")
    (tmp_path / "own.yaml").write_text(text)
    conf = compose.compose(tmp_path / "own.yaml", arguments)
    widths = {name: conf.width_of(slot) for name, slot in conf.slots.items()}
    assert widths.pop("user_id") == (0 if "recipe=lr" in arguments else 12)
    assert set(widths.values()) == {width}
    kept = compose.compose(tmp_path / "own.yaml", [*arguments, "slots.user_id.width=7"])
    assert kept.width_of(kept.slots["user_id"]) == 7


def test_what_leads_nowhere_is_refused_with_a_recipe_without_embeddings_too(tmp_path):
    for slot in ("${nope}", "{width: '${nope}'}", "{column: '${nope}'}"):
        (tmp_path / "own.yaml").write_text(CONF.replace("user_id: {}", f"user_id: {slot}"))
        for arguments in ([], ["recipe=lr"]):
            try:
                compose.compose(tmp_path / "own.yaml", arguments)
            except UserError as error:
                assert "\n" not in str(error)
            else:  # its width is not looked at
                assert arguments and "width" in slot


def test_a_recipe_of_ones_own_says_itself_that_it_reads_no_embeddings(tmp_path):
    (tmp_path / "own.yaml").write_text(CONF)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe/deepfm.yaml").write_text(
        "# @package _global_\nrecipe: {name: lr}\nembedding: {width: 0}\n"
    )
    conf = compose.compose(tmp_path / "own.yaml", ["recipe=deepfm"])
    assert (conf.recipe["name"], conf.embedding.width) == ("lr", 0)
