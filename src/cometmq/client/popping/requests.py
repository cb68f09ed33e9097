"""Pop messages of one broker, for simple consumers and push consumers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from cometmq.client.cluster.broker_api import PopAnswer
from cometmq.client.instance import ClientInstance
from cometmq.client.popping.received import Receipt, popped_messages
from cometmq.errors import CometMQError
from cometmq.model.message import MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.pop.headers import INIT_MAX, INIT_MIN, PopMessageRequestHeader

# All queues of a broker.
ANY_QUEUE: Final = -1
# How long the answer may take, on top of the time for which the pop waits.
ANSWER_S: Final = 5.0
# The pause after a broker did not answer, or had too many waiting pops.
PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PopRequests:
    """Sends the pops of one member. A group without an offset begins at the end if `from_newest`."""

    instance: ClientInstance
    group: str
    ordered: bool
    from_newest: bool
    # Ids of pops in order that ended without an answer: the next pop uses such an id to ask for the same batch.
    # A pop that is under way shares its id with no other: the broker would give its batch to both.
    attempts: dict[MessageQueue, str] = field(default_factory=dict)

    async def pop(
        self,
        queue: MessageQueue,
        subscription: SubscriptionData,
        most: int,
        hidden_ms: int,
        wait_s: float,
    ) -> list[tuple[MessageExt, Receipt]]:
        """Take messages of a queue (queue id -1: all of its broker); wait for `wait_s` seconds.

        If too many pops wait at the broker, this returns after a pause. Raises RemotingError, RemoteError,
        RouteNotFoundError, ProtocolError.
        """
        address = self.instance.need_master(queue.broker_name, queue.topic)
        # Without `born_time` the broker takes its own clock. A client whose clock is behind by more than the wait
        # would get no message, and an empty answer at once (Java: bornTime).
        attempt = self.attempts.pop(queue, None) or self.instance.randomness.randbytes(16).hex()
        header = PopMessageRequestHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            max_msg_nums=most,
            invisible_time=hidden_ms,
            poll_time=int(wait_s * 1000),
            init_mode=INIT_MAX if self.from_newest else INIT_MIN,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=self.ordered,
            attempt_id=attempt if self.ordered else None,
        )
        asked_s = self.instance.clock.monotonic()
        answer: PopAnswer | None = None
        try:
            answer = await self.instance.brokers.pop(address, header, wait_s + ANSWER_S)
        except CometMQError as error:
            error.address = error.address or address
            self.instance.report_failure(error, queue.topic, address)
            raise
        finally:
            if self.ordered and answer is None:
                self.attempts[queue] = attempt
        popped = popped_messages(answer, queue.topic, self.group, queue.broker_name)
        if wait_s > 0 and not popped:
            # Too many pops wait at this broker, or it has not let this one wait: try again a little later.
            pause_s = min(wait_s, PAUSE_S)
            if answer.is_full or self.instance.clock.monotonic() - asked_s < pause_s / 2:
                await asyncio.sleep(pause_s)
        return popped
