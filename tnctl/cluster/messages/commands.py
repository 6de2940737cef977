"""Commands: methods that are called in other processes, by their names.

`@command` makes a method a command. Its annotations are the format of requests and replies: what is
annotated as an array travels as one (named_arrays.py); all else is one JSON document, which
pydantic checks where it comes in.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import make_dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np

from tnctl import documents
from tnctl.cluster.messages import named_arrays
from tnctl.cluster.transport.kinds import Body, MessageError
from tnctl.errors import Failure

Given = ParamSpec("Given")
Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
Method = Callable[Concatenate[Any, Given], Result]
Respond = Callable[[Body], None]

# Units or texts of one command. Parsing keeps all threads of a process from running: 10,000 units
# take 0.1 s.
PER_COMMAND = 10_000
BLOCK_BYTES = 16 << 20  # of an array that is too large for one command or reply
_NAME, _JSON = "command", "json"  # of the metadata that has the name, and the array with a document


class Values:
    """Values by their names, of these annotations, as a body has them."""

    def __init__(self, kinds: Mapping[str, Any]) -> None:
        self.names = list(kinds)
        self._arrays = {name: _scalar(kind) for name, kind in kinds.items() if _is_array(kind)}
        others = [(name, kind) for name, kind in kinds.items() if name not in self._arrays]
        self._document: Any = make_dataclass("Document", others, frozen=True, kw_only=True)

    def encode(self, values: Mapping[str, Any], **metadata: str) -> bytearray:
        """The body with values."""
        others = {name: values[name] for name in self.names if name not in self._arrays}
        text = np.frombuffer(json.dumps(documents.plain(others)).encode(), np.uint8)
        arrays = {name: values[name] for name in self._arrays}
        return named_arrays.packed(arrays | {_JSON: text}, metadata)

    def decode(self, body: Body) -> dict[str, Any]:
        """The values in a body, of which arrays are views. Raises Failure."""
        try:
            _, arrays = named_arrays.parse(body)
            text = arrays.pop(_JSON, np.empty(0, np.uint8)).tobytes()
            values = vars(documents.parse(self._document, text)) | arrays
            if arrays.keys() != self._arrays.keys() or not all(
                issubclass(array.dtype.type, self._arrays[name]) for name, array in arrays.items()
            ):
                raise MessageError("it has other arrays")
        except (MessageError, documents.DocumentError) as error:
            raise Failure(f"a message of another worker is wrong: {error}") from error
        return {name: values[name] for name in self.names}


class Command:
    """The name and the annotations of a method."""

    def __init__(self, method: Callable[..., Any]) -> None:
        kinds = get_type_hints(method, include_extras=True)
        result = kinds.pop("return")
        self.name, self._signature = method.__name__, inspect.signature(method)
        self.arguments = Values(kinds)
        parts = get_args(result)
        self.is_pair = get_origin(result) is tuple and all(map(_is_array, parts))
        results = parts if self.is_pair else [result]
        self.results = Values({f"result_{n}": kind for n, kind in enumerate(results)})

    def positional(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The arguments of a call in the order of the method's parameters, without `self`."""
        return self._signature.bind(None, *args, **kwargs).args[1:]


COMMANDS: dict[str, Command] = {}


def command(method: Function) -> Function:
    """Let other processes call a method, whose name no other command has.

    Arguments and results are documents and what JSON has, or arrays (`NDArray[dtype]`) of up to two
    dimensions; a result may be several arrays. An override in a subclass is not decorated.
    """
    COMMANDS[method.__name__] = Command(method)
    return method


def request(method: Method[Given, Any], *args: Given.args, **kwargs: Given.kwargs) -> bytearray:
    """The body that asks for a call of a method."""
    called = COMMANDS[method.__name__]
    given = called.positional(*args, **kwargs)
    values = dict(zip(called.arguments.names, given, strict=True))
    return called.arguments.encode(values, command=called.name)


def name_of(body: Body) -> str:
    """The name of the method that a body asks for, without a look at the arguments.

    Raises MessageError.
    """
    return named_arrays.metadata_of(body).get(_NAME, "")


def run(target: object, body: Body) -> bytearray:
    """Call the method of a target that a body asks for; the body of the reply.

    Raises Failure for a body that asks for none, or with other arguments, and what the method does.
    """
    called = COMMANDS.get(name_of(body))
    method = None if called is None else getattr(target, called.name, None)
    if called is None or method is None:
        raise Failure("a command is unknown: do all workers have the same version of tnctl?")
    result = method(**called.arguments.decode(body))
    results = result if called.is_pair else [result]
    return called.results.encode({f"result_{n}": part for n, part in enumerate(results)})


def answering(target: object) -> Callable[[Body, Respond], None]:
    """What answers requests for methods of a target that do not wait, in the caller's thread."""
    return lambda body, respond: respond(run(target, body))


def result(method: Method[Given, Result], body: Body) -> Result:
    """What a method has returned, by the body of the reply. Raises Failure."""
    called = COMMANDS[method.__name__]
    results = tuple(called.results.decode(body).values())
    return cast(Result, results if called.is_pair else results[0])


def results(method: Method[Given, Result], futures: Iterable["Future[Body]"]) -> list[Result]:
    """What a method has returned in several processes. Raises Failure."""
    return [result(method, future.result()) for future in futures]


def _is_array(kind: Any) -> bool:
    return get_origin(kind) is np.ndarray


def _scalar(kind: Any) -> type[np.generic]:
    """The type of an annotation such as NDArray[np.uint64]; that of all types of NDArray[Any]."""
    [scalar] = get_args(get_args(kind)[1])
    return np.generic if scalar is Any else scalar
