"""Runs side by side: what is in a folder of runs, and how their results compare."""
