"""The error of a system that gives no memory: how it is recognised, and the line that says it."""

from tnctl.errors import Failure, UserError, shortened

# Of Python, for the stack of a thread, and of the loader of libraries.
MESSAGES = ("can't start new thread", "failed to map segment", "Cannot allocate memory")
MORE_MEMORY = "Give it more memory, or raise its limit"
# Of a training that has ended for want of memory.
RESUME_WITH_MORE = (
    "Run the same command again with more memory to resume. A new run takes less with fewer rows "
    "(life.admission, life.eviction.rows) or a smaller embedding.width"
)
_LONGEST_REASON = 200  # characters of what the library says


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is one of those that libraries raise when the system gives no memory."""
    if isinstance(error, UserError):  # it has its line already
        return False
    return isinstance(error, MemoryError) or any(part in str(error) for part in MESSAGES)


class OutOfMemory(Failure):
    """A command has ended because the system gives no memory."""

    def __init__(
        self, error: BaseException, way_out: str, *, when: str = "", held: str = "", saved: str = ""
    ) -> None:
        """`error` is what was raised, `when` says at which time ("after step 3").

        `held` says what takes the memory, and `saved` is the checkpoint that is there.
        """
        text = shortened(str(error), _LONGEST_REASON)
        parts = [
            "out of memory",
            f" {when}" if when else "",
            f" ({text})" if text else "",
            f": {held}" if held else "",
            f". {saved} is saved" if saved else "",
        ]
        super().__init__(f"{''.join(parts)}. {way_out}")
