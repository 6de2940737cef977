"""Rows of a checkpoint, exported in one of several formats, and read back from every one."""
