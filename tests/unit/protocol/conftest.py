"""Hypothesis for every codec test: the same examples in every run, and no clock."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("cometmq", deadline=None, derandomize=True, max_examples=80)
settings.load_profile("cometmq")
