"""Addresses over real sockets: IPv6, both families, and the address that is chosen by default."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unique_ids import parse_unique_id

from cometmq import ConsumeFromWhere, Message
from cometmq.aio import AdminClient, LitePullConsumer, Producer
from cometmq.broker.config import BrokerConfig
from cometmq.broker.server import Broker
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol.messages.ids import parse_offset_id
from cometmq.remoting.client import split_address
from cometmq.store.config import StoreConfig

TOPIC = "orders"
FIRST = ConsumeFromWhere.FIRST_OFFSET


IN_CI = os.environ.get("CI") == "true"  # where nothing is skipped


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _may_make_namespaces() -> bool:
    needed = [shutil.which(tool) for tool in ("unshare", "ip")]
    if None in needed:
        return False
    return (
        subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0
    )


with_ipv6 = pytest.mark.skipif(not IN_CI and not _has_ipv6(), reason="no IPv6 loopback here")
with_namespaces = pytest.mark.skipif(
    not IN_CI and not _may_make_namespaces(),
    reason="no network namespaces here (unshare -rn, and ip of iproute2)",
)


@asynccontextmanager
async def broker(
    directory: Path, *, bound: str, reported: str
) -> AsyncIterator[tuple[str, Broker]]:
    """Run a name server and a broker; yield the name server's address, and the broker."""
    namesrv = NameServer(
        NamesrvConfig(
            listen_port=0,
            bind_address=bound,
            kv_config_path=directory / "kv.json",
            config_store_path=directory / "ns.properties",
        )
    )
    await namesrv.start()
    address = f"[{reported}]:{namesrv.port}" if ":" in reported else f"{reported}:{namesrv.port}"
    server = Broker(
        BrokerConfig(
            broker_name="b",
            broker_ip1=reported,
            bind_address=bound,
            listen_port=0,
            namesrv_addr=address,
            vip_channel_enable=False,
            metrics_exporter_type="PROM",
            metrics_prom_exporter_port=0,
        ),
        StoreConfig(store_path_root_dir=directory, mapped_file_size_commit_log=1 << 20),
    )
    try:
        await server.start()
        yield address, server
    finally:
        await server.close()
        await namesrv.close()


async def _received(namesrv: str) -> Any:
    consumer = LitePullConsumer("billing", namesrv=namesrv, consume_from=FIRST)
    consumer.subscribe(TOPIC)
    async with consumer:
        while not (messages := await consumer.poll(timeout_ms=10_000)):
            pass
        return messages[0]


@with_ipv6
@pytest.mark.parametrize("written", ["::1", "[::1]"])
async def test_ipv6_serves_brokers_clients_and_administrators(tmp_path: Path, written: str) -> None:
    async with broker(tmp_path, bound=written, reported="::1") as (namesrv, server):
        assert server.address == f"[::1]:{server.port}"
        assert server.ha_address == f"[::1]:{server.port + 1}"
        assert (server.metrics_address or "").startswith("[::1]:")
        async with Producer("shop", namesrv=namesrv) as producer:
            sent = await producer.send(Message(TOPIC, b"x", keys=["k"]))
        place = parse_offset_id(sent.offset_msg_id or "")
        assert (place.host, place.port) == ("::1", server.port)
        assert parse_unique_id(sent.msg_id).address == "::1"
        got = await _received(namesrv)
        assert got.body == b"x"
        assert split_address(got.born_host)[0] == "::1"
        assert split_address(got.store_host) == ("::1", server.port)
        async with AdminClient(namesrv) as admin:
            [at] = await admin.brokers.addresses()
            assert at.address == server.address
            assert (await admin.messages.by_id(sent.offset_msg_id or "")).body == b"x"
            assert [each.body for each in await admin.messages.by_key(TOPIC, "k")] == [b"x"]


@with_ipv6
async def test_one_listener_serves_both_families(tmp_path: Path) -> None:
    async with broker(tmp_path, bound="::", reported="127.0.0.1") as (namesrv, server):
        async with Producer("shop", namesrv=namesrv) as producer:
            await producer.send(Message(TOPIC, b"x"))
        # IPv4 peers keep their address: they count as IPv4 in messages, and in adminFrom.
        assert split_address((await _received(namesrv)).born_host)[0] == "127.0.0.1"
        async with AdminClient([]) as admin:
            for address in (f"127.0.0.1:{server.port}", f"[::1]:{server.port}"):
                changed = await admin.brokers.update_config({"traceOn": "false"}, broker=address)
                assert changed == [address]


STEPS = """
import subprocess, sys
from cometmq.runtime.sockets.addresses import own_address
for line in sys.stdin:
    if line.strip() == "chosen":
        print(own_address())
    else:
        subprocess.run(["ip", *line.split()], check=True)
"""


def chosen(*steps: str) -> list[str]:
    """Return which address is chosen at each `chosen` among commands of `ip`, in a network of its
    own: that is, on a machine that has a loopback interface only.
    """
    ran = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", STEPS],
        input="\n".join(steps),
        check=True,
        capture_output=True,
        text=True,
    )
    return ran.stdout.split()


def interface(device: str, address: str) -> list[str]:
    usable = " nodad" if ":" in address else ""
    return [
        f"link add {device} type veth",
        f"link set {device} up",
        f"addr add {address} dev {device}{usable}",
    ]


@with_namespaces
def test_the_address_towards_the_outside_is_chosen_among_several() -> None:
    assert chosen(
        "chosen",
        # As Docker's bridge and a VPN are, beside the interface of the default route.
        *interface("docker0", "172.17.0.1/16"),
        *interface("tun0", "10.8.0.2/24"),
        "chosen",
        *interface("eth0", "192.168.7.5/24"),
        "route add default via 192.168.7.1",
        "chosen",
    ) == ["127.0.0.1", "127.0.0.1", "192.168.7.5"]


@with_namespaces
def test_a_machine_with_ipv6_only_tells_its_ipv6_address() -> None:
    assert chosen(
        *interface("eth0", "2001:db8:7::5/64"),
        "-6 route add default via 2001:db8:7::1",
        "chosen",
    ) == ["2001:db8:7::5"]
