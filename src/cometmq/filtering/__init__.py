"""Evaluate what a consumer group selects of a topic: tag and SQL92 expressions. No network I/O."""
