"""The name server: which brokers are alive and which topics they serve."""
