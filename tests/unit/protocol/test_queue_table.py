"""Maps keyed by message queues, in both forms, and the bodies that hold them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ProtocolError
from cometmq.model.queue import MessageQueue
from cometmq.protocol.bodies.consumers import (
    ConsumerRunningInfo,
    ProcessQueueInfo,
    decode_reset_offsets,
    encode_running_info,
)
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.fastjson.queue_table import (
    decode_queue_table,
    encode_queue_table,
    queue_table,
    relayed_queue_table,
)

Q0, Q1 = (MessageQueue("t", "a", i) for i in range(2))
queues = st.builds(MessageQueue, st.text(max_size=9), st.text(max_size=9), st.integers(0, 99))


@given(st.dictionaries(queues, st.integers(0, 2**63 - 1), max_size=9))
def test_what_is_written_is_read(table: dict[MessageQueue, int]) -> None:
    assert decode_queue_table(encode_queue_table("x", table), "x", int) == table


def test_keys_that_rocketmq_5_4_could_not_read_are_bare() -> None:
    assert encode_queue_table("offsetTable", {Q1: 5, Q0: 7}) == (
        b'{"offsetTable":{{"brokerName":"a","queueId":0,"topic":"t"}:7,'
        b'{"brokerName":"a","queueId":1,"topic":"t"}:5}}'
    )


def test_the_queues_of_a_running_member_are_bare_keys() -> None:
    info = ConsumerRunningInfo(
        jstack='at x("mqTable":{})', mq_table=queue_table({Q1: ProcessQueueInfo(commit_offset=3)})
    )
    body = encode_running_info(info)
    assert b'"mqTable":{{"brokerName":"a","queueId":1,"topic":"t"}:{' in body
    assert decode_body(body, ConsumerRunningInfo) == info


@pytest.mark.parametrize(
    "key",
    [
        b'{"brokerName":"a","queueId":1,"topic":"t"}',
        b'{ "topic":"t","queueId":1,"brokerName":"a"}',
        rb'"{\"brokerName\":\"a\",\"queueId\":1,\"topic\":\"t\"}"',
    ],
)
def test_bare_beans_and_texts_of_older_servers_are_read(key: bytes) -> None:
    body = b'{"a":1,"t":{%b:5}}' % key
    assert decode_queue_table(body, "t", int) == {Q1: 5}
    assert decode_queue_table(body, "u", int) == {}


def test_a_reset_comes_as_a_map_or_as_a_list() -> None:
    assert decode_reset_offsets(encode_queue_table("offsetTable", {Q0: 3})) == {Q0: 3}
    listed = b'{"offsetTable":[{"brokerName":"a","offset":4,"queueId":1,"topic":"t"}]}'
    assert decode_reset_offsets(listed) == {Q1: 4}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"offsetTable":7}', b'{"offsetTable":{"x":1}}', b'{"offsetTable":[1]}']
)
def test_damaged_tables_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_reset_offsets(body)


def test_a_relayed_table_is_read_key_by_key() -> None:
    java = ",".join(f'{{"brokerName":"b","queueId":{n},"topic":"t"}}:{n + 5}' for n in range(50))
    steps = relayed_queue_table(b'{"messageQueueTable":{%b}}' % java.encode(), "messageQueueTable")
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            table = end.value
            break
        count += 1
    assert count == 50
    again = decode_queue_table(b'{"offsetTable":%b}' % table, "offsetTable", int)
    assert again == {MessageQueue("t", "b", n): n + 5 for n in range(50)}
