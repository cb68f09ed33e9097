"""What a consumer group selects of a topic: tag expressions. Pure functions, no I/O."""
