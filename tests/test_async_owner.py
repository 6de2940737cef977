"""An owner in asynchronous training: what it applies, answers and holds, and what it refuses."""

import numpy as np
import pytest
from test_cluster_owner import TABLE, SumsOfGradients

from tnctl.cluster.messages.exchange import Sizes, new_exchange, new_read, parse_reply
from tnctl.cluster.owners.arrivals import Arrivals
from tnctl.cluster.transport.kinds import MessageError
from tnctl.errors import Failure


def sizes(ids):
    return Sizes(2 * len(ids), (len(ids),))


def sent(number, pushed=(), pulled=(), **flags):
    """The body of a message that pushes 1 to each of some ids, and pulls others as `number`."""
    flags = {"has_next": True, **flags}
    body, written = new_exchange(TABLE, number, sizes(pushed), sizes(pulled), **flags)
    written.push.tables[0].sums[:] = 1
    written.keys[0].ids[:] = pulled
    written.keys[0].occurrences[:] = 1
    return body


def owner_of(workers, staleness=None, warmup_steps=0):
    """An owner that rank 0 has let begin."""
    owner = Arrivals(TABLE, workers, SumsOfGradients(workers), staleness, warmup_steps)
    assert [handle for handle, _ in owner.exchange(0, sent(0, rate_factor=0.5), "begin")] == [
        "begin"
    ]
    return owner


def test_a_gradient_of_a_row_that_is_gone_is_dropped():
    owner = owner_of(1)
    owner.exchange(0, sent(1, [], [5, 6]), "a")
    del owner.parameters.rows[5]
    owner.exchange(0, sent(1, [5, 6]), "b")
    assert owner.parameters.rows == {6: 1}


def test_who_waits_for_another_worker_is_reported():
    owner = owner_of(2, 0)
    for rank, number, ids in [(1, 1, [4]), (0, 1, [4]), (1, 2, [4])]:
        owner.exchange(rank, sent(number, [], ids), number)
    owner.exchange(1, sent(2, [4]), "push")  # is held until worker 0 has pushed
    owner.exchange(0, sent(1, [4]), "push")
    owner.exchange(1, sent(2, [4], has_next=False), "push")
    reports = [owner.work.get_nowait() for _ in range(owner.work.qsize())]
    assert [(rank, waited_for) for rank, _, waited_for in reports] == [
        (0, None), (1, None), (0, None), (1, None), (1, None), (0, None), (1, 0),
    ]  # fmt: skip


def test_staleness_counts_what_was_applied_since_the_rows_were_read():
    owner, rng = owner_of(3), np.random.default_rng(5)
    applied, read, expected = 0, {rank: [] for rank in range(3)}, []
    pulled, pushed = [0] * 3, [0] * 3
    for _ in range(300):
        rank = int(rng.integers(3))
        push = [4] if len(read[rank]) == 2 or (read[rank] and rng.random() < 0.5) else []
        if push:
            at, ahead = read[rank].pop(0)
            expected.append((rank, applied - at, ahead))
            applied += 1
            pushed[rank] += 1
        pulls = [4] if len(read[rank]) < 2 and rng.random() < 0.8 else []
        pulled[rank] += len(pulls)
        if pulls:
            read[rank].append((applied, max(pulled[rank] - 1 - min(pushed), 0)))
        owner.exchange(rank, sent(pulled[rank], push, pulls), "")
    of_pushes = [owner.batches.get_nowait() for _ in range(owner.batches.qsize())]
    assert of_pushes == expected and len({stale for _, stale, _ in expected}) > 5
    assert max(ahead for _, _, ahead in expected) > 3


def test_a_pause_answers_what_is_held_and_ends_the_step():
    owner = owner_of(2, 0)
    owner.exchange(1, sent(1, [], [4]), "a")
    assert owner.exchange(1, sent(2, [], [4]), "b") == []
    owner.exchange(1, sent(2, [4]), "c")
    assert not owner.is_draining
    answers = owner.exchange(0, sent(0, drain=True), "drain")
    assert [handle for handle, _ in answers] == ["drain", "b"] and owner.is_draining
    with pytest.raises(MessageError, match="worker 1 reads during step 1"):
        owner.read(1, new_read(TABLE, [0], dense=True)[0])
    with pytest.raises(MessageError, match="pauses the training while batches are open"):
        owner.exchange(0, sent(0, pause=True), "pause")
    owner.exchange(1, sent(2, [4], has_next=False), "d")
    assert owner.parameters.pushes == 2
    owner.exchange(1, sent(2, has_next=False), "e")
    owner.exchange(0, sent(1, [], [4]), "f")
    owner.exchange(0, sent(1, [4], has_next=False), "g")
    [(_, body)] = owner.exchange(0, sent(1, pause=True, has_next=False), "pause")
    assert parse_reply(TABLE, sizes([]), body).steps == 2 and owner.is_paused
    owner.read(1, new_read(TABLE, [0], dense=True)[0])
    with pytest.raises(MessageError, match="worker 1: it sent an exchange while training pauses"):
        owner.exchange(1, sent(1, [], [4]), "h")
    owner.exchange(0, sent(1, [], [4]), "i")  # all count from 1 again
    assert not owner.is_paused and not owner.is_draining


@pytest.mark.parametrize(("rank", "body", "words"), [
    (1, sent(3, [], [4]), "worker 1: an exchange of batch 3, the next is 2"),
    (1, sent(1, [4, 5]), "worker 1: an exchange pushes 4 rows, pulled were 2"),
    (2, sent(0, [4]), "worker 2: an exchange pushes 2 rows, pulled were 0"),
    (2, sent(0, pause=True), "worker 2: an exchange pauses the training, which rank 0 decides"),
    (2, sent(0, drain=True), "worker 2: an exchange pauses the training, which rank 0 decides"),
    (0, sent(1, [], [4], pause=True), "worker 0: an exchange pauses and pulls 2 rows"),
    (1, b"", "worker 1: a message of 0 bytes has a header of 0"),
])  # fmt: skip
def test_a_message_that_does_not_fit_names_the_worker(rank, body, words):
    owner = owner_of(3)
    owner.exchange(1, sent(1, [], [4]), "a")
    with pytest.raises(MessageError, match=words):
        owner.exchange(rank, body, "b")
    assert owner.parameters.pushes == 0


def test_a_worker_has_two_pulls_open_at_most_and_pushes_none_that_is_held():
    owner = owner_of(2, 0)
    owner.exchange(1, sent(1, [], [4]), "a")
    owner.exchange(1, sent(2, [], [4, 5]), "b")
    with pytest.raises(MessageError, match="worker 1: an exchange pulls a batch while 2 are open"):
        owner.exchange(1, sent(3, [], [4]), "c")
    owner.exchange(1, sent(2, [4]), "d")
    with pytest.raises(MessageError, match="pushes 4 rows, pulled were 0"):
        owner.exchange(1, sent(2, [4, 5]), "e")


def test_a_gradient_that_is_nan_names_the_worker_and_the_step():
    owner = owner_of(1)
    owner.exchange(0, sent(1, [], [4]), "a")
    body, written = new_exchange(TABLE, 1, sizes([4]), sizes([]))
    written.push.dense[:] = np.nan
    with pytest.raises(Failure, match="step 1: worker 0: a gradient of a dense weight is NaN"):
        owner.exchange(0, body, "b")
    assert owner.parameters.pushes == 0
