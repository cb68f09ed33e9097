"""Pull messages that a group popped in vain before its members changed to pulls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.membership.membership import Membership
from cometmq.errors import CometMQError
from cometmq.logs.loggers import get_logger
from cometmq.model.names import is_retry_topic
from cometmq.model.subscription import MessageSelector
from cometmq.protocol.pop.handle import pop_retry_topic

log = get_logger(__name__)

# The interval between two searches for topics of messages that were popped in vain.
LEFTOVERS_INTERVAL_S: Final = 60.0


class Leftovers:
    """Subscribes one member to the retry topics of such messages as soon as the topics exist.

    Brokers read those topics for pops. Java's consumers pull them only if they let the broker divide the
    queues; else messages that failed before a change from pops to pulls are never read.
    `pops` says whether this member pops a topic.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        membership: Membership,
        pops: Callable[[str], bool],
    ) -> None:
        self._instance = instance
        self._group = group
        self._membership = membership
        self._pops = pops

    async def look(self) -> None:
        """Subscribe and unsubscribe. Call this every LEFTOVERS_INTERVAL_S."""
        for subscription in self._membership.subscriptions():
            topic = subscription.topic
            if is_retry_topic(topic):
                continue
            left = pop_retry_topic(self._group, topic)
            is_pulled = self._membership.subscription(left) is not None
            if self._pops(topic):
                if is_pulled:
                    self._membership.unsubscribe(left)
            elif not is_pulled and await self._exists(left):
                self._membership.subscribe(left, MessageSelector())

    async def _exists(self, topic: str) -> bool:
        try:
            await self._instance.routes.refresh(topic)
        except CometMQError as error:
            log.debug("the group has popped nothing in vain", topic=topic, reason=str(error))
            return False
        return True
