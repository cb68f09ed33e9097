"""A proxy, a broker behind one, and a broker with a proxy in its process, killed at any moment under gRPC load.

Three clusters run beside each other, one for each kind of kill. Clients send normal, delayed and FIFO
messages and transactions, receive them, and acknowledge nine of ten the first time they come, FIFO messages in order. Flush is
SYNC_FLUSH. Promised:

- each send that was acknowledged, and each half message whose client says commit, is delivered;
- nothing is delivered before its time, and no half message whose client says rollback ever is;
- what was acknowledged in time, and the proxy has answered OK, is never delivered again;
- messages of a message group come in the order in which they were sent.

COMETMQ_GRPC_KILLS says how many kills there are together (default 6, `make crash`: 200),
COMETMQ_CRASH_SEED what is drawn (`tests.seeds`).
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.crash.nursery import ForkedServer, Nursery
from tests.integration.grpc_client import GrpcClient
from tests.integration.server_processes import server_process
from tests.seeds import seed_of
from tests.waits import WAIT_S

from cometmq.aio import AdminClient
from cometmq.errors import CometMQError
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.runtime.sockets.ports import HeldPort

pytestmark = [pytest.mark.crash, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("COMETMQ_GRPC_KILLS", "6"))
TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "transaction": "TRANSACTION"}
QUEUES = 4
# The group of FIFO messages reads in order.
GROUPS = {"normal": "each", "delay": "each", "transaction": "each", "fifo": "in-order"}
MESSAGE_GROUPS = 4
# Messages that are acknowledged within `SURELY_HIDDEN_S` after they were asked for are still hidden.
HIDDEN_S = 8
SURELY_HIDDEN_S = 5.0
CALL_S = 4.0
PAUSE_S = 0.02
AT_ONCE = 4
REST_S = 4 * WAIT_S
RECONNECT = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
PROXY_SETTINGS = (
    '{"minInvisibleTimeMillsForRecv": 1000, "grpcClientConsumerMinLongPollingTimeoutMillis": 500}'
)


class Ledger:
    """Remembers what was promised and what came. Messages have their ids as bodies."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.done: set[str] = set()
        # By the ids of delayed messages.
        self.due_s: dict[str, float] = {}
        # The client's verdict on each half message: True is commit.
        self.verdicts: dict[str, bool] = {}
        # By message group, the ids in the order of their sends and of their first deliveries.
        self.sent_in_order: dict[str, list[str]] = {}
        self.received_in_order: dict[str, list[str]] = {}
        self.faults: list[str] = []
        self.deliveries = 0

    def promised(self) -> set[str]:
        return {each for each in self.sent if self.verdicts.get(each, True)}

    def missing(self) -> set[str]:
        """Return what was promised and has not come. A message acknowledged too late never comes again."""
        return self.promised() - self.received

    def take(self, message: wire.Message) -> None:
        body = message.body.decode()
        self.deliveries += 1
        if body in self.done:
            self.faults.append(f"{body} was acknowledged, and is delivered again")
        if time.time() < self.due_s.get(body, 0.0):
            self.faults.append(f"{body} is delivered before its time")
        if self.verdicts.get(body) is False:
            self.faults.append(f"{body} was rolled back, and is delivered")
        if body not in self.received:
            group = message.system_properties.message_group
            self.received_in_order.setdefault(group, []).append(body)
        self.received.add(body)

    def order_faults(self) -> Iterator[str]:
        """Judge messages that were acknowledged as sent; others may have been stored, or not."""
        for group, sent in self.sent_in_order.items():
            came = [each for each in self.received_in_order.get(group, []) if each in self.sent]
            if came != [each for each in sent if each in self.received]:
                yield f"message group {group} came as {came}"


class Client(GrpcClient):
    """Calls the proxy at a port again and again, however often it is killed."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(f"127.0.0.1:{port}", client_id=name, options=RECONNECT)

    async def answer(self, name: str, **fields: Any) -> Any:
        """Return the answer of a call, None if it has failed on its way."""
        try:
            return await self.call(name, CALL_S, **fields)
        except grpc.aio.AioRpcError:
            await asyncio.sleep(PAUSE_S)
            return None


def message_of(kind: str, number: int, rng: random.Random, ledger: Ledger) -> wire.Message:
    body = f"{kind}-{number}"
    system: dict[str, Any] = {"message_id": body}
    if kind == "fifo":
        system["message_group"] = f"group-{number % MESSAGE_GROUPS}"
    elif kind == "delay":
        ledger.due_s[body] = due_s = time.time() + rng.uniform(1.0, 4.0)
        system["delivery_timestamp"] = {
            "seconds": int(due_s),
            "nanos": int(due_s % 1 * 1000) * 1_000_000,
        }
        ledger.due_s[body] = int(due_s) + int(due_s % 1 * 1000) / 1000
    elif kind == "transaction":
        system["message_type"] = wire.TRANSACTION
        ledger.verdicts[body] = rng.random() < 0.8
    return wire.Message(
        topic=wire.Resource(name=kind), body=body.encode(), system_properties=system
    )


async def send(
    client: Client, kind: str, ledger: Ledger, rng: random.Random, enough: asyncio.Event
) -> None:
    """Send until it is enough: FIFO messages one after the other, others some at a time."""
    number = 0
    at_once = 1 if kind == "fifo" else AT_ONCE
    while not enough.is_set():
        messages = [message_of(kind, number + each, rng, ledger) for each in range(at_once)]
        number += at_once
        await asyncio.gather(*(send_one(client, kind, each, ledger) for each in messages))
        await asyncio.sleep(PAUSE_S)


async def send_one(client: Client, kind: str, message: wire.Message, ledger: Ledger) -> None:
    answer = await client.answer("SendMessage", messages=[message])
    if answer is None or answer.status.code != wire.OK:
        await asyncio.sleep(PAUSE_S)
        return  # it may have been stored, or not
    body = message.body.decode()
    ledger.sent.add(body)
    if kind == "fifo":
        group = message.system_properties.message_group
        ledger.sent_in_order.setdefault(group, []).append(body)
    if kind == "transaction":
        await end(client, body, answer.entries[0].transaction_id, ledger)


async def end(
    client: Client, body: str, transaction_id: str, ledger: Ledger, *, asked: bool = False
) -> None:
    """Say commit or rollback. If that is lost, the broker asks."""
    verdict = wire.COMMIT if ledger.verdicts[body] else wire.ROLLBACK
    await client.answer(
        "EndTransaction",
        topic={"name": "transaction"},
        message_id=body,
        transaction_id=transaction_id,
        resolution=verdict,
        source=wire.SOURCE_SERVER_CHECK if asked else wire.SOURCE_CLIENT,
    )


async def answer_questions(client: Client, ledger: Ledger) -> None:
    """Keep a Telemetry stream, and answer what brokers ask about transactions. Runs for ever."""
    settings = wire.Settings(client_type=wire.PRODUCER)
    settings.publishing.topics.add(name="transaction")
    while True:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            stream = client.telemetry()
            await stream.write(wire.TelemetryCommand(settings=settings))
            while (command := await stream.read()) is not grpc.aio.EOF:
                if command.HasField("recover_orphaned_transaction_command"):
                    question = command.recover_orphaned_transaction_command
                    body = question.message.body.decode()
                    await end(client, body, question.transaction_id, ledger, asked=True)
        await asyncio.sleep(PAUSE_S)


async def receive(client: Client, topic: str, ledger: Ledger, rng: random.Random) -> None:
    """Receive for ever, and acknowledge nine of ten; what comes again always."""
    group = {"name": GROUPS[topic]}
    queue = {"topic": {"name": topic}, "broker": {"name": "b"}}
    while True:
        asked_s = time.monotonic()
        messages: list[wire.Message] = []
        # A stream that is cut off may have brought messages: they come again.
        with suppress(grpc.aio.AioRpcError):
            answers = await client.answers(
                "ReceiveMessage",
                CALL_S,
                group=group,
                message_queue=queue,
                batch_size=16,
                invisible_duration={"seconds": HIDDEN_S},
                long_polling_timeout={"seconds": 1},
            )
            messages = [each.message for each in answers if each.HasField("message")]
        for message in messages:
            ledger.take(message)
        until_s = asked_s + SURELY_HIDDEN_S
        kept = [
            each
            for each in messages
            if each.system_properties.delivery_attempt > 1 or rng.random() < 0.9
        ]
        if topic == "fifo":
            # Messages behind one that is not acknowledged come again with it.
            for message, each in zip(messages, kept, strict=False):
                if message is not each or not await acknowledge(client, each, ledger, until_s):
                    break
        else:
            await asyncio.gather(*(acknowledge(client, each, ledger, until_s) for each in kept))
        if not messages:
            await asyncio.sleep(PAUSE_S)


async def acknowledge(
    client: Client, message: wire.Message, ledger: Ledger, until_s: float
) -> bool:
    """Return whether the proxy said OK in time."""
    system = message.system_properties
    entry = {"message_id": system.message_id, "receipt_handle": system.receipt_handle}
    group = {"name": GROUPS[message.topic.name]}
    while time.monotonic() < until_s:
        answer = await client.answer(
            "AckMessage", group=group, topic=message.topic, entries=[entry]
        )
        if answer is not None and answer.status.code == wire.OK:
            if time.monotonic() >= until_s:
                return False
            ledger.done.add(message.body.decode())
            return True
        await asyncio.sleep(PAUSE_S)
    return False


class Place:
    """A cluster, and which of its servers are killed: `start` has functions that start them."""

    def __init__(
        self, start: Sequence[Callable[[], ForkedServer]], namesrv: str, port: int
    ) -> None:
        self.start = start
        self.namesrv = namesrv
        self.port = port
        self.servers: list[ForkedServer] = []

    async def open(self) -> None:
        for start in self.start:
            self.servers.append(await asyncio.to_thread(start))
        async with AdminClient(namesrv=self.namesrv) as admin:
            deadline = time.monotonic() + REST_S
            while not await self._made(admin):
                assert time.monotonic() < deadline, "the broker is not registered"
                await asyncio.sleep(0.1)

    async def _made(self, admin: AdminClient) -> bool:
        try:
            for topic, kind in TOPICS.items():
                await admin.topics.create(
                    topic,
                    read_queues=QUEUES,
                    write_queues=QUEUES,
                    cluster="DefaultCluster",
                    attributes={"message.type": kind},
                )
            await admin.groups.create(
                "in-order", consume_message_orderly=True, cluster="DefaultCluster"
            )
        except CometMQError:
            return False
        return True

    async def kill(self, which: int, kills: int, rng: random.Random) -> None:
        """Kill and start a server again and again."""
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.2, 0.9))
            await asyncio.to_thread(self.servers[which].kill)
            self.servers[which] = await asyncio.to_thread(self.start[which])

    async def close(self) -> None:
        for server in reversed(self.servers):
            await asyncio.to_thread(server.kill)


def places(stack: ExitStack, directory: Path, nursery: Nursery) -> dict[str, Place]:
    """Return the three clusters, by which of their servers are killed. They are not open yet."""
    made: dict[str, Place] = {}
    for number, kind in enumerate(("broker", "proxy", "broker with a proxy")):
        own = directory / str(number)
        own.mkdir()
        names = stack.enter_context(server_process("namesrv", own))
        port = stack.enter_context(HeldPort()).port
        conf = configuration(own, names.address, stack.enter_context(HeldPort()).port)
        settings = own / "rmq-proxy.json"
        settings.write_text(PROXY_SETTINGS)
        options = f"-pc {settings}"

        broker = partial(nursery.broker, conf)
        within = partial(nursery.broker, conf, f"--enable-proxy --proxy-port {port} {options}")
        command = f"proxy -n {names.address} --port {port} {options} --log-level error"
        proxy = partial(nursery.server, own / "proxy.log", command)
        start = [within] if kind == "broker with a proxy" else [broker, proxy]
        made[kind] = Place(start, names.address, port)
    return made


def configuration(directory: Path, namesrv: str, port: int) -> Path:
    conf = directory / "broker.conf"
    conf.write_text(
        "brokerName=b\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
        f"listenPort={port}\nnamesrvAddr={namesrv}\nregisterNameServerPeriod=10000\n"
        f"storePathRootDir={directory}/store\nflushDiskType=SYNC_FLUSH\n"
        f"mappedFileSizeCommitLog={4 * 1024 * 1024}\n"
        # An answer that says nothing of a transaction is no reason to give it up.
        "transactionCheckInterval=500\ntransactionTimeOut=500\ntransactionCheckMax=10000\n"
        "osPageCacheBusyTimeOutMills=60000\ndiskMaxUsedSpaceRatio=95\ncleanFileForciblyEnable=false\n"
    )
    return conf


async def scenario(place: Place, which: int, kills: int, rng: random.Random) -> Ledger:
    ledger = Ledger()
    enough = asyncio.Event()
    await place.open()
    clients = {kind: Client(place.port, f"sender-{kind}") for kind in TOPICS}
    receivers = {kind: Client(place.port, f"receiver-{kind}") for kind in TOPICS}
    asked = Client(place.port, "asked")
    sending = [
        asyncio.create_task(send(each, kind, ledger, rng, enough)) for kind, each in clients.items()
    ]
    endless: list[Awaitable[None]] = [answer_questions(asked, ledger)]
    endless += [receive(each, kind, ledger, rng) for kind, each in receivers.items()]
    running = [asyncio.ensure_future(each) for each in endless]
    try:
        await place.kill(which, kills, rng)
        await asyncio.sleep(0.5)
        enough.set()
        await asyncio.gather(*sending)
        # An acknowledgement that is lost shows when the message would be visible again.
        visible_s = time.monotonic() + HIDDEN_S + 2
        deadline = time.monotonic() + REST_S
        while (ledger.missing() or time.monotonic() < visible_s) and time.monotonic() < deadline:
            for task in running:
                assert not task.done(), task.exception()
            await asyncio.sleep(0.1)
    finally:
        enough.set()
        for each in (*sending, *running):
            each.cancel()
        await asyncio.gather(*sending, *running, return_exceptions=True)
        for client in (*clients.values(), *receivers.values(), asked):
            await client.channel.close()
        await place.close()
    return ledger


async def all_of(found: dict[str, Place], seed: int) -> dict[str, Ledger]:
    runs = {}
    async with asyncio.TaskGroup() as group:  # one that fails has the others stop their servers
        for kind, which, kills in (
            ("broker", 0, KILLS // 3),
            ("proxy", 1, KILLS // 3),
            ("broker with a proxy", 0, KILLS - KILLS // 3 * 2),
        ):
            run = scenario(found[kind], which, kills, random.Random(f"{seed} {kind}"))
            runs[kind] = group.create_task(run)
    return {kind: run.result() for kind, run in runs.items()}


def test_what_is_acknowledged_by_grpc_survives_kills(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = seed_of("COMETMQ_CRASH_SEED")
    with ExitStack() as stack:
        nursery = stack.enter_context(Nursery())
        found = places(stack, tmp_path, nursery)
        ledgers = asyncio.run(all_of(found, seed))
    said = []
    for kind, ledger in ledgers.items():
        counts = (
            f"{kind}: {len(ledger.sent)} acknowledged sends, {len(ledger.done)} acknowledged receives, "
            f"{ledger.deliveries} deliveries"
        )
        said.append(counts)
        faults = [*ledger.faults, *ledger.order_faults()]
        assert faults == [], f"{len(faults)} faults, {counts}, seed {seed}"
        lost = sorted(ledger.missing())
        assert lost == [], f"never delivered, {counts}, seed {seed}"
        kinds = {body.partition("-")[0] for body in ledger.done}
        assert kinds == set(TOPICS), f"{counts}, seed {seed}"
    with capsys.disabled():
        sys.stdout.write(f"\n{KILLS} kills, seed {seed}; " + "; ".join(said) + " ")
