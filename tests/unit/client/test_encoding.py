"""Send requests: ext fields, ids, compression, batches."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.batches import decode_batch

from cometmq.client.producing.encoding import MessageEncoder, batch_size, split_batches
from cometmq.client.producing.selectors import select_by_hash
from cometmq.errors import IllegalArgumentError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.headers import SendMessageRequestHeaderV2
from cometmq.protocol.messages.compression import CompressionType, decompress
from cometmq.protocol.messages.ids import UniqueIdGenerator
from cometmq.protocol.messages.properties import decode_properties
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

QUEUE = MessageQueue("t", "b", 3)


def encoder(**options: object) -> MessageEncoder:
    ids = UniqueIdGenerator(
        bytes([127, 0, 0, 1]),
        now_ms=SYSTEM_CLOCK.now_ms,
        randbytes=SYSTEM_RANDOMNESS.randbytes,
    )
    return MessageEncoder("g", ids, **options)  # type: ignore[arg-type]  # a dict of options of several types


def header(command: object) -> SendMessageRequestHeaderV2:
    return command.header(SendMessageRequestHeaderV2)  # type: ignore[attr-defined,no-any-return]  # a command of ours, not the interface


async def test_a_message_becomes_a_v2_request() -> None:
    message = Message("t", b"x", tags="a", keys=["k1", "k2"], flag=5, properties={"p": "é"})
    outgoing = await encoder(default_topic_queue_nums=8).encode(message)
    command = outgoing.command(QUEUE)
    fields = header(command)
    assert command.code == RequestCode.SEND_MESSAGE_V2
    assert command.body == b"x"
    assert (fields.producer_group, fields.topic, fields.queue_id) == ("g", "t", 3)
    assert (fields.default_topic, fields.default_topic_queue_nums) == ("TBW102", 8)
    assert (fields.sys_flag, fields.flag, fields.batch) == (0, 5, False)
    assert (fields.reconsume_times, fields.unit_mode) == (0, False)
    assert abs(fields.born_timestamp - time.time() * 1000) < 60_000
    properties = decode_properties(fields.properties or "")
    assert properties == {
        "TAGS": "a",
        "KEYS": "k1 k2",
        "p": "é",
        "UNIQ_KEY": message.unique_id,
        "WAIT": "true",
    }


async def test_every_attempt_carries_the_same_id() -> None:
    message = Message("t", b"x", wait_store_ok=False)
    first = await encoder().encode(message)
    second = await encoder().encode(message)
    assert first.unique_id == second.unique_id == message.unique_id
    assert decode_properties(header(first.command(QUEUE)).properties or "")["WAIT"] == "false"


@pytest.mark.parametrize("kind", list(CompressionType))
@pytest.mark.parametrize("size", [4096, 300_000])
async def test_large_bodies_are_compressed(kind: CompressionType, size: int) -> None:
    body = (b"0123456789" * size)[:size]
    outgoing = await encoder(compression=kind).encode(Message("t", body))
    sys_flag = header(outgoing.command(QUEUE)).sys_flag
    assert sys_flag == kind.sys_flag
    assert len(outgoing.body) < len(body)
    assert decompress(outgoing.body, sys_flag, max_length=size) == body


async def test_small_and_incompressible_bodies_travel_as_they_are() -> None:
    for body in (b"0" * 4095, os.urandom(8192)):
        outgoing = await encoder().encode(Message("t", body))
        assert outgoing.body == body
        assert header(outgoing.command(QUEUE)).sys_flag == 0


def test_a_batch_holds_its_messages_each_with_an_id() -> None:
    messages = [Message("t", b"%d" % i, tags=f"t{i}", flag=i) for i in range(3)]
    outgoing = encoder().encode_batch(messages)
    command = outgoing.command(QUEUE)
    fields = header(command)
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    assert fields.batch is True
    assert set(decode_properties(fields.properties or "")) == {"WAIT"}
    entries = decode_batch(bytes(command.body))
    assert [(e.flag, e.body) for e in entries] == [(i, b"%d" % i) for i in range(3)]
    ids = [decode_properties(e.properties.decode())["UNIQ_KEY"] for e in entries]
    assert ids == [m.unique_id for m in messages]
    assert outgoing.unique_id == ",".join(ids)


@given(st.lists(st.integers(1, 500), max_size=50), st.integers(700, 3000))
def test_split_batches_keep_order_and_limit(sizes: list[int], max_bytes: int) -> None:
    messages = [Message("t", bytes(size), tags="tag", keys=["é"]) for size in sizes]
    batches = split_batches(messages, max_bytes)
    assert [m for batch in batches for m in batch] == messages
    assert all(batches)
    for batch in batches:
        assert len(encoder().encode_batch(batch).body) <= max_bytes


def test_a_message_too_large_for_any_batch_is_refused() -> None:
    message = Message("t", bytes(1000))
    with pytest.raises(IllegalArgumentError, match="send it alone"):
        split_batches([message], 1000)
    assert split_batches([message], batch_size(message)) == [[message]]


def test_keys_select_as_java_does() -> None:
    queues = [MessageQueue("t", "b", i) for i in range(8)]
    message = Message("t", b"x")
    # "TagA".hashCode() is 2598919; the hash of "polygenelubricants" is Integer.MIN_VALUE.
    assert select_by_hash(queues, message, "TagA").queue_id == 2598919 % 8
    assert select_by_hash(queues, message, 13).queue_id == 5
    assert select_by_hash(queues, message, -13).queue_id == 5
    assert select_by_hash(queues, message, "polygenelubricants").queue_id == 0
    assert select_by_hash(queues, message, 2**40) == select_by_hash(queues, message, str(2**40))


@pytest.mark.real_time
async def test_compressing_leaves_the_loop_free() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.get_running_loop().create_task(count())
    await encoder().encode(Message("t", os.urandom(2_000_000)))
    counting.cancel()
    assert turns > 1  # compressing on the loop would leave it no turn at all
