"""Names with and without a namespace, as NamespaceUtil has them."""

from __future__ import annotations

import pytest

from cometmq.client.namespaces import NO_NAMESPACE, Namespace, namespace_of
from cometmq.errors import IllegalArgumentError
from cometmq.model.queue import MessageQueue

NAMES = [
    ("orders", "ns1%orders"),
    ("%RETRY%billing", "%RETRY%ns1%billing"),
    ("%DLQ%billing", "%DLQ%ns1%billing"),
    ("a|b-c_1", "ns1%a|b-c_1"),
]


@pytest.mark.parametrize(("name", "wire"), NAMES)
def test_a_name_gets_the_namespace_and_loses_it(name: str, wire: str) -> None:
    namespace = Namespace("ns1")
    assert namespace.wrap(name) == wire
    assert namespace.wrap(wire) == wire
    assert namespace.unwrap(wire) == name
    queue = MessageQueue(name, "broker-a", 3)
    assert namespace.wrap_queue(queue) == MessageQueue(wire, "broker-a", 3)
    assert namespace.unwrap_queue(namespace.wrap_queue(queue)) == queue


@pytest.mark.parametrize(
    "name", ["RMQ_SYS_TRACE_TOPIC", "TBW102", "CID_RMQ_SYS_TRANS", "DefaultCluster_REPLY_TOPIC"]
)
def test_names_of_rocketmq_have_no_namespace(name: str) -> None:
    assert Namespace("ns1").wrap(name) == name


def test_a_name_of_another_namespace_stays() -> None:
    assert Namespace("ns1").unwrap("ns2%orders") == "ns2%orders"
    assert Namespace("ns1").unwrap("%RETRY%ns2%billing") == "%RETRY%ns2%billing"


def test_without_a_namespace_nothing_changes() -> None:
    assert not NO_NAMESPACE
    for name, wire in NAMES:
        assert NO_NAMESPACE.wrap(name) == name
        assert NO_NAMESPACE.unwrap(wire) == wire


@pytest.mark.parametrize("name", ["a%b", "blank here", "grün"])
def test_what_cannot_be_a_namespace_is_named(name: str) -> None:
    with pytest.raises(IllegalArgumentError, match="namespace"):
        Namespace(name)


def test_the_address_of_a_hosted_instance_carries_its_namespace() -> None:
    address = "MQ_INST_1380156306793859_BbXbx0Y4.mq-internet.example:80"
    assert namespace_of([address]) == "MQ_INST_1380156306793859_BbXbx0Y4"
    assert namespace_of(["127.0.0.1:9876"]) is None
