"""Follow a store that grows: the source `rocketmq-store` as a stream."""
