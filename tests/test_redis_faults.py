"""Embeddings in Redis, and everything that can happen to a server and its writers."""

import contextlib
import multiprocessing
import os
import random
import signal
import socket
import threading
import time

import numpy as np
import pytest
from cluster_commands import until
from redis_servers import (
    applied,
    as_dict,
    content_of,
    delta,
    export,
    holds,
    is_there,
    keys_of,
    made,
    needs_redis_server,
)

from tnctl.errors import Failure
from tnctl.serving.rows import redis_embeddings, redis_export
from tnctl.serving.rows.redis_embeddings import RedisEmbeddings

pytestmark = needs_redis_server


def fails(server, selected, match, url=None, step=8):
    """The one line of an export that fails, which ends soon."""
    began = time.monotonic()
    with pytest.raises(Failure, match=match) as failed:
        redis_export.write(selected, content_of(selected, step), url or server.url)
    assert time.monotonic() - began < 25
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
    if durable:
        with server.client() as client:
            until(lambda: client.info("persistence")["aof_buffer_length"] == 0)
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
    fails(server, new, "does not answer, .*Timeout", f"unix://{server.socket}?socket_timeout=0.5")
    new.meanwhile = None  # on a slow machine it may not have come to that part
    server.process.send_signal(signal.SIGCONT)
    export(server, new, 8, grace=0)
    assert holds(server, new)


def test_logins(own_server):
    server = own_server("--requirepass", "right-secret")
    url = f"unix://{server.socket}"
    selected = made(100)
    fails(server, selected, "refuses a command", url)
    fails(server, selected, "refuses a command", f"unix://default:wrong-secret@{server.socket}")
    fails(server, selected, "refuses a command", f"{url}?password=wrong-secret")
    right = f"unix://default:right-secret@{server.socket}"
    redis_export.write(selected, content_of(selected), right)
    embeddings = RedisEmbeddings(right)
    assert "secret" not in str(embeddings.manifest)
    embeddings.close()
    with pytest.raises(Failure, match="refuses a command"):
        RedisEmbeddings(url)


def test_no_memory(own_server):
    server = own_server("--maxmemory", "3mb")
    old = made(1000)
    export(server, old)
    keys = keys_of(server)
    fails(server, made(90_000, seed=1), "refuses a command .*maxmemory")
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
    fails(server, made(100), "refuses a command .*replica")


@pytest.mark.parametrize("key", ["tnctl:versions", "tnctl:current", "tnctl:lock"])
def test_keys_of_another_type(server, key):
    with server.client() as client:
        client.rpush(key, "theirs")
    matching = "(WRONGTYPE|another export)"
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
