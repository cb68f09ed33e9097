"""Delayed messages through real sockets and files: in a cluster, over restarts, and over kill -9."""

from __future__ import annotations

import random
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.client_faces import Face, Received
from tests.integration.fixtures import ChosenFace
from tests.integration.raw_client import RawClient, properties, pull_ext, send_ext
from tests.integration.test_cli import running
from tests.waits import CLOCK, CLOCKS_APART_MS, eventually

from cometmq import ConsumeFromWhere, Message
from cometmq.errors import IllegalArgumentError, RemoteError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.testing import Cluster

FIRST = ConsumeFromWhere.FIRST_OFFSET
SEND, PULL, RECALL = 10, 11, 370
LEVELS = "1s 2s 3s 1h"
# How long the levels of a broker are as it ships.
LEVEL_DELAYS_S = (1, 5, 10, 30, *(60 * minutes for minutes in (*range(1, 11), 20, 30, 60, 120)))


pytestmark = [
    pytest.mark.faces("virtual"),
    pytest.mark.cluster(properties={"messageDelayLevel": LEVELS}),
]
with_seeds = pytest.mark.faces("virtual", seeds=3)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RawClient]:
    with RawClient(cluster.brokers[0].address) as client:
        yield client


def waits_ms(received: Received) -> dict[bytes, int]:
    """Return how long each message took at most, from its birth to its record in the topic."""
    return {
        message.body: message.store_timestamp_ms - message.born_timestamp_ms + CLOCKS_APART_MS
        for message in received.messages
    }


@with_seeds
def test_levels_and_times_are_kept(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    face.consumer(name, name, received.handle, consume_from=FIRST)
    wanted = {
        b"level-2": {"DELAY": "2"},
        b"level-1": {"DELAY": "1"},
        b"in-1500-ms": {"TIMER_DELAY_MS": "1500"},
        b"in-2-s": {"TIMER_DELAY_SEC": "2"},
        b"at-a-time": {"TIMER_DELIVER_MS": str(CLOCK.now_ms() + 1200)},
        b"now": {},
    }
    sent = {
        body: producer.send(Message(name, body, tags="t", keys="k", properties=extra))
        for body, extra in wanted.items()
    }
    messages = received.wait_for(len(wanted))
    assert Counter(received.bodies) == Counter(wanted.keys())
    waited = waits_ms(received)
    assert waited[b"level-1"] >= 1_000
    assert waited[b"level-2"] >= 2_000
    assert waited[b"in-1500-ms"] >= 1_500
    assert waited[b"in-2-s"] >= 2_000
    for message in messages:
        assert (message.topic, message.tags, message.keys) == (name, "t", ("k",))
        # The sender was told this id, and sent the message to this queue.
        assert message.msg_id == sent[message.body].msg_id
        assert message.queue_id == sent[message.body].queue.queue_id


def test_delivered_delayed_messages_carry_no_prepared_flag(client: RawClient, name: str) -> None:
    """Java stores 0 in the field in which a committed transaction names its half message."""
    at_ms = str(CLOCK.now_ms() + 1200)
    for extra in (
        *[{"DELAY": "1"}] * 3,
        *[{"TIMER_DELIVER_MS": at_ms}] * 3,
        {"TIMER_DELAY_MS": "1100"},
        {"TIMER_DELAY_SEC": "1"},
    ):
        text = properties({"UNIQ_KEY": "U", **extra})
        now_ms = CLOCK.now_ms()
        answer = client.ask(10, send_ext(name, properties=text, bornTimestamp=now_ms), b"body")
        assert answer.code == 0, answer.remark

    def records() -> list[bytes]:
        pull = pull_ext(name, queueOffset=0, consumerGroup="looker")
        body = client.ask(11, pull).body
        found = []
        while body:
            size = int.from_bytes(body[:4], "big")
            found.append(body[:size])
            body = body[size:]
        return found

    eventually(lambda: len(records()) == 8)
    # sys flag, reconsume times and prepared transaction offset of records with IPv4 hosts.
    for record in records():
        assert (record[36:40], record[72:76], record[76:84]) == (bytes(4), bytes(4), bytes(8))


def test_tags_select_among_delayed_messages(face: Face, name: str) -> None:
    received = Received()
    producer = face.producer(name)
    face.consumer(name, name, received.handle, tags="paid", consume_from=FIRST)
    for tags in ("open", "paid", "open", "paid"):
        producer.send(Message(name, tags.encode(), tags=tags, properties={"DELAY": "1"}))
    eventually(lambda: len(received.bodies) >= 2)
    assert received.bodies == [b"paid", b"paid"]


@with_seeds
def test_a_recalled_message_never_comes(client: RawClient, face: Face, name: str) -> None:
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    handles = []
    for body in (b"recalled", b"kept"):
        text = properties({"UNIQ_KEY": body.decode(), "TIMER_DELAY_MS": "3000"})
        answer = client.ask(SEND, send_ext(name, properties=text), body)
        assert answer.code == 0, answer.remark
        handles.append(answer.ext["recallHandle"])
    answer = client.ask(RECALL, {"topic": name, "recallHandle": handles[0]})
    assert (answer.code, answer.ext["msgId"]) == (0, "recalled")
    answer = client.ask(RECALL, {"topic": "other", "recallHandle": handles[0]})
    assert answer.code != 0
    received.wait_for(1)
    # Both were due in the same or in neighbouring seconds.
    last = properties({"UNIQ_KEY": "last", "TIMER_DELAY_MS": "1001"})
    client.ask(SEND, send_ext(name, properties=last), b"last")
    received.wait_for(2)
    assert received.bodies == [b"kept", b"last"]
    assert client.ask(RECALL, {"topic": name, "recallHandle": handles[1]}).code == 604


@with_seeds
def test_a_sender_takes_a_timed_message_back(face: Face, name: str) -> None:
    received = Received()
    face.consumer(name, name, received.handle, consume_from=FIRST)
    producer = face.producer(name)
    assert producer.send(Message(name, b"now")).recall_handle is None
    assert producer.send(Message(name, b"level", delay_level=1)).recall_handle is None
    # The recalls must come before the messages are due.
    due_ms = CLOCK.now_ms() + 4_000
    taken = producer.send(Message(name, b"taken back", deliver_at_ms=due_ms))
    kept = producer.send(Message(name, b"kept", deliver_at_ms=due_ms))
    soon = producer.send(Message(name, b"soon", delay_ms=1))
    with pytest.raises(IllegalArgumentError, match="is for a message of topic"):
        producer.recall("another", taken.recall_handle)
    for _ in range(2):
        assert producer.recall(name, taken.recall_handle) == taken.msg_id
    messages = received.wait_for(4)
    assert {message.body for message in messages} == {b"now", b"level", b"kept", b"soon"}
    assert next(m for m in messages if m.body == b"kept").deliver_at_ms == due_ms
    for result in (kept, soon):
        with pytest.raises(RemoteError) as refusal:
            producer.recall(name, result.recall_handle)
        assert refusal.value.code == ResponseCode.ILLEGAL_OPERATION
    # A message that is due later than the recalled one comes after the recalled one would have
    # come.
    producer.send(Message(name, b"later", delay_ms=1_001))
    received.wait_for(5)
    assert Counter(received.bodies)[b"taken back"] == 0


@pytest.mark.parametrize(
    ("extra", "remark"),
    [
        ({"DELAY": "x"}, "a delay level is a number of 32 bits"),
        ({"TIMER_DELAY_SEC": "259201"}, "max delay 259200000ms"),
        ({"TIMER_DELIVER_MS": "99999999999999999999"}, "is no number of 64 bits"),
    ],
)
def test_what_cannot_be_delayed_is_refused(
    client: RawClient, extra: dict[str, str], remark: str
) -> None:
    answer = client.ask(SEND, send_ext("refused", properties=properties(extra)), b"x")
    assert answer.code == 13
    assert remark in (answer.remark or "")


def test_nobody_sends_into_the_waiting_rooms(client: RawClient) -> None:
    for topic in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"):
        assert client.ask(SEND, send_ext(topic), b"x").code == 16


@with_seeds
def test_restarts_and_kills_neither_lose_nor_double_what_waits(
    cluster: Cluster, face: Face, name: str, chosen_face: ChosenFace
) -> None:
    chance = random.Random(chosen_face.seed)
    received = Received()
    producer = face.producer(name)
    wanted = Counter(b"%d" % number for number in range(120))
    for body in wanted:
        delays = {"TIMER_DELAY_MS": str(chance.randrange(8000))}, {"DELAY": "3"}
        producer.send(Message(name, body, properties=chance.choice(delays)))
    # Some are due meanwhile, so a kill comes amid deliveries.
    for _ in range(3):
        CLOCK.sleep(chance.uniform(0, 1.5))
        cluster.call("restart_broker", 0)
        CLOCK.sleep(chance.uniform(0, 1.5))
        cluster.kill("broker-a")
        cluster.call("restart", "broker-a")
    face.consumer(name, name, received.handle, consume_from=FIRST)
    received.wait_for(120)
    # What came twice would have come by then.
    CLOCK.sleep(20)
    assert Counter(received.bodies) == wanted


@pytest.mark.cluster
def test_each_of_the_18_levels_is_kept(cluster: Cluster, client: RawClient, name: str) -> None:
    for level in range(1, 19):
        text = properties({"UNIQ_KEY": f"{level:032X}", "DELAY": str(level)})
        ext = send_ext(name, properties=text, bornTimestamp=CLOCK.now_ms())
        assert client.ask(SEND, ext, b"%d" % level).code == 0
    CLOCK.sleep(LEVEL_DELAYS_S[-1] + 1)
    # The broker has closed the other connection meanwhile, for nothing came by it.
    with RawClient(cluster.brokers[0].address) as later:
        records = delivered(later, name)
    assert [int(record.body) for record in records] == list(range(1, 19))
    for record, delay_s in zip(records, LEVEL_DELAYS_S, strict=True):
        waited_ms = record.store_timestamp - record.born_timestamp + CLOCKS_APART_MS
        assert 0 <= waited_ms - delay_s * 1000 < 1000


# -- kill -9 --


class Broker:
    """Keeps the configuration of a broker process that may be killed."""

    def __init__(self, directory: Path) -> None:
        self.conf = directory / "broker.conf"
        self.conf.write_text(
            "brokerName=killed\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\nlistenPort=0\n"
            f"storePathRootDir={directory}/store\nmappedFileSizeCommitLog=1048576\n"
            "mappedFileSizeConsumeQueue=20000\nmessageDelayLevel=1s 2s 3s\n"
            "flushDelayOffsetInterval=300\n"
            # Sends are not refused because another process keeps the disk busy.
            "osPageCacheBusyTimeOutMills=60000\n"
        )


def delivered(client: RawClient, topic: str) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    offset = 0
    while True:
        answer = client.ask(PULL, pull_ext(topic, queueOffset=offset))
        if answer.code != 0:
            return found
        found += decode_records(answer.body)
        offset = int(answer.ext["nextBeginOffset"])


def send_many(client: RawClient, first: int, count: int) -> None:
    """Send messages that fall due within a moment, so that a kill comes amid their deliveries."""
    for number in range(first, first + count):
        extra = {"TIMER_DELAY_MS": "1000"} if number % 2 else {"DELAY": "1"}
        text = properties({"UNIQ_KEY": f"{number:032X}", **extra})
        now_ms = CLOCK.now_ms()
        ext = send_ext("killed", properties=text, bornTimestamp=now_ms)
        answer = client.ask(SEND, ext, b"%d" % number)
        assert answer.code == 0, answer.remark


def wait_for_more(client: RawClient, count: int) -> list[StoredRecord]:
    eventually(lambda: len(delivered(client, "killed")) >= count)
    return delivered(client, "killed")


def test_kills_amid_deliveries_neither_lose_nor_double(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    # One kill of a process; many kills of a virtual broker are above.
    kills, count = 1, 150
    for life in range(kills + 1):
        with running("broker", "-c", str(broker.conf)) as process:
            address = re.search(r"127\.0\.0\.1:\d+", process.wait_for("boot success"))
            assert address is not None
            with RawClient(address[0]) as client:
                if life < kills:
                    before = len(delivered(client, "killed"))
                    send_many(client, life * count, count)
                    wait_for_more(client, before + 1)
                    process.stop(signal.SIGKILL)
                else:
                    records = wait_for_more(client, kills * count)
    bodies = Counter(record.body for record in records)
    assert bodies == Counter(b"%d" % number for number in range(kills * count))
    for record in records:
        waited_ms = record.store_timestamp - record.born_timestamp + CLOCKS_APART_MS
        assert waited_ms >= 1_000
