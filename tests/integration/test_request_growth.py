"""Test that no request with a body costs more than the body deserves, and that lists have limits.

Client and server share one thread here, so its processor time counts all that a request costs. A
handler that reads a body and is not in the table below fails a test of this file.
"""

from __future__ import annotations

import ast
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.growth import FACTOR, check_growth
from tests.unit.test_growth import JSON_SHAPES, registered
from tests.waits import WAIT_S

import cometmq
from cometmq.broker.retries.redrive_handlers import MAX_SELECTED
from cometmq.model.subscription import MAX_TAGS
from cometmq.protocol import headers as h
from cometmq.protocol import limits
from cometmq.protocol.codes import OwnRequestCode, RequestCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.header import Header
from cometmq.protocol.messages.batch import MAX_BATCH_MESSAGES, BatchEntry, encode_batch
from cometmq.protocol.redrive import RedriveDeadLettersRequestHeader
from cometmq.remoting.client import RemotingClient
from cometmq.testing import Cluster

TIMEOUT_S = 2 * WAIT_S
_KIB = 1024


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def groups(count: int) -> bytes:
    # Only few consumers: each makes a group and a topic, for which the disk needs time.
    consumers = [{"groupName": f"g-{i}", "subscriptionDataSet": [{"topic": "t"}]} for i in range(4)]
    producers = [{"groupName": f"p-{i:07d}"} for i in range(count - len(consumers))]
    return as_json({"clientID": "c", "consumerDataSet": consumers, "producerDataSet": producers})


def subscriptions(count: int, expression_type: str = "TAG", of_a_group: int = 4_000) -> bytes:
    data = [
        {
            "topic": f"t-{i:07d}",
            "subString": "A",
            "expressionType": expression_type,
            "tagsSet": ["A"],
            "codeSet": ["65"],
        }
        for i in range(count)
    ]
    groups = [
        {"groupName": f"g-{start}", "subscriptionDataSet": data[start : start + of_a_group]}
        for start in range(0, count, of_a_group)
    ]
    return as_json({"clientID": "c", "consumerDataSet": groups})


def tags(count: int) -> bytes:
    subscription = {"topic": "t", "subString": "A", "codeSet": list(range(count))}
    return as_json(
        {
            "clientID": "c",
            "consumerDataSet": [{"groupName": "one", "subscriptionDataSet": [subscription]}],
        }
    )


def tags_of_groups(count: int) -> bytes:
    groups = [
        {
            "groupName": f"g-{start}",
            "subscriptionDataSet": [
                {"topic": "t", "codeSet": list(range(start, min(start + MAX_TAGS, count)))}
            ],
        }
        for start in range(0, count, MAX_TAGS)
    ]
    return as_json({"clientID": "c", "consumerDataSet": groups})


def queues(count: int) -> bytes:
    beans = [{"brokerName": "b", "queueId": i, "topic": "t"} for i in range(count)]
    return as_json({"clientId": "c", "consumerGroup": "g", "mqSet": beans})


def acknowledgements(count: int) -> bytes:
    entries = [{"c": "g", "t": "t", "so": i, "b": "AQ=="} for i in range(count)]
    return as_json({"brokerName": "b", "acks": entries})


def topics(count: int) -> bytes:
    table = {f"t-{i:07d}": {"topicName": f"t-{i:07d}", "perm": 6} for i in range(count)}
    return as_json({"topicConfigSerializeWrapper": {"topicConfigTable": table}})


def filter_servers(count: int) -> bytes:
    return as_json({"filterServerList": [f"127.0.0.1:{i}" for i in range(count)]})


def route_queues(count: int) -> bytes:
    return as_json({"queueDatas": [{"brokerName": f"b-{i}", "perm": 6} for i in range(count)]})


def topic_configs(count: int) -> bytes:
    return as_json({"topicConfigList": [{"topicName": f"made-{i % 50:07d}"} for i in range(count)]})


def attributes(count: int) -> bytes:
    topic = {"topicName": "made", "attributes": {f"+{i:07d}": "1" for i in range(count)}}
    return as_json({"topicConfigList": [topic]})


def group_of_attributes(count: int) -> bytes:
    return as_json({"groupName": "made", "attributes": {f"+{i:07d}": "1" for i in range(count)}})


def group_configs(count: int) -> bytes:
    return as_json({"groupConfigList": [{"groupName": f"made-{i % 50:07d}"} for i in range(count)]})


def entries(count: int) -> bytes:
    return b"".join(b"key%d=b\n" % i for i in range(count))


def batch(count: int) -> bytes:
    return encode_batch([BatchEntry(0, b"x", b"")] * count)


def garbage(size: int) -> list[bytes]:
    return [shape(size) for name, shape in JSON_SHAPES.items() if not name.startswith("sound")]


def send_header(**changes: object) -> Header:
    fields = {
        "producer_group": "g",
        "topic": "TBW102",
        "default_topic": "TBW102",
        "default_topic_queue_nums": 1,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1,
        "flag": 0,
        **changes,
    }
    return h.SendMessageRequestHeaderV2(**{**fields, "topic": "grown"})  # type: ignore[arg-type]  # a dict of fields of several types


@dataclass(frozen=True)
class Row:
    """Describes a handler that reads a body: what its requests may hold many of, and its limit.

    `make` gives a body with so many entries. `limit` is the largest number that is accepted, None
    where only the length of a body counts. `answer` is what such a request gets once all its
    entries were looked at.
    """

    reader: str
    code: int
    header: Callable[[], Header | None] = lambda: None
    lists: tuple[tuple[str, Callable[[int], bytes], int | None], ...] = ()
    is_json: bool = True
    at_name_server: bool = False
    answer: int = ResponseCode.SUCCESS


def _registration() -> Header:
    return h.RegisterBrokerRequestHeader("other", "127.0.0.1:1", "c", "127.0.0.1:2", 0)


def _compressed_registration() -> Header:
    return h.RegisterBrokerRequestHeader(
        "other", "127.0.0.1:1", "c", "127.0.0.1:2", 0, compressed=True
    )


def _selection(count: int) -> bytes:
    return as_json({"ids": [f"id-{i:07d}" for i in range(count)]})


def _v1(header: Header) -> Header:
    values = {name: getattr(header, name) for name in h.SendMessageRequestHeader.__struct_fields__}
    return h.SendMessageRequestHeader(**values)


ROWS = (
    Row(
        "ClientHandlers.heartbeat",
        RequestCode.HEART_BEAT,
        lists=(
            ("MAX_GROUPS", groups, limits.MAX_GROUPS),
            ("MAX_SUBSCRIPTIONS", subscriptions, limits.MAX_SUBSCRIPTIONS),
            (
                "MAX_SQL_SUBSCRIPTIONS",
                lambda n: subscriptions(n, "SQL92"),
                limits.MAX_SQL_SUBSCRIPTIONS,
            ),
            ("MAX_TAGS", tags, MAX_TAGS),
            ("MAX_TAGS_OF_HEARTBEAT", tags_of_groups, limits.MAX_TAGS_OF_HEARTBEAT),
        ),
    ),
    Row(
        "PropertyFilters.check_client",
        RequestCode.CHECK_CLIENT_CONFIG,
        lists=(
            (
                "MAX_TAGS",
                lambda n: as_json(
                    {
                        "clientId": "c",
                        "group": "g",
                        "subscriptionData": {"topic": "t", "codeSet": list(range(n))},
                    }
                ),
                MAX_TAGS,
            ),
        ),
    ),
    Row("Assignments.assignment", RequestCode.QUERY_ASSIGNMENT),
    Row(
        "RequestModes.set",
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        answer=ResponseCode.TOPIC_NOT_EXIST,
    ),
    Row(
        "AckHandler.batch_ack",
        RequestCode.BATCH_ACK_MESSAGE,
        lists=(("MAX_ACKS_AT_ONCE", acknowledgements, limits.MAX_ACKS_AT_ONCE),),
    ),
    Row(
        "LockHandlers.lock",
        RequestCode.LOCK_BATCH_MQ,
        lists=(("MAX_LOCKS_AT_ONCE", queues, limits.MAX_LOCKS_AT_ONCE),),
    ),
    Row(
        "LockHandlers.unlock",
        RequestCode.UNLOCK_BATCH_MQ,
        lists=(("MAX_LOCKS_AT_ONCE", queues, limits.MAX_LOCKS_AT_ONCE),),
    ),
    Row(
        "ConfigHandlers.update",
        RequestCode.UPDATE_BROKER_CONFIG,
        is_json=False,
        answer=ResponseCode.SYSTEM_ERROR,  # with every key that it does not know
        lists=(("the limit is", entries, None),),
    ),
    Row(
        "TopicHandlers.update_list",
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        lists=(("MAX_CONFIGS", topic_configs, limits.MAX_CONFIGS),),
    ),
    Row(
        "TopicHandlers.update_list",
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        lists=(("the limit is", attributes, None),),
        answer=ResponseCode.INVALID_PARAMETER,
    ),
    Row(
        "GroupHandlers.update_list",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        lists=(("MAX_GROUPS", group_configs, limits.MAX_GROUPS),),
    ),
    Row(
        "GroupHandlers.update",
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        lists=(("the limit is", group_of_attributes, None),),
        answer=ResponseCode.INVALID_PARAMETER,
    ),
    Row(
        "RedriveHandlers.redrive",
        OwnRequestCode.REDRIVE_DEAD_LETTERS,
        header=lambda: RedriveDeadLettersRequestHeader("id", "nobody"),
        answer=ResponseCode.QUERY_NOT_FOUND,
        lists=(("MAX_SELECTED", _selection, MAX_SELECTED),),
    ),
    Row(
        "SendHandler.send",
        RequestCode.SEND_MESSAGE_V2,
        header=send_header,
        is_json=False,
        lists=(("maxMessageSize", lambda n: b"x" * (n * _KIB), None),),
    ),
    Row(
        "SendHandler.send",
        RequestCode.SEND_MESSAGE,
        header=lambda: _v1(send_header()),
        is_json=False,
        lists=(("maxMessageSize", lambda n: b"x" * (n * _KIB), None),),
    ),
    Row(
        "SendHandler._send_batch",
        RequestCode.SEND_BATCH_MESSAGE,
        header=lambda: send_header(batch=True),
        is_json=False,
        lists=(("MAX_BATCH_MESSAGES", batch, MAX_BATCH_MESSAGES),),
    ),
    Row(
        "ReplyHandler.reply",
        RequestCode.SEND_REPLY_MESSAGE_V2,
        header=lambda: send_header(properties="a\x01b\x02"),
        is_json=False,
    ),
    Row(
        "ReplyHandler.reply",
        RequestCode.SEND_REPLY_MESSAGE,
        header=lambda: _v1(send_header(properties="a\x01b\x02")),
        is_json=False,
    ),
    Row(
        "RouteHandlers._registered",
        RequestCode.REGISTER_BROKER,
        header=_registration,
        lists=(
            ("MAX_REGISTERED_TOPICS", topics, limits.MAX_REGISTERED_TOPICS),
            ("MAX_FILTER_SERVERS", filter_servers, limits.MAX_FILTER_SERVERS),
        ),
        at_name_server=True,
    ),
    Row(
        "RouteHandlers._registered",
        RequestCode.REGISTER_BROKER,
        header=_compressed_registration,
        is_json=False,
        lists=(("MAX_REGISTERED_TOPICS", registered, limits.MAX_REGISTERED_TOPICS),),
        at_name_server=True,
    ),
    Row(
        "RouteHandlers._query_data_version",
        RequestCode.QUERY_DATA_VERSION,
        header=lambda: h.QueryDataVersionRequestHeader("b", "127.0.0.1:1", "c", 0),
        at_name_server=True,
    ),
    Row(
        "RouteHandlers._register_topic",
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        header=lambda: h.RegisterTopicRequestHeader("t"),
        lists=(("MAX_ROUTE_QUEUES", route_queues, limits.MAX_ROUTE_QUEUES),),
        at_name_server=True,
    ),
    Row(
        "AdminHandlers._update_config",
        RequestCode.UPDATE_NAMESRV_CONFIG,
        is_json=False,
        answer=ResponseCode.SYSTEM_ERROR,
        lists=(("the limit is", entries, None),),
        at_name_server=True,
    ),
)
LISTS = [
    pytest.param(row, name, make, limit, id=f"{row.reader}-{row.code}-{name}")
    for row in ROWS
    for name, make, limit in row.lists
]


class Asker:
    """Sends a row's requests to the server that serves them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._client = RemotingClient()

    async def ask(self, row: Row, body: bytes) -> RemotingCommand:
        servers = self._cluster.name_servers if row.at_name_server else self._cluster.brokers
        command = request(row.code, row.header(), body)
        return await self._client.call(f"127.0.0.1:{servers[0].port}", command, TIMEOUT_S)

    async def cost(
        self,
        row: Row,
        bodies: list[bytes],
        between: list[bytes],
        times: int,
        answer: int | None = None,
    ) -> float:
        """Return the cost of a request with each of `bodies`, measured over `times` requests.

        Requests with `between`, which change what the server knows, come before each one and are
        not counted. Each request must get `answer`, if that is given: one that fails early costs
        little, whatever it holds.
        """
        cost = 0.0
        for _ in range(times):
            for body in between:
                await self.ask(row, body)
            begun_at = time.thread_time()
            answers = [await self.ask(row, body) for body in bodies]
            cost += time.thread_time() - begun_at
            assert answer is None or {a.code for a in answers} == {answer}, answers[0].remark
        return cost / times

    async def close(self) -> None:
        await self._client.close()


def check_row(
    row: Row, make: Callable[[int], list[bytes]], small: int, answer: int | None = None
) -> None:
    """Check the growth of requests as `check_growth` does.

    On a busy machine a request that is interrupted costs several times what it costs alone, and a
    small one may be lucky where a large one is not. So the small ones are measured for as long as
    the large.
    """
    cluster = Cluster()
    with asyncio.Runner() as runner:
        runner.run(cluster.start())
        asker = Asker(cluster)
        bodies = {size: make(size) for size in (small, FACTOR * small)}
        first = make(8)  # what is made and imported once
        runner.run(asker.cost(row, first, [], 1))

        def cost_of(size: int) -> float:
            return runner.run(asker.cost(row, bodies[size], first, FACTOR * small // size, answer))

        try:
            check_growth(cost_of, small)
        finally:
            runner.run(asker.close())
            runner.run(cluster.stop())


@pytest.mark.parametrize(("row", "name", "make", "limit"), LISTS)
def test_a_request_takes_time_in_proportion_to_its_entries(
    row: Row, name: str, make: Callable[[int], bytes], limit: int | None
) -> None:
    small = 500 if limit is None else max(limit // FACTOR, 1)
    check_row(row, lambda n: [make(n)], small, row.answer)


@pytest.mark.parametrize("row", [row for row in ROWS if row.is_json], ids=lambda row: row.reader)
def test_a_request_takes_time_in_proportion_to_the_garbage_it_brings(row: Row) -> None:
    check_row(row, garbage, 16 * _KIB)


@pytest.mark.parametrize(("row", "name", "make", "limit"), [p for p in LISTS if p.values[3]])
def test_one_entry_too_many_is_refused_and_says_so(
    row: Row, name: str, make: Callable[[int], bytes], limit: int
) -> None:
    async def run() -> None:
        async with Cluster() as cluster:
            asker = Asker(cluster)
            most = await asker.ask(row, make(limit))
            assert name not in (most.remark or "")
            refused = await asker.ask(row, make(limit + 2))
            assert refused.code != 0
            assert f"{name}" in (refused.remark or "")
            assert str(limit) in (refused.remark or "")
            assert ";" in (refused.remark or ""), "no remedy"
            await asker.close()

    asyncio.run(run())


def test_others_are_served_while_a_large_heartbeat_is_taken_in() -> None:
    expressions = [
        {
            "topic": f"t-{i}",
            "subString": f"a = {i}" + " OR b = 'x'" * 100,
            "expressionType": "SQL92",
        }
        for i in range(limits.MAX_SQL_SUBSCRIPTIONS)
    ]
    group = {"groupName": "one", "subscriptionDataSet": expressions}
    body = as_json({"clientID": "c", "consumerDataSet": [group]})

    async def run() -> None:
        async with Cluster() as cluster:
            large, small = Asker(cluster), Asker(cluster)
            locks = next(row for row in ROWS if row.reader == "LockHandlers.lock")
            await small.ask(locks, queues(1))
            heartbeat = asyncio.create_task(large.ask(ROWS[0], body))
            served = 0
            while not heartbeat.done():
                await small.ask(locks, queues(1))
                served += 1
            assert (await heartbeat).code == 0
            assert served >= 10  # in one piece it is two
            await large.close()
            await small.close()

    asyncio.run(run())


def test_a_body_that_is_too_long_is_refused_before_it_is_decoded() -> None:
    async def run() -> None:
        async with Cluster() as cluster:
            asker = Asker(cluster)
            for row in ROWS:
                server = (cluster.name_servers if row.at_name_server else cluster.brokers)[0]
                limit = server.handlers.request_types[row.code].body.max_length
                if limit is None or limit >= limits.MAX_REGISTRATION_LENGTH:
                    continue  # a frame is not longer, or the limit is a setting of the handler
                refused = await asker.ask(row, b"{" * (limit + 1))
                assert refused.code != 0
                assert f"has {limit + 1} bytes, the limit MAX_BODY_LENGTH is {limit} for" in (
                    refused.remark or ""
                )
            await asker.close()

    asyncio.run(run())


def _readers_of_bodies() -> set[str]:
    """Return `Class.method` of all functions of both servers that read a request's body."""
    found = set()
    root = Path(cometmq.__file__).parent
    for path in [*root.glob("broker/**/*.py"), *root.glob("namesrv/*.py")]:
        for cls in [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.ClassDef)]:
            for method in cls.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                    isinstance(node, ast.Attribute)
                    and (
                        node.attr == "typed_body"
                        or (
                            node.attr == "body"
                            and ast.unparse(node.value).removesuffix(".frame")
                            in ("call", "request")
                        )
                    )
                    for node in ast.walk(method)
                ):
                    found.add(f"{cls.name}.{method.name}")
    return found


def test_every_handler_that_reads_a_body_is_in_the_table() -> None:
    # These store, or count, the body that `send` has checked; a slave passes one on to its master;
    checked = {
        "SendHandler._acknowledge_batch",
        "SendHandler._send_special",
        "FirstSends.hold",
        "FirstSends._take",
        "Replication._pass_on",
    }
    known = {row.reader for row in ROWS} | checked
    assert _readers_of_bodies() == known


def test_every_code_that_brings_a_body_is_in_the_table() -> None:
    async def run() -> None:
        async with Cluster() as cluster:
            for at_name_server, server in (
                (False, cluster.brokers[0]),
                (True, cluster.name_servers[0]),
            ):
                codes = {row.code for row in ROWS if row.at_name_server == at_name_server}
                served = server.handlers.request_types
                bounded = {code for code, type_ in served.items() if type_.body.max_length}
                # Sends are bounded by maxMessageSize.
                sends = {10, 310, 320, 324, 325} if not at_name_server else set()
                assert codes == bounded | sends

    asyncio.run(run())
