"""What a user did that cannot work, said in one line."""

import difflib
from collections.abc import Iterable

from tnctl.masking import masked

SHOWN = 80  # characters of a value that a message shows
LONGEST_SECRET = 4096  # characters of a value that are looked through for secrets
CHOICES_SHOWN = 200  # names that a message lists
CHOICES_COMPARED = 10_000  # names among which a near one is looked for


class UserError(Exception):
    """A mistake that the user can mend: shown as one line, without a traceback.

    The message says what was wrong, what was received, and the way out, but no secret of a URL.
    `exit_code` is 2 when the command was given wrongly (the default) and 1 when it was given
    correctly and failed.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(printable(masked(" ".join(message.split()))))
        self.exit_code = exit_code


class Failure(UserError):
    """The command was given correctly and failed: a file, the data, the storage, a check."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=1)


class Stopped(KeyboardInterrupt):
    """A command that was asked to stop, and has: what it leaves behind, in one line.

    `exit_code` is 130 after Ctrl-C and 143 after SIGTERM.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(masked(message))
        self.exit_code = exit_code


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that an error ends."""
    if isinstance(error, UserError | Stopped):
        return error.exit_code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def refuse_if(condition: object, message: str, error: type[Exception] = UserError) -> None:
    """Raise error(message) if a condition holds.

    The message is formatted in any case: where that takes long, or fails without the condition,
    write `if` and `raise`.
    """
    if condition:
        raise error(message)


def printable(text: str) -> str:
    """A text with escapes for what a terminal would not show, or would obey."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def shortened(message: str, most: int) -> str:
    """What a library says, as one line without secrets of URLs, of at most `most` characters."""
    # Masked before it is cut, since a part of a secret is not known as one.
    line: str = masked(" ".join(message.split()))
    return line if len(line) <= most else f"{line[:most]}…"


def quoted(value: str | bytes) -> str:
    """A value of the user's as a message shows it: printable, and cut where it is long."""
    if isinstance(value, bytes):
        # No character has more than four bytes, so what is shown stays whole.
        value = value[: 4 * LONGEST_SECRET].decode("utf-8", "backslashreplace")
    # A secret that is cut in its middle is not known as one any more.
    text: str = masked(value[:LONGEST_SECRET])
    return f"'{printable(text[:SHOWN])}{'…' if len(text) > SHOWN else ''}'"


def did_you_mean(received: str, choices: Iterable[str]) -> str:
    """`Did you mean 'x'?` when a choice is near, else the list of choices."""
    names = sorted(choices)
    near = difflib.get_close_matches(received, names[:CHOICES_COMPARED], n=1, cutoff=0.6)
    if near:
        return f"Did you mean {quoted(near[0])}?"
    shown = [name if len(name) <= SHOWN else name[:SHOWN] + "…" for name in names[:CHOICES_SHOWN]]
    if len(names) > CHOICES_SHOWN:
        shown.append(f"… ({len(names):,} in all)")
    return f"Choose from: {', '.join(shown)}." if names else "There is none."
