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

from cluster_channels import PINGED, Network, Violation
from cluster_model import (
    Added,
    Dealt,
    Leased,
    Mixed,
    keys_of,
    new_state,
    occurrences,
    owner_of,
    random_data,
    reference,
    train_step,
)
from cluster_processes import Ended
from cluster_programs import Lineage, Steps, Streams

from tnctl.cluster.joining.assignment import LOST

SEED = "TNCTL_SIMULATION_SEED"
SECONDS_OF_FAULTS = 25
SECONDS_AFTER_FAULTS = 150  # within which training must end
NOTICED = 5.2  # seconds after which all know that a process was lost
SECONDS_TO_END = 4.0  # of all processes after the first one


class World:
    """Processes, their network, supervisors and storage, and the faults that happen to them."""

    process_of, rule = Steps, Mixed

    def __init__(self, seed, is_traced=False):
        self.chance = random.Random(seed)
        self.now, self.events, self.count = 0.0, [], 0
        self.trace = [] if is_traced else None
        self.data = random_data(self.chance, self.chance.choice((1, 2, 2, 2, 3, 3, 4)))
        self.membership, self.processes = self.data.membership, {}
        self.backup, self.slowness = 0, [1] * self.data.workers
        self.positions, self.lineages, self.left_out = {}, {}, 0  # step -> generation, position
        self.start_position = Dealt(0, [0] * self.data.workers)
        self.prepare()
        self.save_every = self.chance.choice((1, 2, 3))
        self.network = Network(self)
        self.parts, self.manifests = {}, [0]
        self.generations, self.processes_started, self.refused = 0, 0, 0
        self.reasons, self.kinds = Counter(), Counter()  # of ends, of calls
        self.servers_killed = self.servers_stopped = 0
        self.sent = []  # some calls, to be replayed in later generations
        self.keeps_addresses = self.chance.random() < 0.5
        self.has_one_supervisor = self.chance.random() < 0.5
        self.kills_at_writes = self.chance.choice((0, 0, 0.1))
        self.is_collecting, self.is_done, self.last_fault = False, False, 0.0
        for rank in range(self.membership.size):
            self.start(rank)
        self.plan_faults()

    def prepare(self):
        """What must come out, and how steps are made: of all workers."""
        self.history = reference(self.data)

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
        rows = [row for unit in self.data.units for row in unit]
        trained = self.parts[self.manifests[-1], 0][1].trained
        assert sorted(trained) == sorted(rows * self.data.passes), "rows trained once per pass"

    def say(self, text):
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f} {text}")

    # ---- What processes do ---------------------------------------------------

    def listening(self, rank, address):
        """The process of a rank, if it listens on an address; None if it does not."""
        process = self.processes.get(rank)
        if process is None or process.exit_code is not None or process.is_stopped:
            return None
        return process if process.hello.address == address else None

    def may_send(self, process):
        if process.must_end:
            raise Violation(f"rank {process.rank} sends after it was stopped too long")

    def called(self, process, peer, envelope, body):
        self.kinds[envelope.kind] += 1
        self.say(f"{process.rank} > {peer} {envelope.kind.name} {envelope.number}")
        if self.chance.random() < 0.1:
            self.sent.append((process.rank, peer, envelope, body))

    def lost(self, process, reason):
        if process.exit_code is None:
            self.reasons[re.sub(r"( \d+| for [\d.]+ s(: .*)?)", "", reason)] += 1
            self.say(f"rank {process.rank}: {reason}")
            self.exited(process, LOST)

    def new_generation(self):
        self.generations += 1
        return self.generations

    def all_are_welcome(self):
        """All processes are new ones: calls of old generations arrive again."""
        for sender, peer, *call in self.chance.sample(self.sent, min(20, len(self.sent))):
            self.after(self.chance.uniform(0, 4), partial(self.replay, sender, peer, call))

    def replay(self, sender, peer, call):
        process = self.processes[peer]
        late = sender, *call, lambda *_: None
        process.happen(lambda: process.early.append(late))

    def write_part(self, process, step, state):
        self.may_write(process)
        self.check_part(process.generation, process.rank, step, state)
        self.parts[step, process.rank] = process.generation, state
        self.say(f"{process.rank} wrote its part of {step}")
        self.may_write(process)

    def check_part(self, generation, rank, step, state):
        expected = self.states_at(generation, step)[rank]
        assert self.seen(state) == self.seen(expected), f"rank {rank} differs at {step}"

    def seen(self, state):
        """What must be the same of a state whenever it is computed."""
        return state

    def write_manifest(self, process, step):
        """Each row was trained as often as the position says."""
        self.may_write(process)
        generation, position = self.positions[step]
        assert generation == process.generation, "a position of another generation"
        for rank in self.membership.owners:
            generation, state = self.parts[step, rank]
            assert generation == process.generation, "a part of another generation"
            self.check_part(generation, rank, step, state)
        rows = [row for batch in position.trained(self.data) for row in batch]
        assert sorted(self.parts[step, 0][1].trained) == sorted(rows), "rows trained once per pass"
        assert step > self.manifests[-1], "checkpoints are in the order of their steps"
        self.manifests.append(step)
        self.say(f"manifest of {step}")
        self.may_write(process)

    def may_write(self, process):
        assert not process.must_end, f"rank {process.rank} writes after it was stopped too long"
        if self.now < SECONDS_OF_FAULTS and self.chance.random() < self.kills_at_writes:
            self.kill(process)
            raise Ended("killed while it wrote")

    def newest_manifest(self):
        return self.manifests[-1]

    def position_at(self, step):
        return copy.deepcopy(self.positions[step][1] if step else self.start_position)

    def load(self, step, rank):
        if not step:
            return new_state(rank, self.membership, self.rule)
        return copy.deepcopy(self.parts[step, rank][1])

    # ---- Supervisors ---------------------------------------------------------

    def start(self, rank):
        self.processes_started += 1
        self.processes[rank] = self.process_of(self, rank)

    def start_all(self):
        self.is_collecting = False
        for rank in range(self.membership.size):
            self.start(rank)

    def exited(self, process, code):
        if process.exit_code is not None:
            return
        process.exit_code = code
        self.say(f"rank {process.rank} ends with {code}")
        self.network.ended(process)
        if code == 0:
            self.after(SECONDS_TO_END, partial(self.end, self.now))
            return
        if process.node is not None:
            self.expect_notice(process.generation)
        if not self.has_one_supervisor:
            self.after(self.chance.uniform(0.1, 1.5), lambda: self.start(process.rank))
        elif all(each.exit_code is not None for each in self.processes.values()):
            self.after(0.2, self.start_all)
        elif not self.is_collecting:
            self.is_collecting = True
            round_ = list(self.processes.values())
            self.after(6, lambda: [self.kill(each) for each in round_])

    def end(self, finished):
        """All have ended in peace, unless a fault kept them from it."""
        self.is_done = True
        if self.last_fault < finished - 2 * NOTICED:
            codes = {rank: each.exit_code for rank, each in self.processes.items()}
            assert set(codes.values()) == {0}, f"processes end with {codes}"

    def expect_notice(self, generation):
        """All others of its generation end, but those that do not run meanwhile."""
        alive = [
            each
            for each in self.processes.values()
            if each.generation == generation and each.node is not None and not each.is_stopped
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
        self.last_fault = max(self.last_fault, self.now)
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
            self.last_fault = max(self.last_fault, self.now + seconds)
            self.say(f"rank {process.rank} is stopped for {seconds}")
            self.after(PINGED, lambda: self.answers_no_ping(process, seconds - PINGED))
            self.after(seconds, lambda: self.resume(process, seconds))

    def answers_no_ping(self, process, seconds):
        if seconds > 0 and process.exit_code is None:
            for peer in sorted(process.peers):
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
        self.last_fault = max(self.last_fault, self.now + seconds)
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

    def states_at(self, generation, step):
        """One process continues from the newest manifest, with the pushes that were taken.

        Which workers a step leaves out depends on the network, so this is computed afterwards.
        """
        ranks, lineage = range(self.data.workers), self.lineages.get(generation, Lineage())
        first = self.newest_manifest()
        owners = {rank: self.load(first, rank) for rank in self.membership.owners}
        for number in range(first + 1, step + 1):
            batches = [lineage.pulled[number].get(rank, []) for rank in ranks]
            train_step(self.data, owners, batches, lineage.pushed.get(number, set()))
        return owners

    def write_manifest(self, process, step):
        """Each gradient is applied once by each owner."""
        shows, shown = Counter(), Counter()
        for batch in self.positions[step][1].trained(self.data):
            for key in {key for row in batch for key in keys_of(row)}:
                shows[key] += len(batch)
        for rank in self.membership.owners:
            shown.update({key: row[2] for key, row in self.parts[step, rank][1].rows.items()})
        assert shown == shows, "each gradient is applied once"
        super().write_manifest(process, step)


class AsyncWorld(World):
    """A world whose workers train asynchronously, some of them slowly.

    No two runs end with the same numbers, so sums are checked instead: a row has one for each time
    that its key occurs in what was trained.
    """

    process_of, rule = Streams, Added

    def prepare(self):
        self.start_position = Leased()
        self.staleness = self.chance.choice((None, 0, 1, 3))
        self.warmup_steps = self.chance.choice((0, 0, 3))
        self.slowness = [self.chance.choice((1, 1, 1, 4)) for _ in range(self.data.workers)]

    def states_at(self, _, step):
        """One process trains the rows that the position of a step has."""
        rows = [row for unit in self.position_at(step).trained(self.data) for row in unit]
        owners = {rank: new_state(rank, self.membership, Added) for rank in self.membership.owners}
        for key, count in occurrences(rows).items():
            owners[owner_of(key, self.membership)].rows[key] = [count, count, 0]
        for owner in owners.values():
            owner.steps, owner.dense = step, [len(rows)] * len(owner.dense)
        owners[0].trained = rows
        return owners

    def seen(self, state):
        rows = {key: row[:2] for key, row in state.rows.items()}
        return state.steps, rows, state.dense, sorted(state.trained)


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
    except (Exception, Violation) as error:
        if world.trace:
            print("\n".join(world.trace[-3000:]))
        raise AssertionError(
            f"{error!r} at {world.now:.3f} s with seed {seed}. To see it: {SEED}={seed} pytest "
            f"tests/test_cluster_simulation.py -k {policy.__name__}"
        ) from error
    return world
