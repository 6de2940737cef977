"""Warm start: a new run that begins with the weights of a checkpoint of another conf."""

from tnctl.training.warm.warm_start import Rows, WarmStart, begin, check, start_again

__all__ = ["Rows", "WarmStart", "begin", "check", "start_again"]
