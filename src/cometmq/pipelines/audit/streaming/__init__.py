"""Audit round by round, with a state on disk between the rounds."""
