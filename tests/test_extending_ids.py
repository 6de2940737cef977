"""A kind of ids that is added as docs/extending.md says: one entry and one encoder."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tnctl.data.features import Features, indicator_width
from tnctl.data.slot_encoder import ENCODERS, HashIds, Ids, prepared
from tnctl.data.sources import Source
from tnctl.data.statistics import measure
from tnctl.data.statistics_document import Statistics
from tnctl.data.windows import windows
from tnctl.errors import UserError
from tnctl.schema import ID_KINDS, IdKind, Slot, from_values
from tnctl.tables.columns import hash_bytes

FIRST = {"max_length": 1}


class LetterIds(HashIds):
    """The place in the alphabet of a value's first letter; other values are missing."""

    @staticmethod
    def count(slot, lists):  # noqa: ARG004
        return 26 + (slot.missing == "value")

    @property
    def missing_id(self):
        return 26

    def encode(self, array, where, several):
        array = prepared(array, self.column, where)
        first = pc.binary_slice(array.cast(pa.binary()), 0, 1).to_pylist()
        ids = np.array([(text or b"~")[0] if text else 255 for text in first], np.int64) - ord("a")
        missing = self.hashed(array, several)
        return Ids(ids.astype(np.uint64), missing.missing).without((ids < 0) | (ids >= 26))


@pytest.fixture
def letter(monkeypatch):
    kind = IdKind("place in the alphabet of the first letter", counted=True)
    monkeypatch.setitem(ID_KINDS, "letter", kind)
    monkeypatch.setitem(ENCODERS, "letter", LetterIds)


def conf_of(folder, **slots):
    data = {"root": str(folder), "train": "a.csv", "label": {"column": "y"}}
    return from_values({"recipe": {"name": "lr"}, "slots": slots, "data": data})


def test_every_kind_has_an_encoder():
    assert ENCODERS.keys() == ID_KINDS.keys()


@pytest.mark.usefixtures("letter")
def test_a_new_kind_is_read_from_a_file(tmp_path):
    (tmp_path / "a.csv").write_text("t,u,y\nbee|ant,x,1\n,y,0\n7|cow,z,0\n")
    conf = conf_of(
        tmp_path,
        t={"ids": "letter", "separator": "|"},
        first={
            "ids": "letter",
            "column": "t",
            "separator": "|",
            "indicator": True,
            "max_length": 1,
        },
        u={"ids": "letter", "missing": "value"},
        both={"cross": ["t", "u"]},
    )
    features = Features(conf, [(["t"], [1]), (["u"], [1]), (["both"], [1])], measure(conf))
    [batch] = windows(Source(conf, "train"), features)
    assert batch.ids[0].tolist() == [1, 0, 2]
    assert batch.offsets[0].tolist() == [0, 2, 2, 3]
    assert batch.ids[1].tolist() == [23, 24, 25]
    pairs = [(1, 23), (0, 23), (2, 25)]
    expected = [hash_bytes(b"".join(i.to_bytes(8, "little") for i in pair), 0) for pair in pairs]
    assert batch.ids[2].tolist() == expected
    assert np.flatnonzero(batch.numeric).tolist() == [1, 26 * 2 + 2]


@pytest.mark.usefixtures("letter")
def test_the_conf_checks_a_new_kind_by_its_entry(tmp_path):
    with pytest.raises(UserError, match="size is for ids=modulo or integer"):
        Slot(ids="letter", size=5)
    with pytest.raises(UserError, match="cross makes ids of the ids of others"):
        conf_of(tmp_path, a={"cross": ["b", "c"], "ids": "letter"})
    slot = Slot(ids="letter", indicator=True, missing="value")
    assert indicator_width("a", slot, Statistics()) == 27


def test_a_kind_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="ids has no choice 'letter'"):
        Slot(ids="letter")
