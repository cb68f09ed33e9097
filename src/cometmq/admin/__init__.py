"""Typed asynchronous calls that look into a cluster and manage it."""
