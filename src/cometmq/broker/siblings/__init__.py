"""Keep the topics and groups of the brokers that one supervisor runs the same (decision 121)."""
