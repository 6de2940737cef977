"""Requests between workers run once, in their order, whatever the connection does."""

import random

import pytest

from tnctl.cluster.transport.frames import Frame, FrameError, Kind
from tnctl.cluster.transport.session import MOST_OPEN, Client, Request, Server


def session():
    return Client(1, 0), Server(1, 1)


def test_requests_run_once_and_in_their_order():
    client, server = session()
    first, second, third = (client.request(Kind.COMMAND, bytes([n])) for n in range(3))
    assert server.receive(second) == Frame(Kind.RESEND, 1, 1, 1)
    assert server.receive(third) is None  # asked for already
    assert client.unanswered(1) == [first, second, third]
    assert server.receive(first) == Request(1, Kind.COMMAND, b"\0")
    assert server.receive(first) is None  # it is running
    assert server.receive(second) == Request(2, Kind.COMMAND, b"\1")
    answer = server.reply(2, b"later")  # before the first
    assert client.receive(answer) and not client.receive(answer)
    assert server.receive(second) == answer  # again, from the cache
    assert [frame.number for frame in client.unanswered()] == [1, 3]
    assert server.receive(third).number == 3
    assert client.receive(server.reply(1, b""))
    assert client.receive(server.reply(3, b""))
    assert client.unanswered() == [] and len(server._replies) == 3
    assert server.heartbeat(client.heartbeat()) == [] and len(server._replies) == 0
    assert server.receive(second) is None  # answered long ago
    with pytest.raises(FrameError, match="worker 1 answers request 4, not sent yet"):
        client.receive(Frame(Kind.REPLY, 1, 1, 4))


def test_two_requests_may_stay_open():
    """A pass and a checkpoint, and thousands of exchanges while they last."""
    client, server = session()
    for _ in range(2):
        server.receive(client.request(Kind.COMMAND, b""))
    for _ in range(3000):
        request = client.request(Kind.EXCHANGE, b"")
        client.receive(server.reply(server.receive(request).number, b""))
        assert len(server._replies) <= 4
    assert [frame.number for frame in client.unanswered()] == [1, 2]


@pytest.mark.parametrize("left_open", [0, 1, 2, 3])
def test_no_more_requests_may_be_open_than_are_kept(left_open):
    client, server = session()
    for number in range(1, 35 if left_open == 3 else 200):
        server.receive(client.request(Kind.READ, b""))
        if number > left_open:
            client.receive(server.reply(number, b""))
        assert len(server._replies) <= MOST_OPEN + 2
    assert client.is_full() == (left_open == 3)
    if left_open == 3:
        with pytest.raises(FrameError, match="more than 32 requests open"):
            client.request(Kind.READ, b"")
        client.receive(server.reply(2, b""))
        assert not client.is_full()


def test_a_client_that_opens_more_is_refused():
    server = Server(1, 1)
    with pytest.raises(FrameError, match="worker 0 has more than 32 requests open"):
        for number in range(1, 100):
            server.receive(Frame(Kind.READ, 1, 0, number, (1, 2, 3)))


def test_a_heartbeat_shows_what_was_lost():
    client, server = session()
    first, _ = client.request(Kind.READ, b"1"), client.request(Kind.READ, b"2")
    assert server.heartbeat(client.heartbeat()) == [Frame(Kind.RESEND, 1, 1, 1)]
    server.receive(first)
    assert server.heartbeat(client.heartbeat()) == [Frame(Kind.RESEND, 1, 1, 2)]
    for frame in client.unanswered(2):
        server.receive(frame)
    assert server.heartbeat(client.heartbeat()) == []  # both are running
    lost = server.reply(2, b"")
    assert server.heartbeat(client.heartbeat()) == []  # it may be on its way
    assert server.heartbeat(client.heartbeat()) == [lost]
    assert client.receive(lost)
    assert server.heartbeat(client.heartbeat()) == [] and len(server._replies) == 1


def test_a_session_survives_a_bad_link():
    """Frames lost, doubled and reordered at random: each request runs once, in order."""
    for seed in range(30):
        chance = random.Random(seed)
        client, server = session()
        on_way, ran, answered, running = [], [], [], []
        while len(answered) < 60:
            if len(ran) < 60 and not client.is_full() and client._last < 60:
                on_way.append(client.request(Kind.EXCHANGE, b""))
            if chance.random() < 0.1:
                on_way.append(client.heartbeat())
            if running and chance.random() < 0.5:
                number = running.pop(chance.randrange(len(running)))
                on_way.append(server.reply(number, bytes([number])))
            if not on_way:
                continue
            frame = on_way.pop(chance.randrange(min(len(on_way), 5)))
            if chance.random() < 0.1:
                on_way.append(frame)
            if chance.random() < 0.2:
                continue
            if frame.kind is Kind.RESEND:
                on_way += client.unanswered(frame.number)
            elif frame.kind is Kind.HEARTBEAT:
                on_way += server.heartbeat(frame)
            elif frame.kind is Kind.REPLY:
                assert frame.body == bytes([frame.number])
                answered += [frame.number] * client.receive(frame)
            else:
                result = server.receive(frame)
                if isinstance(result, Request):
                    ran.append(result.number)
                    running.append(result.number)
                elif result is not None:
                    on_way.append(result)
            assert len(server._replies) <= MOST_OPEN + 2
        assert ran == list(range(1, 61)) and sorted(answered) == ran
