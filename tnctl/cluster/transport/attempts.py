"""Why attempts to connect to peers failed, and which failures are mistakes of a setting.

What TLS refuses is refused again at every attempt. A token, or a rank, is refused as well by the
process of an earlier run which still ends and has the address: only when that has lasted is it a
mistake.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

SECONDS_TO_ANSWER = 2.0

# What gRPC says of a connection that TLS refuses, and what that is.
ANOTHER_NAME = (
    "its certificate is for another host than that of its address; cluster.tls.name is for "
    "certificates with a name of their own"
)
UNTRUSTED = {
    "CERTIFICATE_VERIFY_FAILED": "its certificate is refused by cluster.tls.authority",
    "Hostname Verification Check failed": ANOTHER_NAME,
    "is not in peer certificate": ANOTHER_NAME,
    "WRONG_VERSION_NUMBER": "it does not use TLS, and this worker does (cluster.tls)",
}
UNREACHED = {
    "Connection refused": "nothing listens there: it has not begun, or has another port",
    "No route to host": "no machine has this address, or a firewall refuses",
    "Network is unreachable": "this machine has no route to it",
}
CLOSED = {
    "Socket closed": "it closed the connection: all workers need cluster.tls with the same "
    "authority, or none"
}
USES_TLS = "it uses TLS, and this worker does not (cluster.tls)"
OTHER_TOKEN = (
    "it refuses the token of this worker: all need the same TNCTL_TOKEN or TNCTL_TOKEN_FILE, or "
    "another run has its address"
)
OTHER_RANK = (
    "it has no worker of this rank: all need the same number of workers and servers, and each "
    "another rank"
)
STAYS = {*UNTRUSTED.values(), USES_TLS}
MAY_PASS = {OTHER_TOKEN, OTHER_RANK}


@dataclass(frozen=True)
class _Failed:
    reason: str
    since: float


class Attempts:
    """Why the last attempt to connect to each peer failed, and since when all failed so."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: dict[int, _Failed] = {}

    def failed(self, peer: int, reason: str) -> None:
        """An attempt failed."""
        earlier = self._failed.get(peer)
        if earlier is None or earlier.reason != reason:
            self._failed[peer] = _Failed(reason, self._clock())

    def succeeded(self, peer: int) -> None:
        """A peer is connected."""
        self._failed.pop(peer, None)

    def reason(self, peer: int) -> str | None:
        """Why the last attempt failed; None if it did not."""
        failed = self._failed.get(peer)
        return None if failed is None else failed.reason

    def mistakes(self, seconds: float) -> dict[int, str]:
        """The peers to which a wrong setting allows no connection, and which it is.

        What may pass is a mistake when it has lasted for `seconds`.
        """
        now = self._clock()
        return {
            peer: failed.reason
            for peer, failed in list(self._failed.items())
            if failed.reason in STAYS
            or (failed.reason in MAY_PASS and now - failed.since >= seconds)
        }


def reason_of(details: str) -> str | None:
    """What gRPC's words about a failed connection mean; None if nothing is known of it."""
    for sign, reason in (UNTRUSTED | UNREACHED | CLOSED).items():
        if sign in details:
            return reason
    return None


def speaks_tls(address: str) -> bool:
    """Whether what listens at HOST:PORT answers as TLS does; nothing is told to it.

    A program that closes all connections, such as a proxy whose server has not begun, does not.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, _, port = address.rpartition(":")
    try:
        with contextlib.ExitStack() as stack:
            place = host.strip("[]"), int(port)
            plain = stack.enter_context(socket.create_connection(place, SECONDS_TO_ANSWER))
            stack.enter_context(context.wrap_socket(plain))
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False
    return True
