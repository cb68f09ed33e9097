"""Define the floods: each prepares what it needs up to its first `yield`, and then floods.

A course adds its swarms to the list that it is given, so that what they count is reported.

Longer than 500 lines: the floods are a list, and each of them is short.
"""

from __future__ import annotations

import itertools
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.floods.attack import Attack
from tests.floods.honest import TOPIC as HONEST_TOPIC
from tests.floods.swarm import Peer, Swarm
from tests.integration.raw_client import (
    RawClient,
    batch_body,
    heartbeat_body,
    json_request,
    properties,
    pull_ext,
    send_ext,
)

SEND, PULL, QUERY, SEARCH, HEARTBEAT = 310, 11, 12, 29, 34
SEND_BATCH, COMMIT_OFFSET, ROUTE, REGISTER = 320, 15, 105, 103
POP, ACK = 200050, 200051
ONEWAY: Final = 2
PREPARED: Final = 4
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

Course = Callable[[Attack, list[Swarm]], Iterator[None]]


@dataclass(frozen=True)
class Flood:
    """Holds a flood, what it is called in reports, and the settings that it needs."""

    course: Course
    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    # Whether the name server is flooded, and so the routes that the honest client asks for count.
    of_namesrv: bool = False
    # Whether the broker starts again, with cold files, when all is prepared.
    cold: bool = False
    # Whether the broker's loop itself computes meanwhile, for nothing.
    computes: bool = False


FLOODS: dict[str, Flood] = {}


def flood(title: str, **how: Any) -> Callable[[Course], Course]:
    def add(course: Course) -> Course:
        FLOODS[course.__name__.replace("_", "-")] = Flood(course, title, **how)
        return course

    return add


def send(topic: str, body: bytes, *, opaque: int = 0, flag: int = 0, **fields: Any) -> bytes:
    return json_request(
        SEND, send_ext(topic, letters=True, **fields), body, opaque=opaque, flag=flag
    )


def pull(topic: str, *, opaque: int = 0, **fields: Any) -> bytes:
    return json_request(PULL, pull_ext(topic, **fields), opaque=opaque)


def pop(topic: str, group: str, *, poll_ms: int = 0, count: int = 32) -> bytes:
    ext: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": -1,
        "order": "false",
    }
    ext |= {"maxMsgNums": count, "invisibleTime": 600_000, "pollTime": poll_ms, "initMode": 0}
    return json_request(POP, ext)


def ack(topic: str, group: str, queue_id: int, offset: int, handle: str) -> bytes:
    ext = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "offset": offset}
    return json_request(ACK, ext | {"extraInfo": handle})


def make_topic(broker: str, topic: str, queues: int = 4) -> None:
    """Have the broker make a topic. Raises AssertionError if it does not."""
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues}
    ext |= {"writeQueueNums": queues, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    with RawClient(broker) as client:
        answer = client.ask(17, ext | {"order": "false"})
        assert answer.code == 0, answer.remark


def fill(broker: str, topic: str, mib: int, body: int = 4096, text: str = "") -> None:
    """Put `mib` MiB of messages into the first queue of a topic."""
    make_topic(broker, topic)
    messages = max(1, min(500, (1 << 20) // body))
    batch = batch_body([(b"m" * body, text.encode())] * messages)
    ext = send_ext(topic, letters=True, batch="true")
    with RawClient(broker) as client:
        for _ in range(mib * (1 << 20) // (messages * body)):
            while (answer := client.ask(SEND_BATCH, ext, batch)).code == 2:
                pass  # the disk is busy
            assert answer.code == 0, answer.remark


def swarm_of(
    address: str, swarms: list[Swarm], count: int, sources: int = 1
) -> tuple[Swarm, list[Peer]]:
    swarm = Swarm(address)
    swarms.append(swarm)
    peers = [
        swarm.connect(f"127.0.0.{2 + i % sources}" if sources > 1 else None) for i in range(count)
    ]
    return swarm, [peer for peer in peers if peer is not None]


def closed_loop(
    attack: Attack,
    swarms: list[Swarm],
    requests: Callable[[], Iterator[bytes]],
    *,
    connections: int = 16,
    in_flight: int = 16,
    address: str | None = None,
) -> None:
    """Keep requests under way on each connection until the time is over."""
    swarm, peers = swarm_of(address or attack.broker, swarms, connections)
    for peer in peers:
        swarm.flood(peer, requests(), in_flight)
    swarm.run(attack.seconds)
    swarm.close()


# -- bytes that nobody reads, or that never end --


@flood(
    "no flood: the loop computes in turns of 0.5 ms, and so does a process on the other core",
    computes=True,
)
def no_flood(attack: Attack, _: list[Swarm]) -> Iterator[None]:
    """Measure the machine: a loop cannot be cut into better turns than these."""
    yield
    until_s = time.monotonic() + attack.seconds
    while time.monotonic() < until_s:
        pass


@flood("64 consumers ask for 400 answers of 256 KiB each and read nothing")
def silent_readers(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    fill(attack.broker, "big", 16)
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 64)
    for peer in peers:
        swarm.stop_reading(peer)
        swarm.flood(peer, iter([b"".join(pull("big", opaque=i) for i in range(400))]))
    swarm.run(attack.seconds)
    yield


@flood("64 consumers ask for 400 answers of 256 KiB each and read 1 KiB a second")
def slow_readers(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    fill(attack.broker, "big", 16)
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 64)
    for peer in peers:
        swarm.stop_reading(peer)
        swarm.flood(peer, iter([b"".join(pull("big", opaque=i) for i in range(400))]))
    turns = itertools.cycle(peers)

    def read_some() -> None:
        peer = next(turns)
        if not peer.closed:
            swarm.read_some(peer, 1024)

    swarm.run(attack.seconds, read_some)
    yield


@flood("8 connections send 128-byte messages one-way, without end")
def oneway_sends(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    make_topic(attack.broker, "oneway")
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 8)
    for number, peer in enumerate(peers):
        block = send("oneway", b"m" * 128, flag=ONEWAY, queueId=number % 4) * 500
        swarm.flood(peer, itertools.repeat(block))
    swarm.run(attack.seconds)
    yield


@flood("64 connections send bodies of 4 MiB, one after the other")
def big_bodies(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    make_topic(attack.broker, "big")
    yield
    frame = send("big", b"m" * (4 << 20))
    closed_loop(attack, swarms, lambda: itertools.repeat(frame), connections=64, in_flight=1)
    yield


@flood("10,000 connections, from ten addresses, say nothing")
def idle_connections(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    yield
    swarm, _ = swarm_of(attack.broker, swarms, attack.of(10_000), sources=10)
    swarm.run(attack.seconds)
    yield


@flood("connections are opened and closed as fast as possible")
def churn(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    yield
    swarm = Swarm(attack.broker)
    swarms.append(swarm)
    turns = itertools.cycle(range(2, 12))

    def open_some() -> None:
        for peer in list(swarm.peers.values()):
            swarm.drop(peer)
        for _ in range(30):
            swarm.connect(f"127.0.0.{next(turns)}")

    swarm.run(attack.seconds, open_some)
    yield


@flood("2,000 connections send half a frame of 1 MiB, and come again when they are cut")
def half_frames(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    yield
    swarm = Swarm(attack.broker)
    swarms.append(swarm)
    half = send("half", b"m" * (1 << 20))[: 1 << 19]

    def begin() -> None:
        for _ in range(20):
            if len(swarm.peers) < attack.of(2_000):
                peer = swarm.connect("127.0.0.9")
                if peer is not None:
                    swarm.flood(peer, iter([half]))

    swarm.run(attack.seconds, begin)
    yield


# -- tables --


@flood("one connection makes 50,000 topics by sends; others ask for their routes and pull them")
def many_topics(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    yield
    count = attack.of(50_000)
    maker, (peer,) = swarm_of(attack.broker, swarms, 1)
    names = [f"made-{number:06d}" for number in range(count)]
    left = list(reversed(names))

    def makes() -> Iterator[bytes]:
        while left:
            name = left.pop()
            yield send(name, b"m" * 128, opaque=int(name[5:]))

    def answered(_: Peer, header: bytes, _body: bytes) -> None:
        answer = json.loads(header)
        if answer["code"] == 2:  # busy: once more
            left.append(names[answer["opaque"]])

    maker.on_answer = answered
    maker.flood(peer, makes(), 256)
    asker, askers = swarm_of(attack.namesrv, swarms, 4)
    for each in askers:
        frames = (json_request(ROUTE, {"topic": name}) for name in itertools.cycle(names))
        asker.flood(each, frames, 8)
    puller, pullers = swarm_of(attack.broker, swarms, 4)
    for each in pullers:
        puller.flood(each, (pull(name) for name in itertools.cycle(names)), 8)

    def others() -> None:
        asker.run(0.002)
        puller.run(0.002)

    maker.run(attack.seconds, others)
    yield


@flood("1,000 topics of 8 queues each take sends, and a consumer waits at each of 8,000 queues")
def many_queues(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    count = attack.of(1_000)
    with RawClient(attack.broker) as client:
        for number in range(count):
            ext = {"topic": f"wide-{number}", "defaultTopic": "TBW102", "readQueueNums": 8}
            ext |= {"writeQueueNums": 8, "perm": 6, "topicFilterType": "SINGLE_TAG"}
            answer = client.ask(17, ext | {"topicSysFlag": 0, "order": "false"})
            assert answer.code == 0, answer.remark
    places = [(f"wide-{number}", queue) for number in range(count) for queue in range(8)]
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 40)
    consumers = peers[:32]
    offsets = dict.fromkeys(places, 0)

    def ask(number: int) -> bytes:
        topic, queue = places[number]
        return pull(
            topic,
            opaque=number,
            queueId=queue,
            queueOffset=offsets[places[number]],
            sysFlag=SUSPEND | SUBSCRIPTION,
            suspendTimeoutMillis=60_000,
        )

    waiting: dict[int, list[int]] = {id(peer): [] for peer in consumers}

    def answered(peer: Peer, header: bytes, _body: bytes) -> None:
        if id(peer) in waiting:
            answer = json.loads(header)
            ext = answer.get("extFields") or {}
            if "nextBeginOffset" in ext:
                offsets[places[answer["opaque"]]] = int(ext["nextBeginOffset"])
            waiting[id(peer)].append(answer["opaque"])

    def more(peer: Peer) -> Iterator[bytes]:
        while True:
            ready = waiting[id(peer)]
            yield ask(ready.pop()) if ready else b""

    swarm.on_answer = answered
    for index, peer in enumerate(consumers):
        waiting[id(peer)] = list(range(index, len(places), len(consumers)))
        swarm.flood(peer, more(peer), len(waiting[id(peer)]))
    for index, peer in enumerate(peers[32:]):
        turns = itertools.cycle(places[index::8])
        swarm.flood(peer, (send(topic, b"m" * 512, queueId=q) for topic, q in turns), 16)
    swarm.run(attack.seconds)
    yield


@flood("100,000 offsets of new groups are committed and asked for")
def many_groups(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    make_topic(attack.broker, "offsets")
    count = attack.of(100_000)
    numbers = itertools.cycle(range(count))
    yield

    def commits() -> Iterator[bytes]:
        for number in numbers:
            ext = {"consumerGroup": f"group-{number}", "topic": "offsets", "queueId": number % 4}
            # A group is made by its first pull.
            yield pull("offsets", consumerGroup=f"group-{number}", queueId=number % 4)
            yield json_request(COMMIT_OFFSET, ext | {"commitOffset": 0})
            yield json_request(14, ext)

    closed_loop(attack, swarms, commits, connections=8)
    yield


@flood("4 clients send the largest heartbeats in a loop: 1,024 groups, 4,096 subscriptions")
def heartbeats(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    bodies = []
    for client in range(4):
        for version in range(2):
            groups = {
                f"big-{client}-{group}": [f"topic-{client}-{group}-{i}" for i in range(4)]
                for group in range(1_000)
            }
            bodies.append(heartbeat_body(f"c{client}", groups, sub_version=version + 1))
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 4)
    for client, peer in enumerate(peers):
        frames = [
            json_request(HEARTBEAT, body=body) for body in bodies[2 * client : 2 * client + 2]
        ]
        swarm.flood(peer, itertools.cycle(frames), 1)
    swarm.run(attack.seconds)
    yield


# -- reads --


@flood("16 connections ask for a key of 100,000 messages, and for offsets by time")
def queries(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    text = properties({"KEYS": "hot", "UNIQ_KEY": "U"})
    fill(attack.broker, "keyed", attack.of(12), body=128, text=text)
    yield
    everything: dict[str, Any] = {
        "topic": "keyed",
        "key": "hot",
        "maxNum": 1_000_000,
        "beginTimestamp": 0,
    }
    everything |= {"endTimestamp": (1 << 62)}
    by_key = json_request(QUERY, everything)
    nothing = json_request(QUERY, everything | {"key": "none"})
    by_time = json_request(SEARCH, {"topic": "keyed", "queueId": 0, "timestamp": 1})
    frames = [by_key, by_time, nothing, by_time]
    closed_loop(attack, swarms, lambda: itertools.cycle(frames))
    yield


@flood("16 consumers pull the cold end of a large log", cold=True)
def cold_reads(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    fill(attack.broker, "cold", attack.of(1_024, 64), body=16_384)
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 16)
    part = attack.of(65_536, 4_096) // 16
    for index, peer in enumerate(peers):
        offsets = itertools.cycle(range(index * part, (index + 1) * part, 16))
        swarm.flood(peer, (pull("cold", queueOffset=offset) for offset in offsets), 4)
    swarm.run(attack.seconds)
    yield


@flood(
    "16 connections pull by SQL expressions that match nothing",
    settings={"enablePropertyFilter": "true"},
)
def sql_filters(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    text = properties({f"a{i}": str(i) for i in range(20)})
    fill(attack.broker, "sql", attack.of(32), body=256, text=text)
    yield
    terms = " OR ".join(f"a{i} > {100 + i}" for i in range(20))
    frame = pull("sql", subscription=terms, expressionType="SQL92")
    frames = [frame]
    closed_loop(attack, swarms, lambda: itertools.cycle(frames))
    yield


@flood("50,000 pulls wait at the queue that the honest client uses")
def held_pulls(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    yield
    with RawClient(attack.broker) as client:
        answer = client.ask(30, {"topic": HONEST_TOPIC, "queueId": 0})
    offset = int(answer.ext["offset"])
    frame = pull(HONEST_TOPIC, queueOffset=offset, sysFlag=SUSPEND | SUBSCRIPTION, maxMsgNums=1)
    swarm, peers = swarm_of(attack.broker, swarms, 100)
    for peer in peers:
        swarm.flood(peer, itertools.repeat(frame), attack.of(500))
    swarm.run(attack.seconds)
    yield


@flood("10,000 pops of 16 groups wait for the topic that the honest client uses")
def held_pops(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 100)
    for number, peer in enumerate(peers):
        frame = pop(HONEST_TOPIC, f"poppers-{number % 16}", poll_ms=60_000, count=1)
        swarm.flood(peer, itertools.repeat(frame), attack.of(100))
    swarm.run(attack.seconds)
    yield


@flood("a group has 1,000,000 messages in flight; 16 connections pop and acknowledge")
def many_in_flight(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    count = attack.of(1_000_000, least=32_000)
    make_topic(attack.broker, "popped", queues=1)
    batch = batch_body([(b"m" * 64, b"")] * 2_000)
    ext = send_ext("popped", letters=True, batch="true")
    frame = pop("popped", "holders")
    with RawClient(attack.broker) as client:
        for _ in range(count // 2_000 * 5 // 4):
            while (answer := client.ask(SEND_BATCH, ext, batch)).code == 2:
                pass  # the disk is busy
            assert answer.code == 0, answer.remark
    swarm, peers = swarm_of(attack.broker, swarms, 1)
    swarm.flood(peers[0], itertools.repeat(frame, count // 32), 32)
    while swarm.counts["answers with code 0"] < count // 32:
        swarm.run(0.1)
    swarm.close()
    yield
    swarm, peers = swarm_of(attack.broker, swarms, 16)
    ready: dict[int, list[bytes]] = {id(peer): [] for peer in peers}

    def answered(peer: Peer, header: bytes, _body: bytes) -> None:
        fields = json.loads(header).get("extFields") or {}
        for entry in filter(None, fields.get("msgOffsetInfo", "").split(";")):
            _, queue_id, offsets = entry.split(" ")
            handle = f"0 {fields['popTime']} {fields['invisibleTime']} 0 0 b {queue_id}"
            ready[id(peer)] += [
                ack("popped", "holders", int(queue_id), int(offset), handle)
                for offset in offsets.split(",")
            ]

    def more(peer: Peer) -> Iterator[bytes]:
        while True:
            waiting = ready[id(peer)]
            yield waiting.pop() if waiting else frame

    swarm.on_answer = answered
    for peer in peers:
        swarm.flood(peer, more(peer), 16)
    swarm.run(attack.seconds)
    yield


# -- operators' requests --


@flood("8 connections ask for all topics, groups, offsets, figures and statistics in a loop")
def admin_requests(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    count = attack.of(5_000)
    with RawClient(attack.broker) as client:
        for number in range(count):
            while client.ask(SEND, send_ext(f"told-{number}", letters=True), b"m").code == 2:
                pass
            ext = {"consumerGroup": f"g-{number % 500}", "topic": f"told-{number}", "queueId": 0}
            client.ask(COMMIT_OFFSET, ext | {"commitOffset": 0})
    yield
    stats = {"topic": "told-1"}
    frames = [
        json_request(21),
        json_request(201),
        json_request(43),
        json_request(28),
        json_request(202, stats),
        json_request(208, {"consumerGroup": "g-1"}),
        json_request(317, {"isOrder": "false"}),
        json_request(300, stats),
        json_request(343, {"group": "g-1"}),
        json_request(328),
        json_request(26),
        json_request(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "told-1"}),
    ]
    closed_loop(attack, swarms, lambda: itertools.cycle(frames), connections=8, in_flight=8)
    yield


@flood(
    "1,000 connections ask for figures, statistics and the configuration, a request at a time each"
)
def single_requests(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    yield
    frames = [
        json_request(28),
        json_request(26),
        json_request(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "told-1"}),
    ]
    closed_loop(
        attack, swarms, lambda: itertools.cycle(frames), connections=attack.of(1_000), in_flight=1
    )
    yield


@flood("8 connections fetch /metrics in a loop", settings={"metricsExporterType": "PROM"})
def scrapes(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    count = attack.of(2_000)
    with RawClient(attack.broker) as client:
        for number in range(count):
            while client.ask(SEND, send_ext(f"told-{number}", letters=True), b"m").code == 2:
                pass
    yield
    swarm, peers = swarm_of(attack.metrics, swarms, 8)
    for peer in peers:
        swarm.flood(peer, itertools.repeat(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"))
    swarm.run(attack.seconds)
    yield


# -- the name server --


@flood("16 connections ask for routes, of 2,000 topics and of none", of_namesrv=True)
def route_requests(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    register(attack.namesrv, "b-routes", attack.of(2_000))
    yield

    def asks() -> Iterator[bytes]:
        for number in itertools.cycle(range(2_000)):
            yield json_request(ROUTE, {"topic": f"b-routes-{number}"})
            yield json_request(ROUTE, {"topic": f"none-{number}"})
            if number % 100 == 0:
                yield json_request(206)
                yield json_request(106)

    closed_loop(attack, swarms, asks, address=attack.namesrv)
    yield


def registration(name: str, topics: int, version: int) -> bytes:
    table = {
        f"{name}-{number}": {
            "topicName": f"{name}-{number}", "readQueueNums": 8, "writeQueueNums": 8,
            "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
        }
        for number in range(topics)
    }  # fmt: skip
    data_version = {"counter": version, "timestamp": version, "stateVersion": 0}
    wrapper = {"topicConfigTable": table, "dataVersion": data_version}
    body = {"topicConfigSerializeWrapper": wrapper, "filterServerList": []}
    ext: dict[str, Any] = {
        "brokerName": name,
        "brokerAddr": f"127.0.0.1:{9 + len(name)}",
        "clusterName": "c",
    }
    ext |= {"haServerAddr": "127.0.0.1:8", "brokerId": 0, "compressed": "false", "bodyCrc32": 0}
    return json_request(REGISTER, ext, json.dumps(body, separators=(",", ":")).encode())


def register(namesrv: str, name: str, topics: int) -> None:
    with RawClient(namesrv) as client:
        client.socket.sendall(registration(name, topics, 1))
        answer = client.receive()
        assert answer.code == 0, answer.remark


@flood("4 brokers register 50,000 topics each, changed every time", of_namesrv=True)
def registrations(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    sets = [
        [registration("b" * (4 + broker), attack.of(50_000), version) for version in (1, 2)]
        for broker in range(4)
    ]
    yield
    swarm, peers = swarm_of(attack.namesrv, swarms, 4)
    for frames, peer in zip(sets, peers, strict=True):
        swarm.flood(peer, itertools.cycle(frames), 1)
    swarm.run(attack.seconds)
    yield


# -- replication, and what waits --


@flood("20 slaves ask for the log from its beginning and read nothing")
def silent_slaves(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    fill(attack.broker, "log", attack.of(256, 32))
    yield
    swarm, peers = swarm_of(attack.port(1), swarms, 20)
    for peer in peers:
        swarm.stop_reading(peer)
        swarm.flood(peer, iter([struct.pack(">q", 0)]))
    swarm.run(attack.seconds)
    yield


@flood("8 connections send half messages that nobody ends")
def transactions(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    make_topic(attack.broker, "halves")
    yield
    numbers = itertools.count()

    def halves() -> Iterator[bytes]:
        for number in numbers:
            text = properties({"UNIQ_KEY": f"{number:032X}", "TRAN_MSG": "true", "PGROUP": "pg"})
            yield send("halves", b"m" * 128, properties=text, sysFlag=PREPARED)

    closed_loop(attack, swarms, halves, connections=8)
    yield


@flood("8 connections send delayed messages, by level and by time")
def delayed(attack: Attack, swarms: list[Swarm]) -> Iterator[None]:
    make_topic(attack.broker, "delayed")
    yield
    numbers = itertools.count()

    def later() -> Iterator[bytes]:
        for number in numbers:
            how = {"DELAY": str(1 + number % 4)} if number % 2 else {"TIMER_DELAY_SEC": "5"}
            text = properties({"UNIQ_KEY": f"{number:032X}", **how})
            yield send("delayed", b"m" * 128, properties=text)

    closed_loop(attack, swarms, later, connections=8)
    yield
