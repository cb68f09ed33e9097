from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.growth import FACTOR, check_growth, cpu_seconds
from tests.json_text import decode_request, pretty
from tests.waits import PROCESS_WAIT_S

from cometmq.errors import ProtocolError
from cometmq.model.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.protocol.bodies.cluster import (
    ConsumerOffsetSerializeWrapper,
    HeartbeatData,
    TopicConfigSerializeWrapper,
)
from cometmq.protocol.fastjson import dialect as json_dialect
from cometmq.protocol.fastjson import keys as json_keys
from cometmq.protocol.fastjson import short_keys as json_short_keys
from cometmq.protocol.fastjson.dialect import (
    MAX_DIALECT_REQUEST_LENGTH,
    decode_body,
    encode_body,
    encode_strict_sorted,
    pretty_pieces,
)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
# Neither null nor floats (whose texts differ), and no key that would be a reference.
values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | texts,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts.filter("$ref".__ne__), inner, max_size=4)
    ),
    max_leaves=12,
)


def dialect(value: Any) -> str:
    """Return JSON with every integer-like key unquoted, and every key that is a bean's JSON without
    its quotes.
    """
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{dialect_key(key)}:{dialect(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(dialect, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def dialect_key(key: str) -> str:
    return key if key.lstrip("-").isdecimal() or key.startswith('{"') else json.dumps(key)


@given(values)
def test_strict_json_comes_back(value: Any) -> None:
    assert decode_body(encode_body(value), object) == value
    assert decode_body(encode_strict_sorted(value), object) == value
    assert decode_body(pretty(value).encode(), object) == value


number_keys = st.integers(-(10**6), 10**6).map(str)
bean_keys = st.fixed_dictionaries({"brokerName": texts, "queueId": st.integers(0, 9)}).map(
    lambda bean: json.dumps(bean, ensure_ascii=False, separators=(",", ":"))
)


@given(
    st.recursive(
        st.integers() | texts,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(number_keys | texts.filter(str.isalpha), inner, max_size=4)
            # The keys of a Java map are of one type.
            | st.dictionaries(bean_keys, inner, max_size=4)
        ),
        max_leaves=10,
    )
)
def test_the_dialect_reads_as_strict_json_would(value: Any) -> None:
    text = dialect(value)
    try:
        expected = decode_body(json.dumps(value).encode(), object)
    except ProtocolError:  # an integer beyond 64 bits
        return
    assert decode_body(text.encode(), object) == expected


def test_integer_keys_without_quotes() -> None:
    route = decode_body(
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1 :"10.0.0.2:10911"},'
        b'"brokerName":"a","cluster":"c","enableActingMaster":false}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"topicSysFlag":0,'
        b'"writeQueueNums":8}]}',
        TopicRouteData,
    )
    assert route == TopicRouteData(
        [BrokerData("a", "c", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})],
        [QueueData("a", 4, 8, 6, 0)],
    )


def test_negative_and_large_integer_keys() -> None:
    assert decode_body(b"{-1:1,9223372036854775807:2}", dict[int, int]) == {-1: 1, 2**63 - 1: 2}


def test_offsets_as_java_writes_its_file() -> None:
    text = b'{\n\t"offsetTable":{\n\t\t"t@g":{0:250,1:7\n\t\t}\n\t}\n}'
    assert decode_body(text, ConsumerOffsetSerializeWrapper).offset_table == {"t@g": {0: 250, 1: 7}}


def test_a_bean_as_key_becomes_its_json() -> None:
    body = b'{"offsetTable":{{"brokerName":"b\\"}","queueId":0,"topic":"t"}:{"maxOffset":5}}}'
    (key,) = decode_body(body, dict[str, dict[str, Any]])["offsetTable"]
    assert json.loads(key) == {"brokerName": 'b"}', "queueId": 0, "topic": "t"}


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("$.a", {"x": 1, "list": [[1], {"y": 2}]}),
        ("$.a.list[1]", {"y": 2}),
        ("$.a.list[0]", [1]),
        ("$.odd\\\\.name", "o"),
        ("$.numbers[7]", "seven"),
        ("$.b", {"x": 1, "list": [[1], {"y": 2}]}),  # itself a reference
    ],
)
def test_a_reference_stands_for_what_stands_there(path: str, target: object) -> None:
    body = (
        b'{"a":{"x":1,"list":[[1],{"y":2}]},"odd.name":"o","numbers":{7:"seven"},'
        b'"b":{"$ref":"$.a"},"c":{"$ref":"%b"}}' % path.encode()
    )
    assert decode_body(body, dict[str, Any])["c"] == target


def test_a_reference_in_a_typed_body_is_not_taken_for_an_empty_bean() -> None:
    broker = b'{"brokerAddrs":{0:"h:1"},"brokerName":"a","cluster":"c"}'
    info = decode_body(
        b'{"brokerAddrTable":{"a":%b,"b":{"$ref":"$.brokerAddrTable.a"}}}' % broker, ClusterInfo
    )
    assert info.broker_addr_table["b"] == BrokerData("a", "c", {0: "h:1"})


@pytest.mark.parametrize(
    "path", ["$", "..", "@", "", "$.none", "$.a.b", "$.a[0]", "$.l[9]", "$.l.x", "$a", "$.l[0]junk"]
)
def test_a_reference_to_nothing_is_refused(path: str) -> None:
    body = b'{"a":1,"l":[1],"c":{"$ref":"%b"}}' % path.encode()
    with pytest.raises(ProtocolError, match="where nothing stands"):
        decode_body(body, dict[str, Any])


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":{"$ref":"$.a"}}',
        b'{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        b'{"a":{"b":{"$ref":"$.a"}}}',
    ],
)
def test_a_reference_to_what_holds_it_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError, match="too deeply"):
        decode_body(body, dict[str, Any])


def test_references_to_references_may_not_multiply() -> None:
    body: dict[str, Any] = {"a0": [0] * 10}
    for i in range(1, 12):
        body[f"a{i}"] = [{"$ref": f"$.a{i - 1}"}] * 10
    with pytest.raises(ProtocolError, match="repeat more than"):
        decode_body(json.dumps(body).encode(), dict[str, Any])


def test_a_null_counts_as_missing() -> None:
    body = b'{"clientID":"c","consumerDataSet":null,"producerDataSet":[{"groupName":"g","x":null}]}'
    heartbeat = decode_body(body, HeartbeatData)
    assert heartbeat.consumer_data_set == []
    assert heartbeat.producer_data_set[0].group_name == "g"


def test_a_null_beside_the_dialect() -> None:
    body = b'{"queueDatas":null,"brokerDatas":[{"brokerName":"a","brokerAddrs":{0:"h"}}]}'
    assert decode_body(body, TopicRouteData) == TopicRouteData([BrokerData("a", "", {0: "h"})])


def test_numbers_may_come_as_texts() -> None:
    """The Go client sends the codes of tags like this."""
    body = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
        b'[{"topic":"t","subString":"TagA","tagsSet":["TagA"],"codeSet":["2598919"],'
        b'"subVersion":1}]}]}'
    )
    (subscription,) = decode_body(body, HeartbeatData).consumer_data_set[0].subscription_data_set
    assert subscription.code_set == [2598919]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "truncated"),
        (b" ", "truncated"),
        (b"{", "truncated"),
        (b'{"brokerDatas":5}', "array"),
        (b'{"brokerDatas":[{}]}', "brokerName"),
        (b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"x":"h"}}]}', "int"),
        (b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{x:"h"}}]}', "int"),
        (b'{"brokerDatas":[{"brokerName":"\xff"}]}', "utf-8"),
        (b'{"brokerDatas":[{"brokerName":"\\ud800"}]}', "no TopicRouteData"),
        (b'{"queueDatas":[{"brokerName":"a","perm":99999999999999999999}]}', "int|range"),
        (b'{"queueDatas":[{"brokerName":"a","perm":%b}]}' % (b"9" * 5000), "int|range"),
        (b'{"queueDatas":[{"brokerName":"a","perm":1.5}]}', "int"),
        (b'{"a":1}}', "no TopicRouteData"),
        (b'{{"a":1}:1}}', "no TopicRouteData"),
        (b'{"a":1} x', "no TopicRouteData"),
        (b'{"a', "begins at 1 and does not end"),
        (b'{"a":"\\"', "does not end"),
        (b'{"a\\', "does not end"),
        (b'{{"a', "does not end"),
        (b'{{"a":"\\"', "does not end"),
        (b'{{"a\\', "does not end"),
        (b'{\0"a":1}', "no TopicRouteData"),
        (b'{"a\0":1,\0:1}', "no TopicRouteData"),
        (b"\0", "no TopicRouteData"),
        (b"{[1]:2}", "key"),
        (b"{{{1:1}:1}:1}", "key"),
        (b'{{"a":{{"b":1}:2}}:3}', "key"),
        (b'{"a" {"b":1}}', "no TopicRouteData"),
        (b"{1 2:3}", "no TopicRouteData"),
        (b"{a b}", "no TopicRouteData"),
        (b"[{:1}]", "no TopicRouteData"),
        (b"{,}", "no TopicRouteData"),
        (b"[1,]", "no TopicRouteData"),
        (b"]", "no TopicRouteData"),
        (b"]{{", "no TopicRouteData"),
    ],
)
def test_what_is_no_route_is_refused_with_a_reason(body: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        decode_body(body, TopicRouteData)


@pytest.mark.parametrize("opener", [b"[", b'{"a":', b'{"a":[', b"{", b"{1:", b'{{"a":'])
@pytest.mark.parametrize("type_", [object, TopicRouteData])
@pytest.mark.parametrize("depth", [65, 500, 50_000])
def test_deep_nesting_is_refused(opener: bytes, type_: type, depth: int) -> None:
    with pytest.raises(ProtocolError):
        decode_body(opener * depth, type_)


def test_deep_nesting_under_an_unknown_key_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode_body(b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}", TopicRouteData)


def test_what_the_dialect_may_cost_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_keys, "MAX_DIALECT_TOKENS", 3)
    long = b'"x":"%b"' % (b"x" * json_short_keys.MAX_LENGTH)
    assert decode_body(b"{0:1,%b}" % long, dict[str, Any])["0"] == 1
    with pytest.raises(ProtocolError, match=r"has 4 words.*MAX_DIALECT_TOKENS is 3.*strict JSON"):
        decode_body(b"{0:1,1:1,%b}" % long, dict[str, Any])


def quoted(quote: Callable[[bytes], bytes], body: bytes) -> bytes | str:
    try:
        return quote(body)
    except ProtocolError as error:
        return str(error)


_TOKENS = [
    *(bytes([each]) for each in b'{}[]:,"\\ \n\t\0a0-~^\x7f\xff'),
    *(b'\\"', b"\\\\", b'"x"', b'"k":', b"}:", b"]:", b"{a:1}:", b'{{"queueId":0}:1}', b"null"),
]


@settings(max_examples=2_000)
@given(st.lists(st.sampled_from(_TOKENS), min_size=1, max_size=14).map(b"".join))
def test_short_bodies_are_read_as_long_ones(body: bytes) -> None:
    assert quoted(json_short_keys.quote_short_keys, body) == quoted(json_keys.quote_keys, body)


@pytest.mark.parametrize(
    "part", [b"1:1,", b"{a:1}:2,", b"a :1,", b'""', b"[]", b" ", b"a", b'\\"', b"{", b"}:", b'"']
)
def test_the_time_for_short_bodies_grows_with_their_length(part: bytes) -> None:
    def cost_of(length: int) -> float:
        body = (b"{" + part * length)[:length]
        return cpu_seconds(
            lambda: [quoted(json_short_keys.quote_short_keys, body) for _ in range(5)]
        )

    check_growth(cost_of, json_short_keys.MAX_LENGTH // FACTOR, floor_s=0.01)


def test_the_first_short_body_in_the_dialect_loaded_numpy() -> None:
    code = (
        "import sys\n"
        "from cometmq.protocol.bodies.cluster import HeartbeatData\n"
        "from cometmq.protocol.fastjson.dialect import decode_body\n"
        'body = b\'{clientID:"c",producerDataSet:[{groupName:"g"}]}\'\n'
        "assert decode_body(body, HeartbeatData, max_dialect_length=1 << 18).producer_data_set[0].group_name == 'g'\n"
        "sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PROCESS_WAIT_S)


def test_nulls_and_references_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_dialect, "MAX_TREE_VALUES", 4)
    assert decode_body(b'{"a":1,"b":null,"c":{}}', dict[str, Any]) == {"a": 1, "b": None, "c": {}}
    assert decode_body(b'{"clientID":"c","consumerDataSet":null}', HeartbeatData)
    for body in (
        b'{"clientID":"c","producerDataSet":[{"groupName":"g","x":1},null]}',
        b'{"a":{"$ref":"$.b"},"b":[1,2]}',
    ):
        with pytest.raises(ProtocolError, match="MAX_TREE_VALUES is 4; leave the nulls out"):
            decode_body(body, HeartbeatData)


def test_what_any_client_may_send_has_fewer_values_if_it_has_nulls_or_references() -> None:
    values = b"[]," * 80_000 + b"1"
    body = (
        b'{"clientID":"c","producerDataSet":null,"a":[' + values + b'],"b":{"$ref":"$.clientID"}}'
    )
    with pytest.raises(
        ProtocolError, match=r"MAX_REQUEST_TREE_VALUES is 20000; leave the nulls out"
    ):
        decode_request(body, HeartbeatData)
    assert decode_body(body, HeartbeatData).client_id == "c"


@given(st.binary(max_size=60) | st.text('{}[]:,"\\01a ntrue', max_size=40).map(str.encode))
def test_any_bytes_are_a_value_or_a_protocol_error(body: bytes) -> None:
    for type_ in (object, TopicRouteData, dict[str, int]):
        try:
            decode_body(body, type_)
        except ProtocolError:
            continue


class Inner(msgspec.Struct, rename="camel"):
    some_text: str | None = None


class Outer(msgspec.Struct, rename="camel"):
    z_last: dict[int, int] = {}
    inner: Inner | None = None
    text: str = ""
    list_of: list[Inner] = []


def test_nulls_are_left_out_where_they_are_values_only() -> None:
    assert encode_body(Outer()) == b'{"zLast":{},"text":"","listOf":[]}'
    assert encode_body(Outer({10: 1}, Inner(), "null", [Inner("null")])) == (
        b'{"zLast":{"10":1},"inner":{},"text":"null","listOf":[{"someText":"null"}]}'
    )


def test_sorted_strict_json_sorts_numbers_as_numbers_and_escapes() -> None:
    assert encode_strict_sorted(Outer({10: 1, 9: 2}, None, "中")) == (
        b'{"listOf":[],"text":"\\u4e2d","zLast":{"9":2,"10":1}}'
    )


def test_pretty_has_tabs_and_no_last_newline() -> None:
    assert pretty(Outer({1: 2}, Inner("中"), "t", [Inner("a"), Inner()])) == (
        '{\n\t"inner":{\n\t\t"someText":"中"\n\t},\n\t"listOf":[\n\t\t{\n\t\t\t"someText":"a"\n'
        '\t\t},\n\t\t{}\n\t],\n\t"text":"t",\n\t"zLast":{\n\t\t"1":2\n\t}\n}'
    )


@given(values)
def test_pretty_is_laid_out_as_by_json(value: Any) -> None:
    assert pretty(value) == json.dumps(
        value, ensure_ascii=False, indent="\t", separators=(",", ":"), sort_keys=True
    )


def test_a_long_table_is_sorted_in_parts_into_the_same_text() -> None:
    """Sorting 25,000 keys at once kept the interpreter, and so the loop, from all else for 20 ms."""
    table = {f"key-{number * 7919 % 2003:04}": {number: 1} for number in range(2003)}
    text = json.dumps(table, indent="\t", separators=(",", ":"), sort_keys=True)
    assert pretty(table) == text
    pieces = list(pretty_pieces(table))
    assert pieces.count("") >= 2003 // 512
    assert pretty(Outer(dict.fromkeys(reversed(range(1000)), 1), None, "t")) == (
        json.dumps(
            {"listOf": [], "text": "t", "zLast": dict.fromkeys(range(1000), 1)},
            indent="\t",
            separators=(",", ":"),
        )
    )


def test_pretty_leaves_nothing_to_the_garbage_collector() -> None:
    value = Outer({1: 2}, Inner("a"), "t", [Inner("b")])
    pretty(value)
    gc.collect()
    pretty(value)
    pretty({str(number): {"a": [number, {}]} for number in range(100)})
    assert gc.collect() == 0


def test_a_value_too_deep_is_not_encoded() -> None:
    value: list[Any] = []
    for _ in range(200_000):
        value = [value]
    for encode in (encode_body, encode_strict_sorted, pretty):
        with pytest.raises(ProtocolError, match="too deeply"):
            encode(value)


def test_a_long_request_in_the_dialect_is_refused_before_it_is_made_strict() -> None:
    long = b"{a:1," * (MAX_DIALECT_REQUEST_LENGTH // 5 + 1)
    with pytest.raises(
        ProtocolError,
        match=f"the limit MAX_DIALECT_REQUEST_LENGTH is {MAX_DIALECT_REQUEST_LENGTH} bytes",
    ):
        decode_request(long, dict[str, int])
    strict = json.dumps({f"key-{number}": number for number in range(30_000)}).encode()
    assert len(strict) > MAX_DIALECT_REQUEST_LENGTH
    assert len(decode_request(strict, dict[str, int])) == 30_000
    assert decode_request(b"{a:1}", dict[str, int]) == {"a": 1}


def test_the_collector_rests_while_a_large_body_is_decoded_and_only_then() -> None:
    topics = {f"t{number}": {"topicName": f"t{number}"} for number in range(20_000)}
    body = json.dumps({"topicConfigTable": topics}).encode()
    passes: list[str] = []

    def passed(phase: str, _info: dict[str, int]) -> None:
        passes.append(phase)

    gc.callbacks.append(passed)
    try:
        wrapper = decode_body(body, TopicConfigSerializeWrapper)
        assert not passes
        with pytest.raises(ProtocolError):
            decode_body(body[:-1], TopicConfigSerializeWrapper)
    finally:
        gc.callbacks.remove(passed)
    assert len(wrapper.topic_config_table) == 20_000
    assert gc.isenabled()
