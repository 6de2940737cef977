"""Calls between processes run once, in their order, whatever the connection does."""

import contextlib
import random

import pytest

from tnctl.cluster.transport.kinds import Kind, MessageError
from tnctl.cluster.transport.once import MOST_OPEN, Answers, Calls, Envelope


def pair():
    return Calls(7, 0), Answers()


def test_calls_run_once_and_in_their_order():
    calls, answers = pair()
    first, second, third = (calls.envelope(Kind.COMMAND) for _ in range(3))
    assert answers.is_early(second) and answers.is_early(third)
    reply, is_new = answers.admit(first)
    assert is_new and answers.admit(first) == (reply, False)  # it is running
    later, is_new = answers.admit(second)
    later.set_result(b"later")  # before the first
    assert is_new and answers.admit(second)[0].result() == b"later"  # from the kept replies
    assert calls.answered(2) and not calls.answered(2)
    fourth = calls.envelope(Kind.COMMAND)
    assert fourth.unanswered == (1, 3, 4)
    answers.admit(third)
    answers.admit(fourth)
    late, is_new = answers.admit(second)  # its caller has the reply
    assert not is_new and not late.done()
    assert answers.admit(first) == (reply, False)


def test_calls_may_stay_open_while_others_are_answered():
    """A pass and a checkpoint, and thousands of exchanges while they last."""
    calls, answers = pair()
    for _ in range(2):
        answers.admit(calls.envelope(Kind.COMMAND))
    for number in range(3, 3000):
        answers.admit(calls.envelope(Kind.EXCHANGE))[0].set_result(b"")
        calls.answered(number)
        assert len(answers._replies) == 3
    assert calls.envelope(Kind.READ).unanswered == (1, 2, 3000)


def test_no_more_calls_may_be_open_than_replies_are_kept():
    calls, answers = pair()
    for _ in range(MOST_OPEN):
        answers.admit(calls.envelope(Kind.READ))
    assert calls.is_full
    with pytest.raises(MessageError, match="32 unanswered calls"):
        calls.envelope(Kind.READ)
    calls.answered(2)
    assert not calls.is_full


@pytest.mark.parametrize("numbers", [(1,), (1, 2, 7), tuple(range(1, MOST_OPEN + 1))])
def test_an_envelope_is_what_was_sent(numbers):
    envelope = Envelope(2**63 + 5, 127, Kind.SQUARES, numbers[-1], numbers)
    content = envelope.to_bytes()
    assert Envelope.parse(content) == envelope
    for damaged in (b"", content[:-1], content[:20], content + bytes(8), content + bytes(8 * 40)):
        with pytest.raises(MessageError):
            Envelope.parse(damaged)


def test_any_bytes_are_an_envelope_or_refused():
    chance = random.Random(0)
    good = Envelope(1, 2, Kind.READ, 9, (3, 8, 9)).to_bytes()
    for _ in range(3000):
        content = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        with contextlib.suppress(MessageError):
            Envelope.parse(bytes(content[: chance.randrange(len(content) + 1)] or content))


def test_a_bad_link_loses_doubles_and_reorders_calls():
    """Each call runs once, in order; each reply is that of its call; no reply is kept for long."""
    for seed in range(30):
        chance = random.Random(seed)
        calls, answers = pair()
        sent, on_way, replies, ran, received, running = {}, [], [], [], [], []
        while len(received) < 60:
            if not calls.is_full and len(sent) < 60:
                envelope = calls.envelope(Kind.EXCHANGE)
                sent[envelope.number] = envelope
                on_way.append(envelope)
            if running and chance.random() < 0.5:
                number, reply = running.pop(chance.randrange(len(running)))
                reply.set_result(bytes([number]))
            if not on_way:  # its connection broke: what has no reply is made again
                on_way += [envelope for n, envelope in sent.items() if n in calls._unanswered]
                continue
            envelope = on_way.pop(chance.randrange(min(len(on_way), 5)))
            if chance.random() < 0.1:
                on_way.append(envelope)
            if chance.random() < 0.2:
                continue
            if answers.is_early(envelope):
                on_way.append(envelope)
                continue
            reply, is_new = answers.admit(envelope)
            if is_new:
                ran.append(envelope.number)
                running.append((envelope.number, reply))
            replies.append((envelope.number, reply))
            number, reply = replies[chance.randrange(len(replies))]
            if reply.done() and chance.random() < 0.9:
                assert reply.result() == bytes([number])
                received += [number] * calls.answered(number)
            assert len(answers._replies) <= MOST_OPEN
        assert ran == list(range(1, 61)) and sorted(received) == ran
