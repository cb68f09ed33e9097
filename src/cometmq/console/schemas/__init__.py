"""Decode bodies of messages by schemas that operators give."""
