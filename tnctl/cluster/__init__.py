"""N workers that train one model. docs/cluster.md.

The protocol (frames, bodies, sessions, owners, members) is pure: no socket, thread or clock. Its
modules take the time as an argument (`now`, seconds of a monotonic clock) and return what is to be
sent, so that tests run whole clusters in a simulated world (tests/cluster_simulation.py). Threads
are in node.py, and gRPC is in streams.py alone.
"""

NEEDS_GRPC = "workers need a package that is not installed: pip install 'tnctl[cluster]'"
