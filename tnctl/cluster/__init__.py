"""N workers that train one model. docs/cluster.md.

The protocol (bodies, numbered calls, owners, members) is pure: no socket, thread or clock. Its
modules take the time as an argument (`now`, seconds of a monotonic clock), so that tests run
whole clusters in a simulated world (tests/cluster_simulation.py). Threads meet in node.py and
cluster_member.py, and gRPC is in transport/rpc.py alone.
"""

NEEDS_GRPC = "workers need a package that is not installed: pip install 'tnctl[cluster]'"
