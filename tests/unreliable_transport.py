"""Calls between nodes over connections that break, so that they come late, twice and mixed.

A call whose connection breaks is made again by the caller, as gRPC's would be; it may have been run
or not, and its reply may be lost. What happens when follows from the seed and from the speed of
the threads, so a seed is not exactly repeatable.
"""

import random
import threading
import time
from collections import Counter

from cluster_in_one_process import Transport

from tnctl.cluster.transport.once import Envelope

MOST_DELAY = 0.004  # seconds


class UnreliableTransport(Transport):
    """Takes the calls of all nodes; `counts` says what happened to them."""

    def __init__(self, seed):
        self.counts = Counter()
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self._sent = []  # some calls, to be made again much later

    def deliver(self, caller, peer, envelope, body, reply):
        while True:
            with self._lock:
                delay = self._chance.choice((0, 0, self._chance.uniform(0, MOST_DELAY)))
                before, after, twice, again, kept = (self._chance.random() for _ in range(5))
                if kept < 0.1:
                    self._sent.append((caller, peer, envelope, body))
                old = self._chance.choice(self._sent) if self._sent and again < 0.1 else None
            time.sleep(delay)
            if old is not None:
                self.repeat("replayed", *old)
            if before < 0.05:
                self.counts["lost before"] += 1
                continue
            if twice < 0.2:
                self.threads.submit(self.repeat, "doubled", caller, peer, envelope, body)
            if after < 0.05:
                self.repeat("lost after", caller, peer, envelope, body)
                continue
            super().deliver(caller, peer, envelope, body, reply)
            return

    def repeat(self, what, caller, peer, envelope, body):
        """Make a call whose reply nobody receives."""
        self.counts[what] += 1
        self.nodes[peer].answer(caller, Envelope.parse(envelope), body)
