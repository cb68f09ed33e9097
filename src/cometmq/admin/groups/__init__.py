"""Administer consumer groups: members, progress, offsets."""
