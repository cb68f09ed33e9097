"""Inspects and manages a cluster through typed asynchronous calls."""
