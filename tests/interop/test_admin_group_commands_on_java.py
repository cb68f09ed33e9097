"""The commands for groups, members, offsets and statistics against the Java servers of 4.9 and the newest."""

from __future__ import annotations

from tests.integration.test_admin_group_commands import (
    admin,
    broker,
    cluster_name,
    commands,
    face,
    no_log_lines,
    test_a_group_is_set_shown_and_deleted,
    test_a_group_that_is_online_consumes_again,
    test_a_group_that_is_online_is_shown_from_all_sides,
    test_many_groups_are_set_from_a_file,
    test_members_that_disagree_are_found,
    test_monitoring_finds_a_group_without_members_that_is_behind,
    test_offsets_of_a_group_are_cloned,
    test_offsets_of_a_topic_are_reset_after_a_confirmation,
    test_one_queue_is_reset,
    test_producers_are_shown,
    test_statistics_count_what_came_in_and_went_out,
    test_the_mode_of_a_group_is_set_or_refused_with_a_reason,
    test_wrong_options_of_groups_are_told,
    test_wrong_resets_are_told,
)
from tests.interop.on_java import MARKS, name
from tests.interop.test_admin_client_on_java import line, namesrv

__all__ = [
    "admin",
    "broker",
    "cluster_name",
    "commands",
    "face",
    "line",
    "name",
    "namesrv",
    "no_log_lines",
    "test_a_group_is_set_shown_and_deleted",
    "test_a_group_that_is_online_consumes_again",
    "test_a_group_that_is_online_is_shown_from_all_sides",
    "test_many_groups_are_set_from_a_file",
    "test_members_that_disagree_are_found",
    "test_monitoring_finds_a_group_without_members_that_is_behind",
    "test_offsets_of_a_group_are_cloned",
    "test_offsets_of_a_topic_are_reset_after_a_confirmation",
    "test_one_queue_is_reset",
    "test_producers_are_shown",
    "test_statistics_count_what_came_in_and_went_out",
    "test_the_mode_of_a_group_is_set_or_refused_with_a_reason",
    "test_wrong_options_of_groups_are_told",
    "test_wrong_resets_are_told",
]
pytestmark = MARKS
