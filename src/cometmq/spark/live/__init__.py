"""Read topics of live brokers: the source `rocketmq`."""
