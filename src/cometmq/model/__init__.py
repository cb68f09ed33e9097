"""Define RocketMQ's nouns: messages, queues, topics, groups, routes. No I/O, no wire format."""
