"""The short way through an answer to a pull gives what the long one gives, or nothing."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.protocol.test_record import PLAIN, encode, record_fields

from cometmq.client.cluster.broker_api import PullAnswer
from cometmq.client.pulling import received
from cometmq.client.pulling.received import Received, decode_messages
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import PullStatus
from cometmq.model.sysflag import COMPRESSED
from cometmq.protocol.headers import PullMessageResponseHeader
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.messages.plain_records import plain_messages

QUEUE = MessageQueue("orders", "broker-a", 3)
SLOTS = [slot for cls in MessageExt.__mro__ for slot in getattr(cls, "__slots__", ())]


def plain(records: bytes) -> list[MessageExt] | None:
    return plain_messages(records, "orders", "broker-a", 3, 10, 90, "0", "90")


def decoded(records: bytes) -> Received:
    header = PullMessageResponseHeader(
        suggest_which_broker_id=0, next_begin_offset=40, min_offset=0, max_offset=90
    )
    return decode_messages(PullAnswer(PullStatus.FOUND, header, records), QUEUE, 10, "g")


def the_long_way(records: bytes) -> Received:
    with patch.object(received, "plain_messages", lambda *_: None):
        return decoded(records)


def contents(messages: list[MessageExt]) -> list[dict[str, Any]]:
    return [{slot: getattr(message, slot) for slot in SLOTS} for message in messages]


def altered(**fields: Any) -> bytes:
    return encode({**PLAIN, **fields})


SEVERAL = b"".join(
    altered(queue_offset=17 + i, physical_offset=4096 * i, body=b"b" * i, flag=i) for i in range(5)
)

properties = st.lists(
    st.tuples(
        st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "\u00e9", ""]), st.text(max_size=4)
    ),
    max_size=5,
).map(lambda entries: "\x02".join(f"{name}\x01{value}" for name, value in entries))
near_plain = st.fixed_dictionaries(
    {},
    optional={
        "body": st.binary(max_size=20),
        "properties": properties,
        "queue_offset": st.integers(8, 92),
        "sys_flag": st.sampled_from([0, 4, COMPRESSED]),
        "topic": st.sampled_from(["orders", "order", "orders2"]),
        "queue_id": st.sampled_from([3, 4]),
        "born_host": st.sampled_from([pack_host("10.0.0.9", 1), pack_host("::1", 1)]),
    },
)


@given(st.lists(near_plain, max_size=4))
def test_both_ways_give_the_same_messages(records: list[dict[str, Any]]) -> None:
    data = b"".join(altered(**fields) for fields in records)
    found, long = plain(data), the_long_way(data)
    if found is not None:
        assert contents(found) == contents(long.messages)
        assert not long.damaged
    assert contents(decoded(data).messages) == contents(long.messages)


@given(st.lists(record_fields, max_size=3))
def test_any_records_give_the_same_messages_or_none(records: list[dict[str, Any]]) -> None:
    data = b"".join(map(encode, records))
    found = plain(data)
    assert found is None or contents(found) == contents(the_long_way(data).messages)


@given(st.integers(0, len(SEVERAL) - 1), st.binary(min_size=1, max_size=8), st.booleans())
def test_damage_gives_the_same_messages_or_none(at: int, new: bytes, is_cut: bool) -> None:
    data = SEVERAL[:at] if is_cut else SEVERAL[:at] + new + SEVERAL[at + len(new) :]
    found, long = plain(data), the_long_way(data)
    if found is not None:
        assert contents(found) == contents(long.messages)
        assert not long.damaged


def test_plain_records_go_the_short_way() -> None:
    found = plain(SEVERAL)
    assert found is not None
    assert [message.queue_offset for message in found] == [17, 18, 19, 20, 21]
    assert found[0].msg_id == "ID7"
    assert found[0].properties["MAX_OFFSET"] == "90"


@pytest.mark.parametrize(
    "data",
    [
        altered(topic="others"),
        altered(topic="t" * 130),
        altered(queue_id=4),
        altered(queue_offset=9),
        altered(queue_offset=90),
        altered(sys_flag=COMPRESSED),
        altered(store_host=pack_host("::1", 10911)),
        altered(properties="UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02"),
        SEVERAL[:-1],
        SEVERAL[:100].replace(b"body", b"bode"),
    ],
)
def test_any_doubt_ends_the_short_way(data: bytes) -> None:
    assert plain(data) is None
    assert plain(SEVERAL + data) is None
