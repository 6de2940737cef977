"""TensorFlow's start-up chatter, off unless the user asked for it."""

import os


def quiet_tensorflow() -> None:
    """Only errors, from TensorFlow's C++ side too. To be called before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("ABSL_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
