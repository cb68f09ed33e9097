"""A push consumer of ours that lets a Java broker divide the queues, and the mode that an operator chooses there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.interop.on_java import MARKS, name, namesrv  # noqa: F401 - pytest finds fixtures and marks by their names here
from tests.waits import JVM_WAIT_S, eventually

from cometmq import (
    AdminClient,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from cometmq.model import properties as p

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.interop.conftest import Namesrv

pytestmark = MARKS

CLUSTER, BROKER = "DefaultCluster", "broker-a"
# A member asks every 20 s.
wait = partial(eventually, wait_s=JVM_WAIT_S)


def test_a_member_that_asks_pops_and_then_pulls_as_an_operator_says(
    namesrv: Namesrv,  # noqa: F811 - the fixture
    name: str,  # noqa: F811 - the fixture
) -> None:
    heard: dict[bytes, bool] = {}

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        heard.update({each.body: p.POP_CK in each.properties for each in messages})
        return ConsumeResult.SUCCESS

    with AdminClient(namesrv) as admin, Producer(f"{name}-shop", namesrv=namesrv) as producer:

        def send(numbers: Iterable[int]) -> list[bytes]:
            bodies = [b"%d" % number for number in numbers]
            for body in bodies:
                producer.send(Message(name, body))
            return bodies

        admin.topics.create(name, read_queues=2, write_queues=2, cluster=CLUSTER)
        admin.groups.create(name, cluster=CLUSTER)
        admin.groups.set_request_mode(name, name, "POP", cluster=CLUSTER)
        consumer = PushConsumer(
            name,
            listen,
            namesrv=namesrv,
            client_rebalance=False,
            consume_from=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(name)

        def queues() -> set[tuple[str, int]]:
            assigned = consumer.assigned_queues()
            return {(each.broker_name, each.queue_id) for each in assigned if each.topic == name}

        with consumer:
            wait(queues, lambda found: found == {(BROKER, -1)})
            popped = send(range(20))
            wait(lambda: set(heard) == set(popped))
            assert all(heard.values())
            info = admin.groups.running_info(name, consumer.client_id)
            assert info.properties["messageRequestMode"] == "POP"

            admin.groups.set_request_mode(name, name, "PULL", cluster=CLUSTER)
            wait(queues, lambda found: found == {(BROKER, 0), (BROKER, 1)})
            pulled = send(range(20, 40))
            wait(lambda: set(heard) == {*popped, *pulled})
            assert not any(heard[body] for body in pulled)
