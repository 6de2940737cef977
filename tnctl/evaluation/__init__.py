"""Evaluation of a model: scores, metrics, golden rows, predictions, importance of inputs."""
