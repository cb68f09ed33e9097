"""`audit` of what a Java broker stored."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker
from tests.spark.archives import archived_rows, run
from tests.spark.audited import audited, balance, context_of, kinds
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import LocalTransactionState, Message, MessageExt, MessageQueue, TransactionProducer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.testing.cluster import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

TOPIC = "orders"
COUNT = 5


class Late:
    """Commits when it is asked, and once more itself: its local part takes longer than that."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}

    def _asked(self, message: Message) -> threading.Event:
        return self._events.setdefault(message.keys[0], threading.Event())

    def execute(self, message: Message, _arg: Any, /) -> LocalTransactionState:
        assert self._asked(message).wait(JVM_WAIT_S), "the broker does not ask"
        return LocalTransactionState.COMMIT

    def check(self, message: MessageExt, /) -> LocalTransactionState:
        self._asked(message).set()
        return LocalTransactionState.COMMIT


def stored(namesrv: str) -> int:
    with BlockingRangeReader(namesrv=namesrv) as reader:
        queues = [MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in range(4)]
        return sum(end for _, end in reader.offsets(queues).values())


def test_a_java_store_with_late_commits_behind_its_checks_is_sound(
    spark: Any, tmp_path: Path
) -> None:
    """Java's broker puts a half message back before it asks, so the two commits name two of them."""
    need("java", "mvn")
    store, archive = tmp_path / "store", tmp_path / "archive"
    quick = {"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}
    with (
        Cluster(brokers=0) as cluster,
        JavaBroker(cluster.namesrv, store=store, conf=quick) as java,
    ):
        namesrv = cluster.namesrv
        with TransactionProducer(
            "shop", Late(), namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS
        ) as producer:
            for at in range(COUNT):
                producer.send_in_transaction(Message(TOPIC, b"paid", keys=[f"O-{at}"]))
            # A Java broker puts messages into their queues behind the answers.
            eventually(lambda: stored(namesrv), lambda count: count >= 2 * COUNT, wait_s=JVM_WAIT_S)
        java.stop()
    assert run(spark, None, archive, topics=[TOPIC], store=str(store), broker="broker-a").holds
    rows = archived_rows(spark, archive)
    halves: defaultdict[str, set[int]] = defaultdict(set)
    for row in rows:
        halves[row["msg_id"]].add(row["prepared_transaction_offset"])
    assert len(halves) == COUNT
    assert all(len(named) > 1 for named in halves.values()), halves
    report = audited(
        context_of(spark), topics=[TOPIC], stores={"broker-a": str(store)}, archive=str(archive)
    )
    # A broker that asks again before it has the answer gets further commits.
    again = len(rows) - COUNT
    assert kinds(report, TOPIC) == {("stored twice", "transaction committed again"): again}
    assert balance(report, TOPIC) == (len(rows), len(rows), len(rows), {})
    assert report.holds
