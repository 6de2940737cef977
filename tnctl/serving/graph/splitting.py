"""`tnctl split-graph`: the dense inference graph of a checkpoint, servable without tnctl."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tnctl import files, outputs
from tnctl.checkpoint.load import Checkpoint
from tnctl.errors import Failure
from tnctl.manifest import Inventory
from tnctl.model.layout import plan
from tnctl.ownership import GRAPH
from tnctl.schema import Conf
from tnctl.serving.graph import aot, cutting, loaded_graph, warmup_requests
from tnctl.serving.graph.graph_document import NAME, GraphManifest
from tnctl.serving.graph.serving_json import describe
from tnctl.serving.verify.golden_checks import check_graph
from tnctl.serving.verify.golden_file import golden_of_checkpoint

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
    batches of `sizes`. It is made in a temporary folder, and copied to `to` with the first
    `golden` golden rows of the checkpoint if it gives their logits. Returns the content of
    serving.json. Raises Failure when the logits differ, UserError when there is no such head.
    """
    reads = [link.folder for link in checkpoint.chain()]
    with (
        outputs.output_folder(to, GRAPH, reads) as output,
        files.TemporaryFolder("graph") as temporary,
    ):
        local = str(Path(temporary, "graph"))
        try:
            part = write_part(checkpoint, conf, local, head, frozen)
            description = replace(describe(checkpoint, conf, part, head), frozen=frozen)
            warmup_requests.write(local, requests_of(checkpoint, description, golden))
        except loaded_graph.FULL_DISK as error:
            reason = getattr(error, "strerror", None) or "no space is left there"
            raise Failure(
                f"the temporary folder {temporary} could not be written ({reason}). Free some "
                "space, or name another folder with the environment variable TMPDIR"
            ) from error
        beside = Inventory(local)
        golden_entry = check_graph(checkpoint, description, local, beside, golden)
        with cutting.tensorflow_errors("the graph cannot be compiled"):
            compiled = aot.compile_sizes(local, sizes, beside, target_cpu) if sizes else None
        inventory = output.inventory()
        root = Path(local)
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            name = path.relative_to(root).as_posix()
            with path.open("rb") as source, inventory.writing(name) as target:
                shutil.copyfileobj(source, target, 1 << 20)
        return inventory.complete(replace(description, golden=golden_entry, aot=compiled), NAME)


def write_part(
    checkpoint: Checkpoint, conf: Conf, local: str, head: str | None, frozen: bool
) -> cutting.Part:
    """The SavedModel of a checkpoint in a local folder, unchanged or cut, its files verified."""
    everything = cutting.whole(plan(conf, checkpoint.statistics), checkpoint.manifest.heads)
    if head is None and not frozen:
        loaded_graph.write_graph(checkpoint, local)
        return everything
    with files.TemporaryFolder("graph") as temporary:
        loaded_graph.write_graph(checkpoint, temporary)
        return cutting.cut(temporary, local, everything, head, frozen)


def requests_of(
    checkpoint: Checkpoint, description: GraphManifest, golden: int
) -> list[dict[str, NDArray[Any]]]:
    """A request of one example and one of at most WARM_ROWS: golden rows, or zeros without any.

    Each has the inputs [B, *shape] of signature by_slot by name, float32 or int32.
    """
    rows = golden_of_checkpoint(checkpoint).inputs(description)
    signatures = description.signatures
    if not golden or not all(map(len, rows.values())):
        rows = {
            packed.name: np.zeros((WARM_ROWS, packed.columns), packed.dtype)
            for packed in signatures.packed
        }
    inputs = loaded_graph.inputs_of(signatures.by_slot, rows)
    return [{name: array[:count] for name, array in inputs.items()} for count in (1, WARM_ROWS)]
