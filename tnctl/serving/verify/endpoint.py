"""A client of services with TensorFlow Serving's REST predict API."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, TypeAdapter

from tnctl.errors import Failure, UserError, quoted
from tnctl.model.graph import BY_SLOT
from tnctl.serving.graph.graph_document import GraphManifest
from tnctl.serving.rows.precision import Arrays, Floats

SECONDS = 30.0
ROWS = 32  # of a request
COLUMNAR, ROW = "columns", "rows"
# The keys of examples, and of the outputs in an answer.
FORMS = {COLUMNAR: ("inputs", "outputs"), ROW: ("instances", "predictions")}
MOST_BYTES = 64 << 20  # of an answer
# NaN and infinite numbers pass here, and are named for what they are.
Number = Annotated[float, Field(strict=True)]
NUMBERS: TypeAdapter[Any] = TypeAdapter(list[Number] | list[list[Number]])


class RefusedError(Failure):
    """The service answered that it does not take the request."""


class Endpoint:
    """The model at `url`, http://HOST:PORT/v1/models/NAME, whose graph is described."""

    def __init__(self, url: str, description: GraphManifest, seconds: float = SECONDS) -> None:
        try:
            parts = urlsplit(url)
            fits = parts.scheme in ("http", "https") and parts.hostname and parts.path.strip("/")
        except ValueError:
            fits = False
        if not fits:
            raise UserError(
                f"endpoint is http://HOST:PORT/v1/models/NAME. Received: endpoint={quoted(url)}"
            )
        self.url = url if url.endswith(":predict") else f"{url.rstrip('/')}:predict"
        self._outputs = description.outputs
        self._seconds = seconds

    def ways(self, inputs: Arrays) -> dict[str, Arrays | None]:
        """The outputs for inputs of signature `by_slot`, by each form of the API.

        The forms are `columns` ("inputs": a list for each input) and `rows` ("instances": an object
        for each example); None for a form that is refused while the other is accepted. Raises
        Failure in one line for every other error.
        """
        outputs: dict[str, Arrays | None] = {}
        refused = None
        for way in FORMS:
            try:
                parts = [
                    self._predicted(way, {n: array[at : at + ROWS] for n, array in inputs.items()})
                    for at in range(0, len(next(iter(inputs.values()))), ROWS)
                ]
                outputs[way] = {
                    name: np.concatenate([part[name] for part in parts]) for name in parts[0]
                }
            except RefusedError as error:
                if refused is not None:
                    raise refused from None
                outputs[way], refused = None, error
        return outputs

    def _predicted(self, way: str, inputs: Arrays) -> Arrays:
        """The outputs for some examples, by name."""
        key, answer_key = FORMS[way]
        rows = len(next(iter(inputs.values())))
        given: Any = {name: array.tolist() for name, array in inputs.items()}
        if way == ROW:
            given = [
                dict(zip(given, values, strict=True))
                for values in zip(*given.values(), strict=True)
            ]
        answer = self._answer({"signature_name": BY_SLOT, key: given}, answer_key)
        if way == ROW:
            if not isinstance(answer, list) or len(answer) != rows:
                raise self._odd(f"its {answer_key} are no list of {rows}", answer)
            by_row = [self._by_name(prediction) for prediction in answer]
            answer = {name: [values[name] for values in by_row] for name in by_row[0]}
        return {
            name: self._array(name, values, rows) for name, values in self._by_name(answer).items()
        }

    def _by_name(self, answer: Any) -> dict[str, Any]:
        """Outputs by their names; of a model with one output there are none."""
        names = [output.name for output in self._outputs]
        if isinstance(answer, dict):
            if absent := [name for name in names if name not in answer]:
                raise self._odd(f"it has no output {absent[0]}", answer)
            return {name: answer[name] for name in names}
        if len(names) > 1:
            raise self._odd(f"its outputs have no names, and there are {len(names)}", answer)
        return {names[0]: answer}

    def _array(self, name: str, values: Any, rows: int) -> Floats:
        """The values of an output as float32 [rows, *shape]; [rows, 1] are taken for [rows]."""
        [shape] = [output.shape for output in self._outputs if output.name == name]
        try:
            array = np.array(NUMBERS.validate_python(values), np.float32)
        except ValueError:  # also of lists that are not equally long
            raise self._odd("an output is no list of numbers", values) from None
        if array.shape not in ((rows, *shape), (rows, *(shape or (1,)))):
            raise self._odd(f"an output is {list(array.shape)}, not {[rows, *shape]}", values)
        if not np.isfinite(array).all():
            raise self._odd("an output is NaN or infinite", values)
        return array.reshape(rows, *shape)

    def _answer(self, body: Mapping[str, Any], key: str) -> Any:
        """The value of a key of the answer to a request."""
        request = urllib.request.Request(
            self.url, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as response:
                text = response.read(MOST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                message = f"{self.url} answers {error.code}: {error_of(error.read(MOST_BYTES))}"
            if 400 <= error.code < 500:
                way = "It must take the inputs of signature by_slot"
                raise RefusedError(f"{message}. {way}") from None
            raise Failure(f"{message}. Look into its log") from None
        except (http.client.HTTPException, OSError) as error:  # URLError and TimeoutError, too
            reason = getattr(error, "reason", error)
            what = f"cannot be reached ({reason}). Start the service, or correct endpoint=URL"
            if isinstance(reason, TimeoutError):
                what = f"does not answer within {self._seconds:g} s. Look into its log"
            raise Failure(f"{self.url} {what}") from None
        if len(text) > MOST_BYTES:
            raise self._odd(f"it has over {MOST_BYTES:,} bytes", text)
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            raise self._odd("it is no JSON", text) from None
        if not isinstance(answer, dict) or key not in answer:
            raise self._odd(f"it has no '{key}'", answer)
        return answer[key]

    def _odd(self, what: str, answer: Any) -> Failure:
        """An answer that is not of the API."""
        shown = answer if isinstance(answer, bytes) else json.dumps(answer)
        return Failure(
            f"{self.url} gives an answer that is not of the predict API, {what}: {quoted(shown)}. "
            "Answer as TensorFlow Serving does"
        )


def error_of(body: bytes) -> str:
    """The message of an error's body."""
    try:
        return quoted(str(json.loads(body)["error"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return quoted(body)
