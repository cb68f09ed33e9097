"""Measure for how long single requests hold a broker's loop: the longest turn, in thread ms.

    COMETMQ_PURE=1 python -m benchmarks.longest_turn [NAME …] [--acl 1]

A broker and a name server run in this process, and a client in a thread of its own sends each request
of `REQUESTS` over a socket; what `SCANS` has, the servers do by themselves from time to time. Beside it a callback runs in every turn of the loop and reads the processor
time of the loop's thread, so that neither the client nor other processes count. The figures of what
is allocated for the first time are higher than later ones, so the best of `--rounds` is shown, too. With
`--acl` the client signs as an account or user that may consume from everything; its policies of ACL 2.0 have
prefixes of a hundred lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from cometmq.model.topic import DataVersion, TopicConfig
from cometmq.namesrv.route_table import Registration
from cometmq.protocol import headers as h
from cometmq.protocol.bodies.access import (
    AclInfo,
    AclRequestHeader,
    DeleteAclRequestHeader,
    PolicyEntryInfo,
    PolicyInfo,
    UserInfo,
    UserRequestHeader,
)
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import TopicQueues, encode_register_body
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand, request
from cometmq.protocol.header import Header
from cometmq.protocol.requests import AUTH_CREATE_ACL, AUTH_CREATE_USER
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.credentials import Credentials
from cometmq.runtime.garbage import keep_passes_short
from cometmq.testing import Account, Cluster

_TIMEOUT_S: Final = 120.0
_QUEUES: Final = 200_000


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """One request to measure. `before` are sent first and do not count."""

    code: int
    header: Header | None = None
    body: bytes = b""
    before: tuple[AccessRequest, ...] = ()
    at_name_server: bool = False
    language: str = "JAVA"
    # Whether the end of the connection is measured, and not the request.
    is_farewell: bool = False
    # Whether a Super user sends it, with --acl 2.
    by_owner: bool = False


def _as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _heartbeat(groups: list[dict[str, Any]], **more: object) -> AccessRequest:
    body = _as_json({"clientID": "c", "consumerDataSet": groups, **more})
    return AccessRequest(RequestCode.HEART_BEAT, body=body)


def _expressions(version: int) -> AccessRequest:
    # As long as an expression may be, with as many parts as it may have in so many characters.
    text = " OR ".join(f"a{n}={n + version}" for n in range(500)) + f" OR b='{'x' * 7000}'"
    subscriptions = [
        {"topic": f"t-{n}", "subString": f"{text} OR c={n}1", "expressionType": "SQL92", "subVersion": version}
        for n in range(256)
    ]  # fmt: skip
    return _heartbeat([{"groupName": "sql", "subscriptionDataSet": subscriptions}])


def _tags(groups: int, of_group: int, count: int = 4_000) -> AccessRequest:
    tags = [f"{n:x}" for n in range(count)]
    subscription = {"subString": "x", "tagsSet": tags, "codeSet": list(range(count))}
    return _heartbeat(
        [
            {
                "groupName": f"tags-{group}",
                "subscriptionDataSet": [
                    {"topic": f"t-{n}", **subscription} for n in range(of_group)
                ],
            }
            for group in range(groups)
        ]
    )


def _subscriptions(version: int, null: bool = False) -> AccessRequest:
    more: dict[str, object] = {"codeSet": None} if null else {}
    subscriptions = [
        {"topic": f"t-{n}-{version}", "subString": "a", "tagsSet": ["a"], "subVersion": version, **more}
        for n in range(4_096)
    ]  # fmt: skip
    return _heartbeat([{"groupName": "many", "subscriptionDataSet": subscriptions}])


def _groups(count: int) -> AccessRequest:
    return _heartbeat(
        [{"groupName": f"g-{n}", "subscriptionDataSet": [{"topic": "t"}]} for n in range(count)]
    )


def _topic(queues: int) -> AccessRequest:
    return AccessRequest(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        h.CreateTopicRequestHeader(
            topic="many-queues", default_topic="TBW102", read_queue_nums=queues, write_queue_nums=queues,
            perm=6, topic_filter_type="SINGLE_TAG", order=False,
        ),
    )  # fmt: skip


def _group(name: str = "resets") -> AccessRequest:
    body = _as_json({"groupName": name})
    return AccessRequest(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


def _reset() -> AccessRequest:
    header = h.ResetOffsetRequestHeader("resets", "many-queues", -1, is_force=True)
    return AccessRequest(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header, before=(_topic(_QUEUES), _group())
    )


def _topic_list(count: int, version: int) -> bytes:
    """Return a list as Java's tools send it."""
    rest = {"attributes": {}, "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "writeQueueNums": 8}  # fmt: skip
    topics = [{"topicName": f"t-{version}-{n}", **rest} for n in range(count)]
    return _as_json({"topicConfigList": topics})


def _garbage() -> AccessRequest:
    body = b'{"clientID":"c","consumerDataSet":[],"x":[%b0]}' % (b"0," * 500_000)
    return AccessRequest(RequestCode.HEART_BEAT, body=body)


def _policies(version: int, *, by_mqadmin: bool = False) -> AccessRequest:
    """Say a thousand entries of the consumer; mqadmin refers to the lists of the first one."""
    lists: dict[str, object] = {"actions": ["Pub", "Sub"], "sourceIps": ["127.0.0.1"]}
    first = "$.policies[0].entries[0]."
    entries = [
        {"resource": f"Topic:t-{version}-{n}", "decision": "Allow"}
        | ({key: {"$ref": first + key} for key in lists} if by_mqadmin and n else lists)
        for n in range(1_000)
    ]
    name = f"User:{_CONSUMER.access_key}"
    body = {"policies": [{"entries": entries, "policyType": "Custom"}], "subject": name}
    forget = AccessRequest(RequestCode.AUTH_DELETE_ACL, DeleteAclRequestHeader(name), by_owner=True)
    return AccessRequest(
        RequestCode.AUTH_CREATE_ACL,
        AclRequestHeader(name),
        _as_json(body),
        before=(forget,),
        by_owner=True,
    )


def _registration(
    version: int, count: int = 50_000, *, queues: int = 4, compressed: bool = False
) -> AccessRequest:
    topics = {
        f"orders-{n:06}": TopicConfig(f"orders-{n:06}", read_queue_nums=queues)
        for n in range(count)
    }
    wrapper = TopicConfigSerializeWrapper(DataVersion(version), topic_config_table=topics)
    return AccessRequest(
        RequestCode.REGISTER_BROKER,
        h.RegisterBrokerRequestHeader("many", "127.0.0.1:9", "c", "", 0, compressed=compressed),
        encode_register_body(RegisterBrokerBody([], wrapper), compressed=compressed),
        at_name_server=True,
    )


def _again(version: int, queues: int) -> AccessRequest:
    """Return a registration of topics that have had four queues."""
    return replace(_registration(version, queues=queues), before=(_registration(version - 1),))


def _of_trouble(inside: bytes) -> AccessRequest:
    """Return a registration that no broker sends."""
    body = b'{"topicConfigSerializeWrapper":{%b}}' % inside
    return replace(_registration(0, 0), body=body)


REQUESTS: Final[dict[str, Callable[[int], AccessRequest]]] = {
    "expressions": _expressions,
    "expressions-again": lambda version: _expressions(version // 1000),
    "tags-of-16-groups": lambda _: _tags(16, 1),
    "tags-of-one-group": lambda _: _tags(1, 16),
    "tags-of-one-subscription": lambda _: _tags(1, 1, 80_000),
    "subscriptions-4096": _subscriptions,
    "subscriptions-4096-again": lambda version: _subscriptions(version // 1000),
    "subscriptions-with-null": lambda version: _subscriptions(version, null=True),
    "groups-1024": lambda _: _groups(1_024),
    "farewell-of-1024": lambda _: replace(_groups(1_024), is_farewell=True),
    "farewell-of-4096": lambda version: replace(_subscriptions(version), is_farewell=True),
    "topics-50000": lambda _: _heartbeat(
        [{"groupName": "many", "subscriptionDataSet": [{"topic": f"t-{n}"} for n in range(50_000)]}]
    ),
    "locks-2048": lambda _: AccessRequest(
        RequestCode.LOCK_BATCH_MQ,
        body=_as_json(
            {
                "consumerGroup": "many",
                "clientId": "c",
                "mqSet": [
                    {"topic": f"t-{n}", "brokerName": "b", "queueId": 1} for n in range(2_048)
                ],
            }
        ),
    ),
    "topics-made-1500": lambda version: AccessRequest(
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=_topic_list(1_500, version)
    ),
    "groups-made-1024": lambda version: AccessRequest(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        body=_as_json({"groupConfigList": [{"groupName": f"t-{version}-{n}"} for n in range(1_024)]}),
    ),
    "empty-groups": lambda _: AccessRequest(
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        body=b'{"groupConfigList":[%b]}' % b",".join([b"{}"] * 87_000),
    ),
    "garbage": lambda _: _garbage(),
    "config-3000": lambda version: AccessRequest(
        RequestCode.UPDATE_BROKER_CONFIG,
        body=b"".join(b"wrng%d=%d\n" % (n, version % 10) for n in range(3_000))[: 32 * 1024],
    ),
    "config-3000-namesrv": lambda version: AccessRequest(
        RequestCode.UPDATE_NAMESRV_CONFIG,
        body=b"".join(b"wrng%d=%d\n" % (n, version % 10) for n in range(3_000))[: 32 * 1024],
        at_name_server=True,
    ),
    "registration-1000": lambda version: _registration(version, 1_000),
    "registration-10000": lambda version: _registration(version, 10_000),
    "registration-50000": _registration,
    "registration-50000-same": lambda version: _again(version, 4),
    "registration-50000-changed": lambda version: _again(version, 5),
    "registration-50000-compressed": lambda version: _registration(version, compressed=True),
    "registration-of-bare-topics": lambda _: _of_trouble(
        b'"topicConfigTable":{%b}' % b",".join(b'"%x":{}' % n for n in range(129_000))
    ),
    "registration-of-attributes": lambda _: _of_trouble(
        b'"topicConfigTable":{"t":{"attributes":{%b}}}'
        % b",".join(b'"%d":"%0*d"' % (n, 10, n) for n in range(590_000))
    ),
    "registration-of-one-mapping": lambda _: _of_trouble(
        b'"topicQueueMappingInfoMap":{"t":{"currIdMap":{%b}}}'
        % b",".join(b'"%d":1' % n for n in range(599_000))
    ),
    "registration-of-values": lambda _: _of_trouble(b'"x":[%b0]' % (b"0," * 8_000_000)),
    "registration-of-nulls": lambda _: _of_trouble(b'"dataVersion":null,"x":[%b0]' % (b"0," * 19_000)),
    "registration-in-the-dialect": lambda _: _of_trouble(
        b'"topicQueueMappingInfoMap":{%b}'
        % b",".join(
            b'"t%d":{"bname":"many","currIdMap":{0:1,1:2,2:3,3:4,4:5,5:6,6:7,7:8},"epoch":1,"topic":"t%d"}' % (n, n)
            for n in range(25_000)
        )
    ),
    "reset-200000": lambda _: _reset(),
    "all-offsets-200000": lambda _: AccessRequest(
        RequestCode.GET_ALL_CONSUMER_OFFSET, before=(_reset().before[0], _group(), _reset())
    ),
    "delete-topic-200000": lambda _: AccessRequest(
        RequestCode.DELETE_TOPIC_IN_BROKER,
        h.DeleteTopicRequestHeader("many-queues"),
        before=(*_reset().before, _reset()),
    ),
    "delete-group-200000": lambda _: AccessRequest(
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        h.DeleteSubscriptionGroupRequestHeader("resets", True),
        before=(*_reset().before, _reset()),
    ),
    "clone-200000": lambda _: AccessRequest(
        RequestCode.CLONE_GROUP_OFFSET,
        h.CloneGroupOffsetRequestHeader("resets", "clones", "many-queues"),
        before=(*_reset().before, _group("clones"), _reset()),
    ),
    "correction-200000": lambda _: AccessRequest(
        RequestCode.QUERY_CORRECTION_OFFSET,
        h.QueryCorrectionOffsetHeader("many-queues", "resets"),
        before=(*_reset().before, _reset()),
    ),
    "connections-4096": lambda version: AccessRequest(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        h.GetConsumerConnectionListRequestHeader("many"),
        before=(_subscriptions(version),),
    ),
    "topics-of-4096": lambda version: AccessRequest(
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        h.QueryTopicsByConsumerRequestHeader("many"),
        before=(_subscriptions(version),),
    ),
    "policies-1000": _policies,
    "policies-1000-of-mqadmin": lambda version: _policies(version, by_mqadmin=True),
    "frame-16mib": lambda _: AccessRequest(RequestCode.GET_ALL_TOPIC_CONFIG, body=b"x" * (16 * 1024 * 1024 - 200)),
    "dialect": lambda _: AccessRequest(
        RequestCode.HEART_BEAT,
        body=b'{clientID:"c",producerDataSet:[%b]}'
        % b",".join(b'{groupName:"p-%d"}' % n for n in range(2_000)),
    ),
}  # fmt: skip


class _Link:
    """Is the connection of a broker that registers."""

    closed = False
    peer_ip = "10.0.0.1"

    def close(self) -> None:
        self.closed = True


def _route_tables(cluster: Cluster, count: int, timeout_ms: int) -> list[_Link]:
    """Have the name server know so many brokers with 10,000 topics each; return their connections."""
    table = cluster.name_servers[0].table
    topics = {f"topic-{n:05}": TopicQueues() for n in range(10_000)}
    links = []
    for n in range(count):
        registration = Registration(
            "many", f"broker-{n}", f"10.0.{n}.1:10911", 0, timeout_ms=timeout_ms,
            topics=topics,
        )  # fmt: skip
        links.append(_Link())
        assert table.register(registration, links[-1]) is not None
    return links


async def _expiry(cluster: Cluster, count: int, timeout_ms: int) -> Callable[[], object]:
    _route_tables(cluster, count, timeout_ms)
    await asyncio.sleep(0.01)
    return cluster.name_servers[0].scan


async def _broker_gone(cluster: Cluster) -> Callable[[], object]:
    links = _route_tables(cluster, 100, 3_600_000)
    return lambda: cluster.name_servers[0].table.link_closed(links[50])


async def _offsets(cluster: Cluster, groups: int, queues: int) -> Callable[[], object]:
    """Have the broker keep 100,000 offsets, which it writes when the file has rested."""
    offsets = cluster.brokers[0].offsets
    for former in offsets.groups():
        offsets.remove_group(former)
    for number in range(groups):
        for queue in range(queues):
            offsets.keep(f"g-{number}", "t", queue, 1)
    file = cluster.brokers[0].store_config.store_path_root_dir / "config" / "consumerOffset.json"
    before = file.stat().st_mtime_ns if file.exists() else 0

    async def written() -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            while not file.exists() or file.stat().st_mtime_ns == before:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.1)

    return written


# Work that servers do by themselves. Each function prepares it, and returns a function that has it done.
SCANS: Final[dict[str, Callable[[Cluster], Awaitable[Callable[[], object]]]]] = {
    "scan-100-brokers": lambda cluster: _expiry(cluster, 100, 3_600_000),
    "expiry-1-broker": lambda cluster: _expiry(cluster, 1, 1),
    "expiry-100-brokers": lambda cluster: _expiry(cluster, 100, 1),
    "broker-gone": _broker_gone,
    "offsets-100000-of-one-group": lambda cluster: _offsets(cluster, 1, 100_000),
    "offsets-4-of-25000-groups": lambda cluster: _offsets(cluster, 25_000, 4),
}


class Longest:
    """Notes the longest turn of the running loop."""

    def __init__(self) -> None:
        self.ms = 0.0
        self._last_s = time.thread_time()
        self._loop = asyncio.get_running_loop()
        self._beat()

    def _beat(self) -> None:
        now_s = time.thread_time()
        self.ms = max(self.ms, (now_s - self._last_s) * 1000)
        self._loop.call_soon(self._beat)
        self._last_s = time.thread_time()

    def begin(self) -> None:
        self.ms = 0.0


async def _send(
    asked: AccessRequest, ports: tuple[int, int], client: RemotingClient
) -> RemotingCommand:
    command = request(asked.code, asked.header, asked.body)
    command.language = asked.language
    address = f"127.0.0.1:{ports[asked.at_name_server]}"
    return await client.call(address, command, _TIMEOUT_S)


def _figures(
    names: list[str],
    rounds: int,
    ports: tuple[int, int],
    longest: Longest,
    credentials: Credentials | None,
) -> Iterator[str]:
    with asyncio.Runner() as runner:
        version = 1_000
        for name in names:
            found, remark = [], ""
            for _ in range(rounds):
                version += 1
                asked = REQUESTS[name](version)
                client = RemotingClient(credentials=_OWNER if asked.by_owner else credentials)
                for each in asked.before:
                    answer = runner.run(_send(each, ports, client))
                    assert not answer.code, answer.remark
                time.sleep(0.3)  # what was asked before is written to the disk
                longest.begin()
                answer = runner.run(_send(asked, ports, client))
                time.sleep(0.2)  # what the request leaves to do is done
                if asked.is_farewell:
                    longest.begin()
                runner.run(client.close())
                if asked.is_farewell:
                    time.sleep(0.3)
                found.append(longest.ms)
                remark = (answer.remark or "")[:100].replace("\n", " ")
            found.sort()
            figures = f"{found[0]:6.1f} {found[len(found) // 2]:6.1f} {found[-1]:6.1f}"
            yield f"{name:28} {figures}  {answer.code} {remark}"


async def _scans(
    names: list[str], rounds: int, cluster: Cluster, longest: Longest
) -> AsyncIterator[str]:
    for name in names:
        found = []
        for _ in range(rounds):
            scan = await SCANS[name](cluster)
            await asyncio.sleep(0)
            longest.begin()
            done = scan()
            if inspect.isawaitable(done):
                await done
            await asyncio.sleep(0.5)
            found.append(longest.ms)
        found.sort()
        yield f"{name:28} {found[0]:6.1f} {found[len(found) // 2]:6.1f} {found[-1]:6.1f}"


_CONSUMER: Final = Account("a-consumer", default_topic="PUB|SUB", default_group="SUB")
_OWNER: Final = Credentials("the-owner", "a-secret-of-the-owner")


async def _make_user(address: str) -> None:
    """Have a broker with ACL 2.0 know the consumer."""
    resources = ["Topic:*", "Group:*", *(f"Topic:t-{'9' * n}x*" for n in range(100))]
    entries = [
        PolicyEntryInfo(each, ["Pub", "Sub", "Get", "Create"], None, "Allow") for each in resources
    ]
    name = f"User:{_CONSUMER.access_key}"
    user = UserInfo(_CONSUMER.access_key, _CONSUMER.secret_key, "Normal")
    acl = AclInfo(name, [PolicyInfo("Custom", entries)])
    client = RemotingClient(credentials=_OWNER)
    for command in (
        AUTH_CREATE_USER.command(UserRequestHeader(_CONSUMER.access_key), user),
        AUTH_CREATE_ACL.command(AclRequestHeader(name), acl),
    ):
        answer = await client.call(address, command, _TIMEOUT_S)
        assert not answer.code, answer.remark
    await client.close()


async def _run(names: list[str], rounds: int, acl: int) -> None:
    properties = {"maxTopics": "0", "flushConsumerOffsetInterval": "500"}
    if acl == 2:
        first = {"username": _OWNER.access_key, "password": _OWNER.secret_key}
        inner = {"accessKey": _OWNER.access_key, "secretKey": _OWNER.secret_key}
        properties |= {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": json.dumps(first),
            "innerClientAuthenticationCredentials": json.dumps(inner),
        }
    accounts = [_CONSUMER] if acl == 1 else []
    async with Cluster(properties=properties, accounts=accounts) as cluster:
        if acl == 2:
            await _make_user(f"127.0.0.1:{cluster.brokers[0].port}")
        keep_passes_short()
        ports = cluster.brokers[0].port, cluster.name_servers[0].port
        longest = Longest()
        loop = asyncio.get_running_loop()
        scans = [name for name in names if name in SCANS]
        async for line in _scans(scans, rounds, cluster, longest):
            print(line, file=sys.stderr, flush=True)
        names = [name for name in names if name not in SCANS]
        done = loop.create_future()

        def work() -> None:
            try:
                credentials = _CONSUMER.credentials if acl else None
                for line in _figures(names, rounds, ports, longest, credentials):
                    print(line, file=sys.stderr, flush=True)
            finally:
                loop.call_soon_threadsafe(done.set_result, None)

        threading.Thread(target=work, daemon=True).start()
        await done


def main() -> None:
    """Print for each request the best, the median and the worst of its rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=", ".join([*REQUESTS, *SCANS]))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--acl", type=int, choices=[0, 1, 2], default=0)
    given = parser.parse_args()
    if unknown := set(given.names) - {*REQUESTS, *SCANS}:
        parser.error(f"no request is named {', '.join(sorted(unknown))}; --help lists the names")
    print(f"{'request':28}   best median  worst  answer", file=sys.stderr)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(given.names or [*REQUESTS, *SCANS], given.rounds, given.acl))


if __name__ == "__main__":
    main()
