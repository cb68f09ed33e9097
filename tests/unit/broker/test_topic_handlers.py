"""Topics that operators make, change, list and delete."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.raw_client import pull_ext, send_ext
from tests.unit.broker.broker_box import Client, RoomyDisk, new_broker, records, running
from tests.waits import WAIT_S, until

from cometmq.broker.operation.registration import Registration
from cometmq.broker.server import Broker
from cometmq.broker.topics import journal
from cometmq.errors import StoreError
from cometmq.model import names
from cometmq.protocol.codes import ResponseCode

SEND, PULL = 10, 11
MAKE, MAKE_LIST, ALL, DELETE, SYSTEM, CONFIG = 17, 18, 21, 215, 305, 351
# The client's address.
ADMIN: dict[str, Any] = {"admin_from": "10.0.0.9"}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have answers wait for `topics.json`, which these tests read, however slow the disk is."""
    monkeypatch.setattr(journal, "FOLD_WAIT_S", WAIT_S)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path, auto_create_topic_enable=False, **ADMIN) as broker:
        yield broker


def header(topic: str, **changes: Any) -> dict[str, Any]:
    return {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": 3,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        **changes,
    }


async def config(client: Client, topic: str) -> dict[str, Any]:
    answer = await client.ask(CONFIG, {"topic": topic})
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = json.loads(bytes(answer.body))
    return found


async def test_a_topic_is_made_changed_and_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        ext = header("new", order="true", topicSysFlag=1, attributes="+message.type=FIFO")
        assert (await client.ask(MAKE, ext)).code == 0
        made = await config(client, "new")
        assert (made["readQueueNums"], made["writeQueueNums"], made["perm"]) == (3, 2, 6)
        assert (made["order"], made["topicSysFlag"]) == (True, 1)
        assert made["attributes"] == {"message.type": "FIFO"}
        assert (await client.ask(MAKE, header("new", readQueueNums=8, perm=4))).code == 0
        changed = await config(client, "new")
        assert (changed["readQueueNums"], changed["perm"], changed["order"]) == (8, 4, False)
        assert changed["attributes"] == {"message.type": "FIFO"}
        # The answer came when the disk had it: what a killed broker leaves has the topic.
        table = json.loads((tmp_path / "config" / "topics.json").read_text())
        assert table["topicConfigTable"]["new"]["readQueueNums"] == 8
    async with running(tmp_path, **ADMIN) as broker:
        assert (await config(Client(broker), "new")) == changed


async def test_the_same_topic_again_changes_nothing(broker: Broker) -> None:
    client = Client(broker)
    assert (await client.ask(MAKE, header("new"))).code == 0
    version = broker.topics.data_version.counter
    assert (await client.ask(MAKE, header("new"))).code == 0
    assert broker.topics.data_version.counter == version


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic": " "}, "blank"),
        ({"topic": "a b"}, "characters outside"),
        ({"topic": "t" * 128}, "the limit is 127"),
        ({"topic": names.SCHEDULE_TOPIC}, "conflict with system topic"),
        ({"topic": "rmq_sys_mine"}, "conflict with system topic"),
        ({"topic": "b"}, "conflict with system topic"),
        ({"readQueueNums": -1}, "cannot have -1 read queues"),
        ({"writeQueueNums": 300_000}, "MAX_QUEUES_OF_TOPIC is 262144"),
        ({"perm": 8}, "perm=8"),
        ({"perm": -1}, "perm=-1"),
        ({"topicFilterType": "ANY"}, "MULTI_TAG or SINGLE_TAG"),
        ({"attributes": "+a=b"}, "no attribute 'a'"),
        ({"attributes": "message.type=FIFO"}, "neither"),
        ({"attributes": "+message.type=" + "x" * 5000}, "MAX_ATTRIBUTES_LENGTH is 4096"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused(
    broker: Broker, changes: dict[str, Any], why: str
) -> None:
    client = Client(broker)
    before = set(broker.topics.table.topic_config_table)
    answer = await client.ask(MAKE, {**header("new"), **changes})
    assert answer.code == ResponseCode.INVALID_PARAMETER, answer.remark
    assert why in str(answer.remark)
    assert set(broker.topics.table.topic_config_table) == before


async def test_a_list_is_made_whole_or_not_at_all(broker: Broker) -> None:
    client = Client(broker)

    def body(*topics: dict[str, Any]) -> bytes:
        return json.dumps({"topicConfigList": topics}).encode()

    good = [{"topicName": f"t{i}", "readQueueNums": i, "writeQueueNums": i} for i in range(250)]
    bad = {"topicName": "bad", "perm": 99}
    answer = await client.ask(MAKE_LIST, {}, body(*good, bad))
    assert (answer.code, "perm=99" in str(answer.remark)) == (29, True)
    assert broker.topics.get("t1") is None
    assert (await client.ask(MAKE_LIST, {}, body(*good))).code == 0
    assert (await config(client, "t249"))["readQueueNums"] == 249
    many = body(*[{"topicName": "t"}] * 2_049)
    assert "MAX_CONFIGS is 2048" in str((await client.ask(MAKE_LIST, {}, many)).remark)


async def test_who_is_no_administrator_makes_and_deletes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for code, ext in ((MAKE, header("new")), (MAKE_LIST, {}), (DELETE, {"topic": "orders"})):
            answer = await client.ask(code, ext, b"{}")
            assert answer.code == ResponseCode.NO_PERMISSION
            assert "adminFrom" in str(answer.remark)
        assert broker.topics.get("new") is None
        assert broker.topics.get("orders") is not None


async def test_all_topics_are_listed_with_their_version(broker: Broker) -> None:
    client = Client(broker)
    assert (await client.ask(MAKE, header("new"))).code == 0
    answer = await client.ask(ALL, {})
    found = json.loads(bytes(answer.body))
    assert found["topicConfigTable"].keys() == broker.topics.table.topic_config_table.keys()
    assert found["topicConfigTable"]["new"] == await config(client, "new")
    assert found["dataVersion"]["counter"] == broker.topics.data_version.counter
    assert found["topicQueueMappingDetailMap"] == {}
    system = json.loads(bytes((await client.ask(SYSTEM, {})).body))["topicList"]
    assert {"TBW102", names.SCHEDULE_TOPIC, "b"} <= set(system)
    assert "new" not in system


async def test_a_list_longer_than_a_frame_names_the_remedy(tmp_path: Path) -> None:
    async with running(tmp_path, max_frame_length=66_000, **ADMIN) as broker:
        answer = await Client(broker).ask(ALL, {})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "code 351" in str(answer.remark)


async def test_a_deleted_topic_is_gone_with_its_messages_and_offsets(tmp_path: Path) -> None:
    async with running(tmp_path, auto_create_topic_enable=False, **ADMIN) as broker:
        client = Client(broker)
        for number in range(3):
            sent = await client.ask(SEND, send_ext("orders", queueId=1), b"old %d" % number)
            assert sent.code == 0, sent.remark
        broker.offsets.commit("g", "orders", 1, 2)
        assert (tmp_path / "consumequeue" / "orders").exists()
        assert (await client.ask(DELETE, {"topic": "orders"})).code == 0
        assert not (tmp_path / "consumequeue" / "orders").exists()
        assert broker.offsets.query("g", "orders", 1) == -1
        table = json.loads((tmp_path / "config" / "topics.json").read_text())
        assert "orders" not in table["topicConfigTable"]
        answer = await client.ask(SEND, send_ext("orders"), b"x")
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        # Made again it begins again, also after its queues were built again from the log.
        assert (await client.ask(MAKE, header("orders"))).code == 0
        assert (await client.ask(SEND, send_ext("orders", queueId=1), b"new")).code == 0
    for path in (tmp_path / "consumequeue" / "orders").rglob("*"):
        path.unlink() if path.is_file() else None
    async with running(tmp_path, **ADMIN) as broker:
        pull = pull_ext("orders", queueId=1, queueOffset=0, maxMsgNums=32)
        found = records(await Client(broker).ask(PULL, pull))
        assert [record.body for record in found] == [b"new"]


async def test_a_topic_that_is_not_there_is_deleted_and_a_system_topic_is_not(
    broker: Broker,
) -> None:
    client = Client(broker)
    assert (await client.ask(DELETE, {"topic": "nowhere"})).code == 0
    for topic, why in (("", "blank"), (names.SCHEDULE_TOPIC, "system"), ("b", "system")):
        answer = await client.ask(DELETE, {"topic": topic})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert why in str(answer.remark)


class SlowDisk(RoomyDisk):
    """A disk whose next write of `queues.json` waits, or fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.go_on = threading.Event()

    def write(self, path: Path, data: bytes) -> None:
        if path.name.startswith("queues.json"):
            if self.fails:
                raise StoreError(f"{path}: no room")
            assert self.go_on.wait(WAIT_S)
        super().write(path, data)


async def test_a_slow_deletion_holds_up_nobody_and_takes_no_message(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go_on.set()
    broker = new_broker(tmp_path, disk=disk, **ADMIN)
    await broker.start()
    try:
        client = Client(broker)
        assert (await client.ask(SEND, send_ext("orders"), b"old")).code == 0
        disk.go_on.clear()
        deletion = client.send(DELETE, {"topic": "orders"})
        await until(lambda: broker.store.is_deleting("orders"))
        # Others are served meanwhile; a send to the topic is told to come again.
        assert (await client.ask(SEND, send_ext("narrow"), b"x")).code == 0
        busy = await client.ask(SEND, send_ext("orders"), b"lost?")
        assert busy.code != 0
        assert "is being deleted" in str(busy.remark)
        again = await client.ask(DELETE, {"topic": "orders"})
        assert "being deleted already" in str(again.remark)
        disk.go_on.set()
        assert (await client.answer(deletion)).code == 0
        assert broker.topics.get("orders") is None
    finally:
        disk.go_on.set()
        await broker.close()


async def test_a_deletion_that_cannot_be_noted_deletes_nothing(tmp_path: Path) -> None:
    disk = SlowDisk()
    disk.go_on.set()
    broker = new_broker(tmp_path, disk=disk, **ADMIN)
    await broker.start()
    try:
        client = Client(broker)
        assert (await client.ask(SEND, send_ext("orders"), b"kept")).code == 0
        disk.fails = True
        answer = await client.ask(DELETE, {"topic": "orders"})
        assert answer.code != 0
        assert "no room" in str(answer.remark)
        disk.fails = False
        assert (await client.ask(SEND, send_ext("orders"), b"more")).code == 0
        pull = pull_ext("orders", queueId=0, queueOffset=0, maxMsgNums=32)
        found = records(await client.ask(PULL, pull))
        assert [record.body for record in found] == [b"kept", b"more"]
    finally:
        disk.fails = False
        await broker.close()


def kept_offsets(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "config" / "consumerOffset.json").read_text())
    return found["offsetTable"]  # type: ignore[no-any-return]  # it is JSON


async def test_offsets_of_a_deleted_topic_are_off_the_disk_before_the_answer(
    tmp_path: Path,
) -> None:
    # A broker killed right behind it would have begun the topic's next life at the old offset.
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        assert (await client.ask(SEND, send_ext("orders"), b"old")).code == 0
        broker.offsets.commit("g", "orders", 0, 1)
        broker.offsets.commit("g", "narrow", 0, 0)
        assert (await client.ask(DELETE, {"topic": "orders"})).code == 0
        assert kept_offsets(tmp_path) == {"narrow@g": {"0": 0}}


async def test_files_that_do_not_go_leave_no_half_deleted_topic(tmp_path: Path) -> None:
    class Stubborn(RoomyDisk):
        fails = True

        def remove_tree(self, path: Path) -> None:
            if self.fails:
                raise StoreError(f"{path}: it does not go")
            super().remove_tree(path)

    disk = Stubborn()
    broker = new_broker(tmp_path, disk=disk, **ADMIN)
    await broker.start()
    try:
        client = Client(broker)
        assert (await client.ask(SEND, send_ext("orders"), b"old")).code == 0
        broker.offsets.commit("g", "orders", 0, 1)
        answer = await client.ask(DELETE, {"topic": "orders"})
        assert "does not go" in str(answer.remark)
        assert broker.topics.get("orders") is None
        assert broker.offsets.query("g", "orders", 0) == -1
        disk.fails = False
        assert (await client.ask(DELETE, {"topic": "orders"})).code == 0
        assert not (tmp_path / "consumequeue" / "orders").exists()
    finally:
        await broker.close()


@pytest.mark.parametrize("topic", ["..", "a/b", "t" * 30_000])
async def test_what_is_no_name_is_deleted_without_a_note(tmp_path: Path, topic: str) -> None:
    async with running(tmp_path, **ADMIN) as broker:
        assert (await Client(broker).ask(DELETE, {"topic": topic})).code == 0
        assert (tmp_path / "config").exists()
        assert (
            not (tmp_path / "queues.json").exists()
            or topic not in (json.loads((tmp_path / "queues.json").read_text())["deleted"])
        )


async def test_first_sends_whose_topic_is_deleted_wait_until_it_is_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = asyncio.Event()

    async def announced(_: Registration) -> None:
        await answered.wait()

    monkeypatch.setattr(Registration, "announced", announced)
    async with running(tmp_path, **ADMIN) as broker:
        client = Client(broker)
        sends = [client.send(SEND, send_ext("fresh"), b"%d" % number) for number in range(3)]
        await until(lambda: broker.topics.get("fresh"))
        await broker.topics.written()
        deletion = client.send(DELETE, {"topic": "fresh"})
        await until(lambda: broker.topics.get("fresh") is None)
        answered.set()
        for sent in sends:
            assert (await client.answer(sent)).code == 0
            # A broker killed now has the topic.
            assert broker.topics.is_written("fresh")
        assert (await client.answer(deletion)).code == 0
        assert broker.store.max_offset("fresh", 0) == 3
