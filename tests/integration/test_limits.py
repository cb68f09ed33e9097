"""Every limit of the catalogue is hit once: the refusal says which it is, it is counted, nothing is
lost, and another client is served meanwhile.

The cluster runs in virtual time. Limits that are settings have small values, and so have constants
that no hot module holds. `maxMessageSize` and what follows RocketMQ's formats keep theirs.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from tests.integration.hostile_peer import Peer
from tests.integration.raw_client import batch_body, pull_ext, send_ext
from tests.unit.remoting import test_server_tls

from cometmq.broker import long_answer
from cometmq.broker.filters import consumer_filters, predicates
from cometmq.broker.groups import assignments, clients, questions, queue_locks
from cometmq.broker.pulls import waiting
from cometmq.broker.retries import budget, redrive
from cometmq.broker.sends import first_sends
from cometmq.broker.server import Broker
from cometmq.metrics.limits import LIMITS
from cometmq.namesrv import kv_config
from cometmq.namesrv.server import NameServer
from cometmq.protocol import limits
from cometmq.protocol.bodies import registration as register_body
from cometmq.protocol.codes import OwnRequestCode, ResponseCode
from cometmq.protocol.codes import RequestCode as Code
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.fastjson import dialect as json_dialect
from cometmq.remoting.connection import Connection
from cometmq.runtime.surroundings import current
from cometmq.runtime.tasks import TaskOwner
from cometmq.testing import Cluster

SUSPEND, SUBSCRIPTION, CLASS_FILTER = 2, 4, 8
TOPIC: Final = "quiet"
Answers = list[RemotingCommand]


class Stage:
    """A cluster with a topic, a peer that exceeds a limit, and another that does not."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.sent = 0

    @property
    def broker(self) -> Broker:
        return self.cluster.brokers[0]

    @property
    def name_server(self) -> NameServer:
        return self.cluster.name_servers[0]

    async def peer(self, address: str = "", node: str = "hostile") -> Peer:
        there = address or self.broker.address
        return await Peer.connect(self.cluster.node(node).surroundings, there)

    async def at_name_server(self) -> Peer:
        """Connect from the name server's own machine, whose peers are administrators."""
        return await self.peer(self.cluster.namesrv, self.cluster.nodes.name_servers[0])

    async def at_broker(self) -> Peer:
        """Connect from the broker's own machine."""
        return await self.peer(node=self.cluster.nodes.brokers[0])


Act = Callable[[Stage], Awaitable[Answers]]


@dataclass
class Case:
    """How to exceed a limit.

    `act` returns the answers that refuse something; with `silent` the limit refuses without words.
    `value` is what the refusal says of the limit, None if it is the catalogue's default.
    """

    act: Act
    properties: Mapping[str, str] = field(default_factory=dict)
    patches: tuple[tuple[Any, str, int], ...] = ()
    value: int | None = None
    silent: bool = False
    at_name_server: bool = False


CASES: Final[dict[str, Case]] = {}
# Handshakes need sockets and certificates.
HIT_ELSEWHERE: Final = dict.fromkeys(
    ("tlsHandshakeTimeoutSeconds", "maxTlsHandshakes", "maxTlsHandshakesPerSecond"),
    test_server_tls.__file__,
)


def case(name: str, **options: Any) -> Callable[[Act], Act]:
    def take(act: Act) -> Act:
        assert name not in CASES
        CASES[name] = Case(act, **options)
        return act

    return take


def patched(module: Any, name: str, value: int, **options: Any) -> Callable[[Act], Act]:
    return case(name, patches=((module, name, value),), value=value, **options)


def setting(name: str, value: int, **options: Any) -> Callable[[Act], Act]:
    return case(name, properties={name: str(value)}, value=value, **options)


def send(topic: str = TOPIC, **fields: Any) -> dict[str, str]:
    return send_ext(topic, **fields)


def held(topic: str = TOPIC, **fields: Any) -> dict[str, str]:
    """Return the fields of a pull that waits for a message."""
    ext = pull_ext(topic, sysFlag=SUSPEND | SUBSCRIPTION, queueId=3, **fields)
    return {**ext, "suspendTimeoutMillis": "5000"}


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def consumer(group: str, subscriptions: list[Any] | None = None) -> dict[str, Any]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "subscriptionDataSet": subscriptions or [],
    }


def subscription(topic: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "subString": "*", "expressionType": "TAG", **more}


async def beat(
    peer: Peer, groups: Iterable[dict[str, Any]] = (), client_id: str = "c@1", producers: Any = ()
) -> RemotingCommand:
    body = {
        "clientID": client_id,
        "consumerDataSet": list(groups),
        "producerDataSet": [{"groupName": name} for name in producers],
    }
    return await peer.ask(Code.HEART_BEAT, body=as_json(body))


async def refused_by_closing(peer: Peer) -> Answers:
    await peer.ended()
    return peer.unasked


# Connections


@setting("maxConnectionsPerAddress", 2)
async def of_one_address(stage: Stage) -> Answers:
    for _ in range(2):
        await stage.peer()
    return await refused_by_closing(await stage.peer())


@setting("maxConnections", 4)
async def in_all(stage: Stage) -> Answers:
    reported: Answers = []
    for number in range(5):
        peer = await stage.peer(node=f"hostile-{number}")
        await asyncio.sleep(0.1)
        if peer.closed:
            reported += peer.unasked
        else:
            await peer.ask(Code.SEND_MESSAGE, send(), b"mine")
            stage.sent += 1
    return reported


@case("RLIMIT_NOFILE", value=1024)
async def without_descriptors(stage: Stage) -> Answers:
    listener = stage.broker.listener
    listener._most_descriptors, listener._descriptor_limit = -1, 1024
    return await refused_by_closing(await stage.peer())


@setting("serverChannelMaxIdleTimeSeconds", 5, silent=True)
async def idle(stage: Stage) -> Answers:
    peer = await stage.peer()
    await peer.ask(Code.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
    return await refused_by_closing(peer)


@case("SILENT_TIMEOUT_S", silent=True)
async def silent(stage: Stage) -> Answers:
    return await refused_by_closing(await stage.peer())


@setting("unfinishedFrameTimeoutSeconds", 2)
async def half_a_frame(stage: Stage) -> Answers:
    peer = await stage.peer()
    frame = peer.frame(Code.SEND_MESSAGE, send(), b"x" * 1000)
    return await peer.ask_all(frame[:-1])


# Bytes


@case("com.rocketmq.remoting.frameMaxLength")
async def a_long_frame(stage: Stage) -> Answers:
    peer = await stage.peer()
    peer.write(((16 << 20) + 1).to_bytes(4, "big"))
    return await refused_by_closing(peer)


@case("MAX_HEADER_LENGTH")
async def a_long_header(stage: Stage) -> Answers:
    peer = await stage.peer()
    peer.write((2 << 20).to_bytes(4, "big") + ((1 << 20) + 1).to_bytes(4, "big"))
    return await refused_by_closing(peer)


@case("MAX_EXT_FIELDS")
async def many_ext_fields(stage: Stage) -> Answers:
    peer = await stage.peer()
    field = (1).to_bytes(2, "big") + b"k" + (1).to_bytes(4, "big") + b"v"
    fields = field * 1025
    header = (
        (Code.GET_MAX_OFFSET).to_bytes(2, "big") + bytes([0]) + bytes(2) + bytes(4) + bytes(4)
        + bytes(4) + len(fields).to_bytes(4, "big") + fields
    )  # fmt: skip
    peer.write(
        (4 + len(header)).to_bytes(4, "big") + (1 << 24 | len(header)).to_bytes(4, "big") + header
    )
    return await refused_by_closing(peer)


@case("MAX_BODY_LENGTH", value=limits.MAX_CHECK_LENGTH)
async def a_long_body(stage: Stage) -> Answers:
    peer = await stage.peer()
    return [await peer.ask(Code.CHECK_CLIENT_CONFIG, body=b" " * (limits.MAX_CHECK_LENGTH + 1))]


@setting("maxBytesInFlight", 1 << 20)
async def many_bytes(stage: Stage) -> Answers:
    peer = await stage.peer()
    frame = peer.frame(Code.SEND_MESSAGE, send(), b"x" * (2 << 20))
    return await peer.ask_all(frame[:-1])


@setting("maxBytesInFlightPerConnection", 64 << 10)
async def long_pulls(stage: Stage) -> Answers:
    peer = await stage.peer()
    for _ in range(4):
        peer.write(peer.frame(Code.PULL_MESSAGE, held(), b"x" * (15 << 10)))
    return [await peer.ask(Code.PULL_MESSAGE, held(), b"x" * (15 << 10))]


@setting("maxWaitingRequestsPerConnection", 1)
async def many_tasks(stage: Stage) -> Answers:
    peer = await stage.at_broker()
    asks = [peer.frame(Code.GET_TOPIC_STATS_INFO, {"topic": TOPIC}) for _ in range(2)]
    served, refused = await peer.ask_all(*asks)
    assert served.code == 0
    return [refused]


@case("MAX_UNSENT_BYTES", silent=True)
async def a_reader_that_stops(stage: Stage) -> Answers:
    peer = await stage.peer()
    sent = await peer.ask(Code.SEND_MESSAGE, send(), b"x" * 200_000)
    assert sent.code == 0, sent.remark
    stage.sent += 1
    assert peer.transport is not None
    peer.transport.pause_reading()
    for _ in range(60):
        ext = pull_ext(TOPIC, queueOffset=sent.ext["queueOffset"])
        peer.write(peer.frame(Code.PULL_MESSAGE, ext))
    await asyncio.sleep(2)
    peer.transport.resume_reading()
    return []


def registration(topics: Mapping[str, Any], filter_servers: list[str] | None = None) -> bytes:
    version = {"timestamp": 1, "counter": 1, "stateVersion": 0}
    wrapper = {"dataVersion": version, "topicConfigTable": topics}
    return as_json(
        {"topicConfigSerializeWrapper": wrapper, "filterServerList": filter_servers or []}
    )


def topics_of(count: int) -> dict[str, Any]:
    return {
        f"t{i}": {"topicName": f"t{i}", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
        for i in range(count)
    }


async def register(peer: Peer, body: bytes, name: str = "b") -> RemotingCommand:
    ext = {
        "brokerName": name, "brokerAddr": f"10.1.1.1:{10911 + len(name)}", "clusterName": "c",
        "haServerAddr": "", "brokerId": 0, "compressed": str(body[:1] == b"x").lower(),
    }  # fmt: skip
    return await peer.ask(Code.REGISTER_BROKER, ext, body)


@patched(register_body, "MAX_INFLATED_LENGTH", 1_000, at_name_server=True)
async def a_bomb(stage: Stage) -> Answers:
    return [await register(await stage.at_name_server(), zlib.compress(bytes(1_000_000)))]


# JSON


async def heartbeat_of(stage: Stage, body: bytes) -> Answers:
    peer = await stage.peer()
    return [await peer.ask(Code.HEART_BEAT, body=body)]


@case("MAX_JSON_DEPTH")
async def deep_json(stage: Stage) -> Answers:
    return await heartbeat_of(stage, b'{"$ref":null,"a":' + b"[" * 70 + b"]" * 70 + b"}")


@case("MAX_DIALECT_REQUEST_LENGTH")
async def long_dialect(stage: Stage) -> Answers:
    groups = b",".join(b'{groupName:"p-%0200d"}' % number for number in range(1_300))
    return await heartbeat_of(stage, b'{clientID:"c",producerDataSet:[%b]}' % groups)


REPEATED: Final = as_json({"a": list(range(20)), "b": {"$ref": "$.a"}})


@case("MAX_REQUEST_TREE_VALUES")
async def many_values_of_a_client(stage: Stage) -> Answers:
    return await heartbeat_of(stage, b'{"$ref":null,"a":[' + b"1," * 20_000 + b"1]}")


@case("MAX_REQUEST_REFERENCES")
async def many_references_of_a_client(stage: Stage) -> Answers:
    return await heartbeat_of(stage, b"[" + b'{"$ref":"$"},' * 2_501 + b"1]")


@patched(json_dialect, "MAX_REQUEST_REFERENCED_NODES", 10)
async def repeated_values_of_a_client(stage: Stage) -> Answers:
    return await heartbeat_of(stage, REPEATED)


# Requests


@patched(limits, "MAX_OBJECTS", 3)
async def many_objects(stage: Stage) -> Answers:
    return [await beat(await stage.peer(), producers=["a", "b", "c"])]


@patched(limits, "MAX_GROUPS", 2)
async def many_groups(stage: Stage) -> Answers:
    return [await beat(await stage.peer(), producers=["a", "b", "c"])]


@patched(limits, "MAX_SUBSCRIPTIONS", 3)
async def many_subscriptions(stage: Stage) -> Answers:
    groups = [consumer(f"g{i}", [subscription(f"t{j}") for j in range(2)]) for i in range(2)]
    return [await beat(await stage.peer(), groups)]


@patched(limits, "MAX_SQL_SUBSCRIPTIONS", 1)
async def many_expressions(stage: Stage) -> Answers:
    sql = [subscription(t, expressionType="SQL92", subString="a = 1") for t in "ab"]
    return [await beat(await stage.peer(), [consumer("g", sql)])]


@patched(limits, "MAX_TAGS", 2)
async def many_tags(stage: Stage) -> Answers:
    tagged = subscription("t", tagsSet=["a", "b", "c"])
    return [await beat(await stage.peer(), [consumer("g", [tagged])])]


@patched(limits, "MAX_TAGS_OF_HEARTBEAT", 3)
async def many_tags_of_all_groups(stage: Stage) -> Answers:
    tagged = [subscription(topic, tagsSet=["a", "b"]) for topic in "tu"]
    groups = [consumer(name, [one]) for name, one in zip("gh", tagged, strict=True)]
    return [await beat(await stage.peer(), groups)]


@case("MAX_CLIENT_ID_LENGTH")
async def a_long_client_id(stage: Stage) -> Answers:
    return [await beat(await stage.peer(), client_id="c" * 1025)]


@case("MAX_NAME_LENGTH")
async def long_names(stage: Stage) -> Answers:
    peer, long = await stage.peer(), "n" * 256
    lock = {"consumerGroup": "g", "clientId": "c", "mqSet": []}
    queue = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
    bodies = [{**lock, "mqSet": [{**queue, name: long}]} for name in ("topic", "brokerName")]
    return [
        await beat(peer, producers=[long]),
        await beat(peer, [consumer(long)]),
        await beat(peer, [{**consumer("g"), "consumeType": long}]),
        await beat(peer, [consumer("g", [subscription(long)])]),
        await beat(peer, [consumer("g", [subscription("t", expressionType=long)])]),
        *[await peer.ask(Code.LOCK_BATCH_MQ, body=as_json(body)) for body in bodies],
        await peer.ask(Code.LOCK_BATCH_MQ, body=as_json({**lock, "consumerGroup": long})),
    ]


async def lock(peer: Peer, count: int, group: str = "g", client_id: str = "c@1") -> RemotingCommand:
    queues = [{"topic": TOPIC, "brokerName": "broker-a", "queueId": i} for i in range(count)]
    body = {"consumerGroup": group, "clientId": client_id, "mqSet": queues}
    return await peer.ask(Code.LOCK_BATCH_MQ, body=as_json(body))


@patched(limits, "MAX_LOCKS_AT_ONCE", 2)
async def many_locks_at_once(stage: Stage) -> Answers:
    return [await lock(await stage.peer(), 3)]


@patched(assignments, "MAX_QUEUES_OF_ASSIGNMENT", 2)
async def many_queues_to_share(stage: Stage) -> Answers:
    peer = await stage.peer()
    body = as_json({"topic": TOPIC, "consumerGroup": "g", "clientId": "c"})
    return [await peer.ask(Code.QUERY_ASSIGNMENT, body=body)]


@patched(limits, "MAX_CONFIGS", 1)
async def many_configs(stage: Stage) -> Answers:
    peer = await stage.at_broker()
    body = as_json({"topicConfigList": list(topics_of(2).values())})
    return [await peer.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, body=body)]


@patched(limits, "MAX_LISTED_NAMES", 2)
async def many_listed_topics(stage: Stage) -> Answers:
    peer = await stage.at_broker()
    ext = {"consumerGroup": "g", "topicList": "a;b;c"}
    return [await peer.ask(Code.GET_CONSUME_STATS, ext)]


def new_topic(name: str, queues: int = 4, **more: str) -> dict[str, Any]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": queues,
        "writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG", **more,
    }  # fmt: skip


@case("MAX_QUEUES_OF_TOPIC")
async def many_queues(stage: Stage) -> Answers:
    peer = await stage.at_broker()
    return [await peer.ask(Code.UPDATE_AND_CREATE_TOPIC, new_topic("t", 262_145))]


@case("MAX_ATTRIBUTES_LENGTH")
async def long_attributes(stage: Stage) -> Answers:
    peer = await stage.at_broker()
    ext = new_topic("t", attributes="+message.type=" + "x" * 4_096)
    return [await peer.ask(Code.UPDATE_AND_CREATE_TOPIC, ext)]


@case("MAX_STATUS_LENGTH", silent=True)
async def a_long_status(stage: Stage) -> Answers:
    peer, asks = await stage.peer(), await stage.at_broker()
    peer.answers_with = b" " * (limits.MAX_STATUS_LENGTH + 1)
    await beat(peer, [consumer("g", [subscription(TOPIC)])])
    ext = {"topic": TOPIC, "group": "g"}
    await asks.ask(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
    return []


@patched(questions, "MAX_QUESTIONS_OF_CONNECTION", 2)
async def many_questions(stage: Stage) -> Answers:
    member, asks = await stage.peer(), await stage.at_broker()
    await beat(member, [consumer("g")])
    ext = {"consumerGroup": "g", "clientId": "c@1"}
    frames = [asks.frame(Code.GET_CONSUMER_RUNNING_INFO, ext) for _ in range(3)]
    # The client never answers the first two.
    return (await asks.ask_all(*frames))[2:]


# Messages


@setting("maxMessageSize", 1_024)
async def a_long_message(stage: Stage) -> Answers:
    peer = await stage.peer()
    return [await peer.ask(Code.SEND_MESSAGE, send(), b"x" * 1_025)]


@case("MAX_PROPERTIES_LENGTH")
async def long_properties(stage: Stage) -> Answers:
    peer = await stage.peer()
    text = "k\x01" + "v" * 32_768 + "\x02"
    return [await peer.ask(Code.SEND_MESSAGE, send(properties=text), b"x")]


@case("MAX_PROPERTIES")
async def many_properties(stage: Stage) -> Answers:
    peer = await stage.peer()
    text = "".join(f"{i}\x01v\x02" for i in range(2_049))
    single = await peer.ask(Code.SEND_MESSAGE, send(properties=text), b"x")
    batch = batch_body([(b"x", text.encode())])
    return [single, await peer.ask(Code.SEND_MESSAGE, send(batch="true"), batch)]


@case("MAX_BATCH_MESSAGES")
async def a_long_batch(stage: Stage) -> Answers:
    peer = await stage.peer()
    batch = batch_body([(b"x", b"")] * 16_385)
    return [await peer.ask(Code.SEND_MESSAGE, send(batch="true"), batch)]


async def first_sends_of(stage: Stage) -> Answers:
    peer = await stage.peer()
    frames = [peer.frame(Code.SEND_MESSAGE, send(f"new-{i}"), b"x" * 10) for i in range(3)]
    *served, refused = await peer.ask_all(*frames)
    assert [each.code for each in served] == [0, 0]
    return [refused]


@patched(first_sends, "MAX_FIRST_SENDS", 2)
async def many_first_sends(stage: Stage) -> Answers:
    return await first_sends_of(stage)


@patched(first_sends, "MAX_FIRST_SEND_BYTES", 25)
async def long_first_sends(stage: Stage) -> Answers:
    return await first_sends_of(stage)


@setting("maxUnresolvedTransactions", 1)
async def many_transactions(stage: Stage) -> Answers:
    peer = await stage.peer()
    text = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01A1\x02"
    halves = [
        await peer.ask(Code.SEND_MESSAGE, send(properties=text, sysFlag=4), b"half")
        for _ in range(2)
    ]
    assert halves[0].code == 0, halves[0].remark
    return halves[1:]


# Topics, groups, members


@case("maxTopics", value=5)
async def many_topics(stage: Stage) -> Answers:
    stage.broker.config.max_topics = 5
    peer = await stage.peer()
    return [await peer.ask(Code.SEND_MESSAGE, send("another"), b"x")]


@case("maxTopicsMadePerSecond", value=1)
async def topics_made_fast(stage: Stage) -> Answers:
    stage.broker.config.max_topics_made_per_second = 1
    peer = await stage.peer()
    frames = [peer.frame(Code.SEND_MESSAGE, send(f"fast-{i}"), b"x") for i in range(12)]
    answers = await peer.ask_all(*frames)
    assert [each.code for each in answers[:10]] == [0] * 10
    return answers[11:]


@case("maxQueues", value=8)
async def many_queues_in_all(stage: Stage) -> Answers:
    stage.broker.config.max_queues = 8
    peer = await stage.peer()
    return [await peer.ask(Code.SEND_MESSAGE, send("another"), b"x")]


@case("maxGroups", value=1)
async def many_consumer_groups(stage: Stage) -> Answers:
    stage.broker.config.max_groups = 1
    return [await beat(await stage.peer(), [consumer("another")])]


@case("maxGroupsMadePerSecond", value=1)
async def groups_made_fast(stage: Stage) -> Answers:
    stage.broker.config.max_groups_made_per_second = 1
    return [await beat(await stage.peer(), [consumer(f"fast-{i}") for i in range(12)])]


@patched(clients, "MAX_MEMBERS_OF_GROUP", 2)
async def many_members(stage: Stage) -> Answers:
    peer = await stage.peer()
    answers = [await beat(peer, [consumer("g")], f"c@{i}") for i in range(3)]
    assert [each.code for each in answers[:2]] == [0, 0]
    assert (await beat(peer, [consumer("g")], "c@0")).code == 0, "known members stay"
    assert stage.broker.clients.consumer_ids("g") == ["c@0", "c@1"]
    return answers[2:]


@patched(clients, "MAX_MEMBERSHIPS_OF_CONNECTION", 2)
async def many_memberships_of_a_connection(stage: Stage) -> Answers:
    refused = await beat(await stage.peer(), producers=["a", "b", "c"])
    assert (await beat(await stage.peer(), producers=["c"])).code == 0
    return [refused]


@patched(clients, "MAX_MEMBERSHIPS", 2)
async def many_memberships(stage: Stage) -> Answers:
    first, second = await stage.peer(), await stage.peer()
    assert (await beat(first, producers=["a", "b"])).code == 0
    refused = await beat(second, producers=["c"], client_id="c@2")
    gone = {"clientID": "c@1", "producerGroup": "a"}
    await first.ask(Code.UNREGISTER_CLIENT, gone)
    assert (await beat(second, producers=["c"], client_id="c@2")).code == 0, (
        "a place was free again"
    )
    return [refused]


@patched(clients, "MAX_SUBSCRIPTION_BYTES_OF_CONNECTION", 2_000)
async def many_subscription_bytes_of_a_connection(stage: Stage) -> Answers:
    peer = await stage.peer()
    assert (await beat(peer, [consumer("g", [subscription("t")])])).code == 0
    refused = await beat(peer, [consumer("h", [subscription("t", subString="x" * 2_000)])])
    assert (await beat(peer, [consumer("g", [subscription("t", subVersion=1)])])).code == 0
    assert (await beat(peer, [consumer("h", [subscription("t")])])).code == 0, "there is room"
    return [refused]


@patched(clients, "MAX_SUBSCRIPTION_BYTES", 1_000)
async def many_subscription_bytes(stage: Stage) -> Answers:
    first, second = await stage.peer(), await stage.peer()
    assert (await beat(first, [consumer("g", [subscription("t"), subscription("u")])])).code == 0
    refused = await beat(second, [consumer("h", [subscription("t")])])
    await first.ask(Code.UNREGISTER_CLIENT, {"clientID": "c@1", "consumerGroup": "g"})
    assert (await beat(second, [consumer("h", [subscription("t")])])).code == 0, "they are gone"
    return [refused]


@setting("maxConsumerOffsets", 1)
async def many_offsets(stage: Stage) -> Answers:
    peer = await stage.peer()
    await beat(peer, [consumer("g")])
    answers = [
        await peer.ask(
            Code.UPDATE_CONSUMER_OFFSET,
            {"consumerGroup": "g", "topic": TOPIC, "queueId": i, "commitOffset": 0},
        )
        for i in range(2)
    ]
    assert answers[0].code == 0
    return answers[1:]


@patched(queue_locks, "MAX_LOCKS_PER_GROUP", 2, silent=True)
async def many_locks_of_a_group(stage: Stage) -> Answers:
    answer = await lock(await stage.peer(), 3)
    assert len(json.loads(bytes(answer.body))["lockOKMQSet"]) == 2
    return []


@patched(queue_locks, "MAX_LOCKS", 1, silent=True)
async def many_locks(stage: Stage) -> Answers:
    answer = await lock(await stage.peer(), 3)
    assert len(json.loads(bytes(answer.body))["lockOKMQSet"]) == 1
    return []


@patched(queue_locks, "MAX_LOCKING_GROUPS", 1, silent=True)
async def many_locking_groups(stage: Stage) -> Answers:
    peer = await stage.peer()
    await lock(peer, 1)
    answer = await lock(peer, 1, "another")
    assert json.loads(bytes(answer.body))["lockOKMQSet"] == []
    return []


# Pulls and filters


async def two_pulls(stage: Stage) -> Answers:
    peer = await stage.peer()
    frames = [peer.frame(Code.PULL_MESSAGE, held()) for _ in range(2)]
    waits, at_once = list(peer.asked.values())[-2:]
    peer.write(b"".join(frames))
    assert (await at_once).code == ResponseCode.PULL_NOT_FOUND
    assert not waits.done()
    return []


@setting("maxHeldPulls", 1, silent=True)
async def many_held_pulls(stage: Stage) -> Answers:
    return await two_pulls(stage)


@setting("maxHeldPullsPerConnection", 1, silent=True)
async def many_held_pulls_of_a_connection(stage: Stage) -> Answers:
    return await two_pulls(stage)


@patched(waiting, "MAX_PULLS_AHEAD", 0, silent=True)
async def pulls_ahead(stage: Stage) -> Answers:
    peer = await stage.peer()
    await beat(peer, [consumer("g", [subscription(TOPIC, subVersion=1)])])
    ext = pull_ext(TOPIC, consumerGroup="g", sysFlag=SUSPEND, subscription=None, subVersion=9)
    answer = await peer.ask(Code.PULL_MESSAGE, ext)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    return []


async def two_cold_pulls(stage: Stage) -> Answers:
    peer = await stage.peer()
    assert (await peer.ask(Code.SEND_MESSAGE, send("old"), b"old")).code == 0
    store = stage.broker.store
    # As after a restart, which would cut the other client.
    store._getter.distrust(store.commit_log.end)
    disk = stage.cluster.node(stage.cluster.nodes.brokers[0]).disk
    disk.cold_share = 1.0
    frames = [peer.frame(Code.PULL_MESSAGE, pull_ext("old", queueOffset=0)) for _ in range(2)]
    first, second = await peer.ask_all(*frames)
    disk.cold_share = 0.0
    assert first.code == 0
    return [second]


@patched(waiting, "MAX_COLD_PULLS", 1)
async def many_cold_pulls(stage: Stage) -> Answers:
    return await two_cold_pulls(stage)


@patched(waiting, "MAX_COLD_PULLS_OF_CONNECTION", 1)
async def many_cold_pulls_of_a_connection(stage: Stage) -> Answers:
    return await two_cold_pulls(stage)


async def filtered(stage: Stage, expression: str) -> Answers:
    peer = await stage.peer()
    data = subscription(TOPIC, expressionType="SQL92", subString=expression, subVersion=1)
    body = {"clientId": "c@1", "group": "g", "subscriptionData": data}
    return [await peer.ask(Code.CHECK_CLIENT_CONFIG, body=as_json(body))]


SQL: Final = {"enablePropertyFilter": "true"}


@patched(consumer_filters, "MAX_FILTER_CHARACTERS", 2_100, properties=SQL)
async def many_filters(stage: Stage) -> Answers:
    peer = await stage.peer()
    sql = {"expressionType": "SQL92", "subString": "a = 1", "subVersion": 1}

    async def pull(topic: str) -> RemotingCommand:
        ext = pull_ext(topic, consumerGroup="g", sysFlag=0, subscription=None, subVersion=1)
        return await peer.ask(Code.PULL_MESSAGE, {**ext, "expressionType": "SQL92"})

    for topic in ("u", "v"):
        assert (await peer.ask(Code.SEND_MESSAGE, send(topic), b"x")).code == 0
    await beat(peer, [consumer("g", [subscription(topic, **sql) for topic in (TOPIC, "u", "v")])])
    refused = await pull("v")
    # What was left makes room.
    await beat(peer, [consumer("g", [subscription(topic, **sql) for topic in ("u", "v")])])
    assert (await pull("v")).code == ResponseCode.PULL_RETRY_IMMEDIATELY, "nothing matches"
    return [refused]


@case("MAX_EXPRESSION_LENGTH", properties=SQL)
async def a_long_expression(stage: Stage) -> Answers:
    return await filtered(stage, "a = " + "1" * 16_384)


@case("MAX_SQL_DEPTH", properties=SQL)
async def a_deep_expression(stage: Stage) -> Answers:
    return await filtered(stage, "NOT " * 64 + "TRUE")


@case("MAX_TERMS", properties=SQL)
async def an_expression_of_many_terms(stage: Stage) -> Answers:
    return await filtered(stage, " OR ".join(["a = 1"] * 513))


@case("MAX_PARTS", properties=SQL)
async def an_expression_of_many_parts(stage: Stage) -> Answers:
    return await filtered(stage, "(" * 4_097 + "a = 1")


PREDICATE: Final = {"filterPredicateModules": "tests.integration.filter_functions:is_paid"}


@patched(predicates, "MAX_PREDICATE_BODY_BYTES", 100, properties=PREDICATE, silent=True)
async def a_bomb_for_a_predicate(stage: Stage) -> Answers:
    peer = await stage.peer()
    bomb = zlib.compress(bytes(10_000))
    assert (await peer.ask(Code.SEND_MESSAGE, send("bombs", sysFlag=1), bomb)).code == 0
    data = subscription("bombs", subString="is_paid", classFilterMode=True, subVersion=7)
    await beat(peer, [consumer("g", [data])])
    ext = pull_ext(
        "bombs", consumerGroup="g", sysFlag=CLASS_FILTER, subscription=None, subVersion=7
    )
    assert bomb in (await peer.ask(Code.PULL_MESSAGE, ext)).body
    return []


# Administrators' requests


async def long_answers(stage: Stage) -> Answers:
    peer = await stage.at_broker()
    other = Connection(stage.broker.handlers, TaskOwner("other"))
    async with stage.broker.parts.long_answers.turn(other):
        first = asyncio.create_task(peer.ask(Code.GET_TOPIC_STATS_INFO, {"topic": TOPIC}))
        await asyncio.sleep(0.1)
        refused = await peer.ask(Code.GET_TOPIC_STATS_INFO, {"topic": TOPIC})
    assert (await first).code == 0
    return [refused]


@patched(long_answer, "MAX_LONG_ANSWERS_OF_CONNECTION", 1)
async def many_long_answers(stage: Stage) -> Answers:
    return await long_answers(stage)


@patched(long_answer, "MAX_LONG_ANSWERS", 1)
async def many_long_answers_in_all(stage: Stage) -> Answers:
    return await long_answers(stage)


@case("MAX_ENTRIES_LOOKED_AT", value=5)
async def a_wide_search(stage: Stage) -> Answers:
    peer = await stage.peer()
    await asyncio.sleep(10)
    for _ in range(20):
        await peer.ask(Code.SEND_MESSAGE, send(properties="KEYS\x01k\x02"), b"x")
        stage.sent += 1
    now_ms = current().clock.now_ms()
    await asyncio.sleep(100)  # the index has them by then
    stage.broker.store.index.max_entries_looked_at = 5
    ext = {
        "topic": TOPIC, "key": "k", "maxNum": 1,
        "beginTimestamp": now_ms - 4_000, "endTimestamp": now_ms - 3_000,
    }  # fmt: skip
    return [await peer.ask(Code.QUERY_MESSAGE, ext)]


@case("MAX_RECORDS_LOOKED_AT", value=5)
async def a_search_among_strangers(stage: Stage) -> Answers:
    peer = await stage.peer()
    await asyncio.sleep(10)
    for _ in range(20):  # "Aa" and "BB" have one hash
        await peer.ask(Code.SEND_MESSAGE, send(properties="KEYS\x01BB"), b"x")
        stage.sent += 1
    stage.broker.store.index.max_records_looked_at = 5
    ext = {"topic": TOPIC, "key": "Aa", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    return [await peer.ask(Code.QUERY_MESSAGE, ext)]


async def redriven(stage: Stage, selection: Mapping[str, Any]) -> Answers:
    peer = await stage.at_broker()
    await beat(peer, [consumer("g")])
    letter = send("%DLQ%g", defaultTopicQueueNums=1, properties="KEYS\x01k\x02")
    stage.broker.topics.create_for_group("%DLQ%g", 1)
    assert (await peer.ask(Code.SEND_MESSAGE, letter, b"dead")).code == 0
    ext = {"redriveId": "r", "group": "g"}
    return [await peer.ask(OwnRequestCode.REDRIVE_DEAD_LETTERS, ext, as_json(selection))]


@patched(budget, "MAX_RETRY_BYTES_BEYOND_PULLS", 0)
async def a_message_sent_back_again(stage: Stage) -> Answers:
    peer = await stage.peer()
    sent = await peer.ask(Code.SEND_MESSAGE, send("again"), b"x")
    offset = int(sent.ext["msgId"][16:], 16)
    ext = {"offset": offset, "group": "g", "delayLevel": 0, "maxReconsumeTimes": 16}
    first, second = [await peer.ask(Code.CONSUMER_SEND_MSG_BACK, ext) for _ in range(2)]
    assert first.code == 0, first.remark
    return [second]


@patched(redrive, "MAX_REDRIVES", 0)
async def many_redrives(stage: Stage) -> Answers:
    return await redriven(stage, {})


@patched(redrive, "MAX_SELECTED_CHARACTERS", 3)
async def long_selections(stage: Stage) -> Answers:
    return await redriven(stage, {"keys": ["abcd"]})


@case("MAX_SELECTED")
async def a_long_selection(stage: Stage) -> Answers:
    return await redriven(stage, {"keys": ["k"] * 1_001})


@setting("maxHaConnections", 1, silent=True)
async def many_slaves(stage: Stage) -> Answers:
    for number in range(2):
        slave = await stage.peer(stage.broker.ha_address, f"slave-{number}")
    await slave.ended()
    return []


# Name servers


@case("maxBrokers", value=1, at_name_server=True)
async def many_brokers(stage: Stage) -> Answers:
    stage.name_server.config.max_brokers = 1
    return [await register(await stage.at_name_server(), registration(topics_of(2)))]


@case("maxRoutes", value=100, at_name_server=True)
async def many_routes(stage: Stage) -> Answers:
    stage.name_server.config.max_routes = 100
    peer = await stage.at_name_server()
    refused = await register(peer, registration(topics_of(101)))
    assert (await register(peer, registration(topics_of(2)))).code == 0
    return [refused]


@patched(limits, "MAX_REGISTERED_TOPICS", 50, at_name_server=True)
async def many_registered_topics(stage: Stage) -> Answers:
    return [await register(await stage.at_name_server(), registration(topics_of(51)))]


@patched(limits, "MAX_FILTER_SERVERS", 1, at_name_server=True)
async def many_filter_servers(stage: Stage) -> Answers:
    body = registration(topics_of(2), ["a:1", "b:1"])
    return [await register(await stage.at_name_server(), body)]


@patched(limits, "MAX_REGISTERED_VALUES", 500, at_name_server=True)
async def a_topic_with_many_attributes(stage: Stage) -> Answers:
    topics = topics_of(2)
    topics["many"] = {"topicName": "many", "attributes": {f"+k{n}": "v" for n in range(1_000)}}
    return [await register(await stage.at_name_server(), registration(topics))]


@patched(limits, "MAX_REGISTERED_OBJECTS", 50, at_name_server=True)
async def many_registered_objects(stage: Stage) -> Answers:
    return [await register(await stage.at_name_server(), registration(topics_of(50)))]


@patched(register_body, "MAX_DIALECT_REGISTRATION_LENGTH", 100, at_name_server=True)
async def a_registration_in_the_dialect(stage: Stage) -> Answers:
    body = registration(topics_of(2)).replace(b'"perm"', b"perm")
    return [await register(await stage.at_name_server(), body)]


@patched(limits, "MAX_ROUTE_QUEUES", 1, at_name_server=True)
async def many_brokers_of_a_topic(stage: Stage) -> Answers:
    peer = await stage.at_name_server()
    data = [
        {"brokerName": name, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6} for name in "ab"
    ]
    body = as_json({"queueDatas": data, "brokerDatas": []})
    return [await peer.ask(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "t"}, body)]


async def put_kv(stage: Stage, key: str, value: str) -> RemotingCommand:
    peer = await stage.at_name_server()
    return await peer.ask(Code.PUT_KV_CONFIG, {"namespace": "n", "key": key, "value": value})


@case("MAX_KV_NAME_LENGTH", at_name_server=True)
async def a_long_key(stage: Stage) -> Answers:
    return [await put_kv(stage, "k" * 513, "v")]


@patched(kv_config, "MAX_KV_VALUE_LENGTH", 10, at_name_server=True)
async def a_long_value(stage: Stage) -> Answers:
    return [await put_kv(stage, "k", "v" * 11)]


@case("MAX_KV_LENGTH", at_name_server=True)
async def a_long_entry(stage: Stage) -> Answers:
    return [await put_kv(stage, "k", "v" * 65_536)]


@patched(kv_config, "MAX_KV_ENTRIES", 1, at_name_server=True)
async def many_entries(stage: Stage) -> Answers:
    await put_kv(stage, "a", "v")
    return [await put_kv(stage, "b", "v")]


@patched(kv_config, "MAX_KV_TABLE_LENGTH", 20, at_name_server=True)
async def a_long_table(stage: Stage) -> Answers:
    return [await put_kv(stage, "a", "v" * 21)]


# Pages of monitoring


async def page_of(stage: Stage) -> Peer:
    _host, _, port = (stage.broker.metrics_address or "").rpartition(":")
    there = stage.broker.address.rpartition(":")[0]
    return await stage.peer(f"{there}:{port}")


@case("MAX_HTTP_CONNECTIONS", silent=True)
async def many_scrapers(stage: Stage) -> Answers:
    for _ in range(33):
        await page_of(stage)
    return []


@case("MAX_HEAD_BYTES", silent=True)
async def a_long_head(stage: Stage) -> Answers:
    peer = await page_of(stage)
    peer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 9_000 + b"\r\n\r\n")
    await peer.ended()
    assert b"431" in peer.raw
    assert b"the limit MAX_HEAD_BYTES is 8192; " in peer.raw
    return []


# The play


def stored(cluster: Cluster, topic: str) -> int:
    queues = cluster.brokers[0].store.queues
    found = [queues.find(topic, queue_id) for queue_id in range(4)]
    return sum(queue.next_offset for queue in found if queue is not None)


async def go_on_sending(stage: Stage, peer: Peer, enough: asyncio.Event) -> None:
    while not enough.is_set():
        answer = await peer.ask(Code.SEND_MESSAGE, send(), b"quiet")
        assert answer.code == 0, answer.remark
        stage.sent += 1
        await asyncio.sleep(0.05)


async def play(stage: Stage, name: str, case: Case) -> None:
    bystander = await stage.peer(node="bystander")
    first = await bystander.ask(Code.SEND_MESSAGE, send(), b"first")
    assert first.code == 0, first.remark
    stage.sent += 1
    enough = asyncio.Event()
    others = asyncio.create_task(go_on_sending(stage, bystander, enough))
    before = stage.sent
    refused = await case.act(stage)
    await asyncio.sleep(0.2)
    enough.set()
    await others
    assert stage.sent > before, "nobody else was served"
    there = stored(stage.cluster, TOPIC)
    assert there == stage.sent, "messages were lost, or refused ones were stored"
    server: Broker | NameServer = stage.name_server if case.at_name_server else stage.broker
    counts = server.handlers.limit_hits.counts
    assert name in counts, (counts, [(each.code, each.remark) for each in refused])
    assert set(counts) <= LIMITS.keys()
    assert bool(refused) != case.silent
    for answer in refused:
        assert answer.code != 0
        words, _, remedy = (answer.remark or "").partition(f"limit {name} is ")
        assert words, answer.remark
        if case.value is not None:
            assert remedy.startswith(str(case.value)), answer.remark
        assert "; " in remedy, f"no remedy: {answer.remark}"


def test_every_limit_is_hit_by_a_test() -> None:
    assert CASES.keys().isdisjoint(HIT_ELSEWHERE)
    assert LIMITS.keys() == CASES.keys() | HIT_ELSEWHERE.keys()
    for name, file in HIT_ELSEWHERE.items():
        assert f'hits["{name}"]' in Path(file).read_text()


@pytest.mark.parametrize("name", CASES)
def test_a_limit_refuses_says_so_and_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    for module, constant, value in case.patches:
        monkeypatch.setattr(module, constant, value)
    given = {"metricsExporterType": "PROM", **case.properties}
    with Cluster(clock="virtual", seed=1, properties=given) as cluster:
        stage = Stage(cluster)
        cluster.run(play(stage, name, case))
