"""Test SQL92 subscriptions at the broker: what is selected, refused, and kept over a restart."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import (
    Command,
    RawClient,
    heartbeat_body,
    java_hash,
    properties,
    pull_ext,
    send_ext,
)
from tests.waits import CLOCKS_APART_MS, WAIT_S

from cometmq.broker.pulls import pull as pulls
from cometmq.filtering.sql92 import outcomes
from cometmq.protocol.messages.record import decode_records
from cometmq.store.queues.consume_queue_ext import ExtendedConsumeQueue, ExtUnit
from cometmq.store.store import MessageStore
from cometmq.testing import Cluster

SEND, PULL, MAX_OFFSET, HEARTBEAT, UNREGISTER, CHECK = 10, 11, 30, 34, 35, 46
PULL_NOT_FOUND, RETRY_IMMEDIATELY = 19, 20
PARSE_FAILED, SUBSCRIPTION_NOT_LATEST, NO_FILTER_DATA, FILTER_NOT_LATEST = 23, 25, 27, 28
SUSPEND = 2


def address_of(cluster: Cluster) -> str:
    return f"127.0.0.1:{cluster.brokers[0].port}"


pytestmark = [pytest.mark.cluster(properties={"enablePropertyFilter": "true"})]


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[[], RawClient]]:
    with contextlib.ExitStack() as opened:
        yield lambda: opened.enter_context(RawClient(address_of(cluster)))


@pytest.fixture
def client(connect: Callable[[], RawClient]) -> RawClient:
    return connect()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Return a topic and group name that no other test uses."""
    return f"n{java_hash(request.node.name) & 0xFFFFFFFF}"


def send(client: RawClient, topic: str, body: bytes, **values: str) -> None:
    answer = client.ask(SEND, send_ext(topic, properties=properties(values)), body)
    assert answer.code == 0, answer.remark


def bodies(answer: Command) -> list[bytes]:
    assert answer.code == 0, answer.remark
    return [record.body for record in decode_records(answer.body)]


def stated(topic: str, sql: str, **fields: Any) -> dict[str, str]:
    """Return the ext fields of a pull that brings its expression along."""
    return pull_ext(topic, subscription=sql, expressionType="SQL92", **fields)


def known(topic: str, group: str, version: int = 1, **fields: Any) -> dict[str, str]:
    """Return the ext fields of a pull that relies on the group's heartbeat."""
    values = {"sysFlag": 0, "subscription": None, "expressionType": "SQL92", **fields}
    return pull_ext(topic, consumerGroup=group, subVersion=version, **values)


def subscription(topic: str, sql: str, version: int = 1, kind: str = "SQL92") -> dict[str, Any]:
    return {
        "topic": topic,
        "subString": sql,
        "subVersion": version,
        "expressionType": kind,
        "tagsSet": [],
        "codeSet": [],
        "classFilterMode": False,
    }


def beat(client: RawClient, group: str, topic: str, sql: str, version: int = 1) -> None:
    body = heartbeat_body(
        "c1", {group: ()}, subscriptionDataSet=[subscription(topic, sql, version)]
    )
    assert client.ask(HEARTBEAT, {}, body).code == 0


def check(client: RawClient, **fields: Any) -> Command:
    body = {"clientId": "c1", "group": "g", "subscriptionData": subscription("t", **fields)}
    return client.ask(CHECK, {}, json.dumps(body).encode())


def test_a_pull_gets_what_its_expression_selects(client: RawClient, name: str) -> None:
    for i, values in enumerate(
        (
            {"a": "1"},
            {"a": "6", "b": "x"},
            {"a": "7"},
            {},
            {"a": "abc", "b": "x"},
            {"a": "8", "b": "y"},
        )
    ):
        send(client, name, b"%d" % i, **values)
    assert bodies(client.ask(PULL, stated(name, "a > 5 AND b IS NOT NULL"))) == [b"1", b"5"]
    assert bodies(client.ask(PULL, stated(name, "a IS NULL"))) == [b"3"]
    assert bodies(client.ask(PULL, stated(name, "TRUE"))) == [b"%d" % i for i in range(6)]
    answer = client.ask(PULL, stated(name, "a = 'nobody'"))
    assert (answer.code, answer.ext["nextBeginOffset"]) == (RETRY_IMMEDIATELY, "6")


def test_system_properties_are_properties(client: RawClient, name: str) -> None:
    send(client, name, b"1", TAGS="A", KEYS="k1")
    send(client, name, b"2", TAGS="B", KEYS="k2")
    assert bodies(client.ask(PULL, stated(name, "TAGS = 'B' AND KEYS STARTSWITH 'k'"))) == [b"2"]


def test_large_bodies_do_not_hide_the_properties(client: RawClient, name: str) -> None:
    send(client, name, b"\x02a\x01b\x02" * 50_000, kind="large")
    send(client, name, b"s", kind="small")
    assert len(bodies(client.ask(PULL, stated(name, "kind = 'large'")))[0]) == 250_000
    assert bodies(client.ask(PULL, stated(name, "kind = 'small'"))) == [b"s"]


def test_an_expression_that_does_not_parse_is_refused_with_its_place(
    client: RawClient, name: str
) -> None:
    send(client, name, b"1", a="1")
    answer = client.ask(PULL, stated(name, "a > 5 AND"))
    assert answer.code == PARSE_FAILED
    assert answer.remark is not None
    assert "line 1, column 10: the expression ends, expected" in answer.remark
    answer = client.ask(PULL, stated(name, ""))
    assert answer.code == PARSE_FAILED
    answer = client.ask(PULL, pull_ext(name, subscription="x", expressionType="XPATH"))
    assert answer.code == PARSE_FAILED
    assert "XPATH" in str(answer.remark)


def test_the_heartbeats_expression_counts(client: RawClient, name: str) -> None:
    for i in range(4):
        send(client, name, b"%d" % i, a=str(i))
    beat(client, name, name, "a >= 2")
    assert bodies(client.ask(PULL, known(name, name))) == [b"2", b"3"]
    assert client.ask(PULL, known(name, name, version=2)).code == SUBSCRIPTION_NOT_LATEST
    beat(client, name, name, "a < 2", version=2)
    assert bodies(client.ask(PULL, known(name, name, version=2))) == [b"0", b"1"]
    beat(client, name, name, "a = 3", version=1)  # a member that lags behind
    assert bodies(client.ask(PULL, known(name, name, version=2))) == [b"0", b"1"]


@pytest.mark.parametrize("kind", ["SQL92", "TAG"])
def test_a_pull_that_is_ahead_of_its_heartbeat_waits_for_it(
    connect: Callable[[], RawClient], name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "HEARTBEAT_WAIT_S", 600.0)
    client, puller = connect(), connect()
    send(client, name, b"1", a="1")
    text = "a = 1" if kind == "SQL92" else "*"

    def announce(version: int) -> None:
        subscriptions = [subscription(name, text, version, kind)]
        body = heartbeat_body("c1", {name: ()}, subscriptionDataSet=subscriptions)
        assert client.ask(HEARTBEAT, {}, body).code == 0

    announce(1)
    pull = known(name, name, version=2, sysFlag=SUSPEND, expressionType=kind)
    opaque = puller.send(PULL, pull)
    assert puller.silent(0.1)
    announce(1)  # of another member, say
    assert puller.silent(0.1)
    announce(2)
    assert bodies(puller.answer(opaque)) == [b"1"]
    # A pull whose heartbeat does not come is refused in the end; one that may not wait is refused
    # at once.
    monkeypatch.setattr(pulls, "HEARTBEAT_WAIT_S", 0.1)
    assert puller.ask(PULL, pull | {"subVersion": 3}).code == SUBSCRIPTION_NOT_LATEST
    assert puller.ask(PULL, pull | {"subVersion": 3, "sysFlag": 0}).code == SUBSCRIPTION_NOT_LATEST


def test_a_heartbeat_with_a_bad_expression_leaves_no_filter_data(
    client: RawClient, name: str
) -> None:
    send(client, name, b"1", a="1")
    beat(client, name, name, "a ==")
    answer = client.ask(PULL, known(name, name))
    assert answer.code == NO_FILTER_DATA
    assert "line 1, column 4" in str(answer.remark)
    beat(client, name, name, "a = 1", version=2)
    assert bodies(client.ask(PULL, known(name, name, version=2))) == [b"1"]


def test_a_waiting_pull_is_woken_by_a_match_only(
    connect: Callable[[], RawClient], name: str
) -> None:
    sender, waiting, also = connect(), connect(), connect()
    send(sender, name, b"0", a="0")
    beat(waiting, name, name, "a > 5")
    opaque = waiting.send(PULL, known(name, name, queueOffset=1, sysFlag=SUSPEND))
    other = also.send(PULL, stated(name, "a = 1", queueOffset=1, sysFlag=4 | SUSPEND))
    # Requests of one connection are served in turn, so the broker holds both pulls by now.
    for held in (waiting, also):
        assert held.ask(MAX_OFFSET, {"topic": name, "queueId": 0}).code == 0
    send(sender, name, b"1", a="1")
    assert bodies(also.answer(other)) == [b"1"]
    for value in ("2", "abc", ""):
        send(sender, name, b"x", a=value)
    assert waiting.silent(0.1)
    send(sender, name, b"9", a="9")
    assert bodies(waiting.answer(opaque)) == [b"9"]


def test_a_waiting_pull_that_was_passed_over_goes_on_behind(client: RawClient, name: str) -> None:
    send(client, name, b"0", a="0")
    with_sender = client.send(
        PULL, stated(name, "a > 5", queueOffset=1, sysFlag=4 | SUSPEND, suspendTimeoutMillis=600)
    )
    sent = client.send(SEND, send_ext(name, properties=properties({"a": "1"})), b"1")
    assert client.answer(sent).code == 0
    answer = client.answer(with_sender)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (RETRY_IMMEDIATELY, "2")


def test_client_config_is_checked(client: RawClient) -> None:
    assert check(client, sql="*", kind="TAG").code == 0
    assert check(client, sql="a BETWEEN 1 AND 5").code == 0
    answer = check(client, sql="a >\n 5 b")
    assert answer.code == PARSE_FAILED
    assert str(answer.remark).startswith("line 2, column 4: found 'b', expected")
    assert check(client, sql="x", kind="XPATH").code == PARSE_FAILED


def test_without_the_setting_expressions_are_refused() -> None:
    with Cluster() as cluster, RawClient(address_of(cluster)) as client:
        send(client, "t", b"1", a="1")
        for answer in (
            client.ask(PULL, stated("t", "a = 1")),
            client.ask(PULL, stated("t", "a =")),
            check(client, sql="a = 1"),
            check(client, sql="a ="),
        ):
            assert answer.code == 1
            assert "enablePropertyFilter=true" in str(answer.remark)
        assert check(client, sql="*", kind="TAG").code == 0
        assert bodies(client.ask(PULL, pull_ext("t"))) == [b"1"]


def test_a_restart_keeps_the_filter_data(tmp_path: Path) -> None:
    config = {"enablePropertyFilter": "true"}
    with Cluster(properties=config, directory=tmp_path) as cluster:
        with RawClient(address_of(cluster)) as client:
            send(client, "t", b"1", a="1")
            beat(client, "g", "t", "a = 1", version=5)
        cluster.call("stop_broker", 0)  # while it runs, it may be replacing the file
        files = list(tmp_path.rglob("consumerFilter.json"))
        assert len(files) == 1
        data = json.loads(files[0].read_text())["filterDataByTopic"]["t"]["groupFilterData"]["g"]
        assert set(data) == {
            *("bloomFilterData", "bornTime", "clientVersion", "consumerGroup", "dead", "deadTime"),
            *("expression", "expressionType", "topic"),
        }
        assert (data["expression"], data["clientVersion"], data["dead"]) == ("a = 1", 5, True)
        assert data["bloomFilterData"]["bitNum"] == 112
        assert len(data["bloomFilterData"]["bitPos"]) == 3
        cluster.call("start_broker", 0)
        with RawClient(address_of(cluster)) as client:
            # An older member alone does not make the broker serve by an older expression.
            beat(client, "g", "t", "a = 7", version=4)
            answer = client.ask(PULL, known("t", "g", version=4))
            assert bodies(answer) == [b"1"]


def test_a_retry_topic_is_filtered_by_where_its_messages_came_from(tmp_path: Path) -> None:
    config = {"enablePropertyFilter": "true", "filterSupportRetry": "true"}
    with Cluster(properties=config) as cluster, RawClient(address_of(cluster)) as client:
        body = heartbeat_body(
            "c1",
            {"g": ()},
            subscriptionDataSet=[subscription("t", "a = 1"), subscription("%RETRY%g", "TRUE")],
        )
        assert client.ask(HEARTBEAT, {}, body).code == 0
        for i, values in enumerate(
            (
                {"a": "1", "RETRY_TOPIC": "t"},
                {"a": "2", "RETRY_TOPIC": "t"},
                {"a": "2", "RETRY_TOPIC": "elsewhere"},
            )
        ):
            send(client, "%RETRY%g", b"%d" % i, **values)
        deadline = time.monotonic() + WAIT_S
        answer = client.ask(PULL, known("%RETRY%g", "g"))
        while answer.code == PULL_NOT_FOUND and time.monotonic() < deadline:
            answer = client.ask(PULL, known("%RETRY%g", "g"))
        assert bodies(answer) == [b"0", b"2"]


def wait_for_later_stores() -> None:
    """Wait until the broker's clock, too, shows a later millisecond than that of its expression."""
    later_ms = time.time_ns() // 1_000_000 + CLOCKS_APART_MS
    while time.time_ns() // 1_000_000 <= later_ms:
        time.sleep(0.001)


def ext_units(store: MessageStore, topic: str) -> list[ExtUnit]:
    queue = store.queues.find(topic, 0)
    assert isinstance(queue, ExtendedConsumeQueue)
    seen: list[ExtUnit] = []

    def see(unit: ExtUnit) -> bool:
        seen.append(unit)
        return True

    note = queue.matcher(None, see)
    assert note is not None
    for _, _, code in queue.stored_units(0, 1000) or ():
        note(code)
    return seen


def test_bit_maps_change_nothing_but_the_work(tmp_path: Path) -> None:
    settings = {
        "enablePropertyFilter": "true",
        "enableConsumeQueueExt": "true",
        "enableCalcFilterBitMap": "true",
    }
    with Cluster(properties=settings, directory=tmp_path) as cluster:
        with RawClient(address_of(cluster)) as client:
            for i in range(4):  # stored before anybody has an expression
                send(client, "t", b"%d" % i, a=str(i))
            beat(client, "g", "t", "a >= 2")
            wait_for_later_stores()
            for i in range(4, 8):
                send(client, "t", b"%d" % i, a=str(i % 4))
            assert bodies(client.ask(PULL, known("t", "g"))) == [b"2", b"3", b"6", b"7"]
            beat(client, "g", "t", "a < 2", version=2)
            wait_for_later_stores()
            for i in range(8, 12):
                send(client, "t", b"%d" % i, a=str(i % 4))
            low = [b"0", b"1", b"4", b"5", b"8", b"9"]
            assert bodies(client.ask(PULL, known("t", "g", version=2))) == low
            assert bodies(client.ask(PULL, stated("t", "a = 3"))) == [b"3", b"7", b"11"]
            assert len(bodies(client.ask(PULL, pull_ext("t")))) == 12
        seen = [unit.bit_map for unit in ext_units(cluster.brokers[0].store, "t")]
        assert [bytes(bits).count(0) == len(bits) for bits in seen] == [
            *(True, True, True, True),  # nobody's
            *(True, True, False, False),
            *(False, False, True, True),
        ]


LONG = " OR ".join(["size = 7"] * 400)


def test_a_long_expression_is_compiled_beside_others_requests(
    connect: Callable[[], RawClient], name: str
) -> None:
    """Compiling it takes a tenth of a second; it held up all others."""
    outcomes.clear()
    client, other = connect(), connect()
    send(client, name, b"a", size="7")
    send(client, name, b"b", size="8")
    by = {"expressionType": "SQL92", "subscription": LONG}
    waiting = [client.send(PULL, pull_ext(name, **by)) for _ in range(3)]
    wrong = client.send(PULL, pull_ext(name, **{**by, "subscription": f"{LONG} OR"}))
    data = {"topic": name, "subString": f"{LONG} OR b = 1", "expressionType": "SQL92"}
    body = json.dumps({"clientId": "c", "group": name, "subscriptionData": data}).encode()
    checked = client.send(CHECK, body=body)
    data["subString"] += " OR"
    body = json.dumps({"clientId": "c", "group": name, "subscriptionData": data}).encode()
    faulty = client.send(CHECK, body=body)
    assert other.ask(MAX_OFFSET, {"topic": name, "queueId": 0}).code == 0
    answers: dict[int, Command] = {}
    while len(answers) < 6:
        answer = client.receive()
        answers[answer.opaque] = answer
    for opaque in waiting:
        assert [record.body for record in decode_records(answers[opaque].body)] == [b"a"]
    assert answers[checked].code == 0
    for opaque in (wrong, faulty):
        assert answers[opaque].code == PARSE_FAILED
        assert "the expression ends" in (answers[opaque].remark or "")
