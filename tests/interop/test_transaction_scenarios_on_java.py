"""Transactions against the Java broker."""

from tests.integration.test_transaction_scenarios import *  # noqa: F403 - the scenarios
from tests.interop.on_java import MARKS, name, namesrv, resolved  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
