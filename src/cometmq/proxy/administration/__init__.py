"""Serve gRPC's service Admin by the rooms of the administration client. Only `service` is imported at a start."""
