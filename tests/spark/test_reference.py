"""The reference of the pipelines' keys, whose classes need PySpark."""

from __future__ import annotations

from tests.unit.test_reference import REMEDY, generator


def test_the_reference_of_pipeline_keys_is_up_to_date() -> None:
    made = generator("config_reference")
    assert made.PIPELINE_PAGE.read_text() == made.pipeline_page(), REMEDY
