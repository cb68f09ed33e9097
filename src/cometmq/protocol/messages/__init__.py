"""Encode and decode messages: as they are sent, and as they are stored."""
