"""Hundreds of simulated clusters in a bad world, and proof that they find broken protocols."""

import os
from collections import Counter

import pytest
from cluster_simulation import SEED, check_servers, simulate

from tnctl.cluster.joining.liveness import GenerationOver, Liveness
from tnctl.cluster.messages.squares import new_squares
from tnctl.cluster.owners.owner import Owner
from tnctl.cluster.transport.frames import Kind
from tnctl.cluster.transport.session import Client, Request, Server
from tnctl.tables import ExactSum

SEEDS = [int(os.environ[SEED])] if SEED in os.environ else range(500)

REASONS = (
    "killed",
    "this process was stopped",
    "worker has been silent",
    "worker could not be reached",
    "worker has ended",
)
KINDS = (
    Kind.HEARTBEAT,
    Kind.EXCHANGE,
    Kind.READ,
    Kind.COMMAND,
    Kind.REPLY,
    Kind.RESEND,
    Kind.SQUARES,
)


def test_a_cluster_in_a_bad_world_trains_what_one_process_does():
    worlds = [simulate(seed) for seed in SEEDS]
    if len(worlds) > 1:  # otherwise nothing was tested
        assert sum(world.generations for world in worlds) > 2 * len(worlds)
        assert sum(world.refused for world in worlds) > len(worlds)
        assert {world.data.workers for world in worlds} == {1, 2, 3, 4}
        check_servers(worlds)
        reasons = sum((world.reasons for world in worlds), Counter())
        assert min(reasons[text] for text in REASONS) >= 10, reasons
        kinds = sum((world.kinds for world in worlds), Counter())
        assert min(kinds[kind] for kind in KINDS) >= 10, kinds


@pytest.mark.long
def test_a_cluster_in_a_bad_world_for_long():
    for seed in range(500, 1_500):
        simulate(seed)


def test_a_seed_is_a_world():
    worlds = [simulate(7) for _ in range(2)]
    assert len({(world.now, world.count, world.generations) for world in worlds}) == 1


# ---- Broken protocols --------------------------------------------------------


def replies_are_not_kept(patch):
    reply = Server.reply

    def forget(self, number, *arguments):
        frame = reply(self, number, *arguments)
        self._replies[number] = None  # as if it were running
        return frame

    patch.setattr(Server, "reply", forget)


def heartbeats_say_nothing(patch):
    patch.setattr(Server, "heartbeat", lambda *_: [])


def duplicates_run_again(patch):
    receive = Server.receive

    def run(self, frame):
        if frame.number <= self._last and self._replies.get(frame.number):
            self._replies[frame.number] = None
            return Request(frame.number, frame.kind, frame.body)
        return receive(self, frame)

    patch.setattr(Server, "receive", run)


def requests_run_in_any_order(patch):
    def run(self, frame):
        if frame.number in self._replies:
            return self._replies[frame.number]
        self._last = max(self._last, frame.number)
        self._replies[frame.number] = None
        return Request(frame.number, frame.kind, frame.body)

    patch.setattr(Server, "receive", run)


def nothing_is_sent_again(patch):
    patch.setattr(Client, "unanswered", lambda *_: [])


def running_replies_are_forgotten(patch):
    patch.setattr(Server, "_forget", lambda self, _: self._replies.clear())


def replies_are_kept_forever(patch):
    patch.setattr(Server, "_forget", lambda *_: None)


def generations_are_mixed(patch):
    accept = Liveness.accept
    patch.setattr(
        Liveness,
        "accept",
        lambda self, frame, peer, _, now: accept(self, frame, peer, frame.generation, now),
    )


def a_pause_pulls(patch):
    meet = Owner._meet

    def pull(self):
        keys = [self._held[rank] for rank in range(self.workers)]
        answers = meet(self)
        if keys[0].pause and any(each.rows for each in keys):
            self._pulled = dict(enumerate(keys))
        return answers

    patch.setattr(Owner, "_meet", pull)


def a_pause_counts(patch):
    meet = Owner._meet

    def count(self):
        held = [self._held[rank] for rank in range(self.workers)]
        answers = meet(self)
        if held[0].pause:
            for exchange in held:
                keys = exchange.keys[0]
                pairs = zip(keys.ids.tolist(), keys.occurrences.tolist(), strict=True)
                self.parameters.state.begin(pairs)
        return answers

    patch.setattr(Owner, "_meet", count)


def pushes_are_in_the_order_of_arrival(patch):
    meet = Owner._meet

    def arrived(self):
        order, push = list(self._held), self.parameters.push

        def in_order(pulled, pushes, rate):
            push([pulled[rank] for rank in order], [pushes[rank] for rank in order], rate)

        self.parameters.push = in_order
        try:
            return meet(self)
        finally:
            del self.parameters.push

    patch.setattr(Owner, "_meet", arrived)


def squares_of_others_are_not_waited_for(patch):
    complete = Owner._complete

    def hasten(self):
        if self._squares:
            nothing = [ExactSum() for _ in self._squares]
            body = new_squares(self.parameters.steps + 1, nothing)
            self._of_others = dict.fromkeys(range(1, self.workers), body) | self._of_others
        return complete(self)

    patch.setattr(Owner, "_complete", hasten)


def a_server_applies_pushes_twice(patch):
    meet = Owner._meet

    def doubled(self):
        push, state = self.parameters.push, self.parameters.state

        def twice(*arguments):
            push(*arguments)
            if self.rank >= self.workers:
                steps = state.steps
                push(*arguments)
                state.steps = steps

        self.parameters.push = twice
        try:
            return meet(self)
        finally:
            del self.parameters.push

    patch.setattr(Owner, "_meet", doubled)


def squares_of_as_many_owners_as_workers_are_waited_for(patch):
    patch.setattr(Owner, "owners", property(lambda _: 0, lambda *_: None))


def silence_is_not_noticed(patch):
    patch.setattr(Liveness, "silence", 1e9)
    patch.setattr(Liveness, "window", 1e9)


def a_process_does_not_notice_its_own_silence(patch):
    def check(self, _):
        if self._reason is not None:
            raise GenerationOver(self._reason)

    patch.setattr(Liveness, "check", check)


BROKEN = [
    replies_are_not_kept,
    heartbeats_say_nothing,
    duplicates_run_again,
    requests_run_in_any_order,
    nothing_is_sent_again,
    running_replies_are_forgotten,
    replies_are_kept_forever,
    generations_are_mixed,
    a_pause_pulls,
    a_pause_counts,
    pushes_are_in_the_order_of_arrival,
    squares_of_others_are_not_waited_for,
    a_server_applies_pushes_twice,
    squares_of_as_many_owners_as_workers_are_waited_for,
    silence_is_not_noticed,
    a_process_does_not_notice_its_own_silence,
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda function: function.__name__)
def test_a_broken_protocol_is_found(broken, monkeypatch):
    broken(monkeypatch)
    with pytest.raises(AssertionError, match=f"{SEED}=") as caught:
        for seed in range(500):
            simulate(seed)
    print(caught.value)
