"""Serve heartbeats and group membership: codes 34, 35, 38 and, towards consumers, 40.

Java: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.clients import ClientManager, Member
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.long_answer import LongAnswer, LongAnswers
from cometmq.broker.refusal import Refused
from cometmq.broker.topics.topics import TopicManager
from cometmq.errors import CometMQError, ConnectionLostError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.subscription import ConsumerData
from cometmq.protocol import requests
from cometmq.protocol.bodies.cluster import GetConsumerListByGroupResponseBody, HeartbeatData
from cometmq.protocol.codes import LanguageCode, ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, ext_of, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.header import NoHeader
from cometmq.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from cometmq.protocol.limits import check_namespace, nothing_named
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import Clock
from cometmq.runtime.slices import run_slice, run_slices

log = get_logger(__name__)

_LANGUAGES: Final[dict[str | int | None, str]] = {
    key: code.name for code in LanguageCode for key in (code.name, code.value)
}
_SUPPORTS_V2 = "IS_SUPPORT_HEART_BEAT_V2"
_SUB_CHANGE = "IS_SUB_CHANGE"
# Members of a group of at most this size are notified of a change before the request that made it is
# answered.
_NOTIFIED_AT_ONCE: Final = 8
# So many ids are listed in one piece; each may have 1,024 characters.
_LISTED_AT_ONCE: Final = 128


class ClientHandlers:
    """Serves heartbeats and questions about members. For the loop's thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        clients: ClientManager,
        groups: GroupManager,
        topics: TopicManager,
        long_answers: LongAnswers,
    ) -> None:
        self._config = config
        self._clock = clock
        self._long_answers = long_answers
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._handlers: Handlers | None = None
        # Groups whose members must be notified of a change, in the order of the changes.
        self._changed: dict[str, None] = {}
        self._notifying: Iterator[None] | None = None
        clients.on_members_changed.append(self.notify_members)

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.HEART_BEAT, self.heartbeat)
        handlers.register(requests.UNREGISTER_CLIENT, self.unregister)
        handlers.register(requests.GET_CONSUMER_LIST_BY_GROUP, self.consumer_list)

    def heartbeat(self, connection: Connection, call: Request[NoHeader]) -> RemotingCommand | None:
        """Take in every group of the client; make unknown consumer groups if that is allowed.

        Only expressions that are not compiled yet take several turns of the loop, and the answer waits
        for them. It does not wait for the disk: no message depends on groups and retry topics that a
        heartbeat creates, and the next heartbeat creates them again.

        A client that sends a fingerprint may leave its subscriptions out of the next heartbeat, if
        the answer says that they have not changed (Java: heartBeatV2).
        """
        check_namespace(ext_of(call))
        data = requests.HEART_BEAT.typed_body(call)
        if not data.consumer_data_set and not data.producer_data_set:  # no client of Java sends one
            raise nothing_named("groups", "consumerDataSet", "producerDataSet")
        answer = response(ResponseCode.SUCCESS, ext={_SUPPORTS_V2: "true"})
        steps = self._take_in(connection, call, data, answer)
        if run_slice(steps):
            return answer
        connection.reply_when(call, self._go_on(steps, answer))
        return None

    async def _go_on(self, steps: Iterator[None], answer: RemotingCommand) -> RemotingCommand:
        await run_slices(steps)
        return answer

    def _take_in(
        self,
        connection: Connection,
        call: Request[NoHeader],
        data: HeartbeatData,
        answer: RemotingCommand,
    ) -> Iterator[None]:
        """Register the client with its groups, then take in their expressions in steps; say in `answer`
        what has changed. A LimitError is raised after the expressions of the groups registered before it.
        """
        filters: list[Iterator[None]] = []
        fault = None
        try:
            self._register(connection, call, data, answer, filters)
        except CometMQError as error:
            fault = error
        self._clients.log_joined(data.client_id)
        for steps in filters:
            yield from steps
        if fault is not None:
            raise fault

    def _register(
        self,
        connection: Connection,
        call: Request[NoHeader],
        data: HeartbeatData,
        answer: RemotingCommand,
        filters: list[Iterator[None]],
    ) -> None:
        assert self._handlers is not None, "it is called by its registration"
        member = Member(
            data.client_id,
            connection,
            _language(call.language),
            call.version,
            self._clock.monotonic(),
            self._handlers.sender_of(requests.HEART_BEAT, connection, call),
        )
        answer.ext[_SUB_CHANGE] = "false" if data.heartbeat_fingerprint else "true"
        for consumer in self._with_groups(data.consumer_data_set):
            if self._subscriptions_changed(data, consumer.group_name):
                answer.ext[_SUB_CHANGE] = "true"
            filters.append(
                self._clients.register_consumer(
                    member,
                    consumer,
                    fingerprint=data.heartbeat_fingerprint,
                    without_subscriptions=data.without_sub,
                )
            )
        for producer in data.producer_data_set:
            self._clients.register_producer(member, producer.group_name)

    def _with_groups(self, consumers: list[ConsumerData]) -> Iterator[ConsumerData]:
        """Make the groups and their retry topics if need be; yield the consumers with a group.

        Raises Refused at the first one whose group is not made because clients make too many.
        """
        fault = None
        try:
            self._groups.make(consumer.group_name for consumer in consumers)
        except Refused as error:
            fault = error
        groups = [self._groups.get(consumer.group_name) for consumer in consumers]
        self._topics.create_for_groups(
            {
                names.retry_topic(group.group_name): group.retry_queue_nums
                for group in groups
                if group is not None and group.retry_queue_nums > 0
            }
        )
        unknown = []
        for consumer, group in zip(consumers, groups, strict=True):
            if group is not None:
                yield consumer
            elif fault is not None:
                raise fault
            else:
                unknown.append(consumer.group_name)
        if unknown:
            log.warning(
                "heartbeat of unknown groups ignored",
                group=unknown[0],
                more_groups=len(unknown) - 1,
            )

    def _subscriptions_changed(self, data: HeartbeatData, name: str) -> bool:
        """Say whether the client must send its subscriptions again because its group sent others.

        Java accepts a heartbeat without subscriptions even if it knows none, as after its own
        start. The client's pulls then fail until the client has another reason to send them.
        """
        group = self._clients.consumer_group(name)
        if data.without_sub and (group is None or not group.subscriptions):
            return True
        known = group.fingerprint if group is not None else None
        return known is not None and known != data.heartbeat_fingerprint

    def unregister(
        self, connection: Connection, call: Request[UnregisterClientRequestHeader]
    ) -> RemotingCommand:
        """Remove a client that stops from its groups.

        Another client that sends its id over another connection changes nothing, as in Java.
        """
        header = call.header
        if header.producer_group is not None:
            self._clients.unregister_producer(header.producer_group, header.client_id, connection)
        if header.consumer_group is not None:
            self._clients.unregister_consumer(header.consumer_group, header.client_id, connection)
        return response(ResponseCode.SUCCESS)

    def consumer_list(
        self, connection: Connection, call: Request[GetConsumerListByGroupRequestHeader]
    ) -> RemotingCommand | None:
        """Return the client ids of a group's live members; many of them are put together in slices."""
        header = call.header
        ids = self._clients.consumer_ids(header.consumer_group)
        if not ids:
            return response(  # no refusal: a group's first member asks before it is known
                ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {header.consumer_group}"
            )
        if len(ids) > _LISTED_AT_ONCE:
            connection.reply_when(call, self._long_list(connection, ids))
            return None
        return response(
            ResponseCode.SUCCESS, body=encode_body(GetConsumerListByGroupResponseBody(ids))
        )

    async def _long_list(self, connection: Connection, ids: list[str]) -> RemotingCommand:
        async with self._long_answers.turn(connection):
            remedy = "divide the clients among several groups, or give them shorter ids"
            answer = LongAnswer(self._clock, self._config.max_frame_length, remedy)
            for first in range(0, len(ids), _LISTED_AT_ONCE):
                piece = encode_body(ids[first : first + _LISTED_AT_ONCE])[1:-1]
                await answer.write(b",%b" % piece if first else piece)
            body = await answer.body(b'{"consumerIdList":[', b"]}")
        return response(ResponseCode.SUCCESS, body=body)

    def notify_members(self, group: str, members: list[Member]) -> None:
        """Ask a group's members to rebalance (code 40, one way).

        A small group is notified at once, before the request that changed it is answered, as Java's
        broker does. A large group is notified soon after this turn of the loop, once for all changes
        that come until then. Otherwise, when many members come or go, each would be notified of every
        other.
        """
        config = self._groups.get(group)
        if not self._config.notify_consumer_ids_changed_enable or (
            config is not None and not config.notify_consumer_ids_changed_enable
        ):
            return
        if self._notifying is None and not self._changed:
            if len(members) <= _NOTIFIED_AT_ONCE:
                self._changed[group] = None
                self._notify()
                return
            asyncio.get_running_loop().call_soon(self._notify)
        self._changed[group] = None

    def _notify(self) -> None:
        """Notify members of changed groups for a slice of time, and go on in the next turn."""
        if self._notifying is None:
            self._notifying = self._notifications()
        if run_slice(self._notifying):
            self._notifying = None
        else:
            asyncio.get_running_loop().call_soon(self._notify)

    def _notifications(self) -> Iterator[None]:
        while self._changed:
            group = next(iter(self._changed))
            del self._changed[group]
            for member in self._clients.consumers(group):
                try:
                    member.connection.send_oneway(
                        requests.NOTIFY_CONSUMER_IDS_CHANGED.command(
                            NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
                        )
                    )
                except ConnectionLostError:  # the member's removal is under way
                    log.debug("member not notified", group=group, client_id=member.client_id)
                except Exception:  # noqa: BLE001 - the other members must hear of the change
                    member.connection.fail()
                yield


def _language(language: str | int | None) -> str:
    """Return a name of Java's LanguageCode, because Java accepts no other; it is kept, too, and a header
    has room for a megabyte of anything.
    """
    return _LANGUAGES.get(language, LanguageCode.OTHER.name)
