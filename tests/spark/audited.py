"""Messages put into a broker one by one, each with the id, the queue and the properties wanted."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

import msgspec
from tests.integration.raw_client import Command, RawClient, properties, pull_ext, send_ext
from tests.waits import JVM_WAIT_S, eventually

from cometmq import ConsumeResult, PushConsumer
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.pipelines import audit
from cometmq.pipelines.audit.report import Report
from cometmq.pipelines.configuration import ClusterConfig
from cometmq.pipelines.context import Context
from cometmq.pipelines.progress import Progress
from cometmq.testing import Cluster

_SEND: Final = 10
_PULL: Final = 11
_UPDATE_OFFSET: Final = 15
_MAX_OFFSET: Final = 30
_SEND_BACK: Final = 36
_END_TRANSACTION: Final = 37
COMMIT, ROLLBACK = 8, 12


class Sender:
    """Talks to the first broker; `ledger` are the rows of what was sent."""

    def __init__(self, cluster: Cluster) -> None:
        self._address = cluster.brokers[0].address
        self._namesrv = cluster.namesrv
        self.ledger: list[dict[str, Any]] = []

    def _ask(self, code: int, ext: dict[str, Any], body: bytes = b"") -> Command:
        # Each on a connection of its own: brokers close one that rests while Spark works.
        with RawClient(self._address) as client:
            return client.ask(code, ext, body)

    def send(
        self,
        topic: str,
        msg_id: str,
        queue_id: int = 0,
        *,
        body: bytes = b"hello",
        in_ledger: bool = True,
        sys_flag: int = 0,
        **more: str,
    ) -> dict[str, str]:
        """Send a message with the properties `more`; the broker's answer."""
        text = properties({"UNIQ_KEY": msg_id, **more})
        now_ms = time.time_ns() // 1_000_000
        ext = send_ext(
            topic, queueId=queue_id, properties=text, bornTimestamp=now_ms, sysFlag=sys_flag
        )
        answer = self._ask(_SEND, ext, body)
        assert answer.code == 0, answer.remark
        if in_ledger:
            self.note(topic, msg_id, now_ms)
        return dict(answer.ext)

    def note(self, topic: str, msg_id: str, time_ms: int | None = None, *, ok: bool = True) -> None:
        """Write into the ledger that a message was sent."""
        row = {"topic": topic, "msg_id": msg_id, "ok": ok}
        self.ledger.append(row | {"time": time_ms or time.time_ns() // 1_000_000})

    def half(self, topic: str, msg_id: str, verdict: int | None, *, body: bytes = b"hello") -> None:
        """Begin a transaction, and end it unless the verdict is None."""
        answer = self.send(
            topic, msg_id, body=body, sys_flag=4, TRAN_MSG="true", PGROUP="raw-producer"
        )
        if verdict is None:
            return
        ended = self._ask(
            _END_TRANSACTION,
            {
                "producerGroup": "raw-producer",
                "tranStateTableOffset": answer["queueOffset"],
                "commitLogOffset": int(answer["msgId"][-16:], 16),
                "commitOrRollback": verdict,
                "fromTransactionCheck": "false",
                "msgId": msg_id,
                "transactionId": msg_id,
            },
        )
        assert ended.code == 0, ended.remark

    def create_group(self, group: str, topic: str) -> None:
        """Brokers make a group when somebody pulls for it."""
        answer = self._ask(_PULL, pull_ext(topic, consumerGroup=group))
        assert answer.code == 0, answer.remark

    def meet_group(self, group: str) -> None:
        """Have the broker meet a consumer of a group, which consumes nothing."""
        self.send("elsewhere", f"for-{group}", in_ledger=False)
        consumer = PushConsumer(group, lambda _: ConsumeResult.SUCCESS, namesrv=self._namesrv)
        consumer.subscribe("elsewhere")
        with consumer, BlockingRangeReader(namesrv=self._namesrv) as reader:
            eventually(reader.topics, lambda topics: f"%RETRY%{group}" in topics, wait_s=JVM_WAIT_S)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Commit as a consumer does when it has consumed everything below `offset`."""
        ext = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue_id,
            "commitOffset": offset,
        }
        answer = self._ask(_UPDATE_OFFSET, ext)
        assert answer.code == 0, answer.remark

    def send_back(self, group: str, sent: dict[str, str], topic: str, delay_level: int) -> None:
        """Send a message back as a consumer does that cannot handle it; -1 makes a dead letter of
        it at once.
        """
        ext = {
            "offset": int(sent["msgId"][-16:], 16),
            "group": group,
            "delayLevel": delay_level,
            "originMsgId": sent["msgId"],
            "originTopic": topic,
            "unitMode": "false",
            "maxReconsumeTimes": 16,
        }
        answer = self._ask(_SEND_BACK, ext)
        assert answer.code == 0, answer.remark

    def wait_for(self, topic: str, count: int) -> None:
        """Wait until queue 0 of a topic has so many messages."""
        queue = {"topic": topic, "queueId": 0}
        eventually(
            lambda: int(self._ask(_MAX_OFFSET, queue).ext.get("offset", 0)),
            lambda there: there >= count,
            wait_s=JVM_WAIT_S,
            note=f"{topic} does not get {count} messages",
        )

    def write_ledger(self, path: Path) -> str:
        path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in self.ledger))
        return str(path)


def context_of(spark: Any, cluster: Cluster | None = None) -> Context:
    return Context(spark, ClusterConfig(namesrv=cluster.namesrv if cluster else None), Progress())


def audited(context: Context, **settings: Any) -> Report:
    """The report of an audit; what settles is settled."""
    config = msgspec.convert({"settle_s": 0.0, **settings}, audit.Config)
    return audit.run(config, context)


Kinds = dict[tuple[str, str], int]


def kinds(report: Report, topic: str, *, explained: bool | None = None) -> Kinds:
    """How many differences of a topic there are by difference (with its group) and cause."""
    return {
        (
            each.difference if each.group is None else f"{each.difference}/{each.group}",
            each.cause,
        ): (each.count)
        for each in report.differences
        if each.topic == topic and explained in (None, each.explained)
    }


def balance(report: Report, topic: str) -> tuple[int, int, int | None, dict[str, int]]:
    """Sent, stored, archived and consumed."""
    (cell,) = [cell for cell in report.topics if cell.topic == topic]
    return cell.sent, cell.stored, cell.archived, cell.consumed
