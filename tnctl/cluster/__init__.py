"""Training by several workers. docs/design.md."""
