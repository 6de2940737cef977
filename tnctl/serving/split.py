"""`tnctl split-graph`: the dense inference graph of a checkpoint, servable without tnctl."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tnctl import files, outputs
from tnctl.checkpoint.load import Checkpoint
from tnctl.errors import Failure
from tnctl.manifest import Inventory
from tnctl.model.graph import BY_SLOT
from tnctl.model.layout import plan
from tnctl.ownership import GRAPH
from tnctl.schema import Conf
from tnctl.serving import aot, cutting, kit, warmup
from tnctl.serving.description import NAME, describe
from tnctl.serving.graph_document import GraphManifest
from tnctl.serving.served import inputs_of

GOLDEN_ROWS = 200
WARM_ROWS = 8


def split(
    checkpoint: Checkpoint,
    conf: Conf,
    to: str,
    *,
    head: str | None = None,
    frozen: bool = False,
    golden: int = GOLDEN_ROWS,
    sizes: Sequence[int] = (),
    target_cpu: str = aot.TARGET_CPU,
) -> GraphManifest:
    """Write the SavedModel of a checkpoint and, last, serving.json to the folder or URL `to`.

    All of it, or one head or tower; with its weights as constants when `frozen`; compiled for
    batches of `sizes`. It is made in a temporary folder, and goes to `to` when it gives the logits
    of the checkpoint's golden rows, of which it takes `golden` along. Returns what serving.json
    says. Raises Failure when it does not, UserError when there is no such head.
    """
    reads = [one.folder for one in checkpoint.chain()]
    with (
        outputs.output_folder(to, GRAPH, reads) as output,
        files.TemporaryFolder("graph") as temporary,
    ):
        local = str(Path(temporary, "graph"))
        with written_to(temporary):
            part = write_graph(checkpoint, conf, local, head, frozen)
            description = replace(describe(checkpoint, conf, part, head), frozen=frozen)
            warmup.write(local, warm_requests(checkpoint, description, golden))
        beside = Inventory(local)
        graph_kit = kit.check_graph(checkpoint, description, local, beside, golden)
        with cutting.tensorflow_errors("the graph cannot be compiled"):
            compiled = aot.compile_sizes(local, sizes, beside, target_cpu) if sizes else None
        description = replace(description, golden=graph_kit, aot=compiled)
        inventory = output.inventory()
        root = Path(local)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            name = path.relative_to(root).as_posix()
            with path.open("rb") as source, inventory.writing(name) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        return inventory.complete(description, NAME)


@contextmanager
def written_to(temporary: str) -> Iterator[None]:
    """Turn what a full disk raises, Python's error or TensorFlow's, into a Failure."""
    try:
        yield
    except (OSError, tf.errors.ResourceExhaustedError) as error:
        reason = getattr(error, "strerror", None) or "no space is left there"
        raise Failure(
            f"the temporary folder {temporary} could not be written ({reason}). Free some space, "
            "or name another folder with the environment variable TMPDIR"
        ) from error


def write_graph(
    checkpoint: Checkpoint, conf: Conf, local: str, head: str | None, frozen: bool
) -> cutting.Part:
    """The SavedModel of a checkpoint in a local folder, as it is or cut, its files verified."""
    heads = checkpoint.manifest.heads
    everything = cutting.whole(plan(conf, checkpoint.statistics), heads)
    if head is None and not frozen:
        kit.write_graph(checkpoint, local)
        return everything
    with files.TemporaryFolder("graph") as temporary:
        kit.write_graph(checkpoint, temporary)
        return cutting.cut(temporary, local, everything, head, frozen)


def warm_requests(
    checkpoint: Checkpoint, description: GraphManifest, golden: int
) -> list[dict[str, NDArray[Any]]]:
    """A request of one example and one of several: golden rows, or zeros when none go along."""
    rows = kit.kit_of_checkpoint(checkpoint).inputs(description)
    if not golden or not all(map(len, rows.values())):
        rows = {
            one.name: np.zeros((WARM_ROWS, one.columns), one.dtype)
            for one in description.signatures.packed
        }
    inputs = inputs_of(description, BY_SLOT, rows)
    return [{name: array[:count] for name, array in inputs.items()} for count in (1, WARM_ROWS)]
