"""Checkpoints: a self-describing folder on any storage, complete when its manifest is there."""
