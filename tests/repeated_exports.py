"""What goes online, made again and again for the tests that let it go wrong."""

import json

from tnctl import files, manifest, schema
from tnctl.checkpoint import load as loading
from tnctl.errors import Failure
from tnctl.serving.graph.graph_document import GraphManifest
from tnctl.serving.graph.splitting import split
from tnctl.serving.rows.embeddings import open_embeddings
from tnctl.serving.rows.export import export
from tnctl.serving.rows.folding import fold

COUNTS = {"graph": "serving.json"}  # what says that a folder counts; else the manifest


class Served:
    """Exports, a fold and a graph of a run: each in `folder`, as it is when nothing happens."""

    def __init__(self, run, folder, names):
        self.folder, self.names = str(folder), names
        self.checkpoint = loading.newest_or_fail(str(run))
        self.conf = schema.from_values(self.checkpoint.conf())
        self.export(f"{folder}/0")
        self.export(f"{folder}/1", since=f"{folder}/0")
        for name in names:
            self.make(name, f"{folder}/{name}")

    def export(self, to, encoding="dictionary", since=None):
        export(self.checkpoint, self.conf, to, encoding=encoding, since=since)

    def make(self, name, to):
        """What the command of that name does."""
        if name == "fold":
            fold(f"{self.folder}/1", to)
        elif name == "graph":
            split(self.checkpoint, self.conf, to)
        elif name == "delta":
            self.export(to, since=f"{self.folder}/0")
        else:
            self.export(to, name)

    def refused(self, name, to, *words):
        """It cannot be made: one line has these words, and no reader takes what is there."""
        try:
            self.make(name, to)
        except Failure as error:
            for word in (to, *words):
                assert word in str(error), error
            assert "\n" not in str(error)
        else:
            raise AssertionError(f"{name} was made")
        assert not counts(name, to)

    def complete(self, name, to):
        """The same again makes what it makes when nothing happens."""
        self.make(name, to)
        assert counts(name, to)
        contents, expected = data(name, to), data(name, f"{self.folder}/{name}")
        if name == "graph":  # TensorFlow does not write the same bytes twice
            assert contents.keys() == expected.keys()
        else:
            assert contents == expected


def data(name, url):
    """Every file that a folder's manifest names."""
    content = json.loads(files.read_bytes(files.join(url, COUNTS.get(name, manifest.NAME))))
    return {file: files.read_bytes(files.join(url, file)) for file in content["files"]}


def counts(name, url):
    """Whether a reader takes a folder."""
    try:
        if name == "graph":
            manifest.read(url, GraphManifest, "serving.json")
        else:
            open_embeddings(url).close()
    except Failure as error:
        assert "\n" not in str(error)
        return False
    return True
