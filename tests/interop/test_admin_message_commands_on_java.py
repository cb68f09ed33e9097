"""The commands for messages, queues, traces and exports against Java's servers of 4.9 and the newest."""

from __future__ import annotations

from tests.integration.admin_commands import Commands, commands, no_log_lines
from tests.integration.test_admin_message_commands import (
    admin,
    face,
    sent,
    test_a_body_that_is_no_text_is_shown_in_base64,
    test_a_member_consumes_a_message_again,
    test_a_message_is_sent_again_after_a_question,
    test_a_message_is_shown_by_each_of_its_ids,
    test_a_trace_tells_who_sent_and_who_consumed,
    test_messages_are_listed_by_their_key,
    test_messages_are_printed_by_queue_tag_and_time,
    test_messages_are_sent_and_measured,
    test_the_first_messages_are_looked_at,
    test_topics_groups_settings_and_metrics_are_exported,
    test_units_of_a_queue_are_shown,
    test_what_is_not_there_is_told_with_a_remedy,
)
from tests.interop.on_java import MARKS, name
from tests.interop.test_admin_client_on_java import line, namesrv

__all__ = [
    "admin",
    "commands",
    "face",
    "line",
    "name",
    "namesrv",
    "no_log_lines",
    "sent",
    "test_a_body_that_is_no_text_is_shown_in_base64",
    "test_a_member_consumes_a_message_again",
    "test_a_message_is_sent_again_after_a_question",
    "test_a_message_is_shown_by_each_of_its_ids",
    "test_a_trace_tells_who_sent_and_who_consumed",
    "test_messages_are_listed_by_their_key",
    "test_messages_are_printed_by_queue_tag_and_time",
    "test_messages_are_sent_and_measured",
    "test_the_first_messages_are_looked_at",
    "test_topics_groups_settings_and_metrics_are_exported",
    "test_units_of_a_queue_are_shown",
    "test_what_is_not_there_is_told_with_a_remedy",
]
pytestmark = MARKS


def test_records_of_pop_consumers_are_exported_by_brokers_that_know_them(
    commands: Commands, line: str
) -> None:
    one = ("exportPopRecord", "-c", "DefaultCluster")
    if line == "5":
        assert "done: export records" in commands.run(*one).out
    else:
        refused = commands.run(*one, status=1)
        assert "does not know the request POP_ROLLBACK" in refused.out + refused.err


def test_a_redrive_of_dead_letters_is_refused_by_name(commands: Commands) -> None:
    assert "has the group" in commands.refused("redriveDeadLetters", "-g", "no-such")
    assert commands.json("givenUpHalves") == []
