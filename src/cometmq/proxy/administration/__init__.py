"""Serve gRPC's service Admin with the rooms of the administration client. A start imports only `service`."""
