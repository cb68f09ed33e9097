"""Administer topics, and show what their queues contain."""
