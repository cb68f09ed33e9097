"""Producers and push consumers of both faces against the Java broker."""

from tests.integration.test_client_scenarios import *  # noqa: F403 - the scenarios
from tests.interop.on_java import MARKS, name, namesrv, new_groups_choose  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
