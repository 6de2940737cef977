"""A transport between nodes whose connections break, and whose frames come late, twice and mixed.

What is on its way when a connection breaks is lost, as is what is sent until there is another one.
Frames of any time are sent again later, and frames of another generation are sent in between. What
happens when follows from the seed and from the speed of the threads, so a seed is not exactly
repeatable.
"""

import dataclasses
import heapq
import random
import threading
import time
from collections import Counter

from tnctl.cluster.joining.liveness import Liveness, others
from tnctl.cluster.transport import frames
from tnctl.cluster.transport.frames import FrameError, Kind

GENERATION = 1
SECONDS_BETWEEN_HEARTBEATS = 0.02
SECONDS_AWAY = 0.01  # that a connection is at most away
MOST_DELAY = 0.004  # seconds


class UnreliableTransport:
    """Takes the frames of all nodes; `counts` says what happened to them."""

    def __init__(self, seed):
        self.counts = Counter()
        self._chance = random.Random(seed)
        self._change = threading.Condition()
        self._due = []  # a heap of (time, number, call)
        self._number = 0
        self._breaks, self._down = Counter(), set()  # by the two ranks of a connection
        self._sent = []  # (sender, receiver, bytes) of some frames
        self._nodes, self._liveness = [], []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self, nodes):
        """Deliver frames to these nodes, by their rank."""
        ranks = range(len(nodes))
        self._nodes = nodes
        self._liveness = [Liveness(rank, others(rank, len(nodes)), 1e9, 0.0) for rank in ranks]
        self._thread.start()
        with self._change:
            self._at(0, self._send_heartbeats)

    def close(self):
        """Deliver nothing more."""
        with self._change:
            self._is_over = True
            self._change.notify_all()
        self._thread.join()

    def send(self, sender, receiver, frame):
        """Take a frame: returns at once."""
        data, chance = frame.to_bytes(), self._chance
        with self._change:
            self._transmit(sender, receiver, data)
            if chance.random() < 0.1:
                self._sent.append((sender, receiver, data))
            if self._sent and chance.random() < 0.1:
                self.counts["replayed"] += 1
                self._transmit(*chance.choice(self._sent))
            if chance.random() < 0.05:
                stale = dataclasses.replace(frame, generation=GENERATION + 1)
                self._transmit(sender, receiver, stale.to_bytes())
            if frame.kind is not Kind.HEARTBEAT and chance.random() < 0.06:
                self._break(frozenset((sender, receiver)))

    # ---- With the lock -------------------------------------------------------------

    def _at(self, seconds, call):
        """Call something after some seconds, in the thread of the transport."""
        self._number += 1
        heapq.heappush(self._due, (time.monotonic() + seconds, self._number, call))
        self._change.notify_all()

    def _transmit(self, sender, receiver, data):
        pair = frozenset((sender, receiver))
        if pair in self._down:
            self.counts["lost"] += 1
            return
        copies = 1 + (self._chance.random() < 0.2)
        self.counts["duplicated"] += copies - 1
        breaks = self._breaks[pair]
        for _ in range(copies):
            delay = self._chance.choice((0, 0, self._chance.uniform(0, MOST_DELAY)))
            self._at(delay, lambda: self._deliver(sender, receiver, data, breaks))

    def _break(self, pair):
        if pair not in self._down:
            self.counts["broken"] += 1
            self._breaks[pair] += 1
            self._down.add(pair)
            self._at(self._chance.uniform(0, SECONDS_AWAY), lambda: self._connect(pair))

    # ---- In the thread of the transport ----------------------------------------------

    def _run(self):
        while True:
            with self._change:
                while not self._is_over and not (self._due and self._due[0][0] <= time.monotonic()):
                    wait = self._due[0][0] - time.monotonic() if self._due else None
                    self._change.wait(wait)
                if self._is_over:
                    return
                _, _, call = heapq.heappop(self._due)
            call()

    def _deliver(self, sender, receiver, data, breaks):
        if self._breaks[frozenset((sender, receiver))] != breaks:
            self.counts["lost"] += 1
            return
        frame = frames.parse(data)
        try:
            self._liveness[receiver].accept(frame, sender, GENERATION, 0.0)
        except FrameError:
            self.counts["refused"] += 1
        else:
            self._nodes[receiver].receive(frame)

    def _connect(self, pair):
        with self._change:
            self._down.discard(pair)
        first, second = pair
        self._nodes[first].connected(second)
        self._nodes[second].connected(first)

    def _send_heartbeats(self):
        for rank, node in enumerate(self._nodes):
            for peer, heartbeat in node.heartbeats().items():
                self.send(rank, peer, heartbeat)
        with self._change:
            self._at(SECONDS_BETWEEN_HEARTBEATS, self._send_heartbeats)
