"""What a user did that cannot work, said in one line."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can mend: shown as one line, without a traceback.

    The message says what was wrong, what was received, and the way out.
    `exit_code` is 2 when the command was asked wrongly (the default) and 1 when it was asked
    rightly and failed.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code


class Failure(UserError):
    """The command was asked rightly and failed: a file, the data, the storage, a check."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


def did_you_mean(received: str, choices: Iterable[str]) -> str:
    """`Did you mean 'x'?` when a choice is near, else the list of choices."""
    names = sorted(choices)
    near = difflib.get_close_matches(received, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean '{near[0]}'?"
    return f"Choose from: {', '.join(names)}." if names else "There is none."
