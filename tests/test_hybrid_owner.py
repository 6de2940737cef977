"""An owner in hybrid training: what it applies in step, what on arrival, and what it refuses."""

import numpy as np
import pytest
from cluster_model import DENSE, shape_of
from hybrid_simulation import DenseState, RowSums

from tnctl.cluster.messages.exchange import Sizes, new_exchange
from tnctl.cluster.messages.replies import new_read, parse_read_reply, parse_reply
from tnctl.cluster.owners.hybrid_owner import HybridOwner, dense_shape, row_shape
from tnctl.cluster.transport.frames import FrameError, Kind
from tnctl.errors import Failure

SHAPE = shape_of(0)


def owner_of(workers, staleness=None):
    """An owner that rank 0 has let begin."""
    dense = DenseState()
    owner = HybridOwner(SHAPE, workers, dense, RowSums(workers, dense), 0, staleness)
    assert handles(owner.exchange(0, Kind.EXCHANGE, of_rows(0), "begin")) == ["begin"]
    return owner


def of_dense(step, pushed=0, rows=2, *, gradient=1.0, **flags):
    """The body of dense gradients of a batch of `pushed` rows, and of a batch of `rows` to come."""
    flags = {"has_next": True, **flags}
    body, written = new_exchange(
        dense_shape(SHAPE), step, Sizes(pushed, ()), Sizes(rows, ()), **flags
    )
    written.push.dense[:] = gradient
    return body


def of_rows(number, pushed=(), pulled=(), **flags):
    """The body of a message that pushes 1 to each of some ids, and pulls others as `number`."""
    flags = {"has_next": True, **flags}
    sizes = [Sizes(2 * bool(ids), (len(ids),)) for ids in (pushed, pulled)]
    body, written = new_exchange(row_shape(SHAPE), number, *sizes, **flags)
    written.push.tables[0].sums[:] = 1
    written.keys[0].ids[:] = pulled
    written.keys[0].occurrences[:] = 1
    return body


def handles(answers):
    return [handle for handle, _ in answers]


def begun(workers, rows=None):
    """An owner of whose workers all have pulled a batch and begun step 1."""
    owner = owner_of(workers)
    for rank in range(workers):
        owner.exchange(rank, Kind.DENSE, of_dense(1, rows=(rows or [2] * workers)[rank]), rank)
    for rank in range(workers):
        if rows is None or rows[rank]:
            owner.exchange(rank, Kind.EXCHANGE, of_rows(1, [], [4]), "rows")
    return owner


def test_dense_gradients_wait_for_all_and_rows_for_nobody():
    owner = owner_of(2)
    assert owner.exchange(1, Kind.DENSE, of_dense(1), "a") == []
    assert handles(owner.exchange(1, Kind.EXCHANGE, of_rows(1, [], [4, 5]), "b")) == ["b"]
    assert handles(owner.exchange(1, Kind.EXCHANGE, of_rows(2, [], [4]), "c")) == ["c"]
    answers = owner.exchange(0, Kind.DENSE, of_dense(1, has_next=False), "d")
    assert handles(answers) == ["d", "a"]
    replies = [parse_reply(dense_shape(SHAPE), Sizes(2, ()), body) for _, body in answers]
    assert [(r.rows, r.any_next, r.step) for r in replies] == [(4, True, 1)] * 2
    owner.exchange(0, Kind.EXCHANGE, of_rows(1, [], [4]), "e")
    owner.exchange(1, Kind.DENSE, of_dense(2, 2, gradient=7.0), "f")
    assert owner.dense.parameters.steps == 0
    owner.exchange(0, Kind.DENSE, of_dense(2, 2, 0, gradient=3.0), "g")
    # In the order of the ranks, whatever that of the arrival.
    expected = DenseState().state
    for place in range(DENSE):
        expected.apply_dense(place, 3, 2, 1.0)
        expected.apply_dense(place, 7, 2, 1.0)
    assert owner.dense.parameters.state.dense == expected.dense
    assert (owner.dense.parameters.steps, owner.rows.parameters.steps) == (1, 0)


def test_a_step_of_rows_ends_when_all_that_had_a_batch_have_pushed():
    owner = begun(3, [2, 0, 2])
    for rank, pushed in enumerate([2, 0, 2]):
        owner.exchange(rank, Kind.DENSE, of_dense(2, pushed), rank)
    assert owner.rows.due == {0, 2}
    owner.exchange(2, Kind.EXCHANGE, of_rows(1, [4]), "a")
    assert owner.rows.parameters.steps == 0 and owner.rows.due == {0}
    owner.exchange(0, Kind.EXCHANGE, of_rows(1, [4]), "b")
    assert owner.rows.parameters.steps == 1 and not owner.rows.due
    assert owner.rows.parameters.state.rows == {4: [2, 2]}


def test_rows_are_pushed_after_the_dense_gradients_of_their_step():
    owner = begun(2)
    words = "worker 1: an exchange pushes rows of a step whose dense gradients are missing"
    with pytest.raises(FrameError, match=words):
        owner.exchange(1, Kind.EXCHANGE, of_rows(1, [4]), "a")
    assert owner.rows.parameters.state.rows == {4: [0, 2]}


def test_rows_are_pushed_before_the_dense_gradients_of_the_next_step():
    owner = begun(2)
    for rank in range(2):
        owner.exchange(rank, Kind.DENSE, of_dense(2, 2), rank)
    owner.exchange(1, Kind.EXCHANGE, of_rows(1, [4]), "a")
    owner.exchange(0, Kind.DENSE, of_dense(3, 2), "b")
    words = r"step 2 of the dense weights is complete, and the rows of step 1 of workers \[0\]"
    with pytest.raises(FrameError, match=words):
        owner.exchange(1, Kind.DENSE, of_dense(3, 2), "c")


def test_rank_0_drains_then_pauses_and_all_can_be_read():
    owner = begun(2)
    with pytest.raises(FrameError, match="worker 1: an exchange drains the training, which rank 0"):
        owner.exchange(1, Kind.DENSE, of_dense(2, 2, drain=True), "a")
    owner.exchange(1, Kind.DENSE, of_dense(2, 2), "b")
    [(_, body), _] = owner.exchange(0, Kind.DENSE, of_dense(2, 2, drain=True), "c")
    reply = parse_reply(dense_shape(SHAPE), Sizes(2, ()), body)
    assert (reply.paused, reply.any_next, reply.rows) == (False, False, 4)
    for rank in range(2):
        owner.exchange(rank, Kind.EXCHANGE, of_rows(2, [4], [5]), "d")
        owner.exchange(rank, Kind.DENSE, of_dense(3, 2, 0, pause=rank == 0), rank)
    read = new_read(SHAPE, [0], dense=True)[0]
    with pytest.raises(FrameError, match="worker 1 reads during step 3"):
        owner.read(1, read)
    for rank in range(2):
        owner.exchange(rank, Kind.EXCHANGE, of_rows(2, [5], has_next=False), "e")
    owner.exchange(0, Kind.EXCHANGE, of_rows(2, has_next=False, pause=True), "f")
    reply = parse_read_reply(SHAPE, [0], True, owner.read(1, read))
    assert reply.dense.tolist() == owner.dense.parameters.state.dense
    assert owner.dense.parameters.steps == owner.rows.parameters.steps == 2


@pytest.mark.parametrize(("kind", "body", "words"), [
    (Kind.DENSE, of_dense(3, 2), "worker 1: an exchange of step 3, the next is 2"),
    (Kind.DENSE, of_dense(2, 5), "worker 1: an exchange pushes 0 keys of 5 rows, pulled were"),
    (Kind.DENSE, of_dense(2, 2, 0, pause=True), "worker 1: an exchange pauses the training"),
    (Kind.DENSE, of_rows(2, [4]), "worker 1: an exchange is of 0 dense weights and 0 statistics"),
    (Kind.EXCHANGE, of_dense(2, 2), "worker 1: an exchange is of 2 dense weights"),
    (Kind.EXCHANGE, of_rows(4, [], [4]), "worker 1: an exchange of batch 4, the next is 2"),
    (Kind.SQUARES, b"", "worker 1: an exchange has 0 bytes"),
])  # fmt: skip
def test_a_message_that_does_not_fit_names_the_worker(kind, body, words):
    owner = begun(2)
    with pytest.raises(FrameError, match=words):
        owner.exchange(1, kind, body, "a")
    assert owner.dense.parameters.steps == 0


def test_a_dense_gradient_that_is_nan_names_the_worker_and_the_step():
    owner = begun(1)
    with pytest.raises(Failure, match="step 1: worker 0: a gradient of a dense weight is NaN"):
        owner.exchange(0, Kind.DENSE, of_dense(2, 2, gradient=np.nan), "a")
    assert owner.dense.parameters.steps == 0


def test_who_is_ahead_with_rows_is_held():
    owner = owner_of(2, 0)
    for rank in range(2):
        owner.exchange(rank, Kind.DENSE, of_dense(1), rank)
    owner.exchange(1, Kind.EXCHANGE, of_rows(1, [], [4]), "a")
    owner.exchange(0, Kind.EXCHANGE, of_rows(1, [], [4]), "b")
    assert owner.exchange(1, Kind.EXCHANGE, of_rows(2, [], [5]), "c") == []
    for rank in range(2):
        owner.exchange(rank, Kind.DENSE, of_dense(2, 2), rank)
    assert owner.exchange(1, Kind.EXCHANGE, of_rows(3, [4], [6]), "d") == []
    assert handles(owner.exchange(0, Kind.EXCHANGE, of_rows(2, [4], [5]), "e")) == ["c", "e"]


def test_owner_0_counts_how_stale_the_rows_of_each_batch_are():
    owner = begun(2)
    for rank in range(2):
        owner.exchange(rank, Kind.EXCHANGE, of_rows(2, [], [4]), "ahead")
    for step, order in ((2, [1, 0]), (3, [0, 1])):
        for rank in range(2):
            owner.exchange(rank, Kind.DENSE, of_dense(step, 2), rank)
        for rank in order:
            owner.exchange(rank, Kind.EXCHANGE, of_rows(step + 1, [4], [4]), "a")
    batches = [owner.rows.batches.get_nowait() for _ in range(owner.rows.batches.qsize())]
    of_pushes = [(batch.rank, batch.stale, batch.ahead) for batch in batches]
    assert of_pushes == [(1, 0, 0), (0, 1, 0), (0, 2, 1), (1, 3, 1)]


def test_other_owners_count_no_batches():
    dense = DenseState()
    owner = HybridOwner(shape_of(1), 2, dense, RowSums(2, dense), 1)
    assert owner.rows.counts_batches is False
