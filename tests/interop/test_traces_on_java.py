"""Message traces against the Java broker, by both faces of the client."""

from tests.integration.test_traces import (
    test_a_listener_that_fails_is_traced_as_that,
    test_a_poll_is_traced,
    test_sending_and_consuming_are_traced,
    test_the_end_of_a_transaction_is_traced,
    test_traces_may_go_to_a_topic_of_ones_own,
    test_untraced_clients_trace_nothing_and_traced_ones_do_not_trace_traces,
)
from tests.interop.on_java import MARKS, name, namesrv

__all__ = [
    "name",
    "namesrv",
    "test_a_listener_that_fails_is_traced_as_that",
    "test_a_poll_is_traced",
    "test_sending_and_consuming_are_traced",
    "test_the_end_of_a_transaction_is_traced",
    "test_traces_may_go_to_a_topic_of_ones_own",
    "test_untraced_clients_trace_nothing_and_traced_ones_do_not_trace_traces",
]
pytestmark = MARKS
