"""Serve read-only pages over HTTP/1.1, and the metrics and health of a server on them."""
