"""Hold a client's view of its cluster, its calls to servers, and its answers to brokers."""
