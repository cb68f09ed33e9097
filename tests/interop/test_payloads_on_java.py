"""Values as payloads against the Java broker."""

from tests.integration.test_payloads import (  # noqa: F401 - pytest finds scenarios by their names here
    test_a_dead_letter_has_the_reason_and_the_others_are_consumed,
    test_a_function_says_where_a_message_goes_or_that_it_is_done,
    test_a_part_of_a_batch_is_acknowledged_although_one_of_it_does_not_fit,
    test_a_poll_during_an_outage_returns_the_message_and_its_value_says_so,
    test_a_poll_of_assigned_queues_returns_what_nobody_can_take_back,
    test_a_poll_returns_what_fits,
    test_a_registry_that_does_not_answer_makes_no_message_a_dead_letter,
    test_a_retry_comes_again_and_ends_among_the_dead_letters,
    test_a_simple_consumer_receives_what_fits,
    test_an_iteration_skips_what_does_not_fit,
    test_each_way_to_send_encodes_a_value,
    test_without_a_choice_the_listener_meets_the_error_where_it_reads_the_value,
)
from tests.interop.on_java import MARKS, keeps_notes, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here

pytestmark = MARKS
