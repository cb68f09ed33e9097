"""The administration client against the Java servers of 4.9 and the newest."""

from __future__ import annotations

import pytest
from tests.integration.test_admin_client import (
    admin,
    broker,
    face,
    test_a_group_is_made_shown_changed_and_deleted,
    test_a_group_may_read_a_topic_or_not,
    test_a_group_that_is_online_consumes_again_after_a_reset,
    test_a_group_that_is_online_is_told_from_all_sides,
    test_a_message_is_sent_again,
    test_a_topic_is_deleted,
    test_a_topic_is_made_shown_and_changed,
    test_a_trace_shows_who_sent_a_message,
    test_attributes_are_set_or_the_version_is_named,
    test_brokers_clean_up,
    test_brokers_report_what_they_count,
    test_brokers_tell_how_far_delays_and_slaves_are,
    test_brokers_tell_their_state_and_configuration,
    test_many_groups_are_made_at_once_or_the_version_is_named,
    test_many_topics_are_made_at_once_or_the_version_is_named,
    test_messages_are_found_in_every_way,
    test_name_servers_keep_entries_and_settings,
    test_offsets_are_committed_cloned_and_reset,
    test_offsets_of_whole_brokers_are_told_compared_and_cloned,
    test_producers_are_told,
    test_queues_are_read_from_an_offset_and_by_tags,
    test_servers_that_are_away_are_named_with_a_remedy,
    test_statistics_of_a_topic_name_its_queues,
    test_system_topics_are_told_by_broker,
    test_the_order_configuration_follows_an_ordered_topic,
    test_the_permission_to_write_is_wiped_and_added,
    test_times_tell_up_to_when_a_group_has_consumed,
    test_tracks_tell_who_consumed_a_message,
    test_unknown_names_are_told_with_a_remedy,
    test_what_only_java_has_is_done_or_refused_with_a_reason,
)
from tests.interop.on_java import MARKS, name

__all__ = [
    "admin",
    "broker",
    "face",
    "name",
    "test_a_group_is_made_shown_changed_and_deleted",
    "test_a_group_may_read_a_topic_or_not",
    "test_a_group_that_is_online_consumes_again_after_a_reset",
    "test_a_group_that_is_online_is_told_from_all_sides",
    "test_a_message_is_sent_again",
    "test_a_topic_is_deleted",
    "test_a_topic_is_made_shown_and_changed",
    "test_a_trace_shows_who_sent_a_message",
    "test_attributes_are_set_or_the_version_is_named",
    "test_brokers_clean_up",
    "test_brokers_report_what_they_count",
    "test_brokers_tell_how_far_delays_and_slaves_are",
    "test_brokers_tell_their_state_and_configuration",
    "test_many_groups_are_made_at_once_or_the_version_is_named",
    "test_many_topics_are_made_at_once_or_the_version_is_named",
    "test_messages_are_found_in_every_way",
    "test_name_servers_keep_entries_and_settings",
    "test_offsets_are_committed_cloned_and_reset",
    "test_offsets_of_whole_brokers_are_told_compared_and_cloned",
    "test_producers_are_told",
    "test_queues_are_read_from_an_offset_and_by_tags",
    "test_servers_that_are_away_are_named_with_a_remedy",
    "test_statistics_of_a_topic_name_its_queues",
    "test_system_topics_are_told_by_broker",
    "test_the_order_configuration_follows_an_ordered_topic",
    "test_the_permission_to_write_is_wiped_and_added",
    "test_times_tell_up_to_when_a_group_has_consumed",
    "test_tracks_tell_who_consumed_a_message",
    "test_unknown_names_are_told_with_a_remedy",
    "test_what_only_java_has_is_done_or_refused_with_a_reason",
]
pytestmark = MARKS


@pytest.fixture(params=["4.9", "5"])
def line(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture
def namesrv(request: pytest.FixtureRequest, line: str) -> str:
    """The name server of the release line that a test asks; servers start once a session."""
    servers = {"4.9": "java4_servers", "5": "java_servers"}[line]
    address: str = request.getfixturevalue(servers)
    return address
