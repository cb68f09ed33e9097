"""Send messages again: each once, at a rate, and across kills. Replay and redrive share this."""
