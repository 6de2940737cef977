"""`tnctl.compose`."""

from collections.abc import Sequence
from pathlib import Path

from tnctl.api.calls import COMPOSING, Url, in_one_line, overrides_of, text_of
from tnctl.schema import Conf


def compose(conf: Url, overrides: Sequence[str] = ()) -> Conf:
    """The checked conf of `tnctl train conf=NAME key=value …`.

    `conf` is the name of a shipped conf, or the path of a YAML file. Overrides are written as on
    the command line, without the shell's quotes. Raises UserError for what is no conf.
    """
    from tnctl.cli import compose as composing

    with in_one_line(), COMPOSING:
        path: Path = composing.conf_file(text_of(conf, "conf"))
        return composing.compose_run(path, overrides_of(overrides))
