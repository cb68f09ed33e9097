"""The index: which messages have a key."""
