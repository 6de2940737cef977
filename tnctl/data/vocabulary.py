"""Vocabularies: lists of values whose places are ids."""

import numpy as np
from numpy.typing import NDArray

from tnctl import files, limits
from tnctl.errors import Failure, UserError, quoted
from tnctl.tables import columns as c_columns

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


class Vocabulary:
    """The places of values in a list, found by their hashes.

    Two texts with one hash are one feature everywhere, so the texts themselves are not compared.
    """

    def __init__(self, where: str, values: list[str], seed: int, missing: list[str]) -> None:
        if absent := sorted(set(values) & set(missing)):
            raise UserError(
                f"{where}: '{absent[0]}' means a missing value (data.missing). Leave it out of the "
                "vocabulary; missing=value gives missing values an id"
            )
        hashed = np.array([c_columns.hash_bytes(value.encode(), seed) for value in values], "u8")
        self._places = np.argsort(hashed, kind="stable")
        self._hashed = hashed[self._places]
        if len(same := np.flatnonzero(self._hashed[1:] == self._hashed[:-1])):
            one, other = (values[self._places[same[0] + k]] for k in (0, 1))
            raise UserError(f"{where}: '{one}' and '{other}' have one hash. Take another seed")

    def __len__(self) -> int:
        return len(self._hashed)

    def places(self, hashed: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """Where the values with these hashes stand in the list, and whether they do."""
        at = np.minimum(np.searchsorted(self._hashed, hashed), len(self) - 1)
        return self._places[at].astype(np.uint64), self._hashed[at] == hashed
