"""From the name of a conf and `key=value …` to a checked Conf, by Hydra: tnctl.schema has the keys.

`compose` has the functions that others call, `overrides` sets keys, `mistakes` explains errors.
"""
