"""Answers to pulls: refusals and bounds, which pulls wait and which events wake them, in which
order.
"""

from __future__ import annotations

import asyncio
import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import heartbeat_body, pull_ext, send_ext
from tests.unit.broker.broker_box import SILENT_GROUP, Client, records, running, turns
from tests.waits import until

from cometmq.broker.pulls.waiter import State
from cometmq.broker.server import Broker
from cometmq.filtering import sql92
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.holdings import Holding, Holdings

SEND, PULL, QUERY_OFFSET, HEARTBEAT, LITE_PULL = 10, 11, 14, 34, 361
NOT_FOUND, MOVED = ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED
COMMIT, SUSPEND, STATED = 1, 2, 4
FOR_LONG = 600_000


async def fill(client: Client, count: int, **fields: Any) -> None:
    for number in range(count):
        answer = await client.ask(SEND, send_ext("orders", **fields), b"%d" % number)
        assert answer.code == 0, answer.remark


def waiting_ext(**fields: Any) -> dict[str, str]:
    return pull_ext(
        "orders", **{"sysFlag": SUSPEND | STATED, "suspendTimeoutMillis": FOR_LONG, **fields}
    )


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"consumerGroup": "nobody", "topic": "absent"}, 26, "nobody"),
        ({"consumerGroup": SILENT_GROUP, "topic": "absent"}, 16, "consumeEnable is false"),
        ({"topic": "absent", "queueId": 99}, 17, "topic[absent] not exist"),
        ({"topic": "secret", "queueId": 99}, 16, "perm is 2"),
        ({"queueId": 4, "sysFlag": 0}, 29, "readQueueNums:[4]"),
        ({"queueId": -1, "sysFlag": 0}, 29, "queueId[-1]"),
        ({"subscription": "a > 1", "expressionType": "SQL92"}, 1, "enablePropertyFilter=true"),
    ],
)
async def test_the_first_of_several_faults_is_told(
    tmp_path: Path, fields: dict[str, Any], code: int, remark: str
) -> None:
    made = fields.get("consumerGroup") != "nobody"
    async with running(tmp_path, auto_create_subscription_group=made) as broker:
        answer = await Client(broker).ask(PULL, pull_ext(**{"topic": "orders", **fields}))
    assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
    if code == ResponseCode.NO_PERMISSION:
        assert answer.ext["forbiddenType"] == ("3" if fields["topic"] == "secret" else "2")


async def test_a_lite_pull_can_be_forbidden_by_itself(tmp_path: Path) -> None:
    async with running(tmp_path, lite_pull_message_enable=False) as broker:
        client = Client(broker)
        await fill(client, 1)
        answer = await client.ask(LITE_PULL, pull_ext("orders"))
        assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
        assert (await client.ask(PULL, pull_ext("orders"))).code == 0


async def test_where_a_reader_stands_decides_what_it_is_told(client: Client) -> None:
    empty = await client.ask(PULL, pull_ext("orders", queueOffset=0))
    assert (empty.code, empty.remark) == (NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
    await fill(client, 5)
    for offset, code, remark, next_begin in (
        (0, 0, "FOUND", "5"),
        (4, 0, "FOUND", "5"),
        (5, NOT_FOUND, "OFFSET_OVERFLOW_ONE", "5"),
        (6, MOVED, "OFFSET_OVERFLOW_BADLY", "5"),
        (-1, MOVED, "OFFSET_TOO_SMALL", "0"),
    ):
        answer = await client.ask(PULL, pull_ext("orders", queueOffset=offset))
        found = (answer.code, answer.remark, answer.ext["nextBeginOffset"])
        assert found == (code, remark, next_begin), offset
        assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "5")


async def test_a_pull_brings_as_much_as_it_asks_for_but_at_least_one(
    client: Client,
) -> None:
    await fill(client, 10)
    few = records(await client.ask(PULL, pull_ext("orders", queueOffset=2, maxMsgNums=3)))
    assert [record.queue_offset for record in few] == [2, 3, 4]
    # The first is given however large it is, or a consumer would never pass it.
    one = records(await client.ask(PULL, pull_ext("orders", maxMsgBytes=1)))
    assert [record.queue_offset for record in one] == [0]


async def test_waiting_pulls_are_answered_when_their_queue_gets_something(
    broker: Broker, client: Client
) -> None:
    waits = [Client(broker, port) for port in (1, 2, 3)]
    here = [each.send(PULL, waiting_ext()) for each in waits[:2]]
    elsewhere = waits[2].send(PULL, waiting_ext(queueId=1))
    await turns()
    assert not any(each.answers() for each in waits)
    await fill(client, 1)
    for each, opaque in zip(waits, here, strict=False):
        assert [r.body for r in records(await each.answer(opaque))] == [b"0"]
    assert waits[2].answers() == {}
    await fill(client, 1, queueId=1)
    assert (await waits[2].answer(elsewhere)).code == 0


async def test_a_pull_that_may_not_wait_is_answered_at_once(client: Client) -> None:
    assert (await client.ask(PULL, pull_ext("orders"))).code == NOT_FOUND
    gone_by = await client.ask(PULL, waiting_ext(suspendTimeoutMillis=0))
    assert gone_by.code == NOT_FOUND


async def test_more_than_the_limit_do_not_wait(tmp_path: Path) -> None:
    async with running(tmp_path, max_held_pulls=2) as broker:
        client = Client(broker)
        waiting = [client.send(PULL, waiting_ext()) for _ in range(3)]
        assert (await client.answer(waiting[2])).code == NOT_FOUND
        assert list(client.answers()) == waiting[2:]


async def test_a_broker_that_stops_answers_what_waits(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        waiting = [client.send(PULL, waiting_ext(queueId=queue_id)) for queue_id in range(4)]
        await turns()
        assert client.answers() == {}
    assert {opaque: a.code for opaque, a in client.answers().items()} == dict.fromkeys(
        waiting, NOT_FOUND
    )


async def test_a_pull_commits_what_is_consumed_but_never_beyond_the_end(
    broker: Broker, client: Client
) -> None:
    await fill(client, 5)
    for committed, stored in ((3, 3), (99, 3), (5, 5)):
        await client.ask(PULL, pull_ext("orders", sysFlag=COMMIT | STATED, commitOffset=committed))
        assert broker.offsets.query("raw-group", "orders", 0) == stored
    # Without the flag the field means nothing.
    await client.ask(PULL, pull_ext("orders", commitOffset=1))
    assert broker.offsets.query("raw-group", "orders", 0) == 5


async def test_members_must_have_heard_of_the_version_that_a_pull_names(client: Client) -> None:
    await fill(client, 1)
    body = heartbeat_body("c", {"raw-group": ["orders"]}, sub_version=5)
    assert (await client.ask(HEARTBEAT, {}, body)).code == 0
    for version, code in ((5, 0), (4, 0), (6, ResponseCode.SUBSCRIPTION_NOT_LATEST)):
        ext = pull_ext("orders", sysFlag=0, subVersion=version)
        assert (await client.ask(PULL, ext)).code == code
    other = await client.ask(PULL, pull_ext("narrow", sysFlag=0))
    assert other.code == ResponseCode.SUBSCRIPTION_NOT_EXIST


async def test_what_is_not_selected_is_passed_over(broker: Broker, client: Client) -> None:
    for tags in "aab":
        await fill(client, 1, properties=f"TAGS\x01{tags}\x02")
    ext = pull_ext("orders", subscription="b")
    assert [r.queue_offset for r in records(await client.ask(PULL, ext))] == [2]
    # A waiting pull is not woken by what it does not want.
    waiting = client.send(PULL, waiting_ext(queueOffset=3, subscription="b"))
    await fill(client, 1, properties="TAGS\x01a\x02")
    await turns()
    assert waiting not in client.answers()
    await fill(client, 1, properties="TAGS\x01b\x02")
    answer = await client.answer(waiting)
    assert [record.queue_offset for record in records(answer)] == [4]


async def test_a_client_that_left_is_not_served(broker: Broker, client: Client) -> None:
    leaver = Client(broker, 1)
    leaver.send(PULL, waiting_ext())
    leaver.line.connection.abort()
    await asyncio.sleep(0)
    await fill(client, 1)
    await until(lambda: leaver.line.transport.ended == "aborted")
    await turns()
    assert leaver.line.received() == []


def numbered_tags(number: int) -> str:
    return "||".join(f"t{number:05d}{tag:04d}" for tag in range(2_400))


async def growth(broker: Broker, client: Client, pulls: list[dict[str, str]]) -> tuple[int, int]:
    """Have pulls held; return how many bytes that takes, and how many are counted for it."""
    client.line.connection.holding = Holding(Holdings(1 << 30))
    frames = [client.frame(PULL, ext) for ext in pulls]
    client.line.feed(client.frame(PULL, pulls[0]))
    await until(lambda: broker.parts.waiting.count(State.MESSAGES) == 1)
    gc.collect()
    tracemalloc.start()
    before, kept = tracemalloc.get_traced_memory()[0], client.line.connection.holding.kept
    for number, frame in enumerate(frames):
        client.line.feed(frame)
        await until(lambda: broker.parts.waiting.count(State.MESSAGES) == number + 2)  # noqa: B023 - waited for here
    del frames
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return taken, client.line.connection.holding.kept - kept


async def test_pulls_that_wait_for_many_tags_take_what_is_counted_for_them(
    broker: Broker, client: Client
) -> None:
    """Six connections with 2,400 tags in each pull took 2,435 MiB, and 256 MiB were counted."""
    await fill(client, 1)
    pulls = [waiting_ext(queueOffset=1, subscription=numbered_tags(n)) for n in range(40)]
    taken, counted = await growth(broker, client, pulls)
    assert taken < 1.2 * counted
    assert taken < 120_000 * len(pulls)


async def test_pulls_that_wait_for_long_expressions_take_what_is_counted_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql92, "_CACHED_TERMS", 1_000)
    async with running(tmp_path, enable_property_filter=True) as broker:
        client = Client(broker)
        await fill(client, 1)
        texts = [" or ".join(f"a{n}>{m}" for m in range(400)) for n in range(20)]
        pulls = [
            waiting_ext(queueOffset=1, subscription=text, expressionType="SQL92") for text in texts
        ]
        taken, counted = await growth(broker, client, pulls)
        assert taken < 1.2 * counted + 2 * 1_000 * sql92.TERM_BYTES
        # A message that none of them wants may wake those whose expressions were forgotten; the one
        # that all but one lack is delivered to that one.
        opaque = client.send(
            PULL,
            waiting_ext(queueOffset=1, subscription="mine is not null", expressionType="SQL92"),
        )
        await client.ask(SEND, send_ext("orders", properties="mine\x011\x02"), b"x")
        assert (await client.answer(opaque)).body


async def test_pulls_of_a_group_share_the_tags_of_its_heartbeat(
    broker: Broker, client: Client
) -> None:
    """Each pull of 300 bytes had a set of 4,096 codes, 260 KB, and 500 bytes were counted for it."""
    await fill(client, 1)
    heartbeat = json.loads(heartbeat_body("c", {"raw-group": ["orders"]}))
    subscription = heartbeat["consumerDataSet"][0]["subscriptionDataSet"][0]
    tags = [f"tag{number}" for number in range(4_096)]
    subscription.update(
        subString="||".join(tags), tagsSet=tags, codeSet=[java_hash(tag) for tag in tags]
    )
    assert (await client.ask(HEARTBEAT, {}, json.dumps(heartbeat).encode())).code == 0
    pulls = [waiting_ext(queueOffset=1, sysFlag=SUSPEND, subscription=None) for _ in range(50)]
    taken, _ = await growth(broker, client, pulls)
    assert taken < 10_000 * len(pulls)
