"""The secret of a run, by which its workers know each other."""

import os
import re
import stat
from collections.abc import MutableMapping
from pathlib import Path

from tnctl.errors import UserError, refuse_if

TOKEN = re.compile(r"[!-~]{32,512}")
MAKE_A_TOKEN = "(umask 077; openssl rand -hex 32 > token)"


def take_token(environment: MutableMapping[str, str]) -> str:
    """The secret that all workers share; it is removed from the environment.

    Raises UserError without one, and for a file that others can read.
    """
    path, token = environment.get("TNCTL_TOKEN_FILE"), environment.pop("TNCTL_TOKEN", None)
    refuse_if(
        path is not None and token is not None,
        "TNCTL_TOKEN and TNCTL_TOKEN_FILE are set. Unset one",
    )
    if path is not None:
        token = _token_of(path)
    if token is None:
        raise UserError(
            "cluster=env: workers know each other by a secret of the run. Make it with "
            f"{MAKE_A_TOKEN}, and set TNCTL_TOKEN_FILE=token for all of them"
        )
    token = token.strip()
    refuse_if(
        not TOKEN.fullmatch(token),
        f"{'TNCTL_TOKEN' if path is None else 'TNCTL_TOKEN_FILE'} has {len(token)} characters; a "
        f"token has 32 to 512, none of them a space. Make it with {MAKE_A_TOKEN}",
    )
    return token


def _token_of(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            refuse_if(
                stat.S_IMODE(mode) & 0o077,
                f"TNCTL_TOKEN_FILE={path} can be read or written by others (mode "
                f"{stat.S_IMODE(mode):04o}). Give it chmod 600",
            )
            return file.read(1024).decode("ascii", "replace")
    except OSError as error:
        raise UserError(f"TNCTL_TOKEN_FILE={path} cannot be read: {error.strerror}") from None
