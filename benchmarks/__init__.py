"""Benchmarks of tnctl; see README.md. Run from the checkout: python -m benchmarks.<name>."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
