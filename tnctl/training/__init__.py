"""The training loop, its step, evaluation and metrics."""
