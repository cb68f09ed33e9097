"""Prove the files of an archive against the log that they came from."""
