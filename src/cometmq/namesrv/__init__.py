"""The name server, which knows which brokers are alive and which topics they serve."""
