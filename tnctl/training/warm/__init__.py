"""Warm start: a new run that begins with what a checkpoint of another conf has learned."""

from tnctl.training.warm.warm_start import WarmStart, begin, check

__all__ = ["WarmStart", "begin", "check"]
