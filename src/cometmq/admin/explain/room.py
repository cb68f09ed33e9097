"""Explain why groups are behind, messages not delivered and writes refused, and what comes next."""

from __future__ import annotations

from typing import Final

from cometmq.admin.absent import Absent
from cometmq.admin.explain.disk import explain_disk
from cometmq.admin.explain.groups.group_causes import judge
from cometmq.admin.explain.groups.group_facts import collect, unknown_group
from cometmq.admin.explain.inquiry import Inquiry, Step
from cometmq.admin.explain.messages.message_causes import judge as judge_message
from cometmq.admin.explain.messages.message_facts import follow
from cometmq.admin.explain.records import (
    DiskExplanation,
    GroupExplanation,
    MessageExplanation,
    RestartExplanation,
    WriteExplanation,
)
from cometmq.admin.explain.restart import explain_restart
from cometmq.admin.explain.texts import Said
from cometmq.admin.explain.write import explain_write
from cometmq.admin.room import Room
from cometmq.admin.servers import Servers
from cometmq.errors import IllegalArgumentError
from cometmq.model.names import check_group, check_topic
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock

# How long all answers to one question may take together.
DEADLINE_S: Final = 30.0


class Explanations(Room):
    """Answers questions by causes with evidence and remedies, and changes nothing.

    A call asks what it can within `deadline_s`, and `unasked` of its result says what it could not.
    `on_step` is called with a line for each step, by the client's loop thread.
    """

    def __init__(self, servers: Servers, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(servers)
        self._clock = clock

    async def group(
        self,
        group: str,
        topic: str | None = None,
        *,
        cluster: str | None = None,
        deadline_s: float = DEADLINE_S,
        on_step: Step | None = None,
    ) -> GroupExplanation:
        """Say why a group is behind, in all its topics or in one.

        Raises RemoteError (SUBSCRIPTION_GROUP_NOT_EXIST) if no broker knows the group, and
        RemotingError if some brokers did not answer and the others do not know it.
        """
        check_group(group)
        inquiry = self._inquiry(deadline_s, on_step)
        facts = await collect(inquiry, group, topic, cluster)
        if facts.is_unknown:
            raise unknown_group(facts, inquiry.unasked)
        return GroupExplanation(
            question=Said.WHY_GROUP_BEHIND_IN_TOPIC(group=group, topic=topic)
            if topic
            else Said.WHY_GROUP_BEHIND(group=group),
            reasons=tuple(judge(facts)),
            unasked=inquiry.unasked,
            at_ms=facts.at_ms,
            group=group,
            queues=tuple(progress for progress, _ in facts.queues()),
            consume_per_s=facts.consume_per_s,
        )

    async def message(
        self,
        message_id: str,
        topic: str | None = None,
        *,
        group: str | None = None,
        deadline_s: float = DEADLINE_S,
        on_step: Step | None = None,
    ) -> MessageExplanation:
        """Say where a message is, and its state in each group of its topic or in one.

        `message_id` is an offset id or, with the topic, a unique id. Raises IllegalArgumentError for
        an id that no broker of the cluster has made, if no topic is named, and RemoteError
        (SUBSCRIPTION_GROUP_NOT_EXIST) if no broker that answers knows the group.
        """
        if group is not None:
            check_group(group)
        if not message_id or message_id.split() != [message_id]:
            raise IllegalArgumentError(Absent.MESSAGE_ID(message=message_id))
        inquiry = self._inquiry(deadline_s, on_step)
        facts = await follow(inquiry, message_id, topic, group)
        reasons, deliveries = judge_message(facts)
        return MessageExplanation(
            question=Said.WHY_NOT_DELIVERED(message=message_id),
            reasons=tuple(reasons),
            unasked=inquiry.unasked,
            at_ms=facts.at_ms,
            copies=tuple(reported.value for reported in facts.copies),
            deliveries=tuple(deliveries),
        )

    async def write(
        self,
        topic: str,
        *,
        size: int | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        deadline_s: float = DEADLINE_S,
        on_step: Step | None = None,
    ) -> WriteExplanation:
        """Say for each broker whether it takes messages of a topic, and if not, why.

        `size` is that of a body in bytes.
        """
        check_topic(topic)
        inquiry = self._inquiry(deadline_s, on_step)
        return await explain_write(inquiry, topic, size=size, cluster=cluster, broker=broker)

    async def disk(
        self,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        deadline_s: float = DEADLINE_S,
        on_step: Step | None = None,
    ) -> DiskExplanation:
        """Say which file each broker deletes next, when and why. Java's brokers do not report that."""
        inquiry = self._inquiry(deadline_s, on_step)
        return await explain_disk(inquiry, cluster=cluster, broker=broker)

    async def restart(
        self,
        *,
        cluster: str | None = None,
        broker: str | None = None,
        deadline_s: float = DEADLINE_S,
        on_step: Step | None = None,
    ) -> RestartExplanation:
        """Say what the restart of each broker costs: log to read, queues, clients that wait."""
        inquiry = self._inquiry(deadline_s, on_step)
        return await explain_restart(inquiry, cluster=cluster, broker=broker)

    def _inquiry(self, deadline_s: float, on_step: Step | None) -> Inquiry:
        return Inquiry(self._servers, self._clock, deadline_s, on_step)
