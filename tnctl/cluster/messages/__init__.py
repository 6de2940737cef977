"""What the processes of a cluster send each other: exchanges of a step, reads, and commands."""
