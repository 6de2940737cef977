"""Which worker a process is, by the variables of each scheduler; what contradicts is refused."""

import errno
import json
from types import SimpleNamespace

import pytest

from tnctl.cluster.joining import addresses, patience
from tnctl.cluster.joining.addresses import HostPort
from tnctl.cluster.joining.assignment import Assignment
from tnctl.cluster.joining.patience import Patience
from tnctl.errors import Failure, UserError
from tnctl.launch import environment

ADDRESS = "node1:29400"
OWN = {"TNCTL_RANK": "1", "TNCTL_WORKERS": "3", "TNCTL_ADDRESS": ADDRESS}
WORKERS = ["a:1", "b:2", "[fd00::1]:3"]


def tensorflow(task="worker", index=1, **cluster):
    cluster = {"worker": WORKERS} | cluster
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})}


PADDLE = {
    "PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "3", "TRAINING_ROLE": "TRAINER",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:1,10.0.0.2:2,10.0.0.3:3", "POD_IP": "10.0.0.2",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_JOB_ID": "30007",
    "SLURM_JOB_NODELIST": "gpu[07-09,12],login",
}  # fmt: skip
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", "TNCTL_ADDRESS": ADDRESS}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "3", "TNCTL_ADDRESS": ADDRESS}


@pytest.mark.parametrize(("variables", "address", "endpoint"), [
    (OWN, ADDRESS, None),
    (tensorflow(), "a:1", "b:2"),
    (tensorflow(index=0, chief=["c:9"], worker=["a:1", "b:2"]), "c:9", "a:1"),
    (tensorflow(index=0, master=["c:9"], worker=["a:1", "b:2"]), "c:9", "a:1"),
    (PADDLE, "10.0.0.1:1", "10.0.0.2:2"),
    ({key: PADDLE[key] for key in ("PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS")},
     "10.0.0.1:1", "10.0.0.2:2"),
    (PADDLE | {"PADDLE_TRAINER_ENDPOINTS": "", "TNCTL_ADDRESS": ADDRESS}, ADDRESS, "10.0.0.2:0"),
    (SLURM, "gpu07:15007", None),
    (SLURM | {"SLURM_STEP_NODELIST": "gpu12"}, "gpu12:15007", None),
    (SLURM | {"TNCTL_ADDRESS": ADDRESS}, ADDRESS, None),
    (OPEN_MPI, ADDRESS, None),
    (PMI, ADDRESS, None),
    (SLURM | PMI, ADDRESS, None),
    (OWN | SLURM | PADDLE | tensorflow(), ADDRESS, "b:2"),
])  # fmt: skip
def test_each_scheduler_says_it_in_its_own_way(variables, address, endpoint):
    place = environment.place({"PATH": "/bin", "SLURM_NNODES": "2"} | variables)
    assert (place.rank, place.workers, str(place.address)) == (1, 3, address)
    if not variables.items() >= OWN.items():
        assert (place.endpoint and str(place.endpoint)) == endpoint


@pytest.mark.parametrize(("task", "rank"), [("chief", 0), ("worker", 2)])
def test_the_chief_is_worker_0(task, rank):
    variables = tensorflow(task, rank and 1, chief=["c:9"], worker=["a:1", "b:2"])
    place = environment.place(variables)
    assert (place.rank, place.workers, str(place.address)) == (rank, 3, "c:9")
    assert str(place.endpoint) == ("b:2" if rank else "c:9")


SERVERS = {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.8:1,10.0.0.9:1"}
OF_SERVER = {"TRAINING_ROLE": "PSERVER", "POD_IP": "10.0.0.9", "PADDLE_PORT": "1"}


@pytest.mark.parametrize(("variables", "rank", "address", "endpoint"), [
    (OWN | {"TNCTL_SERVERS": "2"}, 1, ADDRESS, None),
    (OWN | {"TNCTL_SERVERS": "2", "TNCTL_ROLE": "server"}, 4, ADDRESS, None),
    (OWN | {"TNCTL_SERVERS": "2", "TNCTL_RANK": "4"}, 4, ADDRESS, None),
    (tensorflow(ps=["p:1", "q:2"]), 1, "a:1", "b:2"),
    (tensorflow("ps", 1, ps=["p:1", "q:2"]), 4, "a:1", "q:2"),
    (PADDLE | SERVERS, 1, "10.0.0.1:1", "10.0.0.2:2"),
    (PADDLE | SERVERS | OF_SERVER, 4, "10.0.0.1:1", "10.0.0.9:1"),
    (SLURM | {"SLURM_NTASKS": "5", "SLURM_PROCID": "4", "TNCTL_SERVERS": "2"}, 4, "gpu07:15007",
     None),
])  # fmt: skip
def test_servers_have_the_ranks_behind_the_workers(variables, rank, address, endpoint):
    place = environment.place(variables)
    assert (place.rank, place.workers, place.servers) == (rank, 3, 2)
    assert str(place.address) == address
    assert (place.endpoint and str(place.endpoint)) == endpoint
    assert place.words == ("server 1 of 2" if rank == 4 else "worker 1 of 3")


def test_the_conf_may_say_how_many_tasks_are_servers():
    variables = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "TNCTL_ADDRESS": ADDRESS}
    place = environment.place(variables, servers=1)
    assert (place.rank, place.workers, place.servers) == (3, 3, 1)


def changed(variables, **changes):
    variables = variables | changes
    return {name: value for name, value in variables.items() if value is not None}


WRONG = [
    ({}, "no variable says which worker this is"),
    ({"TNCTL_WORKERS": "2"}, "no variable says which worker this is"),
    (changed(OWN, TNCTL_WORKERS=None), "TNCTL_WORKERS is not set"),
    (changed(OWN, TNCTL_RANK="3"), "TNCTL_RANK=3, with TNCTL_WORKERS=3, TNCTL_SERVERS=0"),
    (changed(OWN, TNCTL_RANK="-1"), "TNCTL_RANK is a number from 0 on. Received: '-1'"),
    (changed(OWN, TNCTL_WORKERS="65"), "TNCTL_RANK says 65 workers and 0 servers: a cluster has 1"),
    (changed(OWN, TNCTL_ADDRESS=None), "TNCTL_RANK does not say where worker 0 is. Set TNCTL_ADD"),
    (changed(OWN, TNCTL_ADDRESS="node1"), "TNCTL_ADDRESS has HOST:PORT. Received: 'node1', it has"),
    (changed(OWN, TNCTL_ADDRESS="n:0"), "Received: 'n:0', its port is not between 1 and 65535"),
    (changed(OWN, TNCTL_ADDRESS="fd00::1:5"), "an IPv6 address needs brackets"),
    (changed(OWN, TNCTL_ADDRESS="[n]:5"), "what is in brackets is no IPv6 address"),
    (changed(OWN, TNCTL_ADDRESS="n m:5"), "its host is no name and no IP address"),
    (changed(OWN, TNCTL_BIND="-x"), "TNCTL_BIND has HOST or HOST:PORT. Received: '-x', its host"),
    ({"TF_CONFIG": "{"}, "TF_CONFIG: no valid JSON: EOF"),
    ({"TF_CONFIG": "{}"}, "TF_CONFIG: key 'cluster' is missing"),
    (tensorflow(index="1"), "TF_CONFIG: key 'task.index' should be a valid integer"),
    (tensorflow(index=3), "TF_CONFIG: task.index is 3, and cluster.worker has 3 addresses"),
    (tensorflow("evaluator", 0), "task.type is chief, worker or ps. Received: 'evaluator'"),
    (tensorflow("ps", 1, ps=["p:1"]), "TF_CONFIG: task.index is 1, and cluster.ps has 1 address"),
    (tensorflow(ps=["p:1"] * 65), "TF_CONFIG says 3 workers and 65 servers: a cluster has 1 to"),
    (OWN | {"TNCTL_ROLE": "ps"}, "TNCTL_ROLE is worker or server. Received: 'ps'"),
    (tensorflow() | {"TNCTL_SERVERS": "1"}, "TNCTL_SERVERS=1, and TF_CONFIG says 0 servers. Leave"),
    (PADDLE | SERVERS | {"TNCTL_SERVERS": "1"}, "and PADDLE_TRAINER_ID says 2 servers"),
    (OWN | {"TNCTL_ROLE": "server"}, "TNCTL_SERVERS=0 and TNCTL_ROLE=server: it is below 0"),
    (OWN | {"TNCTL_SERVERS": "2", "TNCTL_RANK": "5"}, "TNCTL_ROLE=not set: it is below 5"),
    (OWN | {"TNCTL_SERVERS": "65"}, "TNCTL_RANK says 3 workers and 65 servers: a cluster has 1"),
    (SLURM | {"TNCTL_SERVERS": "3"}, "SLURM_PROCID says 0 workers and 3 servers: a cluster has 1"),
    (PADDLE | {"TRAINING_ROLE": "HETER"}, "TRAINING_ROLE is TRAINER or PSERVER. Received: 'HETER"),
    (PADDLE | {"TRAINING_ROLE": "PSERVER"}, "TRAINING_ROLE=PSERVER, and PADDLE_PORT is not set"),
    (PADDLE | {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "9"},
     "POD_IP and PADDLE_PORT are 10.0.0.2:9, which is not in PADDLE_PSERVERS_IP_PORT_LIST=''"),
    (PADDLE | {"PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.9"},
     "PADDLE_PSERVERS_IP_PORT_LIST has HOST:PORT. Received: '10.0.0.9', it has no port"),
    (PADDLE | {"PADDLE_TRAINER_ENDPOINTS": "a:1,,c:3"}, "PADDLE_TRAINER_ENDPOINTS has HOST:PORT. "),
    ({"PADDLE_TRAINER_ID": "0"}, "PADDLE_TRAINERS_NUM is not set"),
    (changed(SLURM, SLURM_JOB_NODELIST=None), "SLURM_PROCID does not say where worker 0 is"),
    (changed(SLURM, SLURM_JOB_ID=None), "SLURM_JOB_ID is not set"),
    (changed(SLURM, SLURM_JOB_NODELIST="a[1-"), "no list of nodes. Received: 'a[1-'"),
    (changed(SLURM, SLURM_JOB_NODELIST=""), "SLURM_JOB_NODELIST is no list of nodes"),
    (changed(OPEN_MPI, TNCTL_ADDRESS=None), "OMPI_COMM_WORLD_RANK does not say where worker 0 is"),
    (SLURM | OPEN_MPI | {"SLURM_PROCID": "0"},
     "SLURM_PROCID says worker 0 of 3, and OMPI_COMM_WORLD_RANK says worker 1 of 3. Set TNCTL_"),
]  # fmt: skip


@pytest.mark.parametrize(("variables", "words"), WRONG)
def test_a_wrong_environment_is_refused_in_a_line(variables, words):
    with pytest.raises(UserError) as refused:
        environment.place(variables)
    assert words in str(refused.value) and len(str(refused.value)) < 400
    assert refused.value.exit_code == 2


def test_our_own_variables_count_and_a_line_says_so(capfd):
    place = environment.place(OWN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "TF_CONFIG": "{"})
    assert (place.source, place.rank, place.workers) == ("TNCTL_RANK", 1, 3)
    said = " ".join(capfd.readouterr().err.split())
    assert "TNCTL_RANK says worker 1 of 3, and SLURM_PROCID says worker 0 of 2: TNCTL_R" in said
    assert "TF_CONFIG: no valid JSON" in said and said.count("TNCTL_RANK counts") == 2
    environment.place(OWN | SLURM)
    assert not capfd.readouterr().err


@pytest.mark.parametrize(("text", "first"), [
    ("login", "login"),
    ("a[1-3,5]", "a1"),
    ("n[08-10]-ib,b.x_y", "n08-ib"),
    ("r[1-2]n[09,10]", "r1n09"),
    ("a[0-999999999]b[0-999999999]", "a0b0"),
    ("a," * 2**20, "a"),
])  # fmt: skip
def test_the_first_of_slurms_list_of_nodes(text, first):
    assert environment.place(SLURM | {"SLURM_JOB_NODELIST": text}).address.host == first


# ---- Addresses -----------------------------------------------------------------


@pytest.mark.parametrize(("variables", "rank", "expected"), [
    # Where it listens, at which port, and what the others are told (None: where it listens).
    (OWN, 1, (None, 0, None)),
    (OWN, 0, ("node1", 29400, ADDRESS)),
    (OWN | {"TNCTL_BIND": "10.0.0.7"}, 0, ("10.0.0.7", 29400, ADDRESS)),
    (OWN | {"TNCTL_BIND": "10.0.0.7"}, 1, ("10.0.0.7", 0, None)),
    (OWN | {"TNCTL_BIND": "0.0.0.0:30000"}, 1, ("0.0.0.0", 30000, None)),
    (OWN | {"TNCTL_BIND": "::"}, 1, ("::", 0, None)),
    (tensorflow(index=2), None, ("fd00::1", 3, "[fd00::1]:3")),
    (tensorflow() | {"TNCTL_BIND": "0.0.0.0"}, None, ("0.0.0.0", 2, "b:2")),
    (PADDLE | {"PADDLE_TRAINER_ENDPOINTS": "", "TNCTL_ADDRESS": ADDRESS}, None,
     ("10.0.0.2", 0, None)),
    ({"PMI_RANK": "0", "PMI_SIZE": "1"}, None, ("127.0.0.1", 0, None)),
])  # fmt: skip
def test_where_a_worker_listens(variables, rank, expected):
    if rank is not None:
        variables = variables | {"TNCTL_RANK": str(rank)}
    given = environment.place(variables).addresses
    assert (given["host"], given["port"], given["reached_at"]) == expected


def assignment(rank_0="127.0.0.1:9", **given):
    return Assignment(
        token="", rank=1, ranks=2, generation=1, cpus=(0,), supervisor=0, task={}, rank_0=rank_0,
        **given,
    )  # fmt: skip


def test_a_worker_listens_where_it_reaches_worker_0():
    now = Patience(0)
    assert addresses.listening(assignment(), now) == ("127.0.0.1", "127.0.0.1")
    given = assignment(host=None)
    assert addresses.listening(given, now) == ("127.0.0.1", "127.0.0.1")
    given = assignment("localhost:9", host=None)
    assert addresses.listening(given, now)[0] in ("127.0.0.1", "::1")
    for rank_0 in ("127.0.0.1:9", "127.0.0.1:0"):  # without a port: of the only worker
        given = assignment(rank_0, host="0.0.0.0")
        assert addresses.listening(given, now) == ("0.0.0.0", "127.0.0.1")
    given = assignment("[::1]:9", host="::")
    assert addresses.listening(given, now)[0] == "::"
    given = assignment(host="localhost")
    ip, host = addresses.listening(given, now)
    assert ip in ("127.0.0.1", "::1") and host == "localhost"
    with pytest.raises(Failure, match=r"worker 1 cannot listen on 192\.0\.2\.77: 192\.0\.2\.77 is"):
        addresses.listening(assignment(host="192.0.2.77"), now)
    with pytest.raises(OSError):
        addresses.listening(assignment("no-such-name.invalid:9", host=None), now)


@pytest.fixture
def clock(monkeypatch):
    """The time of a patience, which passes only while it sleeps."""
    now = [0.0]
    time = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds)
    )
    monkeypatch.setattr(patience, "time", time)
    return now


def test_an_interface_that_is_down_is_waited_for(monkeypatch, capfd, clock):
    interface_to = addresses.interface_to

    def route(ip):
        if clock[0] < 30:
            raise OSError(errno.ENETUNREACH, "Network is unreachable")
        return interface_to(ip)

    monkeypatch.setattr(addresses, "interface_to", route)
    given = assignment(host=None)
    with pytest.raises(OSError, match="unreachable"):
        addresses.listening(given, Patience(20))
    assert clock == [20] and capfd.readouterr().err
    clock[0] = 0
    assert addresses.listening(given, Patience(120)) == ("127.0.0.1", "127.0.0.1")
    assert clock == [30]
    words = "worker 1 cannot reach worker 0 at 127.0.0.1:9: Network is unreachable. Waiting up to"
    rest = "120 s for it (cluster.patience), of which"
    assert capfd.readouterr().err.splitlines() == [
        f"{words} {rest} {left} s are left" for left in (115, 110, 100)
    ]


def test_a_name_that_is_a_loopback_address_is_warned_about(monkeypatch, capfd):
    monkeypatch.setattr(addresses, "resolved", lambda *_: "127.0.1.1")
    given = assignment("node1:9", host="node1")
    assert addresses.listening(given, Patience(0)) == ("127.0.1.1", "node1")
    assert "warning: node1 is 127.0.1.1 on its own machine" in capfd.readouterr().err


def test_addresses_are_written_as_they_are_read():
    for text in ("node1:29400", "10.0.0.1:1", "[fd00::1]:65535"):
        assert str(addresses.parse(text)) == text
    assert str(HostPort("fd00::1", 5)) == "[fd00::1]:5"


# ---- The token -----------------------------------------------------------------

TOKEN = "0123456789abcdef" * 2


def test_the_token_is_taken_out_of_the_environment(tmp_path):
    variables = {"TNCTL_TOKEN": TOKEN + "\n"}
    assert environment.take_token(variables) == TOKEN and not variables
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    file.chmod(0o600)
    assert environment.take_token({"TNCTL_TOKEN_FILE": str(file)}) == TOKEN


@pytest.mark.parametrize(("content", "mode", "variables", "words"), [
    (None, 0, {}, r"secret of the run\. Make it with \(umask 077; openssl rand -hex 32 > token\)"),
    (None, 0, {"TNCTL_TOKEN": "short"}, r"TNCTL_TOKEN has 5 characters; a token has 32 to 512"),
    (None, 0, {"TNCTL_TOKEN": TOKEN + " " + TOKEN}, "TNCTL_TOKEN has 65 characters"),
    (None, 0, {"TNCTL_TOKEN_FILE": "absent"}, r"TNCTL_TOKEN_FILE=absent cannot be read: No such"),
    (TOKEN, 0o640, {}, r"can be read or written by others \(mode 0640\)\. Give it chmod 600"),
    (TOKEN, 0o602, {}, r"mode 0602"),
    ("", 0o600, {}, r"TNCTL_TOKEN_FILE has 0 characters"),
    (TOKEN, 0o600, {"TNCTL_TOKEN": TOKEN}, r"TNCTL_TOKEN and TNCTL_TOKEN_FILE are set"),
])  # fmt: skip
def test_a_token_that_is_none_is_refused(tmp_path, content, mode, variables, words):
    if content is not None:
        file = tmp_path / "token"
        file.write_text(content)
        file.chmod(mode)
        variables = variables | {"TNCTL_TOKEN_FILE": str(file)}
    with pytest.raises(UserError, match=words) as refused:
        environment.take_token(dict(variables))
    assert TOKEN not in str(refused.value)
