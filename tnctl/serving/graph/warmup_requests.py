"""Requests with which TensorFlow Serving runs a graph before it takes traffic.

A TFRecord file of PredictionLog messages (tensorflow_serving/apis/prediction_log.proto), of which
TensorFlow's wheel has no classes; these few fields are written by hand:

    PredictionLog    predict_log 6: PredictLog
    PredictLog       request 1: PredictRequest
    PredictRequest   model_spec 1: ModelSpec, inputs 2: map<string, TensorProto>
    ModelSpec        signature_name 3: string
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

NAME = "assets.extra/tf_serving_warmup_requests"
SIGNATURE = "serving_default"


def write(folder: str, requests: Iterable[Mapping[str, NDArray[Any]]]) -> None:
    """Write requests, each the inputs [B, *shape] of a signature by name, float32 or int32."""
    path = Path(folder, NAME)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for inputs in requests:
            writer.write(prediction_log(inputs))


def prediction_log(inputs: Mapping[str, NDArray[Any]]) -> bytes:
    """The PredictionLog of one request, its inputs [B, *shape] by name.

    The name of the model is left to the server.
    """
    request = field(1, field(3, SIGNATURE.encode()))
    for name, array in inputs.items():
        tensor = tf.make_tensor_proto(array).SerializeToString()
        request += field(2, field(1, name.encode()) + field(2, tensor))
    return field(6, field(1, request))


def field(number: int, payload: bytes) -> bytes:
    """A field of wire type 2: its tag, its length and its bytes."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def varint(number: int) -> bytes:
    """A whole number in groups of 7 bits, the lowest first."""
    groups = [number >> shift & 127 for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 128 for group in groups[:-1]), groups[-1]])
