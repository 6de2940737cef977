"""Daily training: which days are trained, and the gate that each has to pass."""
