"""cluster.wire=bfloat16: what is rounded, that all checks hold, and what it does to a model."""

from dataclasses import replace

import cluster_in_one_process
import ml_dtypes
import numpy as np
import pytest
from test_cluster import conf_of

from tnctl.cluster.messages.exchange import (
    Owned,
    Shape,
    Sizes,
    TableShape,
    check_finite,
    new_exchange,
    new_reply,
    parse_exchange,
    parse_reply,
)
from tnctl.cluster.messages.named_arrays import write_floats
from tnctl.cluster.transport.kinds import MessageError
from tnctl.errors import Failure
from tnctl.tables import from_bfloat16, to_bfloat16

SHAPE = Shape((TableShape(3, 5, counts=True, waits=True), TableShape(0, 2)), dense=7, halves=True)
PUSHED, PULLED = Sizes(5, (3, 4)), Sizes(9, (5, 1))


def rounded(values):
    halves = np.empty(values.shape, np.uint16)
    to_bfloat16(values, halves)
    return halves


def test_rounding_is_that_of_ml_dtypes_for_all_ties_and_neighbours():
    """Every upper half, NaN and infinity too, with the lower halves at which rounding changes."""
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (np.arange(1 << 16, dtype=np.uint32)[:, None] << 16) | lower
    values = bits.view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    halves = rounded(values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(halves[numbers], expected.view(np.uint16)[numbers])
    assert np.isnan(from_bfloat16(halves)[~numbers]).all()
    every = np.arange(1 << 16, dtype=np.uint16)
    np.testing.assert_array_equal(
        from_bfloat16(every).view(np.uint32), every.astype(np.uint32) << 16
    )
    with pytest.raises(ValueError, match=r"expected 2 elements\. Received: 3"):
        to_bfloat16(np.zeros(2, np.float32), np.zeros(3, np.uint16))


def bytes_of_arrays(body):
    return len(body) - 8 - int.from_bytes(body[:8], "little")


def test_rows_and_gradients_are_rounded_and_nothing_else():
    chance = np.random.default_rng(3)
    body, written = new_exchange(SHAPE, 4, PUSHED, PULLED, loss=0.1)
    sums = chance.normal(size=(3, 3)).astype(np.float32)
    dense = chance.normal(size=7).astype(np.float32)
    write_floats(written.push.tables[0].sums, sums)
    write_floats(written.push.dense, dense)
    written.push.tables[0].counts[:] = 16_777_215
    received = parse_exchange(SHAPE, PUSHED, body).push
    np.testing.assert_array_equal(received.tables[0].sums, from_bfloat16(rounded(sums)))
    np.testing.assert_array_equal(received.dense, from_bfloat16(rounded(dense)))
    assert (received.tables[0].counts == 16_777_215).all() and received.loss == 0.1
    plain, _ = new_exchange(Shape(SHAPE.tables, 7), 4, PUSHED, PULLED)
    assert bytes_of_arrays(plain) - bytes_of_arrays(body) == (36 - 18) + (28 - 14)
    answer, reply = new_reply(SHAPE, PULLED, [Owned(1, 2)] * 2, rows=9)
    rows = chance.normal(size=(5, 5)).astype(np.float32)
    write_floats(reply.tables[0].rows, rows)
    reply.dense[:] = dense
    pulled = parse_reply(SHAPE, PULLED, answer)
    np.testing.assert_array_equal(pulled.tables[0].rows, from_bfloat16(rounded(rows)))
    np.testing.assert_array_equal(pulled.dense, dense)
    for truncated in (body[:-8], bytes(body) + bytes(8), plain):
        with pytest.raises(
            MessageError, match=r"its arrays make|has other arrays|no 0\.sums of BF16"
        ):
            parse_exchange(SHAPE, PUSHED, truncated)
    write_floats(written.push.dense, np.full(7, 2.0**58, np.float32))
    with pytest.raises(Failure, match="a gradient of a dense weight is NaN, infinite or beyond"):
        check_finite(parse_exchange(SHAPE, PUSHED, body).push, 2)


def test_a_model_is_about_as_good_with_half_the_bytes(parts, monkeypatch):
    evaluations, sent = {}, {}
    for wire in ("float32", "bfloat16"):
        conf = conf_of(
            parts, monkeypatch, "data.train=part-*.csv", "train.batch_size=64", "train.epochs=2",
            "embedding.width=64", output=wire,
        )  # fmt: skip
        conf = replace(conf, cluster=replace(conf.cluster, wire=wire))
        report, errors = cluster_in_one_process.train_together(conf, 2)
        assert not errors
        evaluations[wire] = report.evaluations[-1].validation
        sent[wire] = sum(worker.sent_bytes for worker in report.timing.workers)
    assert sent["bfloat16"] < 0.7 * sent["float32"]
    assert evaluations["bfloat16"] != evaluations["float32"]
    aucs = [evaluations[wire]["auc"] for wire in ("bfloat16", "float32")]
    assert aucs[0] == pytest.approx(aucs[1], abs=0.002)
