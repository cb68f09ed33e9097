"""`cometmq admin` against the Java servers of 4.9 and the newest: topics, brokers, clusters, name servers."""

from __future__ import annotations

import pytest
from tests.integration.admin_commands import Commands, commands, no_log_lines
from tests.integration.test_admin_command import (
    admin,
    cluster_name,
    masters,
    test_a_cluster_is_listed_in_every_form,
    test_a_setting_is_changed_at_every_broker,
    test_a_topic_is_made_shown_changed_and_deleted,
    test_an_ordered_topic_has_an_order_configuration,
    test_attributes_are_set_and_removed_or_the_version_is_named,
    test_brokers_clean_up,
    test_brokers_tell_state_and_settings,
    test_members_share_the_queues_of_a_topic,
    test_name_servers_keep_entries,
    test_rows_are_the_same_in_every_form,
    test_sends_to_each_broker_are_timed,
    test_the_permission_to_write_is_wiped_and_added,
    test_the_topics_of_a_file_are_made_at_once,
    topic,
)
from tests.interop.on_java import MARKS, name
from tests.waits import JVM_WAIT_S, eventually

import cometmq
from cometmq.errors import RemoteError, ServersFailedError

__all__ = [
    "admin",
    "cluster_name",
    "commands",
    "masters",
    "name",
    "no_log_lines",
    "test_a_cluster_is_listed_in_every_form",
    "test_a_setting_is_changed_at_every_broker",
    "test_a_topic_is_made_shown_changed_and_deleted",
    "test_an_ordered_topic_has_an_order_configuration",
    "test_attributes_are_set_and_removed_or_the_version_is_named",
    "test_brokers_clean_up",
    "test_brokers_tell_state_and_settings",
    "test_members_share_the_queues_of_a_topic",
    "test_name_servers_keep_entries",
    "test_rows_are_the_same_in_every_form",
    "test_sends_to_each_broker_are_timed",
    "test_the_permission_to_write_is_wiped_and_added",
    "test_the_topics_of_a_file_are_made_at_once",
    "topic",
]
pytestmark = MARKS


@pytest.fixture(params=["4.9", "5"])
def line(request: pytest.FixtureRequest) -> str:
    version: str = request.param
    return version


@pytest.fixture
def namesrv(request: pytest.FixtureRequest, line: str) -> str:
    """Return the name server of the release line that a test asks; servers start once a session."""
    servers = {"4.9": "java4_servers", "5": "java_servers"}[line]
    address: str = request.getfixturevalue(servers)
    with cometmq.AdminClient(namesrv=address) as admin:
        # Java's broker may refuse to describe itself in its first seconds (NoSuchElementException).
        eventually(
            lambda: admin.brokers.runtime_info(broker=admin.brokers.addresses()[0].address),
            wait_s=JVM_WAIT_S,
            pause_s=0.2,
            passing=(RemoteError, ServersFailedError),
        )
    return address


def test_thresholds_of_cold_data_are_set_shown_and_removed(
    commands: Commands, masters: dict[str, str], line: str, name: str
) -> None:
    [address] = masters.values()
    change = ("updateColdDataFlowCtrGroupConfig", "-b", address, "-g", name, "-v", "4096")
    if line == "4.9":
        assert "does not know the request" in commands.refused(*change)
        return
    commands.run(*change)
    shown = commands.json("getColdDataFlowCtrInfo", "-b", address)
    assert shown[address]["configTable"][name] == 4096
    commands.run("removeColdDataFlowCtrGroupConfig", "-b", address, "-g", name)
    shown = commands.json("getColdDataFlowCtrInfo", "-b", address)
    assert name not in shown[address]["configTable"]


def test_a_master_without_slaves_tells_so(
    commands: Commands, masters: dict[str, str], line: str
) -> None:
    [address] = masters.values()
    if line == "4.9":
        assert "does not know the request" in commands.refused("haStatus", "-b", address)
        return
    reported = commands.json("haStatus", "-b", address)[address]
    assert reported["SlaveNum"] == 0
    assert reported["MasterCommitLogMaxOffset"] >= 0
