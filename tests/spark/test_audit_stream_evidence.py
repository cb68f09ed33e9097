"""`audit` as a stream where traces and ledgers say what was consumed, by several groups, beside an
archive that compacts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.spark import archives
from tests.spark.audited import Sender, balance, context_of, kinds
from tests.spark.test_audit_stream import HOLD_S, Rounds, check_sum, waiting
from tests.spark.test_pipeline_audit import NOT_CONSUMED
from tests.waits import JVM_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import ConsumeFromWhere, ConsumeResult, Message, MessageExt, Producer, PushConsumer
from cometmq.pipelines.audit.archive import archived
from cometmq.testing import Cluster

# A machine that is ten times slower is to come to an end, too.
pytestmark = pytest.mark.timeout(2 * JVM_WAIT_S)

TOPIC = "orders"
TRACE = "RMQ_SYS_TRACE_TOPIC"
GROUPS = ["billing", "search"]
NOT_FOUND = "stored, not consumed/search"


def send_traced(namesrv: str, bodies: range) -> list[dict[str, str]]:
    """Send a message for each number, odd ones with the tag `paid`; what names each at its broker."""
    with Producer(
        "shop", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS, enable_trace=True
    ) as producer:
        sent = [
            producer.send(Message(TOPIC, b"%d" % at, tags="paid" if at % 2 else "open"))
            for at in bodies
        ]
    return [{"msgId": one.offset_msg_id} for one in sent]


def consume_traced(namesrv: str, group: str, tags: str, count: int) -> None:
    """Consume so many messages, and leave with their offsets committed."""
    consumed: list[MessageExt] = []

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        consumed.extend(messages)
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        group,
        listen,
        namesrv=namesrv,
        consume_from=ConsumeFromWhere.FIRST_OFFSET,
        enable_trace=True,
    )
    consumer.subscribe(TOPIC, tags)
    with consumer:
        eventually(lambda: len(consumed) >= count, wait_s=JVM_WAIT_S)
    assert len(consumed) == count


def test_rounds_by_the_traces_of_two_groups_sum_up_to_an_audit_of_the_whole(
    spark: Any, tmp_path: Path
) -> None:
    with Cluster() as cluster:
        sender, namesrv = Sender(cluster), cluster.namesrv
        sent = send_traced(namesrv, range(10))
        consume_traced(namesrv, "billing", "*", 10)
        rounds = Rounds(
            context_of(spark, cluster),
            tmp_path / "state",
            topics=[TOPIC],
            groups=GROUPS,
            subscriptions={"search": "paid"},
            trace_topic=TRACE,
        )
        report = rounds.run()
        assert (report.holds, report.differences) == (True, [])
        assert waiting(report, TOPIC)[NOT_FOUND, "not consumed yet"] == 5
        # It has no offset, and counts from the beginning.
        assert {one.committed["search"] for one in report.cut} == {None}
        assert sum(one.committed["billing"] or 0 for one in report.cut) == 10
        # What a later round reads of their traces tells of messages that the first one has read.
        sent += send_traced(namesrv, range(10, 20))
        sender.send(TOPIC, "FROM-NOWHERE", TAGS="open")
        sender.send_back("billing", sent[0], TOPIC, 1)
        consume_traced(namesrv, "billing", "*", 10 + 1 + 1)
        consume_traced(namesrv, "search", "paid", 10)
        rounds.run(2 * HOLD_S)
        report = rounds.run(4 * HOLD_S)
        check_sum(rounds, report, 4 * HOLD_S)
    assert waiting(report, TOPIC) == {}
    assert kinds(report, TOPIC) == {
        ("stored, not sent", "unexplained"): 1,
        ("consumed twice/billing", "sent back, and consumed again"): 1,
        (NOT_FOUND, "not subscribed"): 11,
    }
    assert balance(report, TOPIC) == (20, 21, None, {"billing": 21, "search": 10})
    assert not report.holds


def test_rounds_by_the_ledger_of_two_groups_beside_an_archive_that_compacts(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, archive = tmp_path / "consumed.jsonl", tmp_path / "archive"
    consumed: list[dict[str, Any]] = []

    def note(group: str, *msg_ids: str, ok: bool = True) -> None:
        time_ms = time.time_ns() // 1_000_000
        consumed.extend(
            {"topic": TOPIC, "msg_id": msg_id, "group": group, "time": time_ms, "ok": ok}
            for msg_id in msg_ids
        )
        ledger.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in consumed))

    def names(*numbers: int) -> list[str]:
        return [f"N{at}" for at in numbers]

    with Cluster() as cluster:
        sender = Sender(cluster)

        def send(numbers: range) -> None:
            for name in names(*numbers):
                sender.send(TOPIC, name)

        def archive_once(compact_files: int) -> None:
            done = archives.run(
                spark, cluster.namesrv, archive, topics=[TOPIC], compact_files=compact_files
            )
            assert done.holds
            assert bool(done.compacted_directories) == bool(compact_files)

        def commit(offset: int) -> None:
            for group in GROUPS:
                sender.create_group(group, TOPIC)
                sender.commit(group, TOPIC, 0, offset)

        # Of three files two are of the same hour, whenever this runs, and so can be compacted.
        for numbers in (range(5), range(5, 10)):
            send(numbers)
            archive_once(0)
        commit(10)
        note("billing", *names(*range(10)))
        note("search", "N0", "N1")
        rounds = Rounds(
            context_of(spark, cluster),
            tmp_path / "state",
            topics=[TOPIC],
            groups=GROUPS,
            consumed=str(ledger),
            archive=str(archive),
        )
        report = rounds.run()
        assert (report.holds, report.differences) == (True, [])
        assert balance(report, TOPIC) == (10, 10, 10, {"billing": 10, "search": 2})
        send(range(10, 20))
        commit(20)
        archive_once(0)
        # The rest of what the first round has read, and some of what the second one does.
        note("search", *names(*range(2, 15)))
        note("billing", *names(*range(10, 19)), "N3", "UNKNOWN")
        note("billing", "N19", ok=False)

        def listed_and_compacted(*given: Any) -> Any:
            """Replace the files that the round is about to read, when it has listed them."""
            frame = archived(*given)
            archive_once(2)
            return frame

        with monkeypatch.context() as patch:
            patch.setattr(
                "cometmq.pipelines.audit.streaming.stream_round.archived", listed_and_compacted
            )
            report = rounds.run(2 * HOLD_S)
        assert not any("archived" in one.difference for one in report.differences), report
        note("search", *names(*range(15, 18)))
        report = rounds.run(4 * HOLD_S)
        check_sum(rounds, report, 4 * HOLD_S)
    assert waiting(report, TOPIC) == {}
    assert kinds(report, TOPIC) == {
        (NOT_CONSUMED, "unexplained"): 1,
        (NOT_FOUND, "unexplained"): 2,
        ("consumed twice/billing", "unexplained"): 1,
        ("consumed, not stored/billing", "unexplained"): 1,
    }
    assert balance(report, TOPIC) == (20, 20, 20, {"billing": 19, "search": 18})
    assert not report.holds
