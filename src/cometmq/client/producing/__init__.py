"""Sends messages: encodes them, chooses queues, repeats attempts; requests and transactions too."""
