"""The consume queues: their units, how records get into them, and their repair."""
