"""Manage a member's place in its group: its share of the queues, their offsets and their locks."""
