"""`crosses`: all pairs and triples of slots, as the same slots declared one by one."""

from itertools import combinations

import numpy as np
import pytest

from tnctl import schema
from tnctl.data.features import Features
from tnctl.data.sources import Source
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import UserError
from tnctl.schema import input_sections

SLOTS = {"user": {}, "item": {"separator": "|"}, "hour": {"ids": "integer"}, "shop": {}}


def conf_of(crosses=None, slots=SLOTS, **sections):
    values = {"recipe": {"name": "lr"}, "slots": slots, **sections}
    return schema.from_values(values | ({} if crosses is None else {"crosses": crosses}))


def crosses_of(conf):
    return {name: slot.cross for name, slot in conf.slots.items() if slot.cross}


def test_they_are_those_declared_one_by_one(tmp_path):
    data = {"root": str(tmp_path), "train": "a.csv", "label": {"column": "y"}}
    (tmp_path / "a.csv").write_text(
        "user,item,hour,shop,y\nu1,a|b,7,s,1\nu2,,8,s,0\n,c,9,t,0\nu1,b,7,s,0\n"
    )
    short = conf_of({"pairs": ["user", "item", "hour"], "size": 1000, "width": 0}, data=data)
    names = ["hour", "item", "user"]
    written = {
        f"{a}_x_{b}": {"cross": [a, b], "ids": "modulo", "size": 1000, "width": 0}
        for a, b in combinations(names, 2)
    }
    long = conf_of(slots=SLOTS | written, data=data)
    assert short == long
    windows_of = []
    for conf in (short, long):
        features = Features(conf, [(list(conf.slots), [1] * len(conf.slots))], Statistics())
        windows_of.append(list(windows(Source(conf, "train"), features)))
    [[window], [expected]] = windows_of
    np.testing.assert_array_equal(window.ids[0], expected.ids[0])
    np.testing.assert_array_equal(window.offsets[0], expected.offsets[0])
    # Rows of 4 slots and 3 crosses; of the first row 2 items, so 2 + 2 crosses and 1.
    lengths = np.diff(window.offsets[0]).reshape(4, 7)
    assert lengths[0].tolist() == [1, 2, 1, 1, 2, 1, 2]
    assert lengths[1].tolist() == [1, 0, 1, 1, 0, 1, 0]


@pytest.mark.parametrize("count", [2, 3])
def test_all_of_them(count):
    key = {2: "pairs", 3: "triples"}[count]
    expected = {"_x_".join(parts): list(parts) for parts in combinations(sorted(SLOTS), count)}
    assert crosses_of(conf_of({key: list(SLOTS)})) == expected
    assert crosses_of(conf_of({key: list(SLOTS)[::-1]})) == expected
    both = conf_of({"pairs": list(SLOTS), "triples": list(SLOTS)})
    assert len(crosses_of(both)) == 6 + 4
    assert list(both.slots)[:4] == list(SLOTS)


def test_a_longer_list_keeps_names_and_ids():
    few = crosses_of(conf_of({"pairs": ["user", "hour"]}))
    many = crosses_of(conf_of({"pairs": ["shop", "user", "item", "hour"]}))
    assert few.items() <= many.items()


def test_what_is_declared_stays():
    declared = {"hour_x_item": {"cross": ["item", "hour"], "width": 3}}
    conf = conf_of({"pairs": ["user", "item", "hour"], "width": 0}, SLOTS | declared)
    assert conf.slots["hour_x_item"].width == 3
    assert conf.slots["hour_x_item"].cross == ["item", "hour"]
    assert conf.slots["item_x_user"].width == 0
    # A conf that has them as slots, as a checkpoint's, is read as it is.
    assert conf.crosses == schema.Conf(recipe={"name": "lr"}, slots=conf.slots).crosses
    groups = conf_of({"pairs": ["user", "item"]}, life={"groups": {"item_x_user": {}}})
    assert groups.slots["item_x_user"].cross == ["item", "user"]


@pytest.mark.parametrize(
    ("crosses", "slots", "words"),
    [
        ({"pairs": ["user"]}, {}, "crosses.pairs needs 2 slots or more"),
        ({"triples": ["user", "item"]}, {}, "crosses.triples needs 3 slots or more"),
        ({"pairs": ["user", "user"]}, {}, "crosses.pairs has a slot twice"),
        ({"pairs": ["user", "itme"]}, {}, "crosses.pairs: itme is no slot. Did you mean 'item'?"),
        ({"pairs": ["user", "c"]}, {"c": {"cross": ["user", "item"]}}, "c is a cross itself"),
        ({"pairs": ["user", "item"]}, {"item_x_user": {}}, "another slot of this name"),
        ({"width": 3}, {}, "Give pairs or triples"),
        ({"pair": ["user", "item"]}, {}, "crosses.pairs"),
        ({"pairs": "user"}, {}, "crosses.pairs is a list"),
        (["user", "item"], {}, "crosses takes no value"),
        ({"pairs": ["user", "item"], "size": 0}, {}, "crosses.size must be"),
    ],
)
def test_what_is_refused(crosses, slots, words):
    with pytest.raises(UserError) as caught:
        conf_of(crosses, SLOTS | slots)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_too_many():
    names = [f"s{number}" for number in range(64)]
    slots = {name: {} for name in names}
    assert len(crosses_of(conf_of({"pairs": names[:63]}, slots))) == 1953
    for crosses, total in (
        ({"pairs": names}, "2,016"),
        ({"triples": names[:24]}, "2,024"),
        ({"pairs": names[:40], "triples": names[:22]}, "2,320"),
    ):
        with pytest.raises(UserError, match=f"{total} crosses, and at most 2,000"):
            conf_of(crosses, slots)
    assert input_sections.MOST_CROSSES == 2000


def test_names_that_meet():
    slots = {name: {} for name in ("a", "b", "a_x_b", "c")}
    with pytest.raises(UserError, match=r"makes slots\.a_x_b of a, b, and the conf has another"):
        conf_of({"pairs": ["a", "b", "a_x_b"]}, slots)
    slots = {name: {} for name in ("a", "b_x_c", "a_x_b", "c")}
    with pytest.raises(UserError, match=r"makes slots\.a_x_b_x_c of"):
        conf_of({"pairs": list(slots)}, slots)


def test_from_the_command_line(cli, ran, workspace):
    """Trained, resumed by the same command, and kept in the checkpoint as slots."""
    command = ["train", "conf=small.yaml", "output=run", "crosses.pairs=[user_id,device]"]
    ran(*command, cwd=workspace)
    ran(*command, cwd=workspace)
    shown = cli("checkpoint", "inspect", "run", cwd=workspace)
    assert shown.code == 0 and "device_x_user_id" in shown.out, shown.out
