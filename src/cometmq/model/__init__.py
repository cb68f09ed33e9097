"""Defines RocketMQ's nouns: messages, queues, topics, groups, routes. Has no I/O or wire format."""
