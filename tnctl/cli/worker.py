"""A worker process of `tnctl train cluster=local`, which the supervisor starts."""

from tnctl.cli.main import leave_with
from tnctl.cli.quiet import quiet_tensorflow
from tnctl.cluster.assignment import Supervised


def run() -> int:
    """Do what the supervisor assigns over the standard input; the exit code."""
    supervised = Supervised()  # first, for it sets the CPUs that TensorFlow may use
    quiet_tensorflow()
    from tnctl.cluster.process import work

    return work(supervised)


if __name__ == "__main__":
    leave_with("tnctl train", run)
