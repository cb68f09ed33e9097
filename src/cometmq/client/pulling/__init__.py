"""Pulling one queue: what came, what waits to be consumed, and what was damaged."""
