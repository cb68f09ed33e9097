"""Send rows as messages: the sink `rocketmq`."""
