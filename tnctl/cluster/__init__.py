"""Training by several workers. docs/design.md."""

NEEDS_GRPC = "workers need a package that is not installed: pip install 'tnctl[cluster]'"
