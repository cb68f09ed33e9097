"""Runs a cluster of processes of which one broker is stopped by SIGSTOP, as a machine that hangs is.

Its topics and groups lie at that broker alone, but for topic `orders` and group `billing`, which the
other broker has, too: a page that says "none", "empty" or "all" then guesses.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.console.actors import QUICK_CHECKS, Actors, Bank
from tests.integration.server_processes import ServerProcess, server_process
from tests.waits import eventually

from cometmq import AdminClient, Message, SimpleConsumer
from cometmq.errors import CometMQError

# At both brokers.
ORDERS, BILLING = "orders", "billing"
# At the broker that is stopped.
PARKED, READERS = "parked", "parked-readers"
# A group whose member has popped a message of PARKED.
POPPERS: Final = "parked-poppers"
KEY: Final = "parked-key"
# Of all messages in ORDERS.
SHARED_KEY: Final = "shared-key"


class Held(NamedTuple):
    """Names what the stopped broker has: its address, the unique id and the offset id of a message,
    and the only member of READERS. `answered_id` is of a message that the other broker has.
    """

    address: str
    unique_id: str
    offset_id: str
    member: str
    answered_id: str


class Stopped(NamedTuple):
    """Is the cluster: its name server, the broker that is stopped, and what that broker has."""

    namesrv: str
    stopped: ServerProcess
    held: Held


@contextmanager
def broker_process(
    directory: Path, namesrv: str, cluster: str, name: str, **settings: str
) -> Iterator[ServerProcess]:
    """Run a master that `namesrv` knows."""
    place = directory / name
    place.mkdir()
    given = {
        "namesrvAddr": namesrv,
        "brokerClusterName": cluster,
        "brokerName": name,
        **QUICK_CHECKS,
        **settings,
    }
    with server_process("broker", place, settings=given) as broker:
        with AdminClient(namesrv) as admin:
            eventually(
                lambda: [at.broker_name for at in admin.brokers.addresses()],
                lambda names: name in names,
                passing=(CometMQError,),
            )
        yield broker


@contextmanager
def stopped_cluster(directory: Path) -> Iterator[Stopped]:
    """Run two brokers, have one of them keep something for every page, and stop it."""
    with ExitStack() as stack:
        (directory / "namesrv").mkdir()
        names = stack.enter_context(server_process("namesrv", directory / "namesrv"))
        _, stopped = (
            stack.enter_context(
                broker_process(directory, names.address, "east", name, traceTopicEnable=traces)
            )
            for name, traces in (("broker-a", "false"), ("broker-b", "true"))
        )
        with AdminClient(names.address) as admin:
            admin.topics.create(ORDERS, read_queues=2, write_queues=2)
            admin.topics.create(PARKED, broker="broker-b")
            actors = stack.enter_context(Actors(names.address))
            sender = actors.producer("shop")
            sent = [sender.send(Message(ORDERS, b"x", keys=[SHARED_KEY])) for _ in range(8)]
            held = sender.send(Message(PARKED, b"kept", keys=[KEY]))
            actors.bury(BILLING, PARKED, [b"died"])
            actors.member(BILLING, ORDERS).wait_for(8)
            member = actors.member(READERS, PARKED)
            member.wait_for(2)
            sender.send(Message(PARKED, b"later", delay_level=18))
            sender.send(Message(PARKED, b"later", delay_ms=3_600_000))
            popper = SimpleConsumer(POPPERS, namesrv=names.address, invisible_ms=3_600_000)
            popper.subscribe(PARKED)
            stack.enter_context(popper)
            eventually(lambda: popper.receive(1), bool)
            actors.trace("traced", PARKED, b"traced")
            actors.forget("forgetful", PARKED, b"given up", Bank())
            actors.leave_waiting("undecided", PARKED, b"half")
        # Before those clients are closed, which would wait for its answers.
        stopped.process.send_signal(signal.SIGSTOP)
        stack.callback(stopped.process.send_signal, signal.SIGCONT)
        answered = next(each for each in sent if each.queue.broker_name == "broker-a")
        yield Stopped(
            names.address,
            stopped,
            Held(
                stopped.address,
                held.msg_id,
                held.offset_msg_id,
                member.client.client_id,
                answered.msg_id,
            ),
        )
