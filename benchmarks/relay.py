"""A relay of TCP connections that delays what it passes on, in both directions.

    python -m benchmarks.relay LISTEN_HOST LISTEN_PORT HOST PORT MILLISECONDS

Each direction is delayed by so many milliseconds. Port 0 is one that the system chooses. It prints
its port, runs until the end of its standard input, and prints the seconds of CPU that it has used.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from queue import Queue

CHUNK = 1 << 18
WAITING = 16  # chunks: what a link of that delay has under way, and no more


def passed_on(source: socket.socket, target: socket.socket, seconds: float) -> None:
    """Pass the bytes of one direction on until it ends."""
    chunks: Queue[tuple[float, bytes]] = Queue(WAITING)

    def write() -> None:
        with contextlib.suppress(OSError):
            while True:
                due, content = chunks.get()
                if not content:
                    break
                if (left := due - time.monotonic()) > 0:
                    time.sleep(left)
                target.sendall(content)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    content = b"-"
    while content:
        try:
            content = source.recv(CHUNK)
        except OSError:
            content = b""
        chunks.put((time.monotonic() + seconds, content))


def relay(listening: socket.socket, address: tuple[str, int], seconds: float) -> None:
    """Accept connections, and join each to one to the address."""
    while True:
        accepted, _ = listening.accept()
        try:
            connected = socket.create_connection(address)
        except OSError:  # nobody listens yet: whoever connects tries again
            accepted.close()
            continue
        for end in (accepted, connected):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((accepted, connected), (connected, accepted)):
            threading.Thread(target=passed_on, args=(source, target, seconds), daemon=True).start()


def main() -> None:
    host, port, to_host, to_port, milliseconds = sys.argv[1:]
    listening = socket.create_server((host, int(port)))
    seconds = float(milliseconds) / 1000
    threading.Thread(
        target=relay, args=(listening, (to_host, int(to_port)), seconds), daemon=True
    ).start()
    print(listening.getsockname()[1], flush=True)
    sys.stdin.read()
    print(time.process_time(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
