"""`tnctl fold`: a full export and its deltas become one full export."""

from tnctl.cli import arguments
from tnctl.errors import UserError

TAKES = ("embeddings", "to")
USAGE = "embeddings=URL to=URL"


def run(given: list[str]) -> int:
    """Fold the chain whose newest export is `embeddings` into `to`."""
    own, rest = arguments.part(given, TAKES)
    if rest:
        raise UserError(f"fold takes embeddings= and to= only. Received: {rest[0]}")
    for key in TAKES:
        if key not in own:
            raise UserError(f"fold needs {key}=URL. Received: {' '.join(given) or 'nothing'}")
    from tnctl.serving.rows import folding

    folding.fold(own["embeddings"], own["to"])
    return 0
