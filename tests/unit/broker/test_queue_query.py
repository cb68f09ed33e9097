"""Units of a consume queue, as operators look at them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integration.raw_client import heartbeat_body, java_hash, properties, send_ext
from tests.unit.broker.broker_box import Client, running

from cometmq.broker.server import Broker
from cometmq.protocol.codes import ResponseCode

SEND, HEARTBEAT, QUERY, ROCKSDB = 310, 34, 321, 354
BIT_MAPS: dict[str, Any] = {"enable_property_filter": True, "enable_calc_filter_bit_map": True}


async def fill(client: Client, count: int) -> None:
    for number in range(count):
        ext = send_ext("orders", letters=True, queueId=1)
        ext["i"] = properties({"TAGS": f"T{number}", "n": str(number)})
        answer = await client.ask(SEND, ext, b"x")
        assert answer.code == 0, answer.remark


async def query(client: Client, index: int, count: int, **more: Any) -> tuple[str, dict[str, Any]]:
    place = {"topic": "orders", "queueId": 1, "index": index, "count": count}
    answer = await client.ask(QUERY, {**place, **more})
    assert answer.code == 0, answer.remark
    return answer.remark or "", json.loads(bytes(answer.body))


async def test_units_are_shown_from_an_index_on(broker: Broker, client: Client) -> None:
    await fill(client, 5)
    remark, body = await query(client, 1, 3)
    assert remark == ""
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 5)
    units = body["queueData"]
    assert [unit["tagsCode"] for unit in units] == [java_hash(f"T{number}") for number in (1, 2, 3)]
    for unit in units:
        record = broker.store.stored_record(unit["physicOffset"])
        assert record is not None
        assert record.total_size == unit["physicSize"]
    assert "filterData" not in body
    assert "subscriptionData" not in body


async def test_more_units_than_there_are_end_with_the_queue(client: Client) -> None:
    await fill(client, 3)
    assert len((await query(client, 1, 2**31 - 1))[1]["queueData"]) == 2
    assert (await query(client, 0, 0))[1]["queueData"] == []


async def test_units_are_read_across_files(broker: Broker, client: Client) -> None:
    await fill(client, 1)
    queue = broker.store.queue("orders", 1)
    unit = queue.unit(0)
    assert unit is not None
    count = queue.units_per_file
    for _ in range(count):
        queue.reserve(1)
        queue.put(*unit)
    assert len(queue.files.files) == 2
    _, body = await query(client, 1, count)
    assert len(body["queueData"]) == count


async def test_what_is_not_there_is_said(client: Client) -> None:
    await fill(client, 1)
    for index in (-1, 1, 2**40):
        remark, body = await query(client, index, 1)
        assert remark == f"Index {index} of 1@orders is not exist!"
        assert body == {"maxQueueIndex": 1, "minQueueIndex": 0}
    absent = {"topic": "orders", "queueId": 3, "index": 0, "count": 1}
    answer = await client.ask(QUERY, absent)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "3@orders is not exist!")


async def test_too_many_units_for_a_frame_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, max_frame_length=64 * 1024 + 150) as broker:
        client = Client(broker)
        await fill(client, 4)
        assert len((await query(client, 0, 2))[1]["queueData"]) == 2
        place = {"topic": "orders", "queueId": 1, "index": 0, "count": 4}
        answer = await client.ask(QUERY, place)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "ask for fewer units" in str(answer.remark)


async def test_a_groups_subscription_is_shown_with_the_units(client: Client) -> None:
    await fill(client, 1)
    _, body = await query(client, 0, 1, consumerGroup="g")
    assert body["filterData"] == "g@orders is not online!"
    await client.ask(HEARTBEAT, {}, heartbeat_body("c", {"g": ("orders",)}))
    _, body = await query(client, 0, 1, consumerGroup="g")
    assert body["filterData"] == "null", "Java's word for none"
    assert body["subscriptionData"]["topic"] == "orders"


async def test_what_the_extension_says_of_a_message_is_shown(tmp_path: Path) -> None:
    subscription = {"topic": "orders", "subString": "n > 0", "expressionType": "SQL92"}
    group = {"groupName": "g", "subscriptionDataSet": [{**subscription, "subVersion": 1}]}
    heartbeat = json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
    store = {"enable_consume_queue_ext": True}
    async with running(tmp_path, store=store, **BIT_MAPS) as broker:
        client = Client(broker)
        assert (await client.ask(HEARTBEAT, {}, heartbeat)).code == 0
        await fill(client, 2)
        _, body = await query(client, 0, 2, consumerGroup="g")
        assert json.loads(body["filterData"])["expression"] == "n > 0"
        not_wanted, wanted = body["queueData"]
        assert wanted["tagsCode"] == java_hash("T1")
        extension = json.loads(wanted["extendDataJson"])
        assert extension["tagsCode"] == java_hash("T1")
        assert extension["size"] == 20 + extension["bitMapSize"] > 20
        assert wanted["eval"] is True
        assert wanted["bitMap"].count("1") > not_wanted["bitMap"].count("1") == 0
        assert len(wanted["bitMap"].replace("\n", "")) == 8 * extension["bitMapSize"]


async def test_no_queue_in_rocksdb_lags_behind(client: Client) -> None:
    answer = await client.ask(ROCKSDB, {"topic": "orders", "checkStoreTime": 0})
    assert answer.code == 0
    body = json.loads(bytes(answer.body))
    assert body["checkStatus"] == 0
    assert "no RocksDB" in body["checkResult"]
