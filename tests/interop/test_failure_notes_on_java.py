"""Retries and dead letters that say why, against the Java broker."""

from tests.integration.test_failure_notes import *  # noqa: F403 - the scenarios
from tests.interop.on_java import MARKS, keeps_notes, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
