"""Ask about offsets that nobody knows: each answer says so, and none is a smaller number.

Everything runs in virtual time.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cometmq import ConsumeFromWhere, ConsumeResult, Message
from cometmq.aio import AdminClient, Producer, PushConsumer
from cometmq.cli.admin.command import Run
from cometmq.cli.admin.commands.messages import query_by_key
from cometmq.cli.admin.commands.offsets import clone_group_offset
from cometmq.cli.admin.commands.progress import consumer_progress
from cometmq.cli.admin.output import Form, Output
from cometmq.errors import RemoteError, ServersFailedError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.runtime.randomness import Randomness
from cometmq.testing import Cluster

TOPIC = "orders"
ONE_QUEUE = {"defaultTopicQueueNums": "1", "autoCreateSubscriptionGroup": "true"}

Story = Callable[[Cluster, AdminClient], Awaitable[Any]]


def play(story: Story, *, properties: dict[str, str] | None = None, **options: Any) -> Any:
    async def main(cluster: Cluster) -> Any:
        async with AdminClient(cluster.namesrv) as admin:
            return await story(cluster, admin)

    given = {**ONE_QUEUE, **(properties or {})}
    with Cluster(clock="virtual", seed=1, properties=given, **options) as cluster:
        return cluster.run(main(cluster))


async def fill(
    cluster: Cluster, admin: AdminClient, count: int = 30, size: int = 10
) -> list[MessageQueue]:
    """Make the topic everywhere and send so many messages to each of its queues."""
    await admin.topics.create(TOPIC, read_queues=1, write_queues=1)
    await asyncio.sleep(40)
    async with Producer("shop", namesrv=cluster.namesrv) as producer:
        queues = await producer.queues(TOPIC)
        for queue in queues:
            for number in range(count):
                body = Randomness(number).randbytes(size)
                await producer.send(Message(TOPIC, body, keys=[f"k{number}"]), queue=queue)
    return sorted(queues)


async def printed(
    admin: AdminClient, capsys: pytest.CaptureFixture[str], command: Any, *args: Any, **options: Any
) -> tuple[Any, str, int]:
    """Run a command; return what it printed as JSON, its remarks, and how many failures it counted."""
    capsys.readouterr()
    nowhere: Any = None  # the command has the client already
    run = Run(admin, Output(Form.JSON), nowhere, dry_run=False, yes=True)
    await command(run, *args, **options)
    run.out.finish()
    out, err = capsys.readouterr()
    begin = min(out.index(mark) for mark in "[{" if mark in out)
    return json.loads(out[begin:]), err, run.failures


def test_a_killed_broker_made_the_lag_smaller(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        queues = await fill(cluster, admin)
        await admin.groups.create("billing")
        for queue in queues:
            await admin.offsets.commit("billing", queue, 0)
        for topic in (TOPIC, None):
            assert (await admin.groups.progress("billing", topic)).lag == 60
        await asyncio.sleep(10)  # the offsets are on disk by then
        cluster.kill("broker-b")
        await asyncio.sleep(10)
        assert len((await admin.topics.route(TOPIC)).queue_datas) == 1
        for topic in (TOPIC, None):
            with pytest.raises(
                ServersFailedError, match=r"broker-b at \S+ was lost 1\d s ago"
            ) as failed:
                await admin.groups.progress("billing", topic)
            [found] = failed.value.results.values()
            assert found.lag == 30
            document, remarks, failures = await printed(
                admin, capsys, consumer_progress, "billing", topic
            )
            assert document["total"]["diffTotal"] is None
            assert re.search(r"was lost 1\d s ago", remarks)
            assert "is offline" not in remarks  # a member may be at the broker that was lost
            assert failures == 2
        with pytest.raises(ServersFailedError, match="was lost"):
            await admin.offsets.of_topic(TOPIC, "billing")
        await cluster.start_broker("broker-b")
        await asyncio.sleep(40)
        assert (await admin.groups.progress("billing", TOPIC)).lag == 60

    play(story, brokers=2)


def test_a_broker_that_was_stopped_is_not_lost() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        queues = await fill(cluster, admin)
        await admin.groups.create("billing")
        for queue in queues:
            await admin.offsets.commit("billing", queue, 0)
        await cluster.stop_broker("broker-b")
        assert (await admin.groups.progress("billing", TOPIC)).lag == 30

    play(story, brokers=2)


def test_a_group_that_never_committed_had_two_lags(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        [queue] = await fill(cluster, admin, 80)
        await admin.groups.create("billing")
        for topic in (TOPIC, None):
            assert (await admin.groups.progress("billing", topic)).lag is None
            document, remarks, failures = await printed(
                admin, capsys, consumer_progress, "billing", topic
            )
            assert document["total"]["diffTotal"] is None
            assert "has committed no offset" in remarks
            assert failures == 1
        [at] = await admin.offsets.of_topic(TOPIC, "billing")
        assert (at.committed_offset, at.lag) == (None, None)
        row = document["queues"]
        assert row == []
        document, _, _ = await printed(admin, capsys, consumer_progress, "billing", TOPIC)
        [row] = document["queues"]
        assert (row["consumerOffset"], row["diff"], row["lastTime"]) == (None, None, None)
        await admin.offsets.commit("billing", queue, 20)
        for topic in (TOPIC, None):
            assert (await admin.groups.progress("billing", topic)).lag == 60
        [at] = await admin.offsets.of_topic(TOPIC, "billing")
        assert at.lag == 60

    play(story)


def test_a_group_that_has_begun_and_not_committed_is_not_left_out() -> None:
    async def listen(_: list[MessageExt]) -> ConsumeResult:
        await asyncio.sleep(3600)
        return ConsumeResult.SUCCESS

    async def story(cluster: Cluster, admin: AdminClient) -> None:
        await fill(cluster, admin, 5)
        consumer = PushConsumer(
            "billing", listen, namesrv=cluster.namesrv, consume_from=ConsumeFromWhere.LAST_OFFSET
        )
        consumer.subscribe(TOPIC)
        consumer.subscribe("empty")
        async with consumer:
            await asyncio.sleep(1)
            progress = await admin.groups.progress("billing")
            assert TOPIC in {at.queue.topic for at in progress.queues}

    play(story)


def test_expired_messages_counted_as_lag() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        [queue] = await fill(cluster, admin, 30, 50_000)
        await admin.groups.create("billing")
        await admin.offsets.commit("billing", queue, 0)
        await asyncio.sleep(6 * 3600)
        [at] = await admin.offsets.of_topic(TOPIC, "billing")
        assert at.min_offset > 0
        left = 30 - at.min_offset
        assert at.lag == left
        for topic in (TOPIC, None):
            progress = await admin.groups.progress("billing", topic)
            assert (progress.lag, progress.queues[0].consumer_offset) == (left, 0)
        [broker] = (await admin.brokers.progress()).values()
        assert [group.lag for group in broker.groups if group.group == "billing"] == [left]

    at_any_hour = ";".join(f"{hour:02}" for hour in range(24))
    play(story, properties={"fileReservedTime": "4", "deleteWhen": at_any_hour})


def test_cloning_from_a_group_that_does_not_exist_sent_the_target_to_the_beginning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        [queue] = await fill(cluster, admin)
        for group in ("target", "fresh"):
            await admin.groups.create(group)
        await admin.offsets.commit("target", queue, 20)
        for source in ("typo", "fresh"):
            for clone in (admin.offsets.clone, admin.offsets.clone_at_brokers):
                with pytest.raises(
                    RemoteError, match=f"group {source} has no offset in topic {TOPIC}"
                ):
                    await clone(source, "target", TOPIC)
            with pytest.raises(RemoteError, match=f"group {source} has no offset"):
                await printed(admin, capsys, clone_group_offset, source, "target", TOPIC)
        [at] = await admin.offsets.of_topic(TOPIC, "target")
        assert at.committed_offset == 20
        # An offset of 0 that was committed is one.
        await admin.offsets.commit("fresh", queue, 0)
        assert await admin.offsets.clone("fresh", "target", TOPIC) == {queue: 0}
        assert await admin.offsets.skip("target", TOPIC) == {queue: 30}
        assert len(await admin.offsets.clone_at_brokers("fresh", "target", TOPIC)) == 1
        assert (await admin.offsets.of_queue(queue, "target")).committed_offset == 0

    play(story)


def test_the_lag_of_a_misspelt_group_was_all_that_is_stored() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        await fill(cluster, admin, 40)
        with pytest.raises(AssertionError, match="no broker knows group typo"):
            await cluster.lag("typo", TOPIC)
        with pytest.raises(AssertionError, match="no broker knows group typo"):
            await cluster.lag("typo")
        await admin.groups.create("billing")
        with pytest.raises(AssertionError, match="has committed no offset in topic orders"):
            await cluster.lag("billing", TOPIC)

    play(story)


def test_a_key_query_finds_its_messages_among_strangers() -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        await fill(cluster, admin, 1)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for _ in range(40):
                await producer.send(Message(TOPIC, b"mine", keys=["Aa"]))
            for _ in range(70):
                await producer.send(Message(TOPIC, b"another's", keys=["BB"]))
        found = await admin.messages.by_key(TOPIC, "Aa")
        assert [each.body for each in found] == [b"mine"] * 40
        at_ms = found[7].store_timestamp_ms
        same = [each.msg_id for each in found if each.store_timestamp_ms == at_ms]
        then = await admin.messages.by_key(TOPIC, "Aa", begin_ms=at_ms, end_ms=at_ms)
        assert [each.msg_id for each in then] == same

    play(story)


def test_a_search_by_key_that_a_limit_ended_looked_complete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def story(cluster: Cluster, admin: AdminClient) -> None:
        await fill(cluster, admin, 1)
        async with Producer("shop", namesrv=cluster.namesrv) as producer:
            for key in ("Aa", *["BB"] * 20, "Aa"):  # both keys have one hash
                await producer.send(Message(TOPIC, b"mine", keys=[key]))
        assert (await admin.messages.by_key(TOPIC, "Aa")).ended_by == {}
        [broker] = cluster.brokers
        broker.store.index.max_records_looked_at = 10
        found = await admin.messages.by_key(TOPIC, "Aa")
        assert len(found) == 1
        [text] = found.ended_by.values()
        assert "MAX_RECORDS_LOOKED_AT is 10" in text
        document, remarks, failures = await printed(admin, capsys, query_by_key, TOPIC, "Aa")
        assert len(document) == 1
        assert "the search ended early" in remarks
        assert failures == 1

    play(story)
