"""Run a cluster in simulated time: one thread, one loop, and everything drawn from one seed."""
