"""Certificates of mutual TLS: read, and tried by a handshake in memory before they are used."""

import ssl
from dataclasses import dataclass, field
from pathlib import Path

from tnctl.errors import UserError, refuse_if
from tnctl.schema import Tls

LARGEST = 1 << 20  # bytes of a PEM file


@dataclass(frozen=True)
class Certificates:
    """Contents of PEM files, and the name in the certificates of the others if it is no host."""

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes
    name: str | None


def read(tls: Tls) -> Certificates | None:
    """The certificates that a conf names; None without any.

    Raises UserError for a file that cannot be read, and for a certificate that has expired, does
    not fit its key or is not signed by the authority.
    """
    if tls.certificate is None or tls.key is None or tls.authority is None:
        return None
    contents = Certificates(
        _content("certificate", tls.certificate),
        _content("key", tls.key),
        _content("authority", tls.authority),
        tls.name,
    )
    _check(tls.certificate, tls.key, tls.authority)
    return contents


def _content(key: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        place = Path(path).absolute()
        raise UserError(f"cluster.tls.{key}={place} cannot be read: {error.strerror}") from None
    refuse_if(
        len(content) > LARGEST or b"-----BEGIN " not in content,
        f"cluster.tls.{key}={path} is no PEM file",
    )
    return content


def _check(certificate: str, key: str, authority: str) -> None:
    """Raise UserError unless a peer with the same authority would accept the certificate."""
    sides = []
    for protocol in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
        context = ssl.SSLContext(protocol)
        context.check_hostname = False  # that is done when the peer's address is known
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(authority)
        except ssl.SSLError:
            raise UserError(f"cluster.tls.authority={authority} has no certificate") from None
        try:
            # A password that is asked for would wait for a terminal.
            context.load_cert_chain(certificate, key, password="")
        except (ssl.SSLError, ValueError):
            raise UserError(
                f"cluster.tls.key={key} is not the key of "
                f"cluster.tls.certificate={certificate}, or has a password"
            ) from None
        sides.append(context)
    try:
        _shake_hands(*sides)
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"cluster.tls.certificate={certificate} is refused by "
            f"cluster.tls.authority={authority}: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise UserError(f"cluster.tls.certificate={certificate}: {error.reason}") from None


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        waiting = []
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting.append(side)
        sides = waiting
