"""What rank 0 does for all: it trains, evaluates, saves and exports with every process."""
