"""A simulated world of a cluster: virtual time, a bad network, storage, supervisors and faults.

`simulate(seed)` runs one world to its end. All that happens follows from the seed. Everything that
must hold is checked while it runs; the first violation raises AssertionError.
"""

import copy
import heapq
import os
import random
import re
from collections import Counter
from functools import partial

from cluster_model import keys_of, new_state, random_data, reference, train_step
from cluster_processes import Lineage, Position, Process

from tnctl.cluster.joining.assignment import LOST
from tnctl.cluster.joining.liveness import GenerationOver

SEED = "TNCTL_SIMULATION_SEED"
SECONDS_OF_FAULTS = 25
SECONDS_AFTER_FAULTS = 150  # within which training must end
PINGED = 2.0  # seconds after which a connection breaks whose other side does not answer pings
NOTICED = 5.2  # seconds after which all know that a process was lost


class Network:
    """How packets travel: each pair of ranks has a link, which may be down."""

    def __init__(self, world):
        self.world, chance = world, world.chance
        self.loss = chance.choice((0, 0, 0, 0.01, 0.05))
        self.duplicates = chance.choice((0, 0.02, 0.1))
        self.delay = chance.choice((0.001, 0.01, 0.05))
        self.keeps_order = chance.random() < 0.5
        self.arrivals, self.breaks, self.down = {}, {}, {}

    def send(self, sender, receiver, packet):
        pair = frozenset((sender, receiver))
        chance = self.world.chance
        if self.down.get(pair):
            return  # what has no reply is sent again when the link is up
        if chance.random() < self.loss:
            self.fail(sender, receiver, packet)
            return
        breaks = self.breaks.get(pair, 0)
        for _ in range(1 + (chance.random() < self.duplicates)):
            delay = chance.expovariate(1 / self.delay)
            arrival = self.world.now + min(delay, 0.4)
            if self.keeps_order:
                arrival = max(arrival, self.arrivals.get((sender, receiver), 0) + 1e-6)
                self.arrivals[sender, receiver] = arrival
            self.world.at(arrival, lambda: self.deliver(sender, receiver, packet, breaks))

    def deliver(self, sender, receiver, packet, breaks):
        # What is on its way in a connection is lost with it.
        def receive(process):
            if self.breaks.get(frozenset((sender, receiver)), 0) == breaks:
                process.receive(packet)

        self.world.tell(receiver, receive)

    def fail(self, sender, receiver, packet):
        """A call breaks, before it was run or after: its caller makes it again."""
        caller, peer = (sender, receiver) if packet.kind == "call" else (receiver, sender)

        def again(process):
            if process.generation == packet.generation:
                for open_ in [p for key, p in process.open.items() if key == (peer, packet.number)]:
                    process.call_again(peer, open_)

        if packet.kind in ("call", "reply"):
            self.world.after(0.1, lambda: self.world.tell(caller, again))

    def cut(self, first, second, seconds, noticed=0.7):
        """Break a link for some seconds. Either end may notice at once, or by pings."""
        pair, chance = frozenset((first, second)), self.world.chance
        if self.down.get(pair):
            return
        self.down[pair] = cut = object()
        self.lose(pair)
        for rank, other in ((first, second), (second, first)):
            delay = 0 if chance.random() < noticed else PINGED
            self.world.after(delay, partial(self.notice, rank, other, cut))
        self.world.after(seconds, lambda: self.mend(first, second))

    def lose(self, pair):
        """What is on its way between two ranks does not arrive."""
        self.breaks[pair] = self.breaks.get(pair, 0) + 1

    def notice(self, rank, other, cut):
        if self.down[frozenset((rank, other))] is cut:
            self.world.tell(rank, lambda process: process.link_is_down(other))

    def mend(self, first, second):
        self.down[frozenset((first, second))] = False
        for rank, other in ((first, second), (second, first)):
            self.world.connects(rank, other)


class World:
    """Processes, their network, supervisors and storage, and the faults that happen to them."""

    process_of = Process

    def __init__(self, seed, is_traced=False):
        self.chance = random.Random(seed)
        self.now, self.events, self.count = 0.0, [], 0
        self.trace = [] if is_traced else None
        self.data = random_data(self.chance, self.chance.choice((1, 2, 2, 2, 3, 3, 4)))
        self.prepare()
        self.save_every = self.chance.choice((1, 2, 3))
        self.network = Network(self)
        self.parts, self.manifests = {}, [0]
        self.generations, self.processes_started, self.refused = 0, 0, 0
        self.reasons, self.kinds = Counter(), Counter()  # of ends, of requests
        self.servers_killed = self.servers_stopped = 0
        self.sent = []  # some packets, to be replayed in later generations
        self.has_one_supervisor = self.chance.random() < 0.5
        self.kills_at_writes = self.chance.choice((0, 0, 0.1))
        self.is_collecting, self.is_done = False, False
        self.membership, self.processes = self.data.membership, {}
        for rank in range(self.membership.size):
            self.start(rank)
        self.plan_faults()

    def prepare(self):
        """What must come out, and how steps are made: of all workers."""
        self.history = reference(self.data)
        self.backup, self.slowness = 0, [1] * self.data.workers
        self.begin_positions()

    def begin_positions(self):
        self.positions, self.lineages = {0: Position(0, [0] * self.data.workers)}, {}
        self.left_out = 0

    def states_at(self, _, step):
        """The states of all owners by rank that a step of a generation must end with."""
        return self.history[step]

    # ---- Time ----------------------------------------------------------------

    def at(self, time, call):
        self.count += 1
        heapq.heappush(self.events, (time, self.count, call))

    def after(self, seconds, call):
        self.at(self.now + seconds, call)

    def run(self):
        while not self.is_done:
            assert self.events, "nothing happens any more"
            self.now, _, call = heapq.heappop(self.events)
            assert self.now < SECONDS_OF_FAULTS + SECONDS_AFTER_FAULTS, "training does not end"
            call()
        self.check_rows_of_all_passes()

    def check_rows_of_all_passes(self):
        rows = [row for unit in self.data.units for row in unit]
        trained = self.parts[self.manifests[-1], 0][1].trained
        assert sorted(trained) == sorted(rows * self.data.passes), "rows trained once per pass"

    def say(self, text):
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f} {text}")

    # ---- What processes do ---------------------------------------------------

    def tell(self, rank, call):
        process = self.processes[rank]
        process.happen(lambda: call(process))

    def send(self, process, peer, packet):
        assert not process.must_end, f"rank {process.rank} sends after it was stopped too long"
        self.say(f"{process.rank} > {peer} {packet.kind} {packet.number}")
        if self.chance.random() < 0.1 and packet.generation:
            self.sent.append((peer, packet))
        self.network.send(process.rank, peer, packet)

    def left(self, process, reason):
        self.reasons[re.sub(r"( \d+| for [\d.]+ s(: .*)?)", "", reason)] += 1
        self.exited(process, LOST)

    def is_up(self, first, second):
        return not self.network.down.get(frozenset((first, second)))

    def new_generation(self):
        self.generations += 1
        return self.generations

    def all_are_welcome(self):
        """All processes are new ones: packets of old generations arrive again."""
        for receiver, packet in self.chance.sample(self.sent, min(20, len(self.sent))):
            self.after(self.chance.uniform(0, 4), self.replay(receiver, packet))

    def replay(self, receiver, packet):
        return lambda: self.tell(receiver, lambda process: process.receive(packet))

    def write_part(self, process, step, state):
        self.may_write(process)
        self.check_part(process, step, state)
        self.parts[step, process.rank] = process.generation, state
        self.say(f"{process.rank} wrote its part of {step}")
        self.may_write(process)

    def check_part(self, process, step, state):
        expected = self.states_at(process.generation, step)[process.rank]
        assert state == expected, f"rank {process.rank} differs at {step}"

    def write_manifest(self, process, step):
        self.may_write(process)
        for rank in self.membership.owners:
            generation, state = self.parts[step, rank]
            assert generation == process.generation, "a part of another generation"
            self.check_part(self.processes[rank], step, state)
        assert step > self.manifests[-1], "checkpoints are in the order of their steps"
        self.manifests.append(step)
        self.say(f"manifest of {step}")
        self.may_write(process)

    def may_write(self, process):
        assert not process.must_end, f"rank {process.rank} writes after it was stopped too long"
        if self.now < SECONDS_OF_FAULTS and self.chance.random() < self.kills_at_writes:
            self.kill(process)
            raise GenerationOver("killed while it wrote")

    def newest_manifest(self):
        return self.manifests[-1]

    def load(self, step, rank):
        if not step:
            return new_state(rank, self.membership)
        return copy.deepcopy(self.parts[step, rank][1])

    # ---- Supervisors ---------------------------------------------------------

    def start(self, rank):
        self.processes_started += 1
        self.processes[rank] = process = self.process_of(self, rank)
        for peer in process.peers:  # whose channels find another process at the address
            self.after(self.chance.uniform(0.1, 0.4), partial(self.connects, peer, rank))

    def connects(self, peer, rank):
        """A process finds another one at its address, if one lives there."""
        is_there = all(each in self.processes for each in (peer, rank))
        if is_there and self.is_up(peer, rank) and self.processes[rank].exit_code is None:
            self.tell(peer, lambda process: process.link_is_up(rank))

    def start_all(self):
        self.is_collecting = False
        for rank in range(self.membership.size):
            self.start(rank)

    def exited(self, process, code):
        if process.exit_code is not None:
            return
        process.exit_code = code
        self.say(f"rank {process.rank} ends with {code}")
        if code == 0:
            self.is_done = True
            return
        if process.generation:
            self.expect_notice(process.generation)
        for peer in process.peers:
            # Later when the machine is gone, too.
            delay = 0.05 if self.chance.random() < 0.6 else PINGED
            self.after(delay, partial(self.breaks, process, self.processes[peer]))
        if not self.has_one_supervisor:
            self.after(self.chance.uniform(0.1, 1.5), lambda: self.start(process.rank))
        elif all(each.exit_code is not None for each in self.processes.values()):
            self.after(0.2, self.start_all)
        elif not self.is_collecting:
            self.is_collecting = True
            round_ = list(self.processes.values())
            self.after(6, lambda: [self.kill(each) for each in round_])

    def breaks(self, process, peer):
        """A peer notices that its connection to a process that has ended broke."""
        if self.processes[process.rank] is process:  # else `connects` has shown another one
            self.network.lose(frozenset((process.rank, peer.rank)))
            peer.happen(lambda: peer.link_is_down(process.rank))

    def expect_notice(self, generation):
        """A lost process ends its generation, but for processes that do not run meanwhile.

        One that is stopped learns of it when it is resumed.
        """
        alive = [
            each
            for each in self.processes.values()
            if each.generation == generation and not each.is_stopped
        ]
        stops = [each.stops for each in alive]

        def check():
            for process, count in zip(alive, stops, strict=True):
                if process.exit_code is None and not process.is_stopped and process.stops == count:
                    raise AssertionError(f"rank {process.rank} does not notice a loss")

        self.after(NOTICED, check)

    # ---- Faults --------------------------------------------------------------

    def plan_faults(self):
        chance = self.chance
        for _ in range(chance.choice((0, 1, 1, 2, 2, 3, 5))):
            kind = chance.choice((self.kill_one, self.kill_one, self.stop_one, self.cut_one))
            self.after(min(chance.expovariate(0.3), SECONDS_OF_FAULTS), kind)

    def any_process(self):
        return self.processes[self.chance.randrange(self.membership.size)]

    def kill_one(self):
        self.kill(self.any_process())

    def kill(self, process):
        self.reasons["killed"] += process.exit_code is None
        self.servers_killed += process.exit_code is None and self.membership.is_server(process.rank)
        self.exited(process, -9)

    def stop_one(self):
        process = self.any_process()
        if process.exit_code is None and not process.is_stopped:
            process.is_stopped = True
            process.stops += 1
            self.servers_stopped += self.membership.is_server(process.rank)
            seconds = self.chance.choice((0.3, 1, 2, 3.4, 6, 9))
            self.say(f"rank {process.rank} is stopped for {seconds}")
            self.after(PINGED, lambda: self.answers_no_ping(process, seconds - PINGED))
            self.after(seconds, lambda: self.resume(process, seconds))

    def answers_no_ping(self, process, seconds):
        if seconds > 0 and process.exit_code is None:
            for peer in process.peers:
                self.network.cut(process.rank, peer, seconds + 0.1, noticed=1)

    def resume(self, process, seconds):
        process.is_stopped = False
        if process.exit_code is not None:
            return
        # With half a second since its last tick it may end itself earlier, and must from here on.
        process.must_end = process.liveness is not None and seconds >= process.liveness.silence
        held, process.held = process.held, []
        self.chance.shuffle(held)
        for call in held:
            process.happen(call)

    def cut_one(self):
        """A link, or all links of a rank: a partition."""
        ranks = list(range(self.membership.size))
        self.chance.shuffle(ranks)
        seconds = self.chance.choice((0.1, 0.5, 1.5, 2.5, 4, 8))
        others = ranks[1:] if self.chance.random() < 0.4 else ranks[1:2]
        for other in others:
            self.say(f"{ranks[0]} and {other} are cut for {seconds}")
            self.network.cut(ranks[0], other, seconds)


class BackupWorld(World):
    """A world whose steps begin without some workers (`cluster.backup`); some workers are slow."""

    def prepare(self):
        workers = self.data.workers
        self.backup = self.chance.randrange(1, workers) if workers > 1 else 0
        self.slowness = [self.chance.choice((1, 1, 1, 6)) for _ in range(workers)]
        self.begin_positions()

    def states_at(self, generation, step):
        """One process continues from the newest manifest, with the pushes that were taken.

        Which workers a step leaves out depends on the network, so this is computed afterwards.
        """
        ranks, lineage = range(self.data.workers), self.lineages.get(generation, Lineage())
        first = self.newest_manifest()
        owners = {
            rank: self.load(first, rank) if first else new_state(rank, self.membership)
            for rank in self.membership.owners
        }
        for number in range(first + 1, step + 1):
            batches = [lineage.pulled[number].get(rank, []) for rank in ranks]
            train_step(self.data, owners, batches, lineage.pushed.get(number, set()))
        return owners

    def write_manifest(self, process, step):
        """Each row was trained as often as the position says, by each owner."""
        position, data = self.positions[step], self.data
        batches = [
            batch
            for rank, done in enumerate(position.batches)
            for batch in data.batches(rank) * position.passes + data.batches(rank)[:done]
        ]
        rows = [row for batch in batches for row in batch]
        assert sorted(self.parts[step, 0][1].trained) == sorted(rows), "rows trained once per pass"
        shows = Counter()
        for batch in batches:
            for key in {key for row in batch for key in keys_of(row)}:
                shows[key] += len(batch)
        shown = Counter()
        for rank in data.membership.owners:
            shown.update({key: row[2] for key, row in self.parts[step, rank][1].rows.items()})
        assert shown == shows, "each gradient is applied once"
        super().write_manifest(process, step)


def check_servers(worlds):
    """Servers took part, and were hit by faults."""
    assert {world.data.servers for world in worlds} == {0, 1, 2}
    assert sum(world.servers_killed for world in worlds) >= len(worlds) // 10
    assert sum(world.servers_stopped for world in worlds) >= len(worlds) // 30


def simulate(seed, policy=World):
    """Run the world of a seed. Raises AssertionError that says how to see it again."""
    is_traced = os.environ.get(SEED) == str(seed)
    world = policy(seed, is_traced)
    try:
        world.run()
    except Exception as error:
        if world.trace:
            print("\n".join(world.trace[-3000:]))
        raise AssertionError(
            f"{error!r} at {world.now:.3f} s with seed {seed}. To see it: {SEED}={seed} pytest "
            f"tests/test_cluster_simulation.py -k {policy.__name__}"
        ) from error
    return world
