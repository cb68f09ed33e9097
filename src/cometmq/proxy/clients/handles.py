"""Keep the handles of popped messages, and renew them while the client that consumes the messages lives.

Java: DefaultReceiptHandleManager. A message received with auto_renew is hidden for a minute, and hidden again
before that is over: for 1, 3, 5, 10, 30 and then 60 minutes, three hours in all.

CometMQ's brokers still accept the client's handle after a renewal, so it is good at any proxy after this one has
stopped. Java's brokers give a renewed message a new handle, which only this proxy knows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.popping.acknowledging import Acknowledgements
from cometmq.client.popping.received import Receipt
from cometmq.errors import CometMQError, ProtocolError, RemoteError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.pop.handle import PopHandle
from cometmq.protocol.pop.headers import PopProgressRequestHeader
from cometmq.proxy.clients.clients import Clients
from cometmq.proxy.clients.settings import retry_delay_ms
from cometmq.proxy.configuration.config import MAX_REMEMBERED, MAX_RENEWED_HANDLES
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.metadata import Metadata
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError

log = get_logger(__name__)

_STEPS_MS: Final = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
# How many requests about handles are under way at a time.
_AT_ONCE: Final = 64


@dataclass(slots=True)
class Held:
    """A message that a client has. `client_id` is empty if this proxy does not renew the message.

    `reconsume_times` is the number of deliveries before this one.
    """

    client_id: str
    group: str
    receipt: Receipt
    since_ms: int
    reconsume_times: int = 0
    renewals: int = 0
    failures: int = 0


class Handles:
    def __init__(
        self,
        instance: ClientInstance,
        metadata: Metadata,
        clients: Clients,
        settings: ProxySettings,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._metadata = metadata
        self._clients = clients
        # By group and by the handle that the client has.
        self._renewed: dict[tuple[str, str], Held] = {}
        self._groups: dict[str, Acknowledgements] = {}
        # Names of brokers that have renewed a message and accept its old handle.
        self._keepers: set[str] = set()
        # By broker, so that one that is silent keeps no acknowledgement at another one waiting.
        self._questions: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )
        # The number of renewals by outcome.
        self.outcomes = dict.fromkeys(("renewed", "failed", "given_up"), 0)

    def __len__(self) -> int:
        return len(self._renewed)

    @property
    def has_room(self) -> bool:
        return len(self._renewed) < MAX_RENEWED_HANDLES

    def of(self, group: str) -> Acknowledgements:
        found = self._groups.get(group)
        if found is None:
            if len(self._groups) >= MAX_REMEMBERED:
                self._groups.clear()
            found = self._groups[group] = Acknowledgements(self._instance, group)
        return found

    def renew(
        self, client_id: str, group: str, text: str, receipt: Receipt, reconsume_times: int
    ) -> None:
        """Renew the handle `text` until `take` is called with it or the client is gone."""
        now_ms = self._instance.clock.now_ms()
        self._renewed[group, text] = Held(client_id, group, receipt, now_ms, reconsume_times)

    async def take(self, group: str, topic: str, text: str) -> Held:
        """Return the message of a handle that a client sends, and stop its renewal. Raises RefusedError, and
        RemotingError or RemoteError if the broker does not say whether a handle is still good.
        """
        held = self._renewed.pop((group, text), None)
        if held is not None:
            return held
        try:
            handle = PopHandle.decode(text)
        except ProtocolError as error:
            raise RefusedError(wire.INVALID_RECEIPT_HANDLE, str(error)) from error
        if handle.offset < 0:
            raise RefusedError(wire.INVALID_RECEIPT_HANDLE, "the receipt handle names no offset")
        receipt = Receipt(handle.broker_name, topic, handle.offset, handle)
        now_ms = self._instance.clock.now_ms()
        is_over = handle.pop_time + handle.invisible_time < now_ms
        if is_over and not await self._is_in_flight(group, receipt):
            raise RefusedError(
                wire.INVALID_RECEIPT_HANDLE,
                "the receipt handle has expired, and the message has become visible again; consume faster, or "
                "hide it for longer",
            )
        return Held("", group, receipt, now_ms)

    def keep(self, text: str, held: Held) -> None:
        """Resume the renewal that `take` stopped, because the call has failed and clients try again."""
        if held.client_id:
            self._renewed[held.group, text] = held

    async def give_back(self, group: str, receipts: Sequence[Receipt]) -> None:
        """Make messages that reached no client visible again soon."""
        for receipt in receipts:
            try:
                await self.of(group).hide(receipt, self._settings.invisible_time_millis_when_clear)
            except CometMQError as error:
                # The message comes again when its invisible time is over.
                log.info("a message could not be given back", group=group, reason=str(error))

    async def scan(self) -> None:
        """Renew messages that are about to become visible, and give back those of clients that are gone."""
        now_ms = self._instance.clock.now_ms()
        due: list[Callable[[], Awaitable[None]]] = []
        for key, each in list(self._renewed.items()):
            handle = each.receipt.handle
            if self._clients.is_gone(each.client_id):
                del self._renewed[key]
                due.append(partial(self.give_back, each.group, [each.receipt]))
            elif (
                handle.pop_time + handle.invisible_time - now_ms
                <= self._settings.renew_ahead_time_millis
            ):
                due.append(partial(self._renew, key, each))
        await _all(due)

    async def leave(self, timeout_s: float) -> None:
        """Renew handles once more within this time, because no proxy renews them after this one. Leave out handles of
        brokers that do not accept a client's handle after a renewal.
        """
        if not self._renewed:
            return
        kept = [
            (key, each)
            for key, each in self._renewed.items()
            if each.receipt.handle.is_ordered or each.receipt.broker_name in self._keepers
        ]
        before = self.outcomes["renewed"]
        try:
            async with asyncio.timeout(timeout_s):
                await _all([partial(self._renew, key, each) for key, each in kept])
        except TimeoutError:
            log.info("not all handles were renewed before the stop", seconds=timeout_s)
        log.info(
            "clients have messages while the proxy stops: one that is not acknowledged at another proxy before its "
            "invisible time ends is delivered again",
            messages=len(self._renewed),
            renewed=self.outcomes["renewed"] - before,
            bound_to_this_proxy=sum(map(self._is_bound, self._renewed.values())),
        )

    # Inside

    def _is_bound(self, held: Held) -> bool:
        """Say whether only this proxy knows a message's handle."""
        name = held.receipt.broker_name
        return (
            bool(held.renewals) and not held.receipt.handle.is_ordered and name not in self._keepers
        )

    async def _is_in_flight(self, group: str, receipt: Receipt) -> bool:
        """Ask the broker whether another proxy has renewed a message that looks expired. Java's brokers do not
        answer this. Raises RemotingError, RouteNotFoundError, and RemoteError if the broker may answer
        later.
        """
        handle = receipt.handle
        address = self._instance.need_master(receipt.broker_name, receipt.topic)
        header = PopProgressRequestHeader(
            group, receipt.real_topic(group), handle.queue_id, receipt.offset
        )
        try:
            async with self._questions[address]:
                found = await self._instance.brokers.popped_message(address, header)
        except RemoteError as error:
            if error.retriable:
                raise
            log.info("an expired handle is refused", group=group, reason=str(error))
            return False
        return found is not None and found.state == "HIDDEN" and found.popped_ms == handle.pop_time

    async def _renew(self, key: tuple[str, str], each: Held) -> None:
        """Hide a message for longer; after the longest time once more, for the delay of a retry."""
        settings = self._settings
        age_ms = self._instance.clock.now_ms() - each.since_ms
        is_last = age_ms > settings.renew_max_time_millis
        before = each.receipt.handle
        try:
            if is_last:
                config = await self._metadata.group(each.group, each.receipt.topic)
                hidden_ms = retry_delay_ms(config, each.reconsume_times)
            else:
                hidden_ms = _STEPS_MS[min(each.renewals, len(_STEPS_MS) - 1)]
            is_known = await self.of(each.group).hide(each.receipt, hidden_ms, keeps_handle=True)
        except CometMQError as error:
            each.failures += 1
            self.outcomes["failed"] += 1
            log.info("a handle is not renewed", group=each.group, reason=str(error))
            is_known = not (
                isinstance(error, RemoteError) and error.code == ResponseCode.NO_MESSAGE
            )
        else:
            if is_known and not is_last:
                self._note_keeper(each.receipt, before)
                each.renewals += 1
                each.failures = 0
                self.outcomes["renewed"] += 1
        is_over = is_last or not is_known or each.failures >= settings.max_renew_retry_times
        if is_over and self._renewed.get(key) is each:
            del self._renewed[key]
            self.outcomes["given_up"] += 1

    def _note_keeper(self, receipt: Receipt, before: PopHandle) -> None:
        """Note whether a broker accepts the handle from before a renewal. For messages in order, each broker does."""
        if receipt.handle.is_ordered:
            return
        if receipt.handle.pop_time == before.pop_time:
            self._keepers.add(receipt.broker_name)
        else:
            self._keepers.discard(receipt.broker_name)


async def _all(calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Make all calls, at most _AT_ONCE at a time."""
    for begin in range(0, len(calls), _AT_ONCE):
        await asyncio.gather(*(call() for call in calls[begin : begin + _AT_ONCE]))
