"""The calls about queues that come and go against the Java broker."""

from tests.integration.test_queue_callbacks import (  # noqa: F401 - pytest finds scenarios by their names here
    test_a_callback_that_fails_is_logged_and_holds_up_nothing,
    test_a_callback_that_is_stuck_is_named_and_holds_up_nothing,
    test_a_seek_in_on_assigned_comes_before_the_first_message,
    test_an_iteration_acknowledges_in_on_revoked,
    test_members_hear_of_their_queues,
    test_on_revoked_commits_before_the_next_member_begins,
)
from tests.interop.on_java import MARKS, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
