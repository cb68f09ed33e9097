"""The gRPC face of RocketMQ 5: serves its clients in front of a cluster, ours or Java's."""
