"""`python -m tnctl`."""

from tnctl.cli import main

main()
