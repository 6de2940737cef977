"""Errors of reading, with the ways out that `tnctl init` has: it takes no key of a conf."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tnctl.errors import Failure, UserError

KEYS = "bad_rows|check_utf8|columns|delimiter|format|header|missing|pairs|root|skip_rows"
# The last part of a sentence, or the last sentence, from the one that names a key on.
WAY_OF_A_KEY = re.compile(
    rf"(?P<before>, (?:and|or) |; |\. )(?:(?!, (?:and|or) |; |\. ).)*?\bdata\.(?:{KEYS})\b.*", re.S
)
OTHERWISE = "Write it as the other files are, or name the files of one form"


@contextmanager
def without_keys() -> Iterator[None]:
    """Within the block errors name no key of a conf as the way out."""
    try:
        yield
    except Failure as error:
        raise Failure(without_key(str(error))) from error
    except UserError as error:
        raise UserError(without_key(str(error)), error.exit_code) from error


def without_key(message: str) -> str:
    """A message without what it says of keys; another way out where none is left."""
    match = WAY_OF_A_KEY.search(message)
    if match is None:
        return message
    kept = message[: match.start()]
    return f"{kept}. {OTHERWISE}" if match["before"] == ". " else kept
