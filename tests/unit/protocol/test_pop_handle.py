"""Test handles of popped messages and the texts beside them, by the examples of Java's ExtraInfoUtil."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ProtocolError
from cometmq.protocol.fastjson.dialect import decode_body, encode_body
from cometmq.protocol.limits import check_acks
from cometmq.protocol.pop import handle as ph
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.protocol.pop.handle import PopHandle

HANDLE = "100 1700000000000 60000 3 0 broker-a 2 104"
LONG = st.integers(-(2**63), 2**63 - 1)


def test_a_handle_has_eight_fields_with_blanks_between_them() -> None:
    handle = PopHandle(100, 1_700_000_000_000, 60_000, 3, "0", "broker-a", 2, 104)
    assert handle.encode() == HANDLE
    assert PopHandle.decode(HANDLE) == handle
    assert not handle.is_ordered
    assert PopHandle.decode("5 1 2 999 0 b 0 5").is_ordered


def test_old_clients_leave_the_offset_out_and_grpc_adds_the_place_in_the_log() -> None:
    seven = PopHandle.decode(HANDLE.rsplit(" ", 1)[0])
    assert (seven.offset, seven.commit_log_offset) == (-1, -1)
    assert seven.encode() + " 104" == HANDLE
    nine = PopHandle.decode(f"{HANDLE} 4711")
    assert nine.commit_log_offset == 4711
    assert nine.encode() == f"{HANDLE} 4711"


@given(
    LONG, LONG, LONG, st.integers(0, 999), st.sampled_from("012"), st.integers(0), st.integers(0)
)
def test_every_handle_is_read_as_it_was_written(
    start: int, popped: int, invisible: int, revive: int, mark: str, queue_id: int, offset: int
) -> None:
    queue_id, offset = queue_id % 2**31, offset % 2**63
    handle = PopHandle(start, popped, invisible, revive, mark, "b", queue_id, offset)
    assert PopHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2 3",
        "1 2 3 4 5 6 7 8 9 10",
        HANDLE.replace(" 0 ", " 7 "),
        HANDLE.replace("100", "x"),
        HANDLE.replace("100", "9" * 30),
        HANDLE.replace("100", "٣"),
        HANDLE.replace(" ", "  "),
        HANDLE + " 1" * 400_000,
    ],
)
def test_a_text_that_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="handle is invalid"):
        PopHandle.decode(text)


def test_the_mark_tells_the_real_topic() -> None:
    assert ph.mark_of("orders") == ph.NORMAL
    for mark, name in (("0", "t"), ("1", "%RETRY%g_t"), ("2", "%RETRY%g+t")):
        assert ph.real_topic("t", "g", mark) == name
        assert ph.mark_of(name) == mark
        assert ph.asked_topic(name, "g") == "t"
    assert ph.asked_topic("%RETRY%h_t", "g") == "%RETRY%h_t"
    with pytest.raises(ProtocolError, match="one of 0, 1 and 2"):
        ph.real_topic("t", "g", "3")


def test_offsets_are_told_by_mark_and_queue() -> None:
    starts = ";".join([ph.start_offset_entry("0", 3, 100), ph.start_offset_entry("1", 0, 7)])
    assert starts == "0 3 100;1 0 7"
    assert ph.decode_start_offsets(starts) == {("0", 3): 100, ("1", 0): 7}
    offsets = ";".join(
        [ph.msg_offset_entry("0", 3, [100, 101, 104]), ph.msg_offset_entry("1", 0, [7])]
    )
    assert offsets == "0 3 100,101,104;1 0 7"
    assert ph.decode_start_offsets("") == {}


def test_deliveries_are_counted_by_message_and_the_lowest_by_queue() -> None:
    assert ";".join(ph.order_count_entries("0", 3, [100, 101], [1, 0])) == "0 qo3%100 1;0 3 0"
    assert ph.order_count_entries("0", 3, [100, 101], [2, 3]) == [
        "0 qo3%100 2",
        "0 qo3%101 3",
        "0 3 2",
    ]
    assert ph.decode_order_counts("0 qo3%100 1;0 3 0") == {("0", "qo3%100"): 1, ("0", "3"): 0}


@pytest.mark.parametrize("text", ["0 3", "0 3 1;0 3 2", "0 3 x", "0 3 1 2", ";"])
def test_entries_have_three_parts_and_no_two_are_about_the_same(text: str) -> None:
    with pytest.raises(ProtocolError):
        ph.decode_start_offsets(text)


def test_a_batch_of_acknowledgements_has_a_bit_for_each_message() -> None:
    ack = BatchAck("g", "t", "1", 100, 2, 3, 17, 60_000, encode_bits(100, [100, 101, 104, 116]))
    # Java: BitSet.toByteArray, the lowest bit first.
    assert ack.bits == "EwAB"
    assert list(ack.offsets()) == [100, 101, 104, 116]
    body = encode_body(BatchAckMessageRequestBody("b", [ack]))
    assert b'"so":100' in body
    assert b"consumerGroup" not in body
    assert decode_body(body, BatchAckMessageRequestBody).acks == [ack]


def test_the_long_names_of_an_acknowledgement_are_read_too() -> None:
    text = (
        b'{"acks":[{"consumerGroup":"g","topic":"t","retry":"1","startOffset":100,"queueId":2,'
        b'"reviveQueueId":3,"popTime":17,"invisibleTime":60000,"bitSet":"EwAB"}]}'
    )
    (ack,) = decode_body(text, BatchAckMessageRequestBody).acks
    assert ack == BatchAck("g", "t", "1", 100, 2, 3, 17, 60_000, "EwAB")


def test_a_batch_of_acknowledgements_is_bounded() -> None:
    check_acks(BatchAckMessageRequestBody("b", [BatchAck(bits=encode_bits(0, range(4_096)))]))
    with pytest.raises(ProtocolError, match="MAX_ACKS_AT_ONCE"):
        check_acks(BatchAckMessageRequestBody("b", [BatchAck(bits=encode_bits(0, range(4_097)))]))
    with pytest.raises(ProtocolError, match="MAX_ACKS_AT_ONCE"):
        check_acks(BatchAckMessageRequestBody("b", [BatchAck()] * 4_097))
    with pytest.raises(ProtocolError, match="no Base64"):
        check_acks(BatchAckMessageRequestBody("b", [BatchAck(bits="*")]))
