"""Passwords and tokens of URLs are in no file and no line, and masking them changes no run."""

import base64
import functools
import http.server
import json
import random
import shutil
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import fsspec
import pytest

from tnctl import masking, schema
from tnctl.errors import Stopped, UserError, quoted
from tnctl.saved_conf import conf_to_json

aiohttp = pytest.importorskip("aiohttp")

USER = "ali@corp.com"  # as many services have them, not quoted
PASSWORD, OTHER, TOKEN = "open-sesame", "open-barley", "t0ken-of-ali"
MASKED = [
    ("https://ali:open@host/a", "https://***@host/a"),
    ("https://ali:op@en@host/a", "https://***@host/a"),
    ("https://ali:op/en?#@host/a", "https://***@host/a"),
    ("simplecache::https://ali:open@host/a", "simplecache::https://***@host/a"),
    ("zip://a.csv::s3://key:secret@b/c.zip", "zip://a.csv::s3://***@b/c.zip"),
    ("https://host/a?token=open&b=1", "https://host/a?token=***&b=1"),
    ("abfs://c/a?sv=2024&sig=o%2Fpen", "abfs://c/a?sv=2024&sig=***"),
    ("https://b/k?AWSAccessKeyId=A&Signature=B&Expires=1",
     "https://b/k?AWSAccessKeyId=***&Signature=***&Expires=1"),
    ("https://b/k?X-Amz-Credential=A&X-Amz-Date=2&X-Amz-Signature=3",
     "https://b/k?X-Amz-Credential=***&X-Amz-Date=***&X-Amz-Signature=***"),
    ("a 'https://ali:open@h/a' and http://h?key=open.", "a 'https://***@h/a' and http://h?key=***."),
    ("http://alice@corp.com:open@host/a", "http://***@host/a"),
    ("s3://alice@corp.com:12,34@host/a", "s3://***@host/a"),
    ("ftp://bob:S3/C#RET@host/a", "ftp://***@host/a"),
    ("ftp://bob:123456/7@host", "ftp://***@host"),
    ("https://ghp_0123456789abcdefABCDEF@host/a", "https://***@host/a"),
    ("https://eyJhbGciOi.J9.eyJzdWIiOiIx-_@host", "https://***@host"),
    ("https://h/a#access_token=open&b=1", "https://h/a#access_token=***&b=1"),
    ("https://f.azurewebsites.net/a?code=open==&zip_code=1",
     "https://f.azurewebsites.net/a?code=***&zip_code=1"),
    ("https://d.cloudfront.net/a?Expires=1&Policy=P_&Signature=S~&Key-Pair-Id=K",
     "https://d.cloudfront.net/a?Expires=1&Policy=***&Signature=***&Key-Pair-Id=***"),
    ("https://h/a?hdnea=exp=1~hmac=open&hmac=open", "https://h/a?hdnea=***&hmac=***"),
    ("webhdfs://h:1/a?op=OPEN&delegation=open", "webhdfs://h:1/a?op=OPEN&delegation=***"),
    ("https://h/a?x-oss-signature=open&q-signature=open",
     "https://h/a?x-oss-signature=***&q-signature=***"),
    ('{"a":"https://h:80","b":"x@y","c":"https://a:b@h"}',
     '{"a":"https://h:80","b":"x@y","c":"https://***@h"}'),
]  # fmt: skip
NO_SECRETS = [
    "https://host:8080/a@b", "http://[::1]:80/a:b@c", "s3://bucket/a:b@c",
    "redis://USER:PASSWORD@HOST", "https://h/a?partition_key=3&author=me&page=2", "a: b@c",
    "{hidden: [1], token: x}", "https://host:443", "http://host:80 and a@b",
    "abfs://container-of-many-words@account.dfs.core.windows.net/a",
    "sftp://a-long-user-of-the-host@host:22/a", "ftp://bob:S3 C RET@host/a", "https://h/a?country_code=3&policy_id=2&keys=1&tick=et",
    "s3://arn:aws:s3:us-west-2:123456789012:accesspoint/name/a@b.csv",
    "'http://host:80' and 'a@b'", "(see http://host:80) a@b", "at http://host:80. Ask a@b",
]  # fmt: skip


@pytest.mark.parametrize(("text", "without"), MASKED)
def test_secrets_are_masked(text, without):
    assert masking.masked(text) == without
    assert masking.masked(without) == without
    assert masking.masked({"a": [text, 1, None], "b": (text,)}) == {
        "a": [without, 1, None],
        "b": (without,),
    }
    assert masking.bare(text) == masking.bare(without)
    assert masking.is_masked(without)
    assert not masking.is_masked(text)
    assert str(UserError(f"{text} is wrong")) == f"{without} is wrong"
    assert str(Stopped(text, 130)) == without


@pytest.mark.parametrize("text", NO_SECRETS)
def test_nothing_else_is(text):
    assert masking.masked(text) == text
    assert not masking.is_masked(text)


def test_masking_long_text_takes_linear_time():
    """1 MB that begins a secret again and again and never ends it; a quadratic search hangs."""
    for part in (
        "://a:", "?token", "://a:b ", "?token=&", "://::", "a", "::a://", "@", "#=", "?%74oken",
        "://a:x/", "://a:b@", "?key=';", "://[", "::a", "\n://a:",
    ):  # fmt: skip
        for text in (part * (50_000 // len(part)), f"://a:{part * (50_000 // len(part))}@"):
            assert len(masking.masked(text)) <= 2 * len(text)
    for part in ("a", "?token", "://a:b ", "?key=&"):
        text = part * (1_000_000 // len(part))
        assert len(masking.masked(text)) <= 2 * len(text)


# What passwords may have, quoted or not. With both @ and / nothing tells their end.
SIGNS = ("!$'()*,;:+~%25-._@", "!$()*,;:+~%25-._/?#")
KEYS = ("token", "sig", "X-Amz-Signature", "code", "my_password", "Policy")


def url_with_secrets(chance):
    """A URL, the same masked, and what may not stand in that."""

    def word(low, high, signs=""):
        letters = "abcdefghijkmnopqrtuvwxyzABCDEFG"
        return "".join(chance.choice(letters + signs) for _ in range(chance.randint(low, high)))

    secrets = []

    def secret(signs):
        # No part of it begins as a number, which would be a port.
        secrets.append(f"Z{word(3, 12, signs)}Z")
        return secrets[-1]

    scheme = chance.choice(("http", "https", "ftp", "s3", "redis", "webhdfs", "simplecache::https"))
    host = chance.choice(("host", "host.corp.com", "host:8080", "[::1]:80"))
    shown = host
    match chance.randrange(4):
        case 0:
            user = chance.choice(("", word(1, 8), f"{word(1, 8)}@corp.com"))
            host, shown = f"{user}:{secret(chance.choice(SIGNS))}@{host}", f"***@{host}"
        case 1 if scheme.endswith(("http", "https")):
            secrets.append(word(16, 40, "0123456789_-"))
            host, shown = f"{secrets[-1]}@{host}", f"***@{host}"
        case 2:
            user = word(10, 14)
            secrets += [user] * scheme.endswith(("http", "https"))
            host, shown = f"{user}@{host}", f"{'***' if secrets else user}@{host}"
    pairs = [(word(1, 6, "_0"), word(0, 6, "%20")) for _ in range(chance.randrange(3))]
    pairs += [(key, None) for key in chance.sample(KEYS, chance.randrange(3))]
    chance.shuffle(pairs)
    fragment = chance.choice(("", f"#{word(1, 5)}", None))
    given, masked = ["", ""], ["", ""]
    parts = [(pairs, "?")] + ([([("access_token", None), ("b", "1")], "#")] * (fragment is None))
    for place, (of_part, mark) in enumerate(parts):
        for number, (key, value) in enumerate(of_part):
            joint = mark if number == 0 else "&"
            given[place] += f"{joint}{key}={secret('%2+/=~-') if value is None else value}"
            masked[place] += f"{joint}{key}={'***' if value is None else value}"
    path = f"/{word(0, 5)}/{word(0, 3)}.csv"
    return (
        f"{scheme}://{host}{path}{''.join(given)}{fragment or ''}",
        f"{scheme}://{shown}{path}{''.join(masked)}{fragment or ''}",
        secrets,
    )


def test_generated_urls():
    """5,000 URLs in sentences: no secret is left, and all else is as it was."""
    chance = random.Random(11)
    frames = ("{}", "cannot open {}: no answer", "'{}' and {{'a': 1}}", "- {}\n- a@b", "({})")
    having = 0
    for _ in range(5_000):
        url, expected, secrets = url_with_secrets(chance)
        frame = chance.choice(frames)
        text = masking.masked(frame.format(url))
        assert text == frame.format(expected), url
        assert masking.masked(text) == text
        assert masking.bare(text) == masking.bare(frame.format(url)), url
        assert not [secret for secret in secrets if secret in text], url
        assert masking.is_masked(text) == bool(secrets)
        having += bool(secrets)
    assert having > 2_500


def test_a_secret_is_not_cut_in_its_middle():
    url = f"https://ali:{'open' * 30}@host/a"
    assert quoted(url) == quoted(url.encode()) == "'https://***@host/a'"


def test_texts_of_the_data_stay():
    word = "https://ali:open@host/a"
    conf = schema.from_values(
        {
            "recipe": {"name": "lr", "group": [word]},
            "slots": {
                "a": {"ids": "vocabulary", "vocabulary": [word]},
                "missing": {"ids": "vocabulary", "vocabulary_file": word, "column": word},
            },
            "data": {"root": word, "train": [word], "test": {"files": word}, "missing": [word]},
        }
    )
    values = conf_to_json(conf)
    slots, data = values["slots"], values["data"]
    assert [*slots["a"]["vocabulary"], slots["missing"]["column"], *data["missing"]] == [word] * 3
    masked = [data["root"], *data["train"], data["test"]["files"], *values["recipe"]["group"]]
    assert [*masked, slots["missing"]["vocabulary_file"]] == ["https://***@host/a"] * 5
    assert conf.data.root == word


# ---- Through the commands ----


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder to those who know the password, and the token where given."""

    def do_GET(self):
        if self.allowed():
            super().do_GET()

    def do_HEAD(self):
        if self.allowed():
            super().do_HEAD()

    def allowed(self):
        parts = urlsplit(self.path)
        given = base64.b64decode(self.headers.get("Authorization", "Basic ")[6:]).decode()
        fits = given.partition(":")[2] in (PASSWORD, OTHER)
        if not fits or parts.query not in ("", f"access_token={TOKEN}"):
            self.send_error(401)
            return False
        return True

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server(trained):
    """HOST:PORT of a server of the clicks that asks for a password."""
    handler = functools.partial(Handler, directory=str(trained / "clicks"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{serving.server_port}"
        serving.shutdown()


def conf_of(server, password=PASSWORD):
    """The small conf with a password in data.root, and a token in data.train."""
    return [
        "conf=small.yaml",
        f"data.root=http://{USER}:{password}@{server}",
        f"data.train=train.csv?access_token={TOKEN}",
    ]


@pytest.fixture
def run_without_secrets(cli, workspace):
    """Runs a command; nothing that it says may have a secret."""
    shutil.rmtree(workspace / "clicks")

    def asking(*arguments, code=0):
        done = cli(*arguments, cwd=workspace)
        assert done.code == code, (arguments, done.err)
        without_secrets(done.out + done.err)
        return done

    return asking


def without_secrets(text):
    for secret in (PASSWORD, OTHER, TOKEN):
        for form in (secret, base64.b64encode(f"{USER}:{secret}".encode()).decode()):
            assert form not in text


SHORT = ["evaluation.ablate=false", "save.every_steps=7"]


def nothing_has_a_secret_in(folder, least):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > least
    for path in files:
        without_secrets(path.read_bytes().decode("latin-1") + str(path))


def test_no_file_and_no_line_has_a_secret(run_without_secrets, server, workspace):
    conf = conf_of(server)
    shown = run_without_secrets("train", *conf, "--cfg", "job")
    assert f"root: http://***@{server}" in shown.out
    rest = ["output=run", "train.tensorboard=true", *SHORT]
    run_without_secrets("train", *conf, *rest)
    page = (workspace / "run/report.html").read_text()
    assert f"http://***@{server}" in page
    assert "train.csv?access_token=***" in page
    # In the middle of a pass it is resumed with another password.
    checkpoints = sorted((workspace / "run/checkpoints").iterdir())
    shutil.rmtree(checkpoints[-1])
    (workspace / "run/report.json").unlink()
    seen = json.loads((checkpoints[0] / "manifest.json").read_text())["data"]
    assert [event["file"] for event in seen] == [f"http://***@{server}/train.csv?access_token=***"]
    resumed = run_without_secrets("train", *conf_of(server, OTHER), *rest).err
    assert f"resuming from run/checkpoints/{checkpoints[0].name}" in resumed
    plain = ["conf=small.yaml", f"data.root=http://{server}", "data.train=train.csv", *rest]
    assert "nothing to do" in run_without_secrets("train", *plain).err
    # A checkpoint has no password to read its data with.
    done = run_without_secrets("evaluate", "output=run", code=2)
    assert f"http://***@{server}/test.csv is from a saved file, in which" in done.last
    metrics = json.loads(run_without_secrets("evaluate", "output=run", conf[1]).out)
    assert metrics["split"] == "test"
    for command in ("list", "inspect", "verify"):
        run_without_secrets("checkpoint", command, "run", "--json")
    # What goes wrong is told without it.
    wrong = conf_of(server, "wrong-sesame")
    assert "wrong-sesame" not in run_without_secrets("train", *wrong, "output=new", code=1).err
    run_without_secrets("train", *conf[:2], "data.train=gone.csv", "output=new", code=1)
    run_without_secrets(
        "train", "conf=small.yaml", f"{conf[1]}/{{}}", f"{conf[2]}]x", "output=new", code=1
    )
    nothing_has_a_secret_in(workspace, 20)


@pytest.mark.long
def test_no_other_command_writes_a_secret(run_without_secrets, server, workspace):
    conf = conf_of(server)
    run_without_secrets("check", *conf)
    run_without_secrets("check", *conf, "format=json")
    run_without_secrets("prepare", *conf, "to=prepared")
    run_without_secrets(
        "train", *conf_of(server, OTHER), *SHORT, "data.prepared=prepared", "output=run"
    )
    first, last = sorted(path.name for path in (workspace / "run/checkpoints").iterdir())
    run_without_secrets("predict", "output=run", conf[1], "data.prepared=null", "to=scores.csv")
    run_without_secrets("ablate", "output=run", conf[1], "data.prepared=null")
    run_without_secrets("split-graph", "output=run")
    run_without_secrets("export-embeddings", f"checkpoint=run/checkpoints/{first}", "to=base")
    run_without_secrets("export-embeddings", "output=run", "to=delta", "since=base")
    run_without_secrets("export-embeddings", "output=run")
    run_without_secrets("fold", "embeddings=delta", "to=folded")
    run_without_secrets("verify-serving", "output=run", conf[1], "data.prepared=null")
    run_without_secrets("checkpoint", "diff", f"run/checkpoints/{first}", f"run/checkpoints/{last}")
    run_without_secrets("train", *conf, *SHORT, "output=warm", f"warm.start={workspace}/run")
    nothing_has_a_secret_in(workspace, 60)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://ali:a@host/a", "http://host/a"),
        ("http://host/a?token=x&b=1", "http://host/a?b=1"),
        ("http://host/a?sig=x&token=y", "http://host/a"),
        ("http://ghp_0123456789abcdef@host/a", "http://host/a"),
        ("http://host/a?b=1#token=x&key=y", "http://host/a?b=1"),
        ("http://host/a#token=x&b=1", "http://host/a#b=1"),
    ],
)
def test_urls_are_compared_without_secrets(url, same):
    assert masking.bare(url) == same == masking.bare(masking.masked(url)) == masking.bare(same)
    values = {"data": {"root": url}, "slots": {"a": {"vocabulary": [url]}}}
    assert masking.bare_conf(values) == {**values, "data": {"root": same}}


def test_an_error_of_a_library_has_none(run_without_secrets, monkeypatch):
    from tnctl.cli import model_commands

    def failing(_):
        raise RuntimeError(f"cannot connect to s3://ali:{PASSWORD}@host")

    monkeypatch.setattr(model_commands, "chosen", lambda *_, **__: failing(None))
    done = run_without_secrets("evaluate", "output=run", code=1)
    assert "RuntimeError: cannot connect to s3://***@host" in done.err


@contextmanager
def configured(**environment):
    """What fsspec reads from its environment when it is imported."""
    settings = dict(fsspec.config.conf)
    fsspec.config.set_conf_env(fsspec.config.conf, environment)
    try:
        yield
    finally:
        fsspec.config.conf.clear()
        fsspec.config.conf.update(settings)


def test_the_ways_to_keep_passwords_out_of_urls(cli, server, run_copy, monkeypatch):
    """As docs/data.md has them: a header, or .netrc."""

    def evaluated(code):
        done = cli("evaluate", "output=run", f"data.root=http://{server}", cwd=run_copy)
        assert done.code == code, done.err
        without_secrets(done.out + done.err)

    evaluated(1)
    header = base64.b64encode(f"ali:{PASSWORD}".encode()).decode()
    value = f'{{"client_kwargs": {{"headers": {{"Authorization": "Basic {header}"}}}}}}'
    with configured(FSSPEC_HTTP=value):
        evaluated(0)
    evaluated(1)
    (run_copy / "netrc").write_text(f"machine 127.0.0.1 login ali password {PASSWORD}\n")
    (run_copy / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(run_copy / "netrc"))
    with configured(FSSPEC_HTTP='{"client_kwargs": {"trust_env": true}}'):
        evaluated(0)
