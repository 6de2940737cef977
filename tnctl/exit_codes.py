"""How a process of tnctl ends: 0 done, 1 failed, 2 wrong arguments, and one line that says why."""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from tnctl.errors import Stopped, UserError
from tnctl.masking import masked
from tnctl.out_of_memory import MORE_MEMORY, OutOfMemory, is_out_of_memory


def leave_with(name: str, action: Callable[[], int]) -> NoReturn:
    """Leave with the exit code of an action, or with the line of what it raises."""
    code = 1
    try:
        sys.exit(action())
    except (UserError, Stopped) as error:
        message, code = f"{name}: {error}", error.exit_code
    except KeyboardInterrupt:
        message, code = f"{name}: interrupted", 130
    except BrokenPipeError:
        # The reader of the pipe has ended, and nobody reads a message.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if is_out_of_memory(error):
            message = f"{name}: {OutOfMemory(error, MORE_MEMORY)}"
        else:
            # As Python shows it, but libraries put URLs into their messages with all they hold.
            message = masked(traceback.format_exc()).rstrip("\n")
    print(message, file=sys.stderr)
    sys.exit(code)
