"""TensorNet's tables, which are read into a checkpoint: docs/tensornet.md."""
