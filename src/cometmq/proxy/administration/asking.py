"""Ask servers on behalf of the service Admin, within limits, and note which answers are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.admin.groups.offsets import Offsets
from cometmq.admin.groups.room import Groups
from cometmq.admin.messages.room import Messages
from cometmq.admin.servers import Servers
from cometmq.admin.topics.room import Topics
from cometmq.client.instance import ClientInstance
from cometmq.errors import RemotingError, ServersFailedError
from cometmq.metrics.limit_hits import LimitHits
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand
from cometmq.proxy.administration.limits import check_answer, check_questions
from cometmq.proxy.calls import Calls
from cometmq.proxy.clients.clients import Clients
from cometmq.proxy.configuration import config
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.methods.sends import Sends
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError, ok, status
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.hooks import RpcHook
from cometmq.runtime.sockets.network import Network

if TYPE_CHECKING:
    from cometmq.proxy.administration.process import ProcessFigures

T = TypeVar("T")
U = TypeVar("U")

# The same as the administration client's.
_TIMEOUT_S: Final = 5.0
# The most groups, topics or members to ask about at a time.
_AT_ONCE: Final = 8
# A subscription counts with its texts and this size more.
_SUBSCRIPTION_BYTES: Final = 64
_WITH_MESSAGES: Final = (RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID)


class _ReportLimit(RpcHook):
    """Refuses reports that would block the loop while they are decoded. A member writes its own report."""

    def __init__(self, hits: LimitHits) -> None:
        self._hits = hits

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        size, most = len(answer.body), config.MAX_REPORT_BYTES
        if size <= most or command.code in _WITH_MESSAGES:
            return
        text = (
            f"the report of {address} has {size} bytes, the limit MAX_REPORT_BYTES of this proxy is {most}; use "
            "cometmq admin"
        )
        # Note it here: if one of several servers fails, its error becomes a part of another error.
        self._hits.note(RemotingError(text, limit="MAX_REPORT_BYTES"))
        raise RemotingError(text, address=address)


class _CheapGroups(Groups):
    async def need(self, group: str) -> None:
        """Refuse a group without an offset at any broker. It may exist, but only the settings of all groups would
        show that, and a right to one group does not allow reading them.
        """
        raise RefusedError(
            wire.CONSUMER_GROUP_NOT_FOUND,
            f"group {group} has no offset at the brokers that were asked; check its name",
        )


@dataclass(frozen=True, slots=True)
class Parts:
    """Holds the parts of the proxy that the handlers use."""

    remoting: RemotingClient
    topics: Topics
    groups: Groups
    offsets: Offsets
    messages: Messages
    clients: Clients
    calls: Calls
    sends: Sends
    instance: ClientInstance
    settings: ProxySettings
    figures: ProcessFigures


def parts_of(
    calls: Calls,
    clients: Clients,
    sends: Sends,
    instance: ClientInstance,
    settings: ProxySettings,
    network: Network,
    figures: ProcessFigures,
) -> Parts:
    """Return the parts, with connections of their own, so that no send waits behind a long report."""
    access = instance.access
    remoting = RemotingClient(
        connect_timeout_s=_TIMEOUT_S,
        credentials=access.credentials,
        tls=access.tls,
        network=network,
    )
    remoting.rpc_hooks.add(_ReportLimit(calls.hits))
    servers = Servers(instance.namesrv, remoting, _TIMEOUT_S, lambda: None, instance.clock)
    return Parts(
        remoting,
        Topics(servers),
        _CheapGroups(servers),
        Offsets(servers),
        # Bodies stay compressed: a handler decompresses those for which its answer has room.
        Messages(servers, max_bodies_bytes=0),
        clients,
        calls,
        sends,
        instance,
        settings,
        figures,
    )


class Inquiry:
    """Counts the questions of a call to servers, and notes which answers are missing."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._count = self._held_bytes = 0

    def take(self, count: int, what: str) -> None:
        """Count questions before they are asked. Raises RefusedError if the call asks too many."""
        check_questions(count, what, self._count)
        self._count += count

    def hold(self, subscriptions: Iterable[SubscriptionData]) -> None:
        """Count about how many bytes of reports a call holds until its answer. Raises RefusedError for too many.

        Members write what they report, and each of hundreds may write as much as MAX_REPORT_BYTES.
        """
        self._held_bytes += sum(
            len(data.topic) + len(data.sub_string) + _SUBSCRIPTION_BYTES for data in subscriptions
        )
        check_answer(self._held_bytes, "the subscriptions of members take")

    async def each(
        self, names: Iterable[U], what: str, ask: Callable[[U], Awaitable[T]]
    ) -> list[T]:
        """Return what `ask` returns for each name, in their order. Raises RefusedError for too many names."""
        asked = list(names)
        self.take(len(asked), what)
        found: list[T] = []
        for begin in range(0, len(asked), _AT_ONCE):
            part = asked[begin : begin + _AT_ONCE]
            # After a failure none goes on asking, when the call is no longer counted.
            for each in await asyncio.gather(*map(ask, part), return_exceptions=True):
                if isinstance(each, BaseException):
                    raise each
                found.append(each)
        return found

    async def partly(self, call: Awaitable[T], join: Callable[[Mapping[str, Any]], T]) -> T:
        """Return the result of a call to several servers. If some fail, note that and return the results of the
        others, joined by `join`; if all fail, raise the call's error.
        """
        try:
            return await call
        except ServersFailedError as error:
            if not error.results:
                raise
            self.notes.append(f"some brokers are missing from the answer: {error}")
            return join(error.results)

    def status(self) -> wire.Status:
        """Return the status of the answer: OK, or MULTIPLE_RESULTS with the missing parts and the reasons."""
        return status(wire.MULTIPLE_RESULTS, "; ".join(self.notes)) if self.notes else ok()


def refuse_lite(name: str) -> None:
    """Raise RefusedError if a call names a lite topic."""
    if name:
        raise RefusedError(
            wire.UNSUPPORTED, "this proxy does not serve lite topics; name another topic"
        )


def topic_named(name: str) -> wire.Resource:
    return wire.Resource(name=name)
