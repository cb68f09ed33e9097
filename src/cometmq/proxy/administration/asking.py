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
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand
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
        self._count = 0

    def take(self, count: int, what: str) -> None:
        """Count questions before they are asked. Raises RefusedError if the call asks too many."""
        self._count += count
        most = config.MAX_ADMIN_QUESTIONS
        if self._count > most:
            raise RefusedError(
                wire.BAD_REQUEST,
                f"with {count} {what} the call asks {self._count} questions, the limit MAX_ADMIN_QUESTIONS is {most}; "
                "make several calls, each for one group or topic",
                "MAX_ADMIN_QUESTIONS",
            )

    async def each(
        self, names: Iterable[U], what: str, ask: Callable[[U], Awaitable[T]]
    ) -> list[T]:
        """Return what `ask` returns for each name, in their order. Raises RefusedError for too many names."""
        asked = list(names)
        self.take(len(asked), what)
        found: list[T] = []
        for begin in range(0, len(asked), _AT_ONCE):
            found += await asyncio.gather(*map(ask, asked[begin : begin + _AT_ONCE]))
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


def check_items(count: int, what: str) -> None:
    """Raise RefusedError for an answer with too many parts."""
    most = config.MAX_ADMIN_ITEMS
    if count > most:
        raise RefusedError(
            wire.PAYLOAD_TOO_LARGE,
            f"the answer has {count} {what}, the limit MAX_ADMIN_ITEMS is {most}; name a topic, or use cometmq admin",
            "MAX_ADMIN_ITEMS",
        )


def refuse_lite(name: str) -> None:
    """Raise RefusedError if a call names a lite topic."""
    if name:
        raise RefusedError(
            wire.UNSUPPORTED, "this proxy does not serve lite topics; name another topic"
        )


def topic_named(name: str) -> wire.Resource:
    return wire.Resource(name=name)
