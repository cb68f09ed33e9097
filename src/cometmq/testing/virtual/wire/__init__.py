"""Connect simulated machines, with the faults of real networks."""
