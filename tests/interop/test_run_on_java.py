"""A program that consists of `consumer.run()` against the Java broker."""

from tests.integration.test_run import (  # noqa: F401 - pytest finds scenarios by their names here
    test_a_signal_under_load_loses_and_repeats_nothing,
)
from tests.interop.on_java import MARKS, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
