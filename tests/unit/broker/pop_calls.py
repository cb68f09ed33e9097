"""Pop and acknowledge as the members of a group do, on connections without a socket."""

from __future__ import annotations

from typing import Any, Final

from tests.integration.pop_peer import ACK, POP, Popped, pop_ext, popped
from tests.integration.raw_client import send_ext
from tests.unit.broker.broker_box import GROUP, Client

from cometmq.broker.server import Broker
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.pop.handle import pop_retry_topic

SEND: Final = 10
RETRY: Final = pop_retry_topic(GROUP, "orders")
LONG, SHORT = 600_000, 40


async def fill(client: Client, count: int, **fields: Any) -> None:
    """Send messages with their numbers as bodies."""
    for number in range(count):
        answer = await client.ask(SEND, send_ext("orders", **fields), b"%d" % number)
        assert answer.code == 0, answer.remark


async def pop(client: Client, **fields: Any) -> list[Popped]:
    return popped(await client.ask(POP, pop_ext(**fields)))


async def ack(client: Client, message: Popped, **more: Any) -> RemotingCommand:
    return await client.ask(ACK, message.ext(**more))


async def again(client: Client, **fields: Any) -> list[Popped]:
    """Pop, and wait until there is something."""
    return popped(await client.ask(POP, pop_ext(pollTime=LONG, **fields)))


def seen(broker: Broker) -> dict[Any, Any]:
    """Return the messages in flight, by group, topic and queue."""
    return {
        key: (state.committed, list(state.hidden), state.order and state.order.pending)
        for key, state in broker.pops.state.table.states.items()
    }
