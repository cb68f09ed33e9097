"""Rows that cannot be messages: each goes to the dead-letter topic, and the others arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark.sink_rows import awaited_messages, make_topic, messages_of

from cometmq.errors import IllegalArgumentError
from cometmq.spark.sink.options import SinkOptions
from cometmq.spark.sink.outbox import Outbox
from cometmq.spark.sink.outbox_sending import commit_unit
from cometmq.spark.sink.tasks import Place, keep_rows, send_rows
from cometmq.testing.cluster import Cluster

pytestmark = pytest.mark.cluster()

GOOD = {
    "body": b"good", "topic": "orders", "tags": "t", "keys": ["k"], "properties": [("a", "b")],
    "sharding_key": None, "delay_level": None, "flag": 0,
}  # fmt: skip
LIMIT = 4_194_304
# Of each sort what is bad in it, and the words of the reason.
BAD: list[tuple[dict[str, Any], str]] = [
    ({"body": None}, "has no body"),
    ({"body": b""}, "has no body"),
    ({"body": b"x" * (LIMIT + 1)}, f"takes {LIMIT + 1} bytes, the limit is {LIMIT}"),
    ({"topic": None}, "a row has no topic"),
    ({"topic": "a b"}, "topic name 'a b'"),
    ({"topic": "SCHEDULE_TOPIC_XXXX"}, "the broker's own"),
    ({"tags": "a\x02b"}, "0x01 or 0x02 in tags"),
    ({"keys": ["a b"]}, "has a blank in it"),
    ({"keys": [None]}, "a key that is null"),
    ({"properties": [("a\x01", "v")]}, "0x01 or 0x02 in properties"),
    ({"properties": [("a", "")]}, "an empty value"),
    ({"properties": [("a", "v" * 40_000)]}, "the limit is 32767"),
    ({"sharding_key": "a\x01b"}, "0x01 or 0x02 in sharding_key"),
    ({"flag": 2**31}, "a row has flag"),
]
DELAYED: tuple[dict[str, Any], str] = {"delay_level": 19}, "a row has delay_level 19"
SCHEMA = pa.schema(
    {
        "body": pa.binary(), "topic": pa.string(), "tags": pa.string(),
        "keys": pa.list_(pa.string()), "properties": pa.map_(pa.string(), pa.string()),
        "sharding_key": pa.string(), "delay_level": pa.int32(), "flag": pa.int64(),
    }
)  # fmt: skip


def batches(bad: list[tuple[dict[str, Any], str]], *, once: bool) -> Iterator[Any]:
    """Each bad row between two good ones, in one batch."""
    rows = [{**GOOD, "body": b"good-0"}]
    for at, (fault, _) in enumerate(bad, 1):
        rows += [{**GOOD, "body": b"bad-%d" % at, **fault}, {**GOOD, "body": b"good-%d" % at}]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    return iter([batch.drop_columns(["delay_level"]) if once else batch])


def options_of(cluster: Cluster, letters: str, **more: str) -> SinkOptions:
    for topic in ("orders", letters):
        make_topic(cluster.namesrv, topic)
    given = {"namesrv": cluster.namesrv, "badRows": "deadLetter", "deadLetterTopic": letters}
    return SinkOptions({**given, **more}, streaming=False)


def check(cluster: Cluster, letters: str, bad: list[tuple[dict[str, Any], str]]) -> None:
    found = awaited_messages(cluster.namesrv, letters, len(bad))
    assert len(found) == len(bad)
    unseen = list(bad)
    for message in found:
        properties = message.properties
        reason = properties["DEAD_LETTER_REASON"]
        row = json.loads(properties["DEAD_LETTER_ROW"])
        match = next(one for one in unseen if one[1] in reason and fits(message, one[0]))
        unseen.remove(match)
        if "topic" not in match[0]:
            assert properties["DEAD_LETTER_TOPIC"] == row["topic"] == "orders"
    assert unseen == []


def fits(message: Any, fault: dict[str, Any]) -> bool:
    if "body" not in fault:
        return bool(message.body.startswith(b"bad-"))
    length = int(message.properties["DEAD_LETTER_BODY_BYTES"])
    body = fault["body"] or b""
    return length == len(body) and message.body == (body[:LIMIT] or b" ")


def good_of(cluster: Cluster) -> list[bytes]:
    return sorted(m.body for m in messages_of(cluster.namesrv, "orders"))


def test_each_bad_row_is_a_dead_letter_and_the_others_arrive(cluster: Cluster) -> None:
    bad = [(fault, words) for fault, words in [*BAD, DELAYED] if "v" * 40_000 not in str(fault)]
    options = options_of(cluster, "letters")
    before = good_of(cluster)
    sent = send_rows(options, batches(bad, once=False))
    assert (sent.rows, sent.dead_letters) == (2 * len(bad) + 1, len(bad))
    check(cluster, "letters", bad)
    expected = [b"good-%d" % at for at in range(len(bad) + 1)]
    assert good_of(cluster) == sorted(before + expected)


def test_properties_that_are_too_long_are_cut_in_a_dead_letter(cluster: Cluster) -> None:
    options = options_of(cluster, "long-letters")
    ((fault, words),) = [(f, w) for f, w in BAD if "v" * 40_000 in str(f)]
    assert send_rows(options, batches([(fault, words)], once=False)).dead_letters == 1
    (letter,) = awaited_messages(cluster.namesrv, "long-letters", 1)
    assert words in letter.properties["DEAD_LETTER_REASON"]
    assert letter.properties["DEAD_LETTER_ROW"].startswith('{"topic": "orders"')
    assert len(letter.properties["DEAD_LETTER_ROW"]) == 16 * 1024
    assert letter.body == b"bad-1"


def test_dead_letters_of_an_exactly_once_job_are_sent_once(
    cluster: Cluster, tmp_path: Path
) -> None:
    bad = [(fault, words) for fault, words in BAD if "v" * 40_000 not in str(fault)]
    once = {"delivery": "exactly-once", "outbox": str(tmp_path), "transactionId": "job"}
    options = options_of(cluster, "once-letters", **once)
    before = good_of(cluster)
    outbox = Outbox(str(tmp_path))
    place = Place("job-job", "job-job", 0)
    part = keep_rows(options, outbox, None, place, batches(bad, once=True))
    assert (part.rows, part.dead_letters) == (2 * len(bad) + 1, len(bad))
    assert part.topics == ("once-letters", "orders")
    for _ in range(2):
        commit_unit(options, outbox, "job-job", [part], quiet_s=0.0)
    check(cluster, "once-letters", bad)
    expected = [b"good-%d" % at for at in range(len(bad) + 1)]
    assert good_of(cluster) == sorted(before + expected)


def test_a_bad_row_ends_the_job_where_nobody_asks_for_dead_letters(cluster: Cluster) -> None:
    make_topic(cluster.namesrv, "orders")
    options = SinkOptions({"namesrv": cluster.namesrv}, streaming=False)
    with pytest.raises(IllegalArgumentError, match="has no body"):
        send_rows(options, batches(BAD[:1], once=False))


def test_a_job_of_spark_sends_its_bad_row_to_the_dead_letters(spark: Any, cluster: Cluster) -> None:
    for topic in ("jobs", "job-letters"):
        make_topic(cluster.namesrv, topic)
    frame = spark.range(100).selectExpr("if(id = 42, null, cast(id as string)) as body")
    writer = frame.write.format("rocketmq").mode("append").option("namesrv", cluster.namesrv)
    writer = writer.option("topic", "jobs").option("badRows", "deadLetter")
    writer.option("deadLetterTopic", "job-letters").save()
    assert len(awaited_messages(cluster.namesrv, "jobs", 99)) == 99
    (letter,) = awaited_messages(cluster.namesrv, "job-letters", 1)
    assert "has no body" in letter.properties["DEAD_LETTER_REASON"]


def undecoded(count: int, every: int) -> Iterator[Any]:
    """Return rows as `decode` leaves them; every `every`-th row has a reason."""
    rows = [
        {**GOOD, "body": b"row-%d" % at, "undecodable": None if at % every else f"no JSON at {at}"}
        for at in range(count)
    ]
    yield pa.RecordBatch.from_pylist(rows, SCHEMA.append(pa.field("undecodable", pa.string())))


@pytest.mark.parametrize("every", [1, 2, 7])
def test_rows_whose_bodies_do_not_decode_are_dead_letters(cluster: Cluster, every: int) -> None:
    letters = f"undecodable-{every}"
    options = options_of(cluster, letters)
    before = good_of(cluster)
    sent = send_rows(options, undecoded(50, every))
    bad = [at for at in range(50) if at % every == 0]
    assert (sent.rows, sent.dead_letters) == (50, len(bad))
    found = awaited_messages(cluster.namesrv, letters, len(bad))
    assert sorted(message.body for message in found) == sorted(b"row-%d" % at for at in bad)
    for message in found:
        reason = message.properties["DEAD_LETTER_REASON"]
        assert f"does not decode: no JSON at {message.body.decode()[4:]}." in reason
        assert "undecodable" not in json.loads(message.properties["DEAD_LETTER_ROW"])
        assert message.properties["DEAD_LETTER_TOPIC"] == "orders"
    good = [b"row-%d" % at for at in range(50) if at % every]
    assert good_of(cluster) == sorted(before + good)


def test_a_body_that_does_not_decode_ends_the_job_without_dead_letters(
    cluster: Cluster,
) -> None:
    make_topic(cluster.namesrv, "orders")
    options = SinkOptions({"namesrv": cluster.namesrv}, streaming=False)
    with pytest.raises(
        IllegalArgumentError, match=r"no JSON at 0\. Leave such rows out .*badRows="
    ):
        send_rows(options, undecoded(3, 3))
