"""Vocabularies: lists of values whose places are ids."""

from tnctl import files, limits
from tnctl.errors import Failure, quoted

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read(url: str) -> list[str]:
    """The lines of a file, without their ends.

    Raises `Failure` for a line that is empty, not UTF-8 or there twice, naming it, and for a file
    beyond limits.VOCABULARY_BYTES.
    """
    with files.open_input(url) as stream:
        data = files.read_most(stream, limits.VOCABULARY_BYTES + 1)
    if len(data) > limits.VOCABULARY_BYTES:
        raise Failure(
            f"{url} is longer than {limits.mebibytes(limits.VOCABULARY_BYTES)}, the most that a "
            "vocabulary may have. Take ids=hash, or ids=modulo, for so many values"
        )
    data = data.removeprefix(BYTE_ORDER_MARK)
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        place = f"{url}, line {number}"
        try:
            value = line.removesuffix(b"\r").decode()
        except UnicodeDecodeError as error:
            raise Failure(
                f"{place}: {quoted(line)} is not UTF-8. Write the file as UTF-8"
            ) from error
        if not value:
            raise Failure(f"{place} is empty. A vocabulary has one value per line")
        if (first := seen.setdefault(value, number)) != number:
            raise Failure(
                f"{place}: {quoted(value)} is in line {first} already. Remove one of them"
            )
    if not seen:
        raise Failure(f"{url} has no line. A vocabulary has one value per line")
    return list(seen)
