"""Whether serving gives what training gave: golden rows, a checkpoint's examples, an endpoint."""
