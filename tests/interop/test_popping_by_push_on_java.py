"""The push consumer that pops, against the Java broker."""

from tests.integration.test_push_by_pop import *  # noqa: F403 - the scenarios
from tests.interop.on_java import MARKS, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
