"""The commands that take exported embeddings, and a graph, without a model."""

from tnctl.cli import arguments
from tnctl.errors import refuse_if


def fold(given: list[str]) -> int:
    """Fold the chain whose newest export is `embeddings` into `to`."""
    taken, rest = arguments.part("fold", given)
    refuse_if(rest, f"fold takes embeddings= and to= only. Received: {' '.join(rest)}")
    for key in ("embeddings", "to"):
        received = " ".join(given) or "nothing"
        refuse_if(key not in taken, f"fold needs {key}=URL. Received: {received}")
    from tnctl.api import artefacts

    artefacts.fold(taken["embeddings"], taken["to"])
    return 0


def score(given: list[str]) -> int:
    """Write the scores of raw rows, in their order; from standard input to standard output."""
    taken, overrides = arguments.part("score", given)
    from tnctl.api import artefacts

    refuse_if("graph" not in taken, f"score needs graph=URL: {arguments.ARGUMENTS['graph']}")
    to = taken.get("to", artefacts.STANDARD)
    rows = artefacts.score(
        taken["graph"],
        taken.get("embeddings"),
        taken.get("input", artefacts.STANDARD),
        to,
        kind=taken.get("format"),
        prefix=taken.get("prefix", artefacts.PREFIX),
        overrides=overrides,
        overwrite=arguments.flag(taken, "overwrite"),
    )
    if to != artefacts.STANDARD:
        from tnctl.progress import say

        say(f"{rows:,} scores written to {to}")
    return 0
