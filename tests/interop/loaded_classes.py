"""Make the archives of the classes that this suite's Java servers and clients load (`tests.class_archives`).

`make interop` runs `python -m tests.interop.loaded_classes`, which makes the archives unless they are there. Each
JVM does the usual work of the tests once, and ends in order. Servers that only one module starts have no archive:
to write it would cost more than it saves.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tests.class_archives import is_there, writing_archives
from tests.interop.clients import GrpcJavaClient, JavaClient, end_idle
from tests.interop.grpc_cases import CONF, RunningProxy
from tests.interop.java4 import Java4Broker, Java4Namesrv
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.peers import (
    JavaBroker,
    JavaNamesrv,
    PeerError,
    archive_of,
    build_all,
    missing_tools,
)

if TYPE_CHECKING:
    from tests.interop.clients import ClientProgram

KINDS = (
    ("server", JavaNamesrv.main_class),
    ("server", JavaBroker.main_class),
    ("server4", JavaNamesrv.main_class),
    ("server4", JavaBroker.main_class),
    ("client4", "cometmq.interop.Main"),
    ("client5", "cometmq.interop.Main"),
    ("grpc", "cometmq.interop.grpc.Main"),
    ("tools4", "cometmq.interop.Admin"),
    ("tools5", "cometmq.interop.Admin"),
)
COUNT = 8


def make_archives() -> None:
    """Run each kind of JVM once, unless all archives are there."""
    sentence = missing_tools("java", "mvn", "cc")
    if sentence is not None:
        sys.stderr.write(f"no archives of the peers' classes: {sentence}\n")
        return
    build_all("java")
    files = [archive_of(*kind) for kind in KINDS]
    if all(file is not None and is_there(file) for file in files):
        return
    try:
        with writing_archives(), ThreadPoolExecutor(2) as pool:
            for line in [pool.submit(_load_newest), pool.submit(_load_4)]:
                line.result()
    except (PeerError, OSError, subprocess.SubprocessError) as error:
        # The tests pass without them, only more slowly.
        sys.stderr.write(f"no archives of the peers' classes: {error}\n")


def _load_newest() -> None:
    with JavaNamesrv() as namesrv, JavaBroker(namesrv.address, conf=CONF) as broker:
        at = namesrv.address
        with MqAdmin(5) as tools:
            _administer(tools, at, broker.address)
        _send_and_receive(JavaClient(5), at)
        with RunningProxy(at) as proxy:
            _send_and_receive_by_grpc(proxy.endpoints)
            end_idle(JavaClient(5), GrpcJavaClient())
        broker.stop()
        namesrv.stop()


def _load_4() -> None:
    with Java4Namesrv() as namesrv, Java4Broker(namesrv.address) as broker:
        at = namesrv.address
        with MqAdmin(4) as tools:
            _administer(tools, at, broker.address)
        _send_and_receive(JavaClient(4), at)
        end_idle(JavaClient(4))
        broker.stop()
        namesrv.stop()


def _administer(tools: MqAdmin, namesrv: str, broker: str) -> None:
    types = ("-a", "+message.type=NORMAL") if tools.line == 5 else ()
    for command, *args in (
        ("updateTopic", "-b", broker, "-t", "loaded", "-r", "1", "-w", "1", *types),
        ("updateSubGroup", "-b", broker, "-g", "readers"),
        ("clusterList",),
        ("topicRoute", "-t", "loaded"),
        ("topicStatus", "-t", "loaded"),
        ("brokerStatus", "-b", broker),
        ("getBrokerConfig", "-b", broker),
        ("consumerProgress",),
    ):
        tools.run(namesrv, command, *args)


def _send_and_receive(client: ClientProgram, namesrv: str) -> None:
    base = {"namesrv": namesrv, "topic": "loaded"}
    for mode in ("sync", "async", "batch", "oneway"):
        client.produce(**base, mode=mode, count=COUNT, tags="a,b")
    with client.start(
        "transact", **base, group="senders", count=2, verdicts="commit,rollback"
    ) as sender:
        sender.wait_for(lambda events: any(each["event"] == "all-sent" for each in events))
        sender.finish()
    client.run(
        "consume", **base, group="readers", expression="*", expected=3 * COUNT, **{"from": "first"}
    )
    client.pull(**base)


def _send_and_receive_by_grpc(endpoints: str) -> None:
    client = GrpcJavaClient()
    base = {"endpoints": endpoints, "topic": "loaded"}
    client.produce(**base, count=COUNT)
    client.run("receive", **base, group="readers", expected=COUNT, invisible_s=30)
    with client.start("consume", **base, group="pushed") as consumer:
        consumer.wait_started()
        client.produce(**base, count=COUNT)
        consumer.wait_messages(COUNT)
        consumer.finish()


if __name__ == "__main__":
    make_archives()
