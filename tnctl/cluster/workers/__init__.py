"""What each worker, or dedicated server, does: its share of training, and commands of rank 0."""
