"""Keep the handles of popped messages, and renew them while the client that consumes the messages lives.

Java: DefaultReceiptHandleManager. A message received with auto_renew is hidden for a minute, and hidden again
before that is over: for 1, 3, 5, 10, 30 and then 60 minutes, three hours in all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from cometmq.client.instance import ClientInstance
from cometmq.client.popping.acknowledging import Acknowledgements
from cometmq.client.popping.received import Receipt
from cometmq.errors import CometMQError, ProtocolError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.pop.handle import PopHandle
from cometmq.proxy.clients.clients import Clients
from cometmq.proxy.configuration.config import MAX_REMEMBERED, MAX_RENEWED_HANDLES
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError

log = get_logger(__name__)

_STEPS_MS: Final = tuple(minutes * 60_000 for minutes in (1, 3, 5, 10, 30, 60))
_AT_ONCE: Final = 64


@dataclass(slots=True)
class Renewed:
    client_id: str
    group: str
    receipt: Receipt
    since_ms: int
    renewals: int = 0
    failures: int = 0


class Handles:
    def __init__(self, instance: ClientInstance, clients: Clients, settings: ProxySettings) -> None:
        self._settings = settings
        self._instance = instance
        self._clients = clients
        # By group and by the handle that the client has.
        self._renewed: dict[tuple[str, str], Renewed] = {}
        self._groups: dict[str, Acknowledgements] = {}
        # How many renewals ended how.
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

    def renew(self, client_id: str, group: str, text: str, receipt: Receipt) -> None:
        """Renew the handle `text` until `take` is called with it or the client is gone."""
        now_ms = self._instance.clock.now_ms()
        self._renewed[group, text] = Renewed(client_id, group, receipt, now_ms)

    def take(self, group: str, topic: str, text: str) -> Receipt:
        """Return the receipt of a handle that a client sends, and stop its renewal. Raises RefusedError."""
        renewed = self._renewed.pop((group, text), None)
        if renewed is not None:
            return renewed.receipt
        try:
            handle = PopHandle.decode(text)
        except ProtocolError as error:
            raise RefusedError(wire.INVALID_RECEIPT_HANDLE, str(error)) from error
        if handle.offset < 0:
            raise RefusedError(wire.INVALID_RECEIPT_HANDLE, "the receipt handle names no offset")
        if handle.pop_time + handle.invisible_time < self._instance.clock.now_ms():
            raise RefusedError(
                wire.INVALID_RECEIPT_HANDLE,
                "the receipt handle has expired, and the message has become visible again; consume faster, or "
                "hide it for longer",
            )
        return Receipt(handle.broker_name, topic, handle.offset, handle)

    def keep(self, client_id: str, group: str, text: str, receipt: Receipt) -> None:
        """Resume the renewal that `take` stopped, because the call after it has failed."""
        self.renew(client_id, group, text, receipt)

    async def give_back(self, group: str, receipts: list[Receipt]) -> None:
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
        due = []
        for key, each in list(self._renewed.items()):
            handle = each.receipt.handle
            if self._clients.is_gone(each.client_id):
                del self._renewed[key]
                due.append(self.give_back(each.group, [each.receipt]))
            elif (
                handle.pop_time + handle.invisible_time - now_ms
                <= self._settings.renew_ahead_time_millis
            ):
                due.append(self._renew(key, each, now_ms))
        for begin in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*due[begin : begin + _AT_ONCE])

    # Inside

    async def _renew(self, key: tuple[str, str], each: Renewed, now_ms: int) -> None:
        settings = self._settings
        is_too_old = now_ms - each.since_ms > settings.renew_max_time_millis
        if is_too_old or each.failures >= settings.max_renew_retry_times:
            self._renewed.pop(key, None)
            self.outcomes["given_up"] += 1
            return
        try:
            step = min(each.renewals, len(_STEPS_MS) - 1)
            await self.of(each.group).hide(each.receipt, _STEPS_MS[step])
        except CometMQError as error:
            each.failures += 1
            self.outcomes["failed"] += 1
            log.info("a handle is not renewed", group=each.group, reason=str(error))
        else:
            each.renewals += 1
            each.failures = 0
            self.outcomes["renewed"] += 1
