"""Large tables of a registration, cut out of its JSON and decoded in parts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.errors import ProtocolError
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.codes import MQVersion
from cometmq.protocol.json_cuts import CHUNK_BYTES, cut_tables
from cometmq.protocol.json_dialect import encode_body
from cometmq.protocol.register_body import Sieve, decode_register_body, decode_register_steps

T = TypeVar("T")

COUNT = 3_000


def finish(steps: Generator[None, None, T], each: Callable[[], None] = lambda: None) -> T:
    while True:
        each()
        try:
            next(steps)
        except StopIteration as end:
            value: T = end.value
            return value


def large(count: int = COUNT) -> bytes:
    names = [f"topic-{n:05d}" for n in range(count)]
    mapping = {"bname": "b", "currIdMap": {"0": 0, "1": 1}, "totalQueues": 2}
    return encode_body(
        RegisterBrokerBody(
            ["h:1"],
            TopicConfigSerializeWrapper(
                topic_config_table={name: TopicConfig(name, {"+a": '{"\\,}'}) for name in names},
                topic_queue_mapping_info_map=dict.fromkeys(names, mapping),
            ),
        )
    )


PLAIN = large()
# Its tables are long enough to be cut out, and all of it is short enough to be decoded at once.
SHORTER = large(500)
BARE = PLAIN.replace(b'"0":0,"1":1', b"0:0,1:1")


def whole(data: bytes) -> RegisterBrokerBody:
    return decode_register_body(data, compressed=False, version=MQVersion.V5_3_3)


def steps(
    data: bytes, sieve: Sieve | None = None, version: int = MQVersion.V5_3_3
) -> Generator[None, None, RegisterBrokerBody]:
    more = {} if sieve is None else {"sieve": sieve}
    return decode_register_steps(data, compressed=False, version=version, **more)


@pytest.mark.parametrize("data", [PLAIN, BARE], ids=["strict", "dialect"])
def test_a_large_registration_is_decoded_a_few_topics_at_a_time(data: bytes) -> None:
    seen, most = 0, 0

    def count(_key: str, _value: object) -> bool:
        nonlocal seen
        seen += 1
        return False

    def step_ends() -> None:
        nonlocal seen, most
        most, seen = max(most, seen), 0

    assert finish(steps(data, Sieve(count, count)), step_ends) == whole(data)
    assert 0 < most < COUNT // 10


def test_the_sieve_leaves_out_what_it_says() -> None:
    decoded = finish(
        steps(PLAIN, Sieve(lambda key, _: key != "topic-00007", lambda key, _: key > "topic-00001"))
    )
    wrapper = decoded.topic_config_serialize_wrapper
    assert list(wrapper.topic_config_table) == ["topic-00007"]
    assert list(wrapper.topic_queue_mapping_info_map or {}) == ["topic-00000", "topic-00001"]


def test_the_wrapper_alone_is_cut_too() -> None:
    wrapper = whole(PLAIN).topic_config_serialize_wrapper
    decoded = finish(steps(encode_body(wrapper), version=MQVersion.V3_0_11 - 1))
    assert decoded == RegisterBrokerBody([], wrapper)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"topic-02999", b"topic\n02999"),
        (b'"topic-02998":{', b'{"topic-02998":{'),
        (b'"topic-02998":{', b',"topic-02998":{'),
        (b'"topic-02998":{', b'"topic-02998":['),
    ],
)
def test_damage_in_a_part_is_refused(old: bytes, new: bytes) -> None:
    with pytest.raises(ProtocolError):
        finish(steps(PLAIN.replace(old, new)))


def test_a_table_that_ends_with_a_comma_is_refused() -> None:
    topics = PLAIN.index(b'"topicQueueMappingInfoMap"')
    with pytest.raises(ProtocolError):
        finish(steps(PLAIN[: topics - 2] + b"," + b" " * CHUNK_BYTES + PLAIN[topics - 2 :]))


@pytest.mark.parametrize("name", ["topicConfigTable", "topicQueueMappingInfoMap"])
def test_a_table_elsewhere_is_not_taken_for_the_one_of_the_wrapper(name: str) -> None:
    table = encode_body(whole(SHORTER).topic_config_serialize_wrapper.topic_config_table)
    data = b'{"other":{"%b":%b},"topicConfigSerializeWrapper":{}}' % (name.encode(), table)
    assert finish(steps(data)) == RegisterBrokerBody()


def test_of_a_table_that_is_there_twice_the_last_counts() -> None:
    data = SHORTER.replace(
        b'"topicQueueMappingInfoMap"', b'"topicConfigTable":{"u":{}},"topicQueueMappingInfoMap"'
    )
    table = finish(steps(data)).topic_config_serialize_wrapper.topic_config_table
    assert table == {"u": TopicConfig()}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(alphabet='a"\\{}[],:é'),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('a"\\{}[],:'), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text('ab"\\{}[],:'), json_values), json_values, st.integers(2, 9))
def test_parts_and_rest_are_the_whole(table: dict[str, Any], other: object, chunk: int) -> None:
    """Texts full of signs and escapes, cut wherever a chunk ends."""
    value = {"x": other, "in": {"y": other, "table": table, "z": other}}
    data = msgspec.json.encode(value)
    cut = finish(cut_tables(data, ("table",), level=3, chunk_bytes=chunk))
    decoded = msgspec.json.decode(cut.rest)
    parts = cut.parts(decoded["in"]["table"])
    if parts is not None:
        merged: dict[str, Any] = {}
        for part in parts:
            merged |= msgspec.json.decode(part)
        decoded["in"]["table"] = merged
    assert decoded == value
    assert parts is not None or len(msgspec.json.encode(table)) <= 2 * chunk
