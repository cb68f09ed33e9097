"""Ask about a cluster that has lost a broker or a master: each answer names the missing part, and has
the known one.

Everything runs in virtual time.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq import Message
from cometmq.aio import AdminClient, Producer
from cometmq.cli.admin.command import Run
from cometmq.cli.admin.commands.clusters import cluster_list
from cometmq.cli.admin.commands.connections import consumer_connection, producer_connection
from cometmq.cli.admin.commands.groups import get_consumer_config
from cometmq.cli.admin.commands.letters import dead_letters
from cometmq.cli.admin.commands.messages import query_by_key, query_by_unique_key
from cometmq.cli.admin.commands.stats import stats_all
from cometmq.cli.admin.commands.topics import allocate, topic_list, topic_route, topic_status
from cometmq.cli.admin.output import Form, Output
from cometmq.errors import CometMQError, RouteNotFoundError, ServersFailedError
from cometmq.model.message import MessageExt
from cometmq.model.reports.finding import Severity
from cometmq.testing import Cluster

TOPIC = "orders"
GROUP = "billing"
LOST = r"broker-b at \S+ was lost \d+ s ago, so its part is missing"
MASTERLESS = r"no master of broker-b is registered at the name servers, so its part is missing"
ONE_QUEUE = {"defaultTopicQueueNums": "1", "autoCreateSubscriptionGroup": "true"}

Story = Callable[[Cluster, AdminClient], Awaitable[Any]]


def play(story: Story, **options: Any) -> None:
    async def main(cluster: Cluster) -> None:
        async with AdminClient(cluster.namesrv) as admin:
            await admin.topics.create(TOPIC, read_queues=1, write_queues=1)
            await admin.groups.create(GROUP)
            await asyncio.sleep(40)
            async with Producer("shop", namesrv=cluster.namesrv) as producer:
                for queue in await producer.queues(TOPIC):
                    for _ in range(5):
                        await producer.send(Message(TOPIC, b"paid", keys=["k1"]), queue=queue)
                await asyncio.sleep(20)  # the index and the tables of slaves are complete by then
                cluster.kill("broker-b")
                await asyncio.sleep(20)
                await story(cluster, admin)

    with Cluster(clock="virtual", seed=1, properties=ONE_QUEUE, brokers=2, **options) as cluster:
        cluster.run(main(cluster))


class Outcome:
    """Runs commands: what they print as JSON, their remarks, and how many failures they count."""

    def __init__(self, admin: AdminClient, capsys: pytest.CaptureFixture[str]) -> None:
        self._admin = admin
        self._capsys = capsys

    async def of(self, command: Any, *args: Any, **options: Any) -> tuple[Any, str, int]:
        self._capsys.readouterr()
        nowhere: Any = None  # the command has the client already
        run = Run(self._admin, Output(Form.JSON), nowhere, dry_run=False, yes=True)
        await command(run, *args, **options)
        run.out.finish()
        out, err = self._capsys.readouterr()
        return json.loads(out), err, run.failures


async def parts_of(call: Awaitable[Any], reason: str) -> dict[str, Any]:
    """Return the results of the other brokers of a call that a missing broker makes incomplete."""
    with pytest.raises(ServersFailedError, match=reason) as failed:
        await call
    assert list(failed.value.errors) == ["broker-b"]
    return dict(failed.value.results)


async def read_all(admin: AdminClient, seen: list[MessageExt]) -> None:
    async for message in admin.messages.stored(TOPIC):
        seen.append(message)


def test_a_lost_broker_was_left_out_of_answers_without_a_word() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        [stats] = (await parts_of(admin.topics.stats(TOPIC), LOST)).values()
        assert [at.max_offset for at in stats[0].values()] == [5]
        for call in (
            admin.topics.config(TOPIC),
            admin.topics.configs(),
            admin.topics.system_topics(),
            admin.groups.names(),
            admin.groups.config(GROUP),
            admin.groups.of_topic(TOPIC),
            admin.groups.connections(GROUP),
            admin.groups.topics(GROUP),
            admin.groups.may_read(GROUP, TOPIC),
            admin.groups.times(GROUP, TOPIC),
            admin.groups.progress(GROUP),
            admin.offsets.of_topic(TOPIC),
            admin.offsets.of_brokers(),
            admin.offsets.lowest(TOPIC, GROUP),
            admin.offsets.reset_to_time(GROUP, TOPIC, 0),
            admin.messages.by_key(TOPIC, "k1"),
            admin.messages.by_unique_id(TOPIC, "none"),
            admin.messages.delay_levels(),
            admin.producers.connections("shop", TOPIC),
            admin.producers.of_brokers(),
            admin.brokers.runtime_info(),
            admin.brokers.config(),
            admin.brokers.progress(),
            admin.brokers.replication(),
            admin.brokers.statistics("TOPIC_PUT_NUMS", TOPIC),
        ):
            assert len(await parts_of(call, LOST)) == 1
        [config] = (await parts_of(admin.groups.config(GROUP), LOST)).values()
        assert config.group_name == GROUP
        page = await admin.messages.page(TOPIC)
        assert len(page.messages) == 5
        assert list(page.errors) == ["broker-b"]
        seen: list[MessageExt] = []
        with pytest.raises(ServersFailedError, match=LOST):
            await read_all(admin, seen)
        assert len(seen) == 5
        with pytest.raises(CometMQError, match=LOST):
            await admin.groups.need("misspelt")
        with pytest.raises(CometMQError, match=LOST):
            await admin.brokers.runtime_info(broker="broker-b")
        [unasked] = (await admin.explain.group(GROUP)).unasked
        assert unasked.address == "broker-b"
        await admin.topics.create("later")  # a change goes to the brokers that are there

    play(story)


def test_commands_say_which_broker_is_lost_and_print_the_known_part(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        outcome = Outcome(admin, capsys)
        document, remarks, failures = await outcome.of(topic_status, TOPIC)
        assert [row["broker"] for row in document["queues"]] == ["broker-a"]
        assert document["topic"] == {"Topic Put TPS": None}
        assert "broker-b at" in remarks
        assert "was lost" in remarks
        assert failures == 1
        for command, args in (
            (topic_route, [TOPIC]),
            (topic_list, []),
            (allocate, [TOPIC, "a,b"]),
            (cluster_list, []),
            (get_consumer_config, [GROUP]),
            (producer_connection, ["shop", TOPIC]),
            (query_by_key, [TOPIC, "k1"]),
            (dead_letters, [GROUP]),
            (stats_all, []),
        ):
            document, remarks, failures = await outcome.of(command, *args)
            assert "was lost" in remarks, command
            assert failures >= 1
            assert document or command is dead_letters
        document, _, _ = await outcome.of(stats_all, topic=TOPIC)
        assert document == [
            {
                "topic": TOPIC,
                "consumerGroup": "UNKNOWN",
                "accumulation": None,
                "inTps": None,
                "outTps": None,
                "inMsg24Hour": None,
                "outMsg24Hour": None,
            }
        ]
        _, remarks, failures = await outcome.of(query_by_unique_key, "none", TOPIC)
        assert "another broker may have it" in remarks
        with pytest.raises(CometMQError, match="no member at the brokers that answer"):
            await outcome.of(consumer_connection, GROUP)

    play(story)


def test_a_name_with_a_slave_only_was_left_out_of_a_clusters_answers() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        assert (await admin.topics.stats(TOPIC)).messages == 10  # the slave knows it, too
        assert (await admin.groups.progress(GROUP)).complete
        for call in (
            admin.groups.names(),
            admin.topics.configs(),
            admin.topics.config(TOPIC),
            admin.offsets.lowest(TOPIC, GROUP),
            admin.brokers.runtime_info(),
        ):
            assert len(await parts_of(call, MASTERLESS)) == 1
        assert len(await parts_of(admin.brokers.config(slaves=True), MASTERLESS)) == 3

    play(story, slaves=1)


def test_doctor_did_not_see_a_broker_that_was_lost() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        [found] = [
            each for each in await admin.health.findings() if each.check == "broker broker-b"
        ]
        assert found.severity is Severity.ERROR
        assert "was lost" in found.value

    play(story)


def test_a_topic_whose_only_broker_was_lost_looked_misspelt() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        cluster.kill("broker-a")
        await asyncio.sleep(20)
        with pytest.raises(RouteNotFoundError, match=r"any more: lost brokers had it: broker-"):
            await admin.topics.stats(TOPIC)

    play(story)
