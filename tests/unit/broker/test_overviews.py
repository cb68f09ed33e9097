"""Lists of a broker's producers and slaves, and how far its delayed messages are delivered."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from tests.integration.raw_client import properties, send_ext
from tests.unit.broker.broker_box import Client, running
from tests.waits import until

from cometmq.broker.server import Broker
from cometmq.protocol.codes import ResponseCode

SEND, HEARTBEAT, DELAY_OFFSETS, TIMER_CHECK, PRODUCERS, HA_STATUS = 310, 34, 45, 60, 328, 907


def producers(client_id: str, *groups: str) -> bytes:
    data = [{"groupName": group} for group in groups]
    return json.dumps({"clientID": client_id, "producerDataSet": data}).encode()


async def test_producers_are_listed_by_group(broker: Broker) -> None:
    client, other = Client(broker), Client(broker, port=4712)
    before = broker.parts.clock.now_ms()
    await client.ask(HEARTBEAT, {}, producers("c1", "billing", "shop"))
    await other.ask(HEARTBEAT, {}, producers("c2", "shop"))
    answer = await client.ask(PRODUCERS, {})
    assert answer.code == 0, answer.remark
    data = json.loads(bytes(answer.body))["data"]
    assert {group: [one["clientId"] for one in found] for group, found in data.items()} == {
        "billing": ["c1"],
        "shop": ["c1", "c2"],
    }
    (one,) = data["billing"]
    assert one["remoteIP"] == "/10.0.0.9:4711"
    assert one["language"] == "JAVA"
    assert before - 1000 <= one["lastUpdateTimestamp"] <= broker.parts.clock.now_ms()


async def test_no_producers_are_an_empty_table(client: Client) -> None:
    assert bytes((await client.ask(PRODUCERS, {})).body) == b'{"data":{}}'


async def test_a_master_says_that_it_has_no_slaves(broker: Broker, client: Client) -> None:
    await client.ask(SEND, send_ext("orders", letters=True), b"hello")
    answer = await client.ask(HA_STATUS, {})
    assert answer.code == 0, answer.remark
    status = json.loads(bytes(answer.body))
    assert status["master"] is True
    assert status["masterCommitLogMaxOffset"] == broker.store.commit_log.readable_end > 0
    assert (status["inSyncSlaveNums"], status["haConnectionInfo"]) == (0, [])


async def delay(client: Client, **wanted: str) -> None:
    ext = send_ext("orders", letters=True) | {"i": properties(wanted)}
    answer = await client.ask(SEND, ext, b"later")
    assert answer.code == 0, answer.remark


async def test_delay_offsets_are_the_next_of_each_level_that_was_used(tmp_path: Path) -> None:
    async with running(tmp_path, store={"message_delay_level": "0s 1h"}) as broker:
        client = Client(broker)
        await delay(client, DELAY="1")
        await delay(client, DELAY="2")
        await until(lambda: broker.store.max_offset("orders", 0) == 1)
        answer = await client.ask(DELAY_OFFSETS, {})
        assert answer.code == 0, answer.remark
        body = json.loads(bytes(answer.body))
        assert body["offsetTable"] == {"1": 1}, "the other one waits"
        # What slaves of ours need besides; Java passes over it.
        assert body["commitLogOffset"] == broker.store.commit_log.end


async def test_the_timer_check_point_is_that_of_javas_file(client: Client) -> None:
    answer = await client.ask(TIMER_CHECK, {})
    assert answer.code == 0, answer.remark
    assert len(answer.body) == 56
    assert struct.unpack(">qqqqqqq", bytes(answer.body))[1] == 0


async def test_without_timers_there_is_no_check_point(tmp_path: Path) -> None:
    async with running(tmp_path, timer_wheel_enable=False) as broker:
        answer = await Client(broker).ask(TIMER_CHECK, {})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert str(answer.remark).startswith("The checkpoint is null")
        assert "timerWheelEnable" in str(answer.remark)
