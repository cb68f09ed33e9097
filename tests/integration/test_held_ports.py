"""Ports that stay ours while no server listens there."""

from __future__ import annotations

import socket
import sys

import pytest

from cometmq.testing import Cluster
from cometmq.testing.ports import HeldPort

HOST = "127.0.0.1"

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold ports")


def test_nobody_listens_and_a_server_may_come_and_go() -> None:
    with HeldPort() as held:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, held.port))
            with socket.create_server((HOST, held.port)):
                socket.create_connection((HOST, held.port)).close()


@linux_only
def test_a_port_is_held_with_its_neighbours_until_it_is_let_go() -> None:
    held = HeldPort((-2, 1))
    ports = [held.port - 2, held.port, held.port + 1]
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, port))
    held.close()
    held.close()


@linux_only
def test_two_holders_never_share_a_port() -> None:
    with HeldPort() as one, pytest.raises(OSError, match="in use"):
        HeldPort((-2,), port=one.port + 2)


@linux_only
def test_a_port_in_use_at_another_address_is_not_held() -> None:
    """A server of Java listens at all addresses, so it could not use such a port."""
    with socket.create_server(("127.0.0.2", 0)) as other, pytest.raises(OSError, match="in use"):
        HeldPort(port=other.getsockname()[1])


@linux_only
def test_a_stopped_server_of_a_cluster_keeps_its_port() -> None:
    with Cluster(brokers=2) as cluster:
        address = cluster.brokers[1].address
        cluster.call("stop_broker", 1)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, int(address.rpartition(":")[2])))
        cluster.call("start_broker", 1)
        assert cluster.brokers[1].address == address
