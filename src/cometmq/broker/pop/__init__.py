"""Serve consumers that pop: the broker keeps which messages are in flight, and until when."""
