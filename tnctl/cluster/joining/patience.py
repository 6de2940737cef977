"""How long a process that starts waits for others, and the lines that say so meanwhile."""

import time
from collections.abc import Callable
from typing import TypeVar

from tnctl.progress import say

SECONDS_BETWEEN_LOOKS = 0.5
FIRST_LINE = 5.0  # seconds without a line; later ones come after twice the time of the one before

_Result = TypeVar("_Result")


class Patience:
    """The `seconds` of cluster.patience, which begin now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began, self._next_line = time.monotonic(), 0.0

    @property
    def is_over(self) -> bool:
        """Whether all of it has passed."""
        return self._waited() >= self.seconds

    def tell(self, what: str, after: float = FIRST_LINE) -> None:
        """Say what is waited for, unless it is too early for a line; the first `after` seconds."""
        waited = self._waited()
        if waited >= max(after, self._next_line):
            self._next_line = max(2 * waited, FIRST_LINE)
            say(
                f"{what}. Waiting up to {self.seconds:g} s for it (cluster.patience), of which "
                f"{max(self.seconds - waited, 0):.0f} s are left"
            )

    def attempt(
        self,
        action: Callable[[], _Result],
        retried: type[Exception],
        what: str = "",
        after: float = FIRST_LINE,
    ) -> _Result:
        """What `action` returns, which is tried until it does not raise `retried`.

        Raises the last such exception when the time is over. `what` begins the lines about it.
        """
        while True:
            try:
                return action()
            except retried as error:
                if self.is_over:
                    raise
                self.tell(f"{what}{getattr(error, 'strerror', None) or error}", after)
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _waited(self) -> float:
        return time.monotonic() - self._began
