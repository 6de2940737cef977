"""Frames, and how they travel between the processes of a cluster exactly once."""
