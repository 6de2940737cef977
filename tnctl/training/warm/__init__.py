"""Warm start: a new run that begins with the weights of a checkpoint of another conf."""
