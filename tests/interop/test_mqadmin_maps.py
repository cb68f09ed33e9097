"""Run mqadmin of 5.5, which decodes JSON by fastjson2, against our broker and our consumer.

It could not read maps keyed by queue as CometMQ wrote them: `consumerProgress` then showed no lag.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.interop.conftest import need
from tests.interop.mqadmin.runner import MqAdmin
from tests.waits import JVM_WAIT_S, eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, Producer, PushConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.interop.conftest import Namesrv

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT, LAG = 24, 8


def test_mqadmin_5_5_reads_maps_keyed_by_queue(
    comet_servers: Namesrv, fresh: Callable[[str], str]
) -> None:
    need("java", "mvn")
    topic, group, clone = fresh("topic"), fresh("group"), fresh("clone")
    with Producer("tools55", namesrv=comet_servers) as producer:
        for _ in range(COUNT):
            producer.send(Message(topic, b"one"))
        seen: list[str] = []

        def listen(messages: list[MessageExt]) -> ConsumeResult:
            seen.extend(one.topic for one in messages)
            return ConsumeResult.SUCCESS

        def online() -> PushConsumer:
            consumer = PushConsumer(
                group, listen, namesrv=comet_servers, consume_from=ConsumeFromWhere.FIRST_OFFSET
            )
            consumer.subscribe(topic)
            return consumer

        with MqAdmin(5) as tools:

            def run(command: str, *args: str) -> str:
                printed = tools.run(comet_servers, command, *args)
                assert "Exception" not in printed.out + printed.err, printed
                return printed.out

            broker = re.findall(r"127\.0\.0\.1:\d+", run("clusterList"))[0]
            with online() as consumer:
                eventually(lambda: len(seen) >= COUNT)
                status = run("consumerStatus", "-g", group, "-i", consumer.client_id)
                assert len(re.findall(rf"^{topic} .*droped=false", status, re.MULTILINE)) == 4
            for _ in range(LAG):
                producer.send(Message(topic, b"more"))
            rows = re.findall(
                r"^(?:broker-a)\s+\d\s+\d+\s+\d+", run("topicStatus", "-t", topic), re.M
            )
            assert len(rows) == 4
            progress = run("consumerProgress", "-g", group)
            assert re.search(rf"Consume Diff Total: {LAG}\b", progress), progress
            assert topic in run("statsAll", "-t", topic)
            stats = run("brokerConsumeStats", "-b", broker)
            assert len(re.findall(rf"^{topic}\s+{group}", stats, re.MULTILINE)) == 4, stats
            # A group that is not online is reset in the broker, one that is through its members.
            reset = run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
            assert topic in reset, reset
            assert re.search(
                rf"Consume Diff Total: {COUNT + LAG}\b", run("consumerProgress", "-g", group)
            )
            run("updateSubGroup", "-b", broker, "-g", clone)
            run("cloneGroupOffset", "-s", group, "-d", clone, "-t", topic)
            with online():
                eventually(lambda: len(seen) >= 2 * COUNT + LAG)
                run("skipAccumulatedMessage", "-g", group, "-t", topic)
                run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
                eventually(lambda: len(seen) >= 3 * COUNT + 2 * LAG, wait_s=JVM_WAIT_S)
