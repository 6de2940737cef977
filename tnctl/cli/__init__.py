"""The command line: `tnctl COMMAND [key=value …]`, one file per command."""

from tnctl.cli.main import main

__all__ = ["main"]
