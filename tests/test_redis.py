"""Embeddings in a real Redis server: what is written and read, versions, deltas, golden rows."""

import sys
from pathlib import Path

import numpy as np
import pytest
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
    redis,
)

from tnctl.errors import Failure, UserError
from tnctl.serving.artefact_document import GoldenDeviation, GoldenEntry
from tnctl.serving.rows import redis_embeddings, redis_export
from tnctl.serving.rows.precision import RowShape
from tnctl.serving.rows.redis_embeddings import RedisEmbeddings, buckets_of

pytestmark = needs_redis_server
DOCUMENT = Path(__file__).parent.parent / "docs" / "formats" / "redis.md"


@pytest.fixture
def said(monkeypatch):
    """The lines that are said."""
    lines = []
    monkeypatch.setattr(redis_export, "say", lines.append)
    return lines


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
    with pytest.raises(Failure, match=r"refuses a command .*permission") as failed:
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
    with pytest.raises(UserError, match="has shapes"):
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
        return GoldenEntry(rows=1, exact=True, deviation=GoldenDeviation(x=0.0, logit=0.0))

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
