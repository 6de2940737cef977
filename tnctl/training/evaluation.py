"""Score a split of the data, read-only."""

from collections.abc import Iterator

import numpy as np

from tnctl.data.features import Features, Window
from tnctl.data.windows import ReadAhead, batches, windows
from tnctl.model.building import Model
from tnctl.schema import Conf
from tnctl.training.metrics import Scored
from tnctl.training.step import Inference

READ_AHEAD = 2


def features_of(conf: Conf, model: Model) -> Features:
    """The way from the conf's columns to the model's inputs."""
    return Features(conf, [list(table.slots) for table in model.layout.tables], model.statistics)


def in_file_order(
    conf: Conf, features: Features, split: str, limit: int | None = None
) -> Iterator[Window]:
    """The batches of a split, unshuffled."""
    for window in windows(conf, features, split, limit=limit):
        order = np.arange(window.rows, dtype=np.uint32)
        yield from batches(window, order, conf.train.batch_size)


def score(inference: Inference, conf: Conf, split: str, limit: int | None = None) -> Scored:
    """The logits of a split, in file order. Raises Failure when it cannot be read."""
    logits, labels, reference = [], [], []
    features = features_of(conf, inference.model)
    with ReadAhead(in_file_order(conf, features, split, limit), READ_AHEAD) as ahead:
        for batch in ahead:
            logits.append(inference(batch))
            labels.append(batch.labels)
            if batch.reference is not None:
                reference.append(batch.reference)
    return Scored(
        np.concatenate(logits),
        np.concatenate(labels),
        np.concatenate(reference) if reference else None,
    )


def reported_split(conf: Conf) -> str | None:
    """The split a report is about: test if given, else validation, else None."""
    if conf.data.test is not None:
        return "test"
    return "validation" if conf.data.validation is not None else None
