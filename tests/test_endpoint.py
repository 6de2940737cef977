"""verify-serving endpoint=…: golden rows sent to a service that speaks TF Serving's REST."""

import dataclasses
import functools
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tnctl import manifest
from tnctl.errors import Failure, UserError
from tnctl.serving.graph.graph_document import GraphManifest, GraphOutput
from tnctl.serving.verification import PredictEndpoint


@functools.cache
def loaded(folder):
    return tf.saved_model.load(str(folder))


class Service:
    """A SavedModel behind HTTP; `change` takes an answer, (code, content), and gives another."""

    def __init__(self, folder, change=None):
        self.loaded = loaded(folder)
        self.change = change or (lambda code, content: (code, content))
        self.requests = []
        self.waits = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.requests.append(body)
                answer = service.answer(self.path, body)
                if answer is None:
                    return  # the connection ends
                code, content = service.change(*answer)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(code)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/models/ctr"

    def answer(self, path, body):
        """As TensorFlow Serving: "inputs" gives "outputs", "instances" gives "predictions"."""
        if path != "/v1/models/ctr:predict":
            return 404, {"error": f"Could not find {path}"}
        signature = self.loaded.signatures[body.get("signature_name", "serving_default")]
        wanted = signature.structured_input_signature[1]
        columns = body.get("inputs")
        if columns is None:
            rows = body["instances"]
            columns = {name: [row[name] for row in rows] for name in rows[0]}
        if set(columns) != set(wanted):
            return 400, {"error": f"inputs are {sorted(wanted)}"}
        given = {name: tf.constant(columns[name], tensor.dtype) for name, tensor in wanted.items()}
        outputs = {name: tensor.numpy().tolist() for name, tensor in signature(**given).items()}
        if "inputs" in body:
            return 200, {"outputs": outputs}
        names = sorted(outputs)
        rows = zip(*(outputs[name] for name in names), strict=True)
        return 200, {"predictions": [dict(zip(names, row, strict=True)) for row in rows]}

    def __enter__(self):
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.waits.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def folder(trained, ran, tmp_path_factory):
    """A split graph of the trained model."""
    to = tmp_path_factory.mktemp("endpoint") / "graph"
    ran("split-graph", "output=run", f"to={to}", "golden=70", cwd=trained)
    return to


def verify(cli, folder, service):
    return cli("verify-serving", f"graph={folder}", f"endpoint={service.url}", cwd=folder)


def test_a_right_service(folder, cli):
    with Service(folder) as service:
        done = verify(cli, folder, service)
    assert done.code == 0, done.err
    assert "by columns" in done.err and "by rows" in done.err and "FAILED" not in done.err
    assert [
        len(request["instances"]) for request in service.requests if "instances" in request
    ] == [32, 32, 6]
    assert {request["signature_name"] for request in service.requests} == {"by_slot"}


def test_a_service_with_another_model(folder, cli):
    """Whose weights are not those of the golden rows: every way of asking shows it."""

    def change(code, content):
        if "outputs" in content:
            content["outputs"]["logits"] = [logit + 0.001 for logit in content["outputs"]["logits"]]
        return code, content

    with Service(folder, change) as service:
        done = verify(cli, folder, service)
    assert done.code == 1
    assert done.err.count("FAILED") == 1 and "serving differs" in done.last


@pytest.mark.parametrize("key", ["inputs", "instances"])
def test_a_service_may_speak_one_form_only(folder, cli, key):
    class One(Service):
        def answer(self, path, body):
            if key in body:
                return 400, {"error": "what is that"}
            return super().answer(path, body)

    with One(folder) as service:
        done = verify(cli, folder, service)
    assert done.code == 0, done.err
    assert "not supported there" in done.err


def described(folder, outputs):
    """The graph as if it had no other outputs."""
    content = document(folder)
    return SimpleNamespace(outputs=[output for output in content.outputs if output.name in outputs])


def document(folder):
    return manifest.read(str(folder), GraphManifest, "serving.json")


def zeros_for(folder):
    """Inputs of 40 examples."""
    return {
        spec.name: np.zeros((40, *spec.shape), spec.dtype)
        for spec in document(folder).signatures.by_slot
    }


def test_of_one_output_there_is_no_name(folder):
    """Then the answer is a list, as TensorFlow Serving gives it; [B, 1] counts as [B]."""
    inputs = zeros_for(folder)

    def change(code, content):
        if "outputs" in content:
            return code, {"outputs": content["outputs"]["predictions"]}
        return code, {
            "predictions": [[prediction["predictions"]] for prediction in content["predictions"]]
        }

    with Service(folder, change) as service:
        endpoint = PredictEndpoint(service.url, described(folder, ["predictions"]))
        ways = dict(endpoint.ways(inputs))
    for way in ("columns", "rows"):
        assert ways[way]["predictions"].shape == (40,)
        assert len(np.unique(ways[way]["predictions"])) == 1


def test_the_embedding_of_a_tower(folder):
    """[B, d], by each way of asking; another d is refused."""
    embedding = GraphOutput(name="embedding", kind="embedding", head="a", shape=(2,))
    described = SimpleNamespace(outputs=[embedding])
    inputs = zeros_for(folder)

    def change(code, content):
        if "outputs" in content:
            rows = len(content["outputs"]["logits"])
            return code, {"outputs": {"embedding": [[1, 2]] * rows}}
        return code, {"predictions": [[1, 2] for _ in content["predictions"]]}

    with Service(folder, change) as service:
        ways = dict(PredictEndpoint(service.url, described).ways(inputs))
        for way in ("columns", "rows"):
            np.testing.assert_array_equal(ways[way]["embedding"], [[1, 2]] * 40)
        described.outputs = [dataclasses.replace(embedding, shape=(3,))]
        with pytest.raises(Failure, match=re.escape("an output is [32, 2], not [32, 3]")):
            dict(PredictEndpoint(service.url, described).ways(inputs))


ODD = {
    "refused": (lambda *_: (400, {"error": "Tensor name: user_id"}), ["400", "Tensor name"]),
    "not found": (lambda *_: (404, b"<html>gone</html>"), ["404", "gone"]),
    "broken": (lambda *_: (500, {"error": "out of memory"}), ["500", "out of memory"]),
    "no json": (lambda *_: (200, b"hello"), ["Expecting value", "hello"]),
    "no object": (lambda *_: (200, [1, 2]), ["list indices"]),
    "no outputs": (lambda *_: (200, {"scores": []}), ["no 'outputs'", "scores"]),
    "nameless": (lambda *_: (200, {"outputs": [1.0] * 32}), ["list indices"]),
    "other names": (lambda *_: (200, {"outputs": {"score": [1.0]}}), ["no 'logits'"]),
    "few": (
        lambda *_: (200, {"outputs": {"logits": [1.0], "predictions": [1.0]}}), ["[1], not [32]"]
    ),
    "text": (
        lambda *_: (200, {"outputs": {"logits": ["a"] * 32, "predictions": ["a"] * 32}}),
        ["validation error"],
    ),
    "ragged": (
        lambda *_: (200, {"outputs": {"logits": [[1], []], "predictions": []}}),
        ["inhomogeneous"],
    ),
    "nan": (
        lambda *_: (200, b'{"outputs": {"logits": [NaN' + b",1" * 31 + b'], "predictions": []}}'),
        ["NaN or infinite"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ODD)
def test_what_goes_wrong_is_one_line(folder, cli, case):
    change, said = ODD[case]
    with Service(folder, change) as service:
        done = verify(cli, folder, service)
    assert done.code == 1
    assert service.url in done.last
    for text in said:
        assert text in done.last


def test_a_service_that_is_not_there(folder, cli):
    with Service(folder) as service:
        pass
    done = verify(cli, folder, service)
    assert done.code == 1
    assert "cannot be reached" in done.last and "refused" in done.last


def test_a_service_that_hangs_and_one_that_breaks_off(folder):
    inputs = {"a": np.zeros((1, 1), np.float32)}

    class Hanging(Service):
        def answer(self, *_):
            self.waits.wait(10)

    with Hanging(folder) as service:
        endpoint = PredictEndpoint(service.url, described(folder, ["logits"]), seconds=0.2)
        with pytest.raises(Failure, match=r"does not answer within 0\.2 s"):
            dict(endpoint.ways(inputs))

    class Ending(Service):
        def answer(self, *_):
            return None

    with Ending(folder) as service:
        endpoint = PredictEndpoint(service.url, described(folder, ["logits"]))
        with pytest.raises(Failure, match="cannot be reached"):
            dict(endpoint.ways(inputs))


@pytest.mark.parametrize(
    "url", ["ctr", "ftp://a/b", "http://", "http://host", "http://[/v1", "http:/v1"]
)
def test_a_url_that_is_none(url):
    with pytest.raises(UserError, match="endpoint is http://HOST:PORT/v1/models/NAME"):
        PredictEndpoint(url, {"outputs": []})


def test_without_golden_rows_there_is_nothing_to_send(trained, cli, ran, tmp_path, folder):
    to = tmp_path / "graph"
    done = ran("split-graph", "output=run", f"to={to}", "golden=0", cwd=trained)
    with Service(folder) as service:
        done = verify(cli, to, service)
        assert done.code == 1 and "no golden rows" in done.last
        # The checkpoint has one.
        shutil.copytree(trained / "run", tmp_path / "run")
        shutil.copytree(to, tmp_path / "run/graph")
        cli("export-embeddings", "output=run", cwd=tmp_path)
        done = cli(
            "verify-serving", "output=run", f"data.root={trained / 'clicks'}",
            f"endpoint={service.url}", cwd=tmp_path,
        )  # fmt: skip
    assert done.code == 0, done.err
    assert "by columns" in done.err
