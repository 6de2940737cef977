"""The shipped confs, as a package so that Hydra finds them in an installation."""
