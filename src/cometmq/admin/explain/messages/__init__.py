"""Explain what became of a message: its facts, and the causes that follow."""
