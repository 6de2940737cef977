"""Which URLs of files may be opened, against what fsspec makes of them."""

import json
import random

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from tnctl import files
from tnctl.errors import UserError
from tnctl.limits import PROTOCOLS, is_plain, protocols_of

PLAIN = [
    "a.csv", "/data/a*.csv", "./a", "file:///a", "file:/a", "memory://a", "s3://b/k?versionId=1",
    "https://host:1/a?b=c", "abfs://container@account.dfs.core.windows.net/a", "hdfs://h:1/a", "",
    "day={day}/part-*.gz", "https://[fe80--1]/a", "a:b", "***",
]  # fmt: skip
ODD = [
    "reference://x.csv::file:///spec.json", "reference://x", "reference::/spec.json", "REFERENCE://",
    "simplecache::https://host/a", "filecache::s3://b/k", "blockcache::a", "cached://a",
    "zip://a.csv::https://h/b.zip", "tar://a::b.tar", "libarchive://a::b", "dir::/a", "dir://a",
    "git://repo:path@main", "github://o:r@main/a", "gist://1/a", "ssh://h/a", "sftp://h/a", "smb://h/a",
    "dask://a", "jupyter://h/a", "jlab://h/a", "lakefs://r/a", "dvc://a", "generic://a", "data:,a",
    "data:text/csv;base64,YQ==", "hf://datasets/a", "dbfs://a", "arrow_hdfs://a", "c://a", "://a",
    "HTTP://host/a", " s3://b/k", "a::b", "::", "http://[::1]/a", "file://a::reference",
]  # fmt: skip


def test_plain_urls_are_opened_and_others_not():
    assert [url for url in PLAIN if not is_plain(url)] == []
    assert [url for url in ODD if is_plain(url)] == []


def test_no_url_means_more_to_fsspec(monkeypatch):
    """20,000 generated URLs: fsspec is asked which protocols it would open for them."""
    chance, opened = random.Random(7), []

    def recorded(protocol):
        opened.append(protocol)
        return LocalFileSystem

    monkeypatch.setattr(fsspec.core, "get_filesystem_class", recorded)
    words = ["reference", "s3", "file", "zip", "data", "simplecache", "a", "/", "x.csv", ".", "1"]
    parts = [*words, "::", "::", "://", "://", ":", "//", "?", "@", " ", "\n", "data:"]
    plain = 0
    for _ in range(20_000):
        url = "".join(chance.choices(parts, k=chance.randint(1, 8)))
        opened.clear()
        fsspec.core._un_chain(url, {})
        if is_plain(url):
            plain += 1
            assert len(opened) == 1, url
            assert opened[0] in PROTOCOLS, url
        else:
            assert set(opened) - {"file", "data"} <= set(protocols_of(url)), url
    assert plain > 2_000


@pytest.mark.parametrize(
    "url",
    ["reference://x::{}", "reference::{}", "simplecache::reference://x::{}",
     "generic://reference://x::{}"],
)  # fmt: skip
def test_templates_are_never_run(tmp_path, url):
    mark, spec = tmp_path / "RUN", tmp_path / "spec.json"
    spec.write_text(spec_that_runs(mark))
    for command in (files.open_input, files.expand, files.size):
        with pytest.raises(UserError, match="is of fsspec's protocol reference, which renders"):
            command(url.format(spec))
    assert not mark.exists()


def spec_that_runs(mark):
    """A spec of fsspec's ReferenceFileSystem whose template makes a file."""
    code = f"self.__init__.__globals__.__builtins__.open('{mark}', 'w')"
    refs = {"x": "user_id,label\n1,0\n", "y": ["{{a}}", 0, 10]}
    return json.dumps({"version": 1, "templates": {"a": f"{{{{ {code} }}}}"}, "refs": refs})


def test_what_is_called_reference_is_no_protocol(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reference").write_bytes(b"a")
    assert files.read_bytes("reference") == files.read_bytes("file://reference") == b"a"
    assert not files.exists("memory://reference")


@pytest.mark.parametrize("sign", ["/", "?", "#"])
def test_a_part_of_a_password_is_in_no_message(sign):
    """Python's urllib would tell the text before the sign as a port that is wrong."""
    url = f"ftp://bob@corp.com:S3CRET{sign}REST@127.0.0.1:1/a.csv"
    for command in (files.read_bytes, files.expand, files.exists, files.list_folder, files.size):
        with pytest.raises(UserError) as failed:
            command(url)
        message = str(failed.value)
        assert message.startswith("ftp://***@127.0.0.1:1/a.csv has a password with a sign")
        assert "S3CRET" not in message
        assert "REST" not in message
