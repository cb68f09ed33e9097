"""`audit`: each cause is made for real and named, and what has none is found."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.spark import archives
from tests.spark.audited import COMMIT, ROLLBACK, Sender, audited, balance, context_of, kinds
from tests.waits import CLOCKS_APART_MS, SEND_WAIT_MS, eventually

from cometmq import AdminClient, Message, Producer, ReceivedMessage, SimpleConsumer
from cometmq.errors import ConfigError
from cometmq.pipelines.audit import blocks
from cometmq.pipelines.audit.blocks import Block, Kind, Sums
from cometmq.pipelines.audit.report import Report
from cometmq.pipelines.page import write_page
from cometmq.testing import Cluster

NOT_CONSUMED = "stored, not consumed/billing"


def send_explained(sender: Sender) -> None:
    """Into `orders`, what an audit can explain."""
    topic = "orders"
    sender.send(topic, "EARLY", 3, in_ledger=False)
    time.sleep(4 * CLOCKS_APART_MS / 1000)  # before the first time in the ledger, by either clock
    sent = [sender.send(topic, f"N{at}", KEYS=f"K{at}", TAGS="paid") for at in range(10)]
    sender.create_group("billing", topic)
    for _ in range(2):
        sender.send(topic, "RESENT", 1, TAGS="paid")
    sender.ledger.pop()
    sender.send(topic, "REPLAYED", 1, in_ledger=False, REPLAY_ID="r1", TAGS="paid")
    sender.send(topic, "REDRIVEN", 1, in_ledger=False, REDRIVE_ID="d1", TAGS="paid")
    sender.send(topic, "CHANGED", 1, KEYS="K3", TAGS="changed")
    sender.send(topic, "TOLD-FAILED", 1, in_ledger=False, TAGS="paid")
    sender.note(topic, "TOLD-FAILED", ok=False)
    sender.note(topic, "REFUSED", ok=False)
    sender.send(topic, "IN-2H", DELAY="18")
    sender.send(topic, "IN-1H", TIMER_DELAY_SEC="3600")
    sender.half(topic, "COMMITTED", COMMIT)
    sender.half(topic, "ROLLED-BACK", ROLLBACK)
    sender.half(topic, "UNDECIDED", None)
    # Queue 0 has ten messages and the committed one; of queue 2 there is nothing.
    for queue_id, offset in ((0, 8), (1, 6), (3, 1)):
        sender.commit("billing", topic, queue_id, offset)
    sender.send_back("billing", sent[1], topic, -1)
    sender.send_back("billing", sent[2], topic, 18)
    sender.wait_for("%DLQ%billing", 1)
    # Which transactions have ended is written down a moment later.
    sender.wait_for("RMQ_SYS_TRANS_OP_HALF_TOPIC", 1)


def send_unexplained(sender: Sender) -> None:
    """Into `broken`, what it cannot."""
    topic = "broken"
    sender.send(topic, "B0", KEYS="K1")
    sender.note(topic, "LOST")
    sender.send(topic, "FROM-NOWHERE", in_ledger=False)
    for body in (b"one", b"another"):
        sender.send(topic, "OTHER-BODY", body=body, KEYS="K2")
    sender.ledger.pop()
    sender.send(topic, "SECOND-ORDER", KEYS="K1")


def test_a_commit_of_a_half_message_that_was_put_back_is_the_same_transaction(spark: Any) -> None:
    """Java's broker stores a half message again before it asks; the client commits the first, too."""
    with Cluster() as cluster:
        sender = Sender(cluster)
        for body in (b"hello", b"hello", b"other"):
            sender.half("orders", "CHECKED", COMMIT, body=body)
        # Sent without a transaction: this is no second commit.
        sender.send("orders", "PLAIN")
        sender.half("orders", "PLAIN", COMMIT)
        report = audited(context_of(spark, cluster), topics=["orders"])
    assert kinds(report, "orders", explained=True) == {
        ("stored twice", "transaction committed again"): 1
    }
    assert kinds(report, "orders", explained=False) == {("stored twice", "unexplained"): 2}


def test_every_cause_is_named_and_what_has_none_is_found(spark: Any, tmp_path: Path) -> None:
    properties = {"recallMessageEnable": "true"}
    with Cluster(properties=properties) as cluster:
        sender = Sender(cluster)
        sender.meet_group("search")
        send_explained(sender)
        messages = spark.read.format("rocketmq").option("namesrv", cluster.namesrv)
        stored = messages.options(subscribe="orders", columns="all").load()
        # As pandas would write it: its whole numbers are 64 bits wide. All files were passed over.
        stored.withColumn("queue_id", stored.queue_id.cast("bigint")).write.parquet(
            str(tmp_path / "files")
        )
        send_unexplained(sender)
        with Producer("shop", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            sent = producer.send(Message("orders", b"x", delay_ms=3_600_000))
            assert sent.recall_handle is not None
            producer.recall("orders", sent.recall_handle)
        sender.note("orders", sent.msg_id)
        report = audited(
            context_of(spark, cluster),
            topics=["orders", "broken"],
            groups=["billing", "search"],
            sent=sender.write_ledger(tmp_path / "sent.jsonl"),
            # No archive, but files with the same columns.
            archive=str(tmp_path / "files"),
            business_key="keys[0]",
            subscriptions={"billing": "paid || late", "search": {"sql": "TAGS = 'changed'"}},
            rules=[
                {
                    "difference": "business key twice",
                    "cause": "the order changed",
                    "when": "tags = 'changed'",
                }
            ],
        )
    assert kinds(report, "orders") == {
        ("sent, not stored", "the send failed"): 1,
        ("sent, not stored", "delayed, not due yet"): 2,
        ("sent, not stored", "recalled by its sender"): 1,
        ("sent, not stored", "transaction rolled back"): 1,
        ("sent, not stored", "transaction undecided"): 1,
        ("stored, not sent", "stored before the first record of a send"): 1,
        ("stored, not sent", "replayed"): 1,
        ("stored, not sent", "redriven"): 1,
        ("stored, not sent", "its sender got an error"): 1,
        ("stored twice", "sent again by its client"): 1,
        ("business key twice", "the order changed"): 1,
        (NOT_CONSUMED, "not subscribed"): 3,
        (NOT_CONSUMED, "not consumed yet"): 2,
        (NOT_CONSUMED, "dead-lettered"): 1,
        (NOT_CONSUMED, "waits to be consumed again"): 1,
        ("stored, not consumed/search", "not subscribed"): 17,
        ("stored, not consumed/search", "not consumed yet"): 1,
    }
    # Ten, the resent one once, the changed and the committed one, and five that are not there.
    assert balance(report, "orders") == (18, 18, 18, {"billing": 11, "search": 0})
    assert kinds(report, "broken")["stored, not archived", "not archived yet"] == 5
    assert kinds(report, "broken", explained=False) == {
        ("sent, not stored", "unexplained"): 1,
        ("stored, not sent", "unexplained"): 1,
        ("stored twice", "unexplained"): 1,
        ("business key twice", "unexplained"): 1,
    }
    assert not report.holds
    assert "4 of 23 messages are not explained" in report.summary
    lost = [each for each in report.differences if each.examples == ["LOST"]]
    assert [each.difference for each in lost] == ["sent, not stored"]
    assert {cell.queue for cell in report.cells if cell.topic == "orders"} == {
        "broker-a:0",
        "broker-a:1",
        "broker-a:3",
        "-",
    }
    report.write_json(tmp_path / "audit.json")
    assert json.loads((tmp_path / "audit.json").read_text())["holds"] is False
    write_page(report, tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text().count("<svg") == 2


def test_what_does_not_fit_is_said_before_a_job(spark: Any, tmp_path: Path) -> None:
    with Cluster() as cluster:
        sender = Sender(cluster)
        sender.send("orders", "A")
        sender.meet_group("billing")
        context = context_of(spark, cluster)
        place = {"topic": ["orders"], "broker": ["b"], "queue_id": ["0"], "queue_offset": [0]}
        for name, columns in (("typed", place), ("short", {"topic": ["orders"]})):
            (tmp_path / name).mkdir()
            parquet.write_table(pa.table(columns), tmp_path / name / "a.parquet")
        for settings, text in (
            (
                {"archive": str(tmp_path / "typed")},
                r"the column queue_id has the type string, and an archive's has int; .*cast\(queue_id",
            ),
            ({"archive": str(tmp_path / "short")}, "has no column broker: it needs the columns"),
            ({"topics": ["refunds"]}, "topics names refunds, of which the brokers' log has no"),
            ({"topics": ["oders"]}, r"no queue; there are .*orders.*; did you mean orders\?"),
            # Nobody had consumed anything for it, and all was said to be waiting.
            ({"groups": ["biling"]}, r"groups names biling, .*; did you mean billing\?"),
            ({"archive": "/nowhere"}, "archive is '/nowhere', which is no directory"),
            ({"sent": "/nowhere.csv"}, "sent is '/nowhere.csv', which cannot be read as csv"),
            ({"business_key": "kees[0]"}, "business_key is .*, which Spark does not take"),
            (
                {"rules": [{"difference": "stored twice", "cause": "x", "when": "tags"}]},
                "when of a rule is 'tags', which gives no boolean",
            ),
            ({"work_path": "/nowhere"}, "work_path is '/nowhere', where nothing can be written"),
        ):
            with pytest.raises(ConfigError, match=text):
                audited(context, **{"topics": ["orders"], **settings})
    with pytest.raises(ConfigError, match="no name server is given"):
        audited(context_of(spark), topics=["orders"])


# A store and an archive

ARCHIVED, STORED, CONSUMED = 120, 220, 200
TOPIC = "events"
LOG_BYTES = 64 * 1024


class Filled(NamedTuple):
    """A store that its broker has left, and an archive that is behind it: three files of 40 each.

    The messages came in batches of ten, B0 and so on, and have both ids, as in a Java broker's store.
    places: of each message in the commit log; times_ms: when they were sent.
    """

    store: Path
    archive: Path
    places: list[int]
    times_ms: list[int]


def fill(spark: Any, directory: Path) -> Filled:
    archive = directory / "archive"
    properties = {"mappedFileSizeCommitLog": str(LOG_BYTES)}
    with Cluster(directory=directory / "stores", properties=properties) as cluster:
        sender = Sender(cluster)

        def send(at: int) -> dict[str, str]:
            also = f"true\x02UNIQ_KEY\x01B{at // 10}"
            return sender.send(TOPIC, f"A{at}", body=b"x" * 1000, WAIT=also)

        answers = [send(at) for at in range(ARCHIVED)]
        archives.run(
            spark, cluster.namesrv, archive, topics=[TOPIC], max_messages=40, compact_files=0
        )
        for at in range(ARCHIVED, STORED):
            answers.append(send(at))
        sender.create_group("billing", TOPIC)
        sender.commit("billing", TOPIC, 0, CONSUMED)
        times_ms = [row["time"] for row in sender.ledger]
    places = [int(answer["msgId"][-16:], 16) for answer in answers]
    return Filled(directory / "stores" / "broker-a", archive, places, times_ms)


def files_of(archive: Path) -> list[Path]:
    """The archive's data, in the order of their offsets."""
    files = list((archive / "data").rglob("*.parquet"))
    return sorted(files, key=lambda file: min(parquet.read_table(file)["queue_offset"].to_pylist()))


def damage(archive: Path) -> None:
    """The first file twice, the second one gone, of the third one row gone and one of another id."""
    first, second, third = files_of(archive)
    shutil.copy(first, first.with_name("copy.parquet"))
    second.unlink()
    table = parquet.read_table(third)
    ids = table["msg_id"].to_pylist()
    ids[0] = "SOMETHING-ELSE"
    at = table.schema.get_field_index("msg_id")
    table = table.set_column(at, table.schema.field(at), pa.array(ids, table.schema.field(at).type))
    # Times as Spark writes them.
    parquet.write_table(table.slice(0, len(ids) - 1), third, use_deprecated_int96_timestamps=True)


def test_a_store_an_archive_and_what_consumers_noted(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, archive, places, times_ms = fill(spark, tmp_path)
    # Java's consumers take the id of the batch for the message's.
    consumed = [f"A{at}" if at < 100 else f"B{at // 10}" for at in range(STORED) if at != 7]
    consumed += ["A9", "UNKNOWN"]
    parquet.write_table(pa.table({"msg_id": consumed}), tmp_path / "consumed.parquet")
    damaged = tmp_path / "damaged"
    shutil.copytree(archive, damaged)
    damage(damaged)
    found = audited(
        context_of(spark),
        topics=[TOPIC],
        groups=["billing"],
        stores={"broker-a": str(store)},
        archive=str(damaged),
        consumed=str(tmp_path / "consumed.parquet"),
    )
    assert kinds(found, TOPIC) == {
        ("stored, not archived", "not archived yet"): STORED - ARCHIVED,
        ("stored, not archived", "the archive's file is gone"): 40,
        ("stored, not archived", "unexplained"): 1,
        ("archived twice", "in a file that the archive does not know"): 40,
        ("archived, but not as stored", "unexplained"): 1,
        (NOT_CONSUMED, "unexplained"): 1,
        ("consumed twice/billing", "unexplained"): 1,
        ("consumed, not stored/billing", "unexplained"): 1,
    }
    assert balance(found, TOPIC) == (STORED, STORED, 119, {"billing": STORED - 1})
    assert not found.holds

    # Without its oldest files the log begins behind what is archived.
    files = sorted((store / "commitlog").iterdir())
    for file in files[:3]:
        file.unlink()
    report = audited(
        context_of(spark),
        topics=[TOPIC],
        groups=["billing"],
        stores={"broker-a": str(store)},
        archive=str(archive),
    )
    (cut,) = [cut for cut in report.cut if cut.end]
    gone = cut.low - ARCHIVED
    assert ARCHIVED < cut.low < CONSUMED
    assert (cut.first, cut.end, cut.archived_to) == (0, STORED, ARCHIVED)
    assert kinds(report, TOPIC) == {
        ("gap in the offsets", "expired before it was archived"): gone,
        ("stored, not archived", "not archived yet"): STORED - cut.low,
        (NOT_CONSUMED, "not consumed yet"): STORED - CONSUMED,
    }
    assert balance(report, TOPIC) == (
        STORED,
        STORED - gone,
        ARCHIVED,
        {"billing": CONSUMED - gone},
    )
    assert report.holds

    def all_mixed(log: dict[Block, Sums], archive: dict[Block, Sums]) -> dict[Block, Kind]:
        return dict.fromkeys({*log, *archive}, Kind.MIXED)

    # The same where each message is matched with its copy in the archive, and nothing is known of
    # blocks.
    with monkeypatch.context() as patch:
        patch.setattr(blocks, "kinds_of", all_mixed)
        long_way = audited(
            context_of(spark),
            topics=[TOPIC],
            groups=["billing"],
            stores={"broker-a": str(store)},
            archive=str(archive),
        )
    assert (long_way.cells, long_way.cut) == (report.cells, report.cut)
    assert long_way.differences == report.differences

    with pytest.raises(ConfigError, match=r"groups names biling, of which the store .*billing\?"):
        audited(
            context_of(spark),
            topics=[TOPIC],
            groups=["biling"],
            stores={"broker-a": str(store)},
        )

    # What was sent is known by a table with other names, and a record of the log is damaged.
    with (store / "commitlog" / f"{places[210] // LOG_BYTES * LOG_BYTES:020d}").open("r+b") as log:
        log.seek(places[210] % LOG_BYTES + 4)
        log.write(bytes(4))
    times = [datetime.fromtimestamp(time_ms / 1000, UTC).isoformat() for time_ms in times_ms]
    lines = [f"A{at},{time}" for at, time in enumerate(times)] + [f"LOST,{times[215]}"]
    (tmp_path / "sent.csv").write_text("\n".join(["order,sent at", *lines, ""]))
    strict = audited(
        context_of(spark),
        topics=[TOPIC],
        stores={"broker-a": str(store)},
        archive=str(archive),
        business_key="msg_id",
        sent={"path": str(tmp_path / "sent.csv"), "key": "order", "time": "sent at"},
        fail_on=["expired before it was archived"],
    )
    assert kinds(strict, TOPIC, explained=False) == {
        ("gap in the offsets", "expired before it was archived"): gone,
        ("gap in the offsets", "the log says: damage"): 1,
        ("sent, not stored", "expired before it was archived"): gone,
        ("sent, not stored", "unexplained"): 2,
    }
    assert balance(strict, TOPIC) == (STORED + 1, STORED - gone - 1, ARCHIVED, {})
    assert not strict.holds


def test_messages_that_a_group_acknowledged_out_of_order_are_said_to_count_later(
    spark: Any,
) -> None:
    with Cluster() as cluster:
        with AdminClient(cluster.namesrv) as admin:
            admin.topics.create("popped", read_queues=1, write_queues=1, cluster="DefaultCluster")
        with Producer("shop", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
            for number in range(5):
                producer.send(Message("popped", b"%d" % number))
        consumer = SimpleConsumer("billing", namesrv=cluster.namesrv)
        consumer.subscribe("popped")
        with consumer:
            held: list[ReceivedMessage] = []
            while len(held) < 5:
                held += consumer.receive(5 - len(held))
            for message in held[:1] + held[2:]:
                message.ack()

            def report() -> Report:
                return audited(context_of(spark, cluster), topics=["popped"], groups=["billing"])

            # Offset 1 is in flight, so 2 to 4 wait for it. Brokers store offsets a little later.
            later = {(NOT_CONSUMED, "not consumed yet"): 4}
            found = eventually(report, lambda each: kinds(each, "popped") == later)
            source = found.evidence["consumed by billing"]
            assert "if it pops, messages that it acknowledged" in source
            held[1].ack()
            eventually(report, lambda each: each.holds and not kinds(each, "popped"))
