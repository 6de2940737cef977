"""`tnctl.first_conf` and `tnctl.import_tensornet`: how a conf, and how a run, can begin."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tnctl.api.calls import Url, in_one_line, text_of
from tnctl.api.opened_run import Run
from tnctl.api.training import given_conf
from tnctl.errors import UserError
from tnctl.model import quiet_tensorflow
from tnctl.model.recipes import shipped_recipes as shipped_recipes
from tnctl.schema import Conf

if TYPE_CHECKING:
    from tnctl.starting.first_conf import FirstConf


def first_conf(
    data: Url | Sequence[Url],
    label: str | None = None,
    positive: Sequence[str] = (),
    *,
    name: str = "",
) -> "FirstConf":
    """A conf for data that has none, as `tnctl init` writes it: `text` is YAML.

    `data` is a file, a glob, a folder, a name with {day}, or several of these. `label` and
    `positive` are the arguments of the command; relative paths in the text start from the folder of
    the file `name`. Raises UserError and Failure for data that cannot be read or has no label.
    """
    words = [data] if isinstance(data, str) or not isinstance(data, Sequence) else data
    if not words or isinstance(positive, str):
        raise UserError("first_conf takes data, and a list of texts as positive")
    from tnctl.starting import first_conf as starting

    with in_one_line():
        texts = [text_of(word, "data") for word in words]
        return starting.first_conf(texts, label, positive, name)


def import_tensornet(
    conf: Conf, tensornet: Url, *, dense: str | None = None, tables: str | None = None
) -> Run:
    """Begin the run of a conf with TensorNet's weights, as `tnctl import` does, and open it.

    `dense` and `tables` are the arguments of the command. Raises UserError for a conf whose rows or
    optimizers are others, Failure for damaged files.
    """
    conf = given_conf(conf)
    quiet_tensorflow()
    from tnctl.checkpoint.chain import open_checkpoint
    from tnctl.tensornet.importing import import_tables

    with in_one_line():
        folder = import_tables(conf, text_of(tensornet, "tensornet"), tables, dense)
        return Run(open_checkpoint(folder), conf, conf.output)
