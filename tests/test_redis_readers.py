"""Readers in other processes that follow the document, while versions of rows are exchanged."""

import random
import subprocess
import sys
import time

import pytest
from cluster_commands import until
from redis_servers import Server, export, made, needs_redis_server
from test_redis import DOCUMENT

pytestmark = needs_redis_server

COMMON = 1000  # ids that every version has
READERS = 3
# Rows of a version are all of one value, and versions have higher ones: an answer with two values
# is a mixture, and a value below one that was read before is of an old version.
READER = """
import os, random, struct, sys
import redis

socket, reader = sys.argv[1], random.Random(int(sys.argv[2]))
client = redis.Redis(unix_socket_path=socket)
redis.Redis = lambda: client
exec(sys.stdin.read())
last, lookups, versions = 0.0, 0, set()
while client.get("tnctl:current") is None:
    pass
# The first version that it saw is not the last one.
while len(versions) < 2 or not os.path.exists(socket + ".end"):
    ids = reader.sample(range(COMMON), 50) + [COMMON + reader.randrange(500)]
    *found, extra = rows("user", ids)
    assert all(found), "a row is missing"
    values = {value for row in found for value in struct.unpack("<9f", row)}
    values |= {value for value in struct.unpack("<9f", extra)} if extra else set()
    assert len(values) == 1, f"a mixture: {values}"
    assert values.pop() >= last, "an old version"
    last = struct.unpack("<9f", found[0])[0]
    versions.add(last)
    lookups += 1
    if lookups == 1:
        open(f"{socket}.{sys.argv[2]}", "w").close()
print(lookups, len(versions))
"""


@pytest.mark.parametrize(
    ("grace", "seconds"),
    [pytest.param(0, 2, id="short"),
     *(pytest.param(grace, 20, marks=pytest.mark.long) for grace in (0, 1))],
)  # fmt: skip
def test_no_reader_sees_a_mixture_or_misses_a_row(grace, seconds):
    code = DOCUMENT.read_text().split("```python\n")[1].split("```")[0]
    code = code.rpartition("\n\n")[0]  # without the last line, an example of its use
    script = READER.replace("COMMON", str(COMMON))
    server = Server()
    readers, numbers = [], random.Random(0)
    try:
        for number in range(READERS):
            arguments = [sys.executable, "-c", script, str(server.socket), str(number)]
            readers.append(
                subprocess.Popen(
                    arguments, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )  # fmt: skip
            readers[-1].stdin.write(code)
            readers[-1].stdin.close()
            readers[-1].stdin = None
        export(server, made(COMMON, value=1), step=1, grace=grace)
        begun = [server.folder / f"s.{number}" for number in range(READERS)]
        until(
            lambda: (
                all(path.exists() for path in begun)
                or any(reader.poll() is not None for reader in readers)
            )
        )
        ends, version = time.monotonic() + seconds, 1
        while time.monotonic() < ends or version <= seconds:
            version += 1
            rows = COMMON + numbers.randrange(500)  # the number of buckets changes too
            export(server, made(rows, value=version), step=version, grace=grace)
        (server.folder / "s.end").touch()
        lookups = 0
        for reader in readers:
            out, error = reader.communicate(timeout=60)
            assert reader.returncode == 0, error[-600:]
            count, versions = map(int, out.split())
            assert versions > 1
            lookups += count
        print(f"{version} versions, {lookups:,} lookups of {COMMON} rows")
        assert version > seconds and lookups > 100 * seconds
    finally:
        for reader in readers:
            reader.kill()
        server.close()
