"""Retries and dead letters against the Java broker."""

from tests.integration.test_retry import *  # noqa: F403 - the scenarios
from tests.interop.on_java import MARKS, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

# It changes a group in the table of a broker of ours.
del test_a_groups_number_counts_for_a_consumer_that_was_given_none  # noqa: F821 - one of the scenarios

pytestmark = MARKS
