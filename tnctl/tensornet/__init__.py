"""TensorNet's tables: read into a checkpoint, and written from one. docs/tensornet.md."""
