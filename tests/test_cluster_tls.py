"""Encrypted connections: both sides show a certificate, and what is wrong with one is a line."""

import dataclasses
import os
import shutil
import signal

import cluster_commands
import grpc
import pytest
from cluster_commands import trained_once
from env_commands import Scheduled, free_port, of_tnctl
from test_rpc import METADATA, SECONDS, Worker
from tls_files import make_authority, make_certificate, openssl

from tnctl import schema
from tnctl.cluster.transport import certificates, rpc
from tnctl.errors import UserError

pytestmark = pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl command")


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    """Certificates of two authorities."""
    folder = tmp_path_factory.mktemp("pem")
    for name in ("authority", "foreign"):
        make_authority(folder, name)
    make_certificate(folder, "worker")
    make_certificate(folder, "named", "DNS:workers")
    make_certificate(folder, "stranger", authority="foreign")
    make_certificate(folder, "expired", days=-1)
    openssl(
        folder, "ec", "-in", "worker.key", "-out", "locked.key", "-aes128", "-passout", "pass:x"
    )
    (folder / "text").write_text("no certificate\n")
    (folder / "empty.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    return folder


def tls(folder, name="worker", authority="authority", key=None, override=None):
    return schema.Tls(
        certificate=str(folder / f"{name}.pem"),
        key=str(folder / f"{key or name}.key"),
        authority=str(folder / f"{authority}.pem"),
        name=override,
    )


@pytest.mark.parametrize(("given", "words"), [
    ({"name": "absent"}, r"cluster\.tls\.certificate=\S+absent\.pem cannot be read: No such file"),
    ({"key": "absent"}, r"cluster\.tls\.key=\S+absent\.key cannot be read: No such file"),
    ({"authority": "../pem0"}, r"cluster\.tls\.authority=\S+ cannot be read"),
    ({"key": "stranger"}, r"cluster\.tls\.key=\S+stranger\.key is not the key of cluster"),
    ({"key": "locked"}, r"cluster\.tls\.key=\S+locked\.key is not the key .* or has a password"),
    ({"authority": "empty"}, r"cluster\.tls\.authority=\S+empty\.pem has no certificate"),
    ({"name": "expired"}, r"expired\.pem is refused by \S+authority\.pem: certificate has expired"),
    ({"authority": "foreign"}, r"worker\.pem is refused by \S+foreign\.pem: unable to get local"),
])  # fmt: skip
def test_files_that_no_connection_could_use_are_refused(pem, given, words):
    with pytest.raises(UserError, match=words) as refused:
        certificates.read(tls(pem, **given))
    assert refused.value.exit_code == 2


def test_a_file_that_is_no_pem_file_is_refused(pem):
    with pytest.raises(UserError, match=r"cluster\.tls\.key=\S+text is no PEM file"):
        certificates.read(dataclasses.replace(tls(pem), key=str(pem / "text")))


def test_the_key_is_shown_nowhere(pem):
    contents = certificates.read(tls(pem))
    assert contents.key.startswith(b"-----BEGIN") and "PRIVATE" not in repr(contents)
    assert certificates.read(schema.Tls()) is None


@pytest.mark.parametrize("given", [
    {"certificate": "a"}, {"certificate": "a", "key": "b"}, {"authority": "c"}, {"name": "d"},
])  # fmt: skip
def test_a_part_of_the_keys_is_refused(given):
    with pytest.raises(UserError, match=r"^certificate, key and authority are needed together\. M"):
        schema.Tls(**given)


@pytest.fixture
def make(pem):
    workers = []

    def made(rank, **given):
        shown = certificates.read(tls(pem, **given)) if given.pop("encrypted", True) else None
        workers.append(Worker(rank, certificates=shown))
        return workers[-1]

    yield made
    for worker in workers:
        worker.endpoint.close()


@pytest.mark.parametrize("given", [{}, {"name": "named", "override": "workers"}])
def test_calls_pass_encrypted_connections(make, given):
    first, second = make(0, **given), make(1, **given)
    content = os.urandom(3_000_000)
    for caller, other, peer in ((first, second, 1), (second, first, 0)):
        caller.connect(peer, other.address)
        caller.until_event("connected", f"process {peer}")
        assert caller.call(peer, content).result(SECONDS).body == content


@pytest.mark.parametrize(("accepting", "dialing", "reason"), [
    ({}, {"name": "stranger", "authority": "foreign"}, "refused by cluster.tls.authority"),
    ({"name": "named"}, {}, "its certificate is for another host"),
    ({"encrypted": False}, {}, "it does not use TLS, and this worker does"),
    ({}, {"encrypted": False}, "it uses TLS, and this worker does not"),
])  # fmt: skip
def test_a_connection_that_tls_refuses_says_why(make, accepting, dialing, reason):
    accepts, dials = make(0, **accepting), make(1, **dialing)
    dials.connect(0, accepts.address)
    attempts = dials.endpoint.attempts

    def says_why():
        """False while an attempt that a busy machine has cut is the last one."""
        last = attempts.reason(0) or ""
        return reason in last and attempts.mistakes(SECONDS) == {0: last}

    cluster_commands.until(says_why, SECONDS)
    assert not accepts.events and not dials.events


@pytest.mark.parametrize("shown", [None, "stranger"])
def test_a_client_with_the_token_and_no_certificate_is_refused(make, pem, shown):
    accepts = make(0)
    authority = (pem / "authority.pem").read_bytes()
    own_files = [None, None]
    if shown is not None:
        own_files = [(pem / f"{shown}.{kind}").read_bytes() for kind in ("key", "pem")]
    credentials = grpc.ssl_channel_credentials(authority, *own_files)
    with grpc.secure_channel(accepts.address, credentials) as channel:
        call = channel.unary_unary(f"/{rpc.SERVICE}/Call")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", metadata=METADATA, timeout=SECONDS)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE and not accepts.events


# ---- Processes -------------------------------------------------------------------


def overrides(folder, *arguments, **given):
    section = dataclasses.asdict(tls(folder, *arguments, **given))
    return [f"cluster.tls.{key}={value}" for key, value in section.items() if value is not None]


@pytest.mark.long
@pytest.mark.alone
def test_a_certificate_that_has_expired_while_workers_train(parts, pem, tmp_path):
    """The line of a worker that is started again ends it, and the next one trains on."""
    for name in ("worker.pem", "worker.key", "authority.pem"):
        shutil.copy(pem / name, tmp_path / name)
    port = free_port()
    variables = [of_tnctl(rank, 2, port) for rank in range(2)]
    patience = ["cluster.patience=20", "cluster.restarts=0"]
    with Scheduled(parts, variables, *overrides(tmp_path), *patience) as training:
        training.until_saved()
        # From now on a worker that is started reads another certificate.
        for kind in ("pem", "key"):
            shutil.copy(pem / f"expired.{kind}", tmp_path / f"worker.{kind}")
        os.kill(training.commands[1].worker(), signal.SIGKILL)
        assert training.wait() == [75, 75], training.said
        training.start(1)
        assert training.commands[1].process.wait(SECONDS) == 2
        last = training.commands[1].said.splitlines()[-1]
        assert last.startswith("tnctl train: cluster.tls.certificate=")
        assert last.endswith("authority.pem: certificate has expired")
        for kind in ("pem", "key"):
            shutil.copy(pem / f"worker.{kind}", tmp_path / f"worker.{kind}")
        for rank in range(2):
            training.start(rank)
        assert training.wait() == [0, 0], training.said
    assert trained_once(training.run) and "Traceback" not in training.said
