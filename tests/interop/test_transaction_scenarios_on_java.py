"""Transactions against the Java broker."""

from tests.integration.test_transaction_scenarios import *  # noqa: F403 - the scenarios
from tests.interop.on_java import (  # noqa: F401 - pytest finds fixtures by their names here
    MARKS,
    commits_once,
    keeps_place,
    name,
    namesrv,
    resolved,
)

pytestmark = MARKS
