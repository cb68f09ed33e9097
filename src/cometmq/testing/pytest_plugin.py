"""Holds what the fixtures of `pytest_cometmq` do."""
