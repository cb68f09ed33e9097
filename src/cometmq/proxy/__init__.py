"""Serve the gRPC clients of RocketMQ 5 in front of a cluster, ours or Java's."""
