"""Configure Hypothesis for every codec test: fewer examples, of more kinds."""

from __future__ import annotations

from hypothesis import settings
from tests.seeds import examples

settings.register_profile("codecs", settings.get_profile("unhurried"), max_examples=examples(80))
settings.load_profile("codecs")
