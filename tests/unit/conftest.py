"""Hypothesis without a clock: a machine that is busy with something else proves nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
