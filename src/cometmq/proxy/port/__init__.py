"""Hold the port that clients connect to, and relay bytes between it and gRPC's own server."""
