"""What a command says to a program: JSON on the standard output."""

import json
from typing import Any

from tnctl.masking import masked


def print_json(value: Any) -> None:
    """Print plain values as one JSON value, without secrets of URLs."""
    print(json.dumps(masked(value), indent=2))
