"""The model of a checkpoint, and its digest."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from tnctl import documents
from tnctl.checkpoint import dense_file, rows
from tnctl.checkpoint.chain import (
    Checkpoint,
    newest,
    newest_or_fail,
    offering,
    open_checkpoint,
)
from tnctl.errors import Failure
from tnctl.manifest import read_file
from tnctl.model import building, recipes
from tnctl.model.building import Model, TooManyWeightsError, weights_limited
from tnctl.progress import say
from tnctl.schema import Conf
from tnctl.tables import ALL_SHARDS, Shards

__all__ = ["Checkpoint", "digest", "load", "newest", "newest_or_fail", "open_checkpoint"]


def load(checkpoint: Checkpoint, conf: Conf) -> Model:
    """The model of a checkpoint, all rows and weights as they were saved."""
    with refusing_larger_networks(checkpoint, conf):
        model = building.build(conf, checkpoint.statistics)
    fill(checkpoint, model)
    return model


@contextmanager
def refusing_larger_networks(checkpoint: Checkpoint, conf: Conf) -> Iterator[None]:
    """Raise Failure, before memory is allocated, for a network with more weights than the file has.

    With bfloat16 the same network is built twice.
    """
    with offering(checkpoint):
        stored = dense_file.floats(checkpoint.folder, checkpoint.manifest)
    try:
        with weights_limited(2 * len(stored)):
            yield
    except TooManyWeightsError as error:
        raise Failure(
            f"{checkpoint.folder} has fewer dense weights than its conf makes with the recipe "
            f"{conf.recipe_name} and {building.settings_in_words(conf.recipe)}. Use the recipe and "
            "the settings that saved it"
        ) from error


def fill(checkpoint: Checkpoint, model: Model, shards: Shards = ALL_SHARDS) -> None:
    """Fill a model that was just built: the rows of some shards, dense weights, recalibration.

    The model's conf must be the one that the checkpoint was saved with. Raises Failure.
    """
    name = model.conf.recipe_name
    if name.endswith(".py") and recipes.digest_of(name) != checkpoint.manifest.recipe.sha256:
        say(f"{name} has changed since {checkpoint.folder} was saved: its model may be another")
    rows.fill_tables(checkpoint, model, shards)
    with offering(checkpoint):
        dense_file.read(checkpoint.folder, checkpoint.manifest, model)
    model.recalibration = dict(checkpoint.manifest.recalibration or {})
    model.check_aliases()


def digest(checkpoint: Checkpoint) -> str:
    """The SHA-256, hexadecimal, of all that training is resumed from.

    Of each table in the manifest's order its name, all rows of the chain and the sketch; then the
    dense file and the clock. A chain and the full checkpoint it is folded into have the same, and
    how many owners wrote the files makes no difference.
    """
    hashed = hashlib.sha256()
    for table in checkpoint.manifest.tables:
        hashed.update(table.name.encode() + b"\0")
        for records in rows.stream(checkpoint, table.name):
            hashed.update(records.view("u1").data)
        if sketches := table.all_sketch_files:
            hashed.update(rows.SKETCH_START)
        for entry in sketches:
            for counters in rows.sketch_blocks(checkpoint, entry):
                hashed.update(counters.data)
    hashed.update(read_file(checkpoint.folder, checkpoint.manifest, dense_file.NAME))
    hashed.update(json.dumps(documents.plain(checkpoint.clock), sort_keys=True).encode())
    return hashed.hexdigest()
