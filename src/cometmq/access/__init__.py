"""Access control of brokers and name servers: who may send which request about what."""
