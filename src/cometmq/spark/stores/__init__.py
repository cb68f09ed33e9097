"""Read store directories without a broker: the source `rocketmq-store`."""
