"""RocketMQ's ACL 2.0: users and policies."""
