"""Pauses, seeks and lag against the Java broker."""

from tests.integration.test_positions import (  # noqa: F401 - pytest finds scenarios by their names here
    test_a_listening_consumer_seeks,
    test_a_paused_topic_rests_while_the_others_go_on,
    test_a_polled_consumer_seeks_by_time_and_by_topic,
    test_a_queue_goes_on_when_no_pause_covers_it,
    test_consumers_that_pop_have_the_lag_of_all_queues,
    test_lag_is_what_was_not_consumed_and_unknown_where_nothing_was,
    test_what_a_consumer_has_not_is_refused_by_name,
)
from tests.interop.on_java import MARKS, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
