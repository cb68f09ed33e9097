"""The messages that RocketMQ 5 clients and the proxy exchange, and the names of their calls."""
