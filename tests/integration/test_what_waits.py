"""Test what an operator sees of messages that wait, and what waits when the clock is set.

The tests speak bytes over the wire of a virtual cluster, whose clocks they set.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.raw_client import (
    Command,
    RawClient,
    heartbeat_body,
    properties,
    pull_ext,
    send_ext,
)
from tests.waits import CLOCK, eventually

from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.testing import Cluster

SEND, PULL, QUERY_OFFSET, RUNTIME_INFO, HEARTBEAT = 10, 11, 14, 28, 34
UNREGISTER, SEND_BACK, END_TRANSACTION, CHECK = 35, 36, 37, 39
SEARCH_OFFSET, RECALL = 29, 370
PREPARED, COMMIT = 4, 8
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
HOUR_MS = 3_600_000


pytestmark = [
    pytest.mark.faces("virtual"),
    pytest.mark.cluster(
        properties={
            "transactionTimeOut": "300",
            # A producer has more than a second to answer before its message is given up.
            "transactionCheckInterval": "300",
            "transactionCheckMax": "5",
            "transactionOpBatchInterval": "200",
            "messageDelayLevel": "1s 1s 1s 1s 1h",
            # Offsets of transactions are written only when the log is on the disk.
            "flushIntervalCommitLog": "50",
            "flushCommitLogThoroughInterval": "50",
        }
    ),
]


def connect(cluster: Cluster) -> RawClient:
    return RawClient(cluster.brokers[0].address)


@pytest.fixture
def client(cluster: Cluster) -> Iterator[RawClient]:
    with connect(cluster) as client:
        yield client


def set_clock(cluster: Cluster, ms: int) -> None:
    """Set the broker's clock forward by `ms`, or back."""
    cluster.node("broker-a").skew_clock(ms)


def now_ms(cluster: Cluster) -> int:
    """Return what the broker's clock shows."""
    return cluster.node("broker-a").clock.now_ms()


def send(client: RawClient, topic: str, values: dict[str, str], **fields: Any) -> Command:
    answer = client.ask(SEND, send_ext(topic, properties=properties(values), **fields), b"body")
    assert answer.code == 0, answer.remark
    return answer


def info(client: RawClient) -> dict[str, str]:
    table: dict[str, str] = json.loads(client.ask(RUNTIME_INFO).body)["table"]
    return table


def records(client: RawClient, topic: str) -> list[StoredRecord]:
    answer = client.ask(PULL, pull_ext(topic))
    return list(decode_records(answer.body)) if answer.code == 0 else []


# -- stats --


@pytest.mark.faces("virtual", "blocking")
def test_stats_tell_how_many_wait_by_level_and_by_time(client: RawClient) -> None:
    for level in ("5", "5", "1"):
        send(client, "orders", {"DELAY": level})
    send(client, "orders", {"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": "T"})
    send(
        client,
        "orders",
        {"UNIQ_KEY": "H", "TRAN_MSG": "true", "PGROUP": "pg"}
        | {"CHECK_IMMUNITY_TIME_IN_SECONDS": "99"},
        sysFlag=PREPARED,
        bornTimestamp=CLOCK.now_ms(),
    )
    table = info(client)
    assert [table[f"delayPending_{level}"] for level in (2, 5)] == ["0", "2"]
    assert (table["timerPending"], table["transactionsUnresolved"]) == ("1", "1")
    eventually(lambda: info(client)["delayPending_1"] == "0")
    table = info(client)
    assert table["scheduleMessageOffset_1"] == "1,1"
    assert table["delayDelivered"] == "1"
    assert "scheduleMessageOffset_2" not in table


# -- the clock --


def test_a_clock_that_is_set_forward_brings_what_is_due_by_it(
    cluster: Cluster, client: RawClient
) -> None:
    send(client, "level", {"DELAY": "5"})
    send(client, "timer", {"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": "T"})
    assert records(client, "level") == records(client, "timer") == []
    set_clock(cluster, HOUR_MS + 1_000)
    eventually(lambda: records(client, "level") and records(client, "timer"))


def test_a_clock_that_is_set_back_keeps_nothing_longer_than_its_delay(
    cluster: Cluster, client: RawClient
) -> None:
    began_ms = now_ms(cluster)
    send(client, "level", {"DELAY": "1"})
    send(client, "timer", {"TIMER_DELAY_MS": "1500", "UNIQ_KEY": "T"})
    send(client, "moment", {"TIMER_DELIVER_MS": str(began_ms + 2500), "UNIQ_KEY": "M"})
    set_clock(cluster, -3 * HOUR_MS)
    topics = ["level", "timer", "moment"]
    eventually(lambda: all(records(client, topic) for topic in topics))
    # The clients' clocks were set back, too, so the times that they send are by those clocks.
    began = CLOCK.monotonic()
    send(client, "level", {"DELAY": "1"})
    send(client, "timer", {"TIMER_DELAY_MS": "1500", "UNIQ_KEY": "T2"})
    moment = {"TIMER_DELIVER_MS": str(now_ms(cluster) + 2500), "UNIQ_KEY": "M2"}
    send(client, "moment", moment)
    eventually(lambda: len(records(client, "moment")) == 2)
    assert CLOCK.monotonic() - began >= 2.4
    eventually(lambda: all(len(records(client, topic)) == 2 for topic in topics))


def test_store_times_rise_while_the_clock_is_set_back(cluster: Cluster, client: RawClient) -> None:
    """A search by time would find nothing where store times fall."""
    send(client, "times", {"UNIQ_KEY": "A"})
    set_clock(cluster, -3 * HOUR_MS)
    send(client, "times", {"UNIQ_KEY": "B"})
    CLOCK.sleep(0.02)  # so that the next message has another time
    send(client, "times", {"UNIQ_KEY": "C"})
    first, second, third = (record.store_timestamp for record in records(client, "times"))
    assert first <= second < third
    ext = {"topic": "times", "queueId": "0", "timestamp": str(third)}
    assert client.ask(SEARCH_OFFSET, ext).ext["offset"] == "2"


def test_what_a_timer_had_before_the_clock_was_set_back_is_recalled(
    cluster: Cluster, client: RawClient
) -> None:
    handle = send(client, "recalled", {"TIMER_DELAY_MS": "3000", "UNIQ_KEY": "R"}).ext[
        "recallHandle"
    ]
    set_clock(cluster, -3 * HOUR_MS)
    recall = {"producerGroup": "g", "topic": "recalled", "recallHandle": handle}
    assert client.ask(RECALL, recall).code == 0
    send(client, "behind", {"TIMER_DELAY_MS": "4500", "UNIQ_KEY": "B"})
    eventually(lambda: records(client, "behind"))
    assert records(client, "recalled") == []


def test_a_producer_is_asked_neither_early_nor_late_when_the_clock_was_set_back(
    cluster: Cluster, client: RawClient
) -> None:
    with connect(cluster) as producer:
        beat = json.dumps({"clientID": "p@1", "producerDataSet": [{"groupName": "pg"}]})
        assert producer.ask(HEARTBEAT, None, beat.encode()).code == 0
        half(client, "before", "pg")
        set_clock(cluster, -3 * HOUR_MS)
        assert producer.push(CHECK).ext["msgId"] == "before"
        began = CLOCK.monotonic()
        values = {"UNIQ_KEY": "after", "TRAN_MSG": "true", "PGROUP": "pg"}
        values |= {"CHECK_IMMUNITY_TIME_IN_SECONDS": "2"}
        born = now_ms(cluster)
        send(client, "after", values, sysFlag=PREPARED, bornTimestamp=born)
        while producer.push(CHECK).ext["msgId"] != "after":
            pass
        assert CLOCK.monotonic() - began >= 1.9


def test_a_start_with_the_clock_set_back_goes_on_where_the_log_ends(cluster: Cluster) -> None:
    with connect(cluster) as client:
        send(client, "level", {"DELAY": "5"})
        send(client, "timer", {"TIMER_DELAY_SEC": "8", "UNIQ_KEY": "T"})
        send(client, "moment", {"UNIQ_KEY": "0"})
        send(client, "times", {"UNIQ_KEY": "0"})
    cluster.call("stop_broker", 0)
    set_clock(cluster, -3 * HOUR_MS)
    cluster.call("start_broker", 0)
    with connect(cluster) as client:
        send(client, "times", {"UNIQ_KEY": "1"})
        CLOCK.sleep(0.02)
        send(client, "times", {"UNIQ_KEY": "2"})
        before, first, second = (record.store_timestamp for record in records(client, "times"))
        assert before <= first < second
        eventually(lambda: records(client, "timer"))
        # The message's hour is not over.
        assert records(client, "level") == []


# -- transactions --


def offset(client: RawClient, topic: str) -> int:
    ext = {"consumerGroup": "CID_RMQ_SYS_TRANS", "topic": topic, "queueId": "0"}
    answer = client.ask(QUERY_OFFSET, ext)
    return int(answer.ext["offset"]) if answer.code == 0 else -1


def half(client: RawClient, key: str, group: str) -> Command:
    values = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": group}
    now_ms = CLOCK.now_ms()
    return send(client, key, values, sysFlag=PREPARED, bornTimestamp=now_ms)


@pytest.mark.faces("virtual", seeds=3)
def test_half_messages_that_nobody_answers_for_hold_up_no_other_and_are_given_up(
    cluster: Cluster, client: RawClient
) -> None:
    """Both queues' offsets advance, producers that answer are asked, the others are listed."""
    for number in range(3):
        half(client, f"poisoned{number}", "nobody")
    with connect(cluster) as producer:
        beat = json.dumps({"clientID": "p@1", "producerDataSet": [{"groupName": "pg"}]})
        assert producer.ask(HEARTBEAT, None, beat.encode()).code == 0
        half(client, "asked", "pg")
        question = producer.push(CHECK)
        assert question.ext["msgId"] == "asked"
        names = ("tranStateTableOffset", "commitLogOffset", "msgId")
        end = {"producerGroup": "pg", "commitOrRollback": COMMIT, "fromTransactionCheck": "true"}
        end |= {name: question.ext[name] for name in names}
        assert producer.ask(END_TRANSACTION, end).code == 0
    assert len(records(client, "asked")) == 1
    eventually(lambda: len(records(client, GIVEN_UP_TOPIC)) == 3)
    listed = {
        record.properties.split("UNIQ_KEY\x01")[1][:9] for record in records(client, GIVEN_UP_TOPIC)
    }
    assert listed == {"poisoned0", "poisoned1", "poisoned2"}
    # Nothing is unresolved, so both offsets come to the ends of their queues.
    eventually(lambda: info(client)["transactionsUnresolved"] == "0")
    eventually(
        lambda: offset(client, HALF_TOPIC) == cluster.brokers[0].store.max_offset(HALF_TOPIC, 0) > 0
    )
    eventually(
        lambda: offset(client, OP_TOPIC) == cluster.brokers[0].store.max_offset(OP_TOPIC, 0) > 0
    )
    assert [records(client, f"poisoned{number}") for number in range(3)] == [[], [], []]


# -- how often a group wants a message --


def join(client: RawClient, client_id: str) -> None:
    assert client.ask(HEARTBEAT, None, heartbeat_body(client_id, {"cg": ["orders"]})).code == 0


def send_back(client: RawClient, record: StoredRecord, max_times: int) -> None:
    ext = {
        "offset": record.physical_offset,
        "group": "cg",
        "delayLevel": "5",
        "maxReconsumeTimes": max_times,
        "originMsgId": "x",
        "originTopic": "orders",
        "unitMode": "false",
    }
    answer = client.ask(SEND_BACK, ext)
    assert answer.code == 0, answer.remark


def test_the_last_consumer_to_start_with_another_number_wins_for_its_group(
    cluster: Cluster, client: RawClient
) -> None:
    send(client, "orders", {"UNIQ_KEY": "U"}, reconsumeTimes=3)
    (record,) = records(client, "orders")

    def is_buried(consumer: RawClient, max_times: int) -> bool:
        before = cluster.brokers[0].store.max_offset("%DLQ%cg", 0)
        send_back(consumer, record, max_times)
        return cluster.brokers[0].store.max_offset("%DLQ%cg", 0) > before

    with connect(cluster) as first, connect(cluster) as second, connect(cluster) as third:
        join(first, "c1")
        assert is_buried(first, 3)
        assert not is_buried(first, 4)
        join(second, "c2")
        # The member's number is known with the first message that it sends back, and counts for all
        # then.
        assert is_buried(second, 2)
        assert is_buried(first, 4)
        join(first, "c1")
        assert is_buried(first, 9)
        join(third, "c3")
        # Consumers that were given no number name 16.
        assert is_buried(third, 16)
        assert is_buried(client, 16)
        second.ask(UNREGISTER, {"clientID": "c2", "consumerGroup": "cg"})
        assert not is_buried(third, 16)
        assert not is_buried(first, 9)
    eventually(lambda: cluster.brokers[0].clients.consumers("cg") == [])
    assert not is_buried(client, 16)
    assert is_buried(client, 3)
