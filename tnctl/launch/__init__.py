"""Starting and supervising the workers of a cluster. docs/design.md."""
