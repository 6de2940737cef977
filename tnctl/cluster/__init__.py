"""N workers that train one model. Pure protocol: no socket, thread or clock in these modules.

They take the time as an argument (`now`, seconds of a monotonic clock) and return what is to be
sent, so that tests run whole clusters in a simulated world (tests/cluster_simulation.py).
"""
