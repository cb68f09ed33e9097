"""Answers to members of a group that pops, and the later deliveries of messages that they do not
acknowledge.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.own_broker import SetDisk
from tests.integration.pop_peer import (
    ACK,
    BATCH_ACK,
    CHANGE,
    NOTIFICATION,
    PEEK,
    POLLING_INFO,
    POP,
    pop_ext,
    popped,
)
from tests.unit.broker.broker_box import (
    GROUP,
    SILENT_GROUP,
    Client,
    new_broker,
    running,
    turns,
)
from tests.unit.broker.pop_calls import LONG, RETRY, SHORT, ack, again, fill, pop, seen
from tests.waits import until

from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.pop import revival
from cometmq.broker.pop import state as pop_state
from cometmq.broker.pop.changes import Hidden, Moved
from cometmq.broker.refusal import Refused
from cometmq.broker.server import Broker
from cometmq.broker.topics.topics import TopicManager
from cometmq.errors import StoreFullError
from cometmq.model import names
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.protocol.pop.handle import ORDER_QUEUE
from cometmq.runtime.clock import SYSTEM_CLOCK, SteadyClock
from cometmq.store.get import GetResult
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.store import MessageStore

EMPTY = ResponseCode.POLLING_TIMEOUT


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"maxMsgNums": 33, "topic": "absent"}, 29, "ask for 1 to 32"),
        ({"topic": "absent", "queueId": 99}, 17, "topic[absent] not exist"),
        ({"topic": "secret", "queueId": 99}, 16, "perm is 2"),
        ({"queueId": 4, "consumerGroup": "nobody"}, 29, "readQueueNums:[4]"),
        ({"consumerGroup": "nobody", "exp": "||"}, 26, "nobody"),
        ({"consumerGroup": SILENT_GROUP, "exp": "||"}, 16, "consumeEnable is false"),
        ({"invisibleTime": -1}, 29, "MAX_INVISIBLE_TIME_MS"),
        ({"exp": "||"}, 23, "parse the consumer's subscription failed"),
        ({"exp": "a > 1", "expType": "SQL92"}, 1, "enablePropertyFilter=true"),
        ({"bornTime": 1, "pollTime": 10}, 210, "timeout too much"),
    ],
)
async def test_the_first_of_several_faults_is_told(
    tmp_path: Path, fields: dict[str, Any], code: int, remark: str
) -> None:
    async with running(tmp_path, auto_create_subscription_group=False) as broker:
        answer = await Client(broker).ask(POP, pop_ext(**fields))
    assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark


async def test_messages_are_popped_once_from_all_queues(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for queue_id in range(4):
            await fill(client, 3, queueId=queue_id)
        first = await client.ask(POP, pop_ext(maxMsgNums=7))
        assert first.remark == "FOUND"
        assert first.ext["restNum"] == "5"
        assert first.ext["reviveQid"] == "0"
        messages = popped(first) + await pop(client)
        places = {(each.record.queue_id, each.record.queue_offset) for each in messages}
        assert len(places) == len(messages) == 12
        empty = await client.ask(POP, pop_ext())
        assert (empty.code, empty.ext["startOffsetInfo"]) == (EMPTY, "")


async def test_a_group_begins_where_its_first_pop_says(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=1)
        assert len(await pop(client, queueId=1, consumerGroup="low")) == 3
        # The first messages of a new topic are in memory.
        assert len(await pop(client, queueId=1, consumerGroup="new", initMode=1)) == 3


async def test_an_acknowledged_message_moves_the_groups_offset(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=1)
        messages = await pop(client, queueId=1)
        state = broker.pops.state.table.states[GROUP, "orders", 1]
        for message, committed in zip(reversed(messages), (0, 0, 3), strict=True):
            assert (await ack(client, message)).code == 0
            assert state.committed == committed
        await until(lambda: broker.offsets.query(GROUP, "orders", 1) == 3)
        # Once more, which does nothing.
        assert (await ack(client, messages[0])).code == 0


def held_revival(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let no message come again until the test sets the event that this returns."""
    read, goes_on = broker.pops.revival._read, asyncio.Event()

    async def read_then(*args: Any) -> Any:
        await goes_on.wait()
        return await read(*args)

    monkeypatch.setattr(broker.pops.revival, "_read", read_then)
    return goes_on


async def test_what_is_not_acknowledged_comes_again_from_the_retry_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=1)
        is_acknowledged = held_revival(broker, monkeypatch)
        first = await pop(client, queueId=1, invisibleTime=SHORT)
        await ack(client, first[1])
        is_acknowledged.set()
        await until(lambda: broker.pops.revival.revived_count == 2)
        found = await pop(client)
        assert sorted(each.body for each in found) == [b"0", b"2"]
        for message in found:
            assert message.record.topic == "orders"
            assert message.record.reconsume_times == 1
            assert message.handle.mark == "1"
            properties = decode_properties(message.record.properties)
            assert properties["1ST_POP_TIME"] == str(first[0].handle.pop_time)
            assert (await ack(client, message)).code == 0
        assert broker.pops.state.table.count == 0


async def test_the_last_delivery_makes_a_dead_letter(tmp_path: Path) -> None:
    """Java's broker delivers for ever, and its client drops the message."""
    async with running(tmp_path) as broker:
        client = Client(broker)
        group = broker.groups.get(GROUP)
        assert group is not None
        group.retry_max_times = 2
        await fill(client, 1)
        for times in range(3):
            (message,) = await again(client, invisibleTime=SHORT)
            assert message.record.reconsume_times == times
        dlq = names.dlq_topic(GROUP)
        await until(lambda: broker.store.max_offset(dlq, 0) == 1)
        last = broker.store.queue(dlq, 0).last_message()
        assert last is not None
        letter = broker.store.stored_record(last.physical_offset)
        assert letter is not None
        assert decode_properties(letter.properties)["RETRY_TOPIC"] == "orders"
        assert await pop(client) == []
        assert broker.pops.state.table.count == 0


async def test_a_message_is_hidden_for_longer_by_a_new_handle(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1)
        (message,) = await pop(client, invisibleTime=LONG)
        answer = await client.ask(CHANGE, message.ext(invisibleTime=2 * LONG))
        assert answer.code == 0, answer.remark
        assert answer.ext["invisibleTime"] == str(2 * LONG)
        # The old handle is dead.
        await ack(client, message)
        assert broker.pops.state.table.count == 1
        refused = await client.ask(CHANGE, message.ext(invisibleTime=LONG))
        assert (refused.code, "not in flight" in str(refused.remark)) == (208, True)
        message.handle = message.handle._replace(pop_time=int(answer.ext["popTime"]))
        await ack(client, message)
        assert broker.pops.state.table.count == 0


async def test_a_message_is_hidden_for_longer_and_keeps_its_handle_if_that_is_asked_for(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=0)
        first, second = await pop(client, invisibleTime=LONG)
        for message in (first, second):
            ext = message.ext(invisibleTime=2 * LONG, keepHandle="true")
            answer = await client.ask(CHANGE, ext)
            assert answer.ext["popTime"] == str(message.handle.pop_time)
            assert int(answer.ext["invisibleTime"]) >= 2 * LONG
        hidden = broker.pops.state.table.states[GROUP, "orders", 0].hidden
        assert min(each.until_ms for each in hidden) >= first.handle.pop_time + 2 * LONG
        assert (await ack(client, first)).code == 0
        assert [each.offset for each in hidden] == [1]
        # A consumer that hides it for longer gets a new handle, and the old one is dead.
        answer = await client.ask(CHANGE, second.ext(invisibleTime=LONG))
        assert answer.ext["popTime"] != str(second.handle.pop_time)
        await ack(client, second)
        assert len(hidden) == 1
        again = await client.ask(CHANGE, second.ext(invisibleTime=LONG, keepHandle="true"))
        assert again.code == 208


async def test_a_message_that_failed_comes_again_when_its_consumer_says(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1)
        (message,) = await pop(client, invisibleTime=LONG)
        await client.ask(CHANGE, message.ext(invisibleTime=0))
        (retried,) = await again(client)
        assert retried.record.reconsume_times == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "absent"}, 17),
        ({"queueId": 4}, 13),
        ({"queueId": -1}, 13),
        ({"offset": 2}, 208),
        ({"offset": -1}, 208),
        ({"extraInfo": "nonsense"}, 1),
    ],
)
@pytest.mark.parametrize("request_code", [ACK, CHANGE])
async def test_an_acknowledgement_of_nothing_is_refused(
    tmp_path: Path, request_code: int, fields: dict[str, Any], code: int
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1, queueId=0)
        (message,) = await pop(client)
        answer = await client.ask(request_code, message.ext(**{"invisibleTime": 1, **fields}))
        assert answer.code == code, answer.remark
        assert broker.pops.state.table.count == 1


async def test_many_are_acknowledged_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 8, queueId=0)
        messages = await pop(client)
        entry = BatchAck(
            GROUP, "orders", "0", 0, 0, 0, messages[0].handle.pop_time, LONG,
            encode_bits(0, [0, 2, 3, 7, 900]),
        )  # fmt: skip
        unknown = BatchAck(GROUP, "absent", "0", 0, 0, 0, 1, 1, "AQ==")
        body = encode_body(BatchAckMessageRequestBody("b", [entry, unknown]))
        assert (await client.ask(BATCH_ACK, {}, body)).code == 0
        hidden = broker.pops.state.table.states[GROUP, "orders", 0].hidden
        assert [each.offset for each in hidden] == [1, 4, 5, 6]
        empty = await client.ask(BATCH_ACK, {}, encode_body(BatchAckMessageRequestBody("b", [])))
        assert empty.code == 208


async def test_a_pop_selects_by_tags_and_passes_over_the_others(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        for tag in ("red", "blue", "red", "blue"):
            await fill(client, 1, queueId=0, properties=f"TAGS\x01{tag}\x02")
        messages = await pop(client, exp="blue", expType="TAG")
        assert [each.record.queue_offset for each in messages] == [1, 3]
        state = broker.pops.state.table.states[GROUP, "orders", 0]
        assert (state.next_offset, state.committed) == (4, 1)
        await fill(client, 2, queueId=0, properties="TAGS\x01red\x02")
        assert await pop(client, exp="blue") == []
        assert state.next_offset == 6


async def test_a_pop_waits_for_a_message_that_it_selects(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client, producer = Client(broker), Client(broker, 4712)
        waits = client.send(POP, pop_ext(pollTime=LONG, exp="blue"))
        await until(lambda: broker.parts.waiting.count_of_share(f"orders@{GROUP}@-1") == 1)
        info = await client.ask(
            POLLING_INFO, {"consumerGroup": GROUP, "topic": "orders", "queueId": -1}
        )
        assert info.ext["pollingNum"] == "1"
        await fill(producer, 1, properties="TAGS\x01red\x02")
        await turns()
        assert waits not in client.answers()
        await fill(producer, 1, properties="TAGS\x01blue\x02")
        (message,) = popped(await client.answer(waits))
        assert b"blue" in message.record.properties.encode()


@pytest.mark.parametrize("is_v2", [False, True])
async def test_a_message_that_comes_again_wakes_a_pop(tmp_path: Path, is_v2: bool) -> None:
    async with running(tmp_path, enable_retry_topic_v2=is_v2) as broker:
        client = Client(broker)
        await fill(client, 1)
        await pop(client, invisibleTime=SHORT)
        (message,) = popped(await client.ask(POP, pop_ext(pollTime=LONG)))
        assert message.record.reconsume_times == 1


async def test_a_poll_that_finds_nothing_ends_in_time(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        answer = await Client(broker).ask(POP, pop_ext(pollTime=100))
        assert answer.code == EMPTY


async def test_a_notification_says_when_there_is_something(tmp_path: Path) -> None:
    ext = {"consumerGroup": GROUP, "topic": "orders", "queueId": -1, "bornTime": 0}
    async with running(tmp_path) as broker:
        client, producer = Client(broker), Client(broker, 4712)
        answer = await client.ask(NOTIFICATION, {**ext, "pollTime": 0})
        assert (answer.code, answer.ext["hasMsg"]) == (0, "false")
        waits = client.send(NOTIFICATION, {**ext, "pollTime": LONG})
        await turns()
        await fill(producer, 1)
        assert (await client.answer(waits)).ext == {"hasMsg": "true", "pollingFull": "false"}
        # It has taken nothing, and no place for the group.
        assert broker.pops.state.table.states == {}
        assert broker.offsets.query(GROUP, "orders", 0) == -1


async def test_messages_in_order_wait_for_those_in_front(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 4, queueId=0)
        answer = await client.ask(POP, pop_ext(order=True, maxMsgNums=2))
        assert answer.ext["reviveQid"] == str(ORDER_QUEUE)
        assert answer.ext["orderCountInfo"] == "0 0 0"
        first, second = popped(answer)
        assert await pop(client, order=True) == []
        waits = client.send(POP, pop_ext(order=True, pollTime=LONG))
        assert (await ack(client, second)).code == 0
        await turns()
        assert waits not in client.answers()
        assert (await ack(client, first)).code == 0
        third, _ = popped(await client.answer(waits))
        assert third.record.queue_offset == 2
        # Acknowledged long ago, in another batch, not in flight.
        assert (await ack(client, first)).code == 0
        third.handle = third.handle._replace(pop_time=1)
        assert (await ack(client, third)).code == 0
        assert broker.pops.state.table.states[GROUP, "orders", 0].committed == 2
        assert (await ack(client, third, offset=4)).code == 13


async def test_messages_in_order_come_again_from_the_first_that_is_not_done(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=0)
        first, second, _ = await pop(client, order=True, invisibleTime=LONG)
        await ack(client, second)
        for message in (first, _):
            await client.ask(CHANGE, message.ext(invisibleTime=SHORT))
        answer = await client.ask(POP, pop_ext(order=True, pollTime=LONG))
        # As in Java, with those that were acknowledged behind it.
        assert [each.record.queue_offset for each in popped(answer)] == [0, 1, 2]
        assert answer.ext["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 qo0%2 1;0 0 1"


async def test_a_group_may_pop_in_order_and_without_order_in_turn(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 6, queueId=0)
        in_order = await pop(client, order=True, maxMsgNums=3)
        await ack(client, in_order[1])
        (fourth,) = await pop(client, maxMsgNums=1)
        assert fourth.record.queue_offset == 3
        state = broker.pops.state.table.states[GROUP, "orders", 0]
        assert [each.offset for each in state.hidden] == [0, 2, 3]
        assert (await ack(client, in_order[0])).code == 0
        assert [each.record.queue_offset for each in await pop(client, order=True)] == [4, 5]
        assert (state.committed, [each.offset for each in state.hidden]) == (2, [2, 3])


async def test_a_repeated_attempt_gets_the_lost_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=0)
        fields: dict[str, Any] = {"order": True, "attemptId": "a"}
        assert len(await pop(client, **fields)) == 2
        repeated = await client.ask(POP, pop_ext(**fields))
        assert len(popped(repeated)) == 2
        assert repeated.ext["orderCountInfo"] == "0 0 0"
        assert await pop(client, order=True, attemptId="b") == []


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_start_finds_what_is_in_flight(tmp_path: Path, rounds: int) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 5, queueId=0)
        await fill(client, 3, queueId=1)
        messages = await pop(client, queueId=0, invisibleTime=LONG)
        await ack(client, messages[1])
        in_order = await pop(client, queueId=1, order=True)
        await ack(client, in_order[0])
        for _ in range(rounds):
            while broker.pops.state.log.step():
                pass
        before = seen(broker)
    async with running(tmp_path) as broker:
        client = Client(broker)
        assert seen(broker) == before
        assert (broker.pops.state.log.start > 0) is bool(rounds)
        assert await pop(client) == []
        assert (await ack(client, messages[0])).code == 0
        assert broker.pops.state.table.states[GROUP, "orders", 0].committed == 2


async def test_a_reset_gives_popped_messages_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 4, queueId=0)
        old = await pop(client, queueId=0)
        # A pop of the same millisecond has the same handle.
        popped_ms = SYSTEM_CLOCK.now_ms()
        await until(lambda: SYSTEM_CLOCK.now_ms() > popped_ms)
        broker.offsets.reset(GROUP, "orders", 0, 2)
        fresh = await pop(client, queueId=0)
        assert [each.record.queue_offset for each in fresh] == [2, 3]
        # The handles from before the reset acknowledge nothing behind it.
        await ack(client, old[3])
        hidden = broker.pops.state.table.states[GROUP, "orders", 0].hidden
        assert [each.offset for each in hidden] == [0, 1, 2, 3]


async def test_a_deleted_topic_leaves_nothing_in_flight(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 4)
        await pop(client)
        broker.topics.remove("orders")
        assert broker.pops.state.table.states == {}


async def test_nothing_is_written_where_no_group_pops(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await fill(Client(broker), 1)
        assert broker.topics.get(names.POP_LOG_TOPIC) is None
        assert broker.pops.state.table.next_due_ms() == 2**63 - 1


async def test_a_kill_amid_copies_leaves_each_message_in_one_place(tmp_path: Path) -> None:
    """The record that announces three copies is there, and only the first copy."""
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=0)
        await pop(client, invisibleTime=LONG)
        state = broker.pops.state
        queue = broker.store.queue(RETRY, 0)
        first = broker.store.queue("orders", 0).unit(0)
        assert first is not None
        state.log.announce(Moved((GROUP, "orders", 0), [0, 1, 2], RETRY, 0, queue.next_offset))
        broker.topics.create_for_group(RETRY, 1)
        record = broker.store.stored_record(first.physical_offset)
        assert record is not None
        copy = IncomingMessage.again(record, {})
        copy.topic, copy.queue_id = RETRY, 0
        copy.prepared_transaction_offset = first.physical_offset
        copy.append_to(broker.store)
        await broker.topics.written()
    async with running(tmp_path) as broker:
        hidden = broker.pops.state.table.states[GROUP, "orders", 0].hidden
        assert [each.offset for each in hidden] == [1, 2]


async def test_a_full_disk_delays_what_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=0)
        await pop(client, invisibleTime=LONG)
        append = broker.store.append
        copies = 0

        def full(queue: ConsumeQueue, *args: Any, **more: Any) -> tuple[int, int]:
            nonlocal copies
            if queue.topic == RETRY:
                copies += 1
                if copies == 2:
                    raise StoreFullError("the disk is full")
            return append(queue, *args, **more)

        monkeypatch.setattr(broker.store, "append", full)
        monkeypatch.setattr(revival, "_PAUSE_MS", 1)
        state = broker.pops.state
        state.write(
            *(
                Hidden((GROUP, "orders", 0), n, found.popped_ms, 0, 0)
                for n, found in enumerate(list(state.table.states[GROUP, "orders", 0].hidden))
            )
        )
        await until(lambda: broker.pops.revival.revived_count == 3)
        messages = await pop(client)
        assert sorted(each.body for each in messages) == [b"0", b"1", b"2"]
        assert {each.record.reconsume_times for each in messages} == {1}


async def test_what_a_pop_cannot_write_it_does_not_hand_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1)
        assert len(await pop(client)) == 1
        await fill(client, 1)
        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "append", fail)
            assert (await client.ask(POP, pop_ext())).code == ResponseCode.SYSTEM_ERROR
        assert len(await pop(client)) == 1


def fail(*_: Any, **__: Any) -> None:
    raise StoreFullError("the disk is full")


async def test_an_acknowledgement_waits_for_the_disk(tmp_path: Path) -> None:
    store = {"flush_disk_type": "SYNC_FLUSH"}
    async with running(tmp_path, store=store) as broker:
        client = Client(broker)
        await fill(client, 2)
        messages = await pop(client)
        assert broker.store.flushed_offset == broker.store.commit_log.end
        assert (await ack(client, messages[0])).code == 0
        assert broker.store.flushed_offset == broker.store.commit_log.end


async def test_a_round_is_written_before_the_file_goes_that_a_start_would_read(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=0)
        await pop(client)
        state = broker.pops.state
        end = broker.store.commit_log.end
        assert state.roll(0) == 0
        while state.roll(end):
            pass
        assert state.log.start == 1
        before = seen(broker)
    async with running(tmp_path) as broker:
        assert seen(broker) == before


async def test_an_acknowledgement_that_is_asked_for_again_waits_for_the_disk_too(
    tmp_path: Path,
) -> None:
    """It had nothing left to change, and was answered before the first one was safe."""
    disk = SetDisk()
    broker = new_broker(tmp_path, store={"flush_disk_type": "SYNC_FLUSH"}, disk=disk)
    await broker.start()
    try:
        client = Client(broker)
        await fill(client, 1)
        (message,) = await pop(client)
        disk.may_sync.clear()
        asked = [client.send(ACK, message.ext()) for _ in range(2)]
        await turns()
        assert not client.answers().keys() & set(asked)
        disk.may_sync.set()
        assert [(await client.answer(each)).code for each in asked] == [0, 0]
    finally:
        disk.may_sync.set()
        await broker.close()


async def test_an_offset_is_committed_when_the_disk_has_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups' table reached the disk before the log: after a loss of power it said of messages that they were
    done, whose pops and copies the log had lost.
    """
    monkeypatch.setattr(pop_state, "_COMMIT_PERIOD_S", 0.01)
    disk = SetDisk()
    broker = new_broker(tmp_path, disk=disk)
    await broker.start()
    try:
        client = Client(broker)
        disk.may_sync.clear()
        await fill(client, 1, queueId=0)
        (message,) = await pop(client)
        assert (await ack(client, message)).code == 0
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert broker.offsets.query(GROUP, "orders", 0) <= 0
        disk.may_sync.set()
        await until(lambda: broker.offsets.query(GROUP, "orders", 0) == 1)
    finally:
        disk.may_sync.set()
        await broker.close()


async def test_the_front_of_a_batch_stays_acknowledged(tmp_path: Path) -> None:
    """It came again for ever, unless it was acknowledged last."""
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 3, queueId=0)
        first, second, third = await pop(client, order=True)
        assert (await ack(client, first)).code == 0
        for message in (second, third):
            await client.ask(CHANGE, message.ext(invisibleTime=SHORT))
        answer = await client.ask(POP, pop_ext(order=True, pollTime=LONG))
        assert [each.record.queue_offset for each in popped(answer)] == [1, 2]
        assert broker.pops.state.table.states[GROUP, "orders", 0].committed == 1


async def test_a_new_handle_says_until_when_the_message_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change within the millisecond of the pop hid the message for one less than it answered."""
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1)
        (message,) = await pop(client)
        popped_ms = message.handle.pop_time
        monkeypatch.setattr(SteadyClock, "now_ms", lambda _self: popped_ms)
        answer = await client.ask(CHANGE, message.ext(invisibleTime=LONG))
        (state,) = broker.pops.state.table.states.values()
        (hidden,) = state.hidden
        assert hidden.until_ms == int(answer.ext["popTime"]) + int(answer.ext["invisibleTime"])
        assert hidden.popped_ms == popped_ms + 1


async def test_a_damaged_message_is_named_and_stays_in_its_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=0)
        damaged = [b"0"]
        monkeypatch.setattr(
            revival, "body_is_intact", lambda record: bytes(record.body) not in damaged
        )
        with capture_logs() as lines:
            await pop(client, invisibleTime=SHORT)
            (other,) = await again(client)
        assert other.body == b"1"
        (line,) = [each for each in lines if each["event"].startswith("messages in flight cannot")]
        assert (line["offsets"], "checksums" in line["reason"]) == ([0], True)
        assert broker.pops.revival.lost_count == 1
        assert broker.store.min_offset("orders", 0) == 0
        assert await pop(client, consumerGroup="others")


async def test_a_pop_of_a_wide_topic_reads_the_queues_that_have_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read each of 4,096 queues, which held up the loop for 32 ms."""
    reads: list[int] = []
    original = MessageStore.get

    def get(self: MessageStore, topic: str, queue_id: int, *args: Any, **named: Any) -> GetResult:
        reads.append(queue_id)
        return original(self, topic, queue_id, *args, **named)

    monkeypatch.setattr(MessageStore, "get", get)
    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 2, queueId=2)
        assert len(await pop(client, maxMsgNums=1)) == 1
        assert len(await pop(client, maxMsgNums=1)) == 1
        assert await pop(client) == []
        assert (await client.ask(PEEK, pop_ext())).code == ResponseCode.PULL_NOT_FOUND
    assert reads == [2, 2]


async def test_a_retry_topic_that_cannot_be_written_down_delays_what_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ended the task, and nothing came again until the broker was restarted: seed 500254."""
    monkeypatch.setattr(revival, "_PAUSE_MS", SHORT)
    failed: list[str] = []
    written = TopicManager.written

    async def fails_twice(self: TopicManager) -> None:
        if len(failed) < 2:
            failed.append("no room")
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "a new topic cannot be written")
        await written(self)

    async with running(tmp_path) as broker:
        client = Client(broker)
        await fill(client, 1)
        goes_on = held_revival(broker, monkeypatch)
        await pop(client, invisibleTime=SHORT)  # before the patch, since a pop calls `written`, too
        monkeypatch.setattr(TopicManager, "written", fails_twice)
        is_written = TopicManager.is_written
        monkeypatch.setattr(
            TopicManager,
            "is_written",
            lambda self, name: (name != RETRY or len(failed) > 1) and is_written(self, name),
        )
        goes_on.set()
        (message,) = await again(client)
        assert message.record.reconsume_times == 1
        assert len(failed) == 2
