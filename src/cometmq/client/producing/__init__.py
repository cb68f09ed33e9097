"""Sending messages: encoding, choosing a queue, attempts; requests and replies, transactions."""
