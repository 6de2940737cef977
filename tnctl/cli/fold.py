"""`tnctl fold`: a full export and its deltas become one full export."""

from tnctl.cli import arguments
from tnctl.errors import refuse_if

TAKES = ("embeddings", "to")
USAGE = "embeddings=URL to=URL"


def run(given: list[str]) -> int:
    """Fold the chain whose newest export is `embeddings` into `to`."""
    taken, rest = arguments.part(given, TAKES)
    refuse_if(rest, f"fold takes embeddings= and to= only. Received: {' '.join(rest)}")
    for key in TAKES:
        received = " ".join(given) or "nothing"
        refuse_if(key not in taken, f"fold needs {key}=URL. Received: {received}")
    from tnctl.serving.rows.folding import fold

    fold(taken["embeddings"], taken["to"])
    return 0
