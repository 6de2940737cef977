"""Addresses of workers: parsed, resolved, and the one of this machine that a worker listens on."""

import contextlib
import ipaddress
import re
import socket
from functools import partial
from typing import NamedTuple

from tnctl.cluster.joining.assignment import Assignment
from tnctl.cluster.joining.patience import Patience
from tnctl.errors import Failure
from tnctl.progress import say

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,238}[A-Za-z0-9_.])?")
_PORT = re.compile(r"[1-9][0-9]{0,4}")
ANY = ("0.0.0.0", "::")


class HostPort(NamedTuple):
    """A host, by its name or its IP address, and a port; of port 0 the system chooses one."""

    host: str
    port: int = 0

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse(text: str, *, port_is_optional: bool = False) -> HostPort:
    """HOST:PORT, an IPv6 address in brackets. Raises ValueError that says what is wrong."""
    host, colon, port = text.rpartition(":")
    if port_is_optional and (not colon or text.endswith("]") or is_ip(text)):
        host, port = text, ""
    elif not colon:
        raise ValueError("it has no port")
    elif not _PORT.fullmatch(port) or int(port) > 65_535:
        raise ValueError("its port is not between 1 and 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not is_ip(host):
            raise ValueError("what is in brackets is no IPv6 address")
    elif ":" in host and not (port_is_optional and is_ip(host)):
        raise ValueError("an IPv6 address needs brackets, as in [fd00::1]:29400")
    elif not is_ip(host) and not _HOST.fullmatch(host):
        raise ValueError("its host is no name and no IP address")
    return HostPort(host, int(port or 0))


def is_ip(host: str) -> bool:
    """Whether a host is an IP address, and no name."""
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def is_loopback(host: str) -> bool:
    """Whether a host, by its name too, is this machine as only itself reaches it."""
    return host == "localhost" or (is_ip(host) and ipaddress.ip_address(host).is_loopback)


def resolved(host: str) -> str:
    """The IP address of a host. Raises OSError for an unknown name."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])


def interface_to(ip: str) -> str:
    """The address of this machine from which another one is reached; nothing is sent.

    Raises OSError without a route.
    """
    with socket.socket(_family(ip), socket.SOCK_DGRAM) as datagrams:
        datagrams.connect((ip, 9))  # the port of the discard service; any would do
        return str(datagrams.getsockname()[0])


def is_of_this_machine(ip: str) -> bool:
    """Whether a process of this machine can listen on an address."""
    with socket.socket(_family(ip), socket.SOCK_DGRAM) as datagrams:
        try:
            datagrams.bind((ip, 0))
        except OSError:
            return False
    return True


def listening(assignment: Assignment, patience: Patience) -> tuple[str, str]:
    """The IP address that a worker listens on, and the host under which the others reach it.

    A name may become known with its host, and a route come back with an interface, so both are
    waited for. Raises OSError when that takes too long, and Failure for a host that is none of this
    machine.
    """
    reached = assignment.host
    if reached is None or reached in ANY:
        reached = patience.attempt(
            lambda: interface_to(resolved(assignment.rank_0.rpartition(":")[0].strip("[]"))),
            OSError,
            f"worker {assignment.rank} cannot reach worker 0 at {assignment.rank_0}: ",
        )
    ip = host = assignment.host or reached
    if host not in ANY:
        ip = patience.attempt(
            partial(resolved, host), OSError, f"worker {assignment.rank} cannot find {host}: "
        )
    if not is_of_this_machine(ip):
        raise Failure(
            f"worker {assignment.rank} cannot listen on {host}: {ip} is no address of its machine. "
            "Start it where that is, or name the address to listen on by TNCTL_BIND=HOST"
        )
    if is_loopback(ip) and not is_loopback(host):
        say(
            f"warning: {host} is {ip} on its own machine, where workers of other machines do not "
            "reach it. TNCTL_BIND=HOST names another address to listen on"
        )
    return ip, reached


def _family(ip: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in ip else socket.AF_INET
