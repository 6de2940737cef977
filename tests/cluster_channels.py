"""Calls between simulated processes in virtual time: what transport/rpc.py does with gRPC.

A process has a channel to each other one. Calls wait until there is a connection. Those that are
open when it breaks fail, whether they were run or not, and are made again by `Channel.call`.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from tnctl.cluster.transport.once import Reply
from tnctl.cluster.transport.rpc import PINGS, CallRefused

TIMEOUT = 5.0  # cluster.timeout
# Seconds after which a connection breaks whose other side does not answer pings.
PINGED = TIMEOUT * sum(share for _, share in PINGS)
OK, UNAVAILABLE, REFUSED = "ok", "unavailable", "refused"


class Violation(BaseException):
    """What must not happen; of a kind that the product does not catch."""


@dataclass(eq=False)
class Attempt:
    """A call on its way, which ends once: `take` gets a code, and what was answered."""

    channel: Any
    method: str
    body: bytes
    envelope: bytes
    take: Any
    is_over: bool = False

    def end(self, code, result=b""):
        if not self.is_over:
            self.is_over = True
            self.channel.open.pop(self, None)
            self.channel.caller.after(0, lambda: self.take(code, result))


class Channel:
    """From a process to the one that listens on an address of another rank."""

    def __init__(self, world, caller, peer, address):
        self.world, self.caller, self.peer, self.address = world, caller, peer, address
        self.to, self.open, self.waiting = None, {}, []
        world.network.channels.append(self)
        self.connect()

    @property
    def pair(self):
        return frozenset((self.caller.rank, self.peer))

    def connect(self):
        self.to = self.world.listening(self.peer, self.address)
        if self.to is None or self.world.network.down.get(self.pair):
            self.to = None
            self.caller.after(self.world.chance.uniform(0.1, 0.2), self.connect)
            return
        waiting, self.waiting = self.waiting, []
        for attempt in waiting:
            self.send(attempt)

    def breaks(self):
        """As the caller sees it."""
        if self.to is not None:
            self.to = None
            for attempt in list(self.open):
                attempt.end(UNAVAILABLE, b"it is cut off")
            self.caller.after(0.1, self.connect)

    def send(self, attempt):
        if self.to is None:
            self.waiting.append(attempt)
        else:
            self.open[attempt] = None
            self.world.network.carry(attempt, self.to)

    def begin(self, method, take, body=b"", envelope=b""):
        self.send(Attempt(self, method, body, envelope, take))

    def call(self, method, body, envelope=b""):
        """As `Endpoint.call`."""
        reply = Future()

        def take(code, result):
            if code == OK:
                reply.set_result(Reply(result))
            elif code == UNAVAILABLE:
                self.begin(method, take, body, envelope)
            else:
                reply.set_exception(CallRefused(result.decode()))

        self.begin(method, take, bytes(body), envelope)
        return reply

    def watch(self, process, on_lost, on_connected, on_end):
        """As `Endpoint.watch`."""

        def ended(code, result):
            if code == OK:
                on_end(result)
            else:
                on_lost(result.decode())
                self.begin("here", answered)

        def answered(code, result):
            if code == OK:
                on_connected(result.decode())
                self.begin("stay", ended, process.encode())
            else:
                self.begin("here", answered)

        self.begin("stay", ended, process.encode())


class Network:
    """How calls travel: which links between ranks are down, and what happens to a call."""

    def __init__(self, world):
        self.world, chance = world, world.chance
        self.failures = chance.choice((0, 0, 0, 0.01, 0.05))
        self.duplicates = chance.choice((0, 0.02, 0.1))
        self.delay = chance.choice((0.001, 0.01, 0.05))
        self.down, self.stalled, self.channels = {}, {}, []

    def seconds(self):
        return min(self.world.chance.expovariate(1 / self.delay), 0.4)

    def carry(self, attempt, to):
        """Take a call to a process; or not, or twice, or without its reply."""
        chance, deliver = self.world.chance, partial(self.deliver, attempt, to)
        self.world.may_send(attempt.channel.caller)
        fails = chance.random() < self.failures
        if not fails or chance.random() < 0.5:
            self.travel(attempt, deliver)
        if fails:
            end = partial(attempt.end, UNAVAILABLE, b"its call ended")
            self.world.after(self.seconds(), end)
        if chance.random() < self.duplicates:
            late = chance.choice((self.seconds(), chance.uniform(0, 2)))
            self.travel(attempt, deliver, late)

    def deliver(self, attempt, to):
        # A thread may have a call whose connection broke.
        if not attempt.is_over or self.world.chance.random() < 0.5:
            to.happen(lambda: to.serve(attempt, partial(self.answer, attempt, to)))

    def answer(self, attempt, to, code, result):
        self.world.may_send(to)
        self.travel(attempt, partial(self.bring, attempt, to, code, bytes(result)))

    def bring(self, attempt, to, code, result):
        if attempt.channel.to is to:
            attempt.end(code, result)

    def travel(self, attempt, arrive, seconds=None):
        """Arrive later; when a link is down, once it is up: TCP sends it again."""

        def try_to_arrive():
            if self.down.get(attempt.channel.pair):
                self.stalled.setdefault(attempt.channel.pair, []).append(arrive)
            else:
                arrive()

        self.world.after(self.seconds() if seconds is None else seconds, try_to_arrive)

    def cut(self, first, second, seconds, noticed=0.7):
        """Break a link for some seconds. Either end may notice at once, or by pings."""
        pair, chance = frozenset((first, second)), self.world.chance
        if self.down.get(pair):
            return
        self.down[pair] = cut = object()
        for channel in self.channels:
            if channel.pair == pair:
                delay = 0 if chance.random() < noticed else PINGED
                self.breaks_later(channel, delay, lambda: self.down[pair] is cut)
        self.world.after(seconds, lambda: self.mend(pair))

    def mend(self, pair):
        self.down[pair] = None
        for arrive in self.stalled.pop(pair, []):
            self.world.after(self.seconds(), arrive)

    def ended(self, process):
        """Others notice that a process has ended; later when the machine is gone, too."""
        self.channels = [each for each in self.channels if each.caller is not process]
        for channel in self.channels:
            if channel.to is process:
                delay = 0.05 if self.world.chance.random() < 0.6 else PINGED
                self.breaks_later(channel, delay, lambda channel=channel: channel.to is process)

    def breaks_later(self, channel, delay, still):
        self.world.after(delay, lambda: still() and channel.caller.happen(channel.breaks))
