"""Decode messages before the user of a consumer gets them, and give back those that do not fit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar, cast

from cometmq.client.consuming.listeners.listening import (
    CoroutineListener,
    FunctionListener,
    Listener,
    takes_await,
)
from cometmq.client.consuming.listeners.partly import Partly, Refused
from cometmq.client.namespaces import Namespace
from cometmq.errors import (
    CometMQError,
    IllegalArgumentError,
    SchemaRegistryError,
    UndecodableError,
)
from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.model.message import MessageExt
from cometmq.model.results import ConsumeResult
from cometmq.payloads.codecs import Codecs, codecs_of
from cometmq.runtime.surroundings import current

log = get_logger(__name__)

# A function of the message and the error. It returns where the message goes, or None if it is done.
Place = Literal["retry", "dead-letter"]
Judge = Callable[[MessageExt, UndecodableError], Place | Awaitable[Place | None] | None]
OnUndecodable = Literal["raise", "retry", "dead-letter"] | Judge
MessageT = TypeVar("MessageT", bound=MessageExt)

_PLACES: Final = ("retry", "dead-letter")
# The delay levels of a message that is given back: chosen by its deliveries, or none, at once.
RETRY: Final = 0
DEAD_LETTER: Final = -1


def check_on_undecodable(given: object) -> None:
    """Raise IllegalArgumentError for a value that `on_undecodable` cannot have."""
    if given not in ("raise", *_PLACES) and not callable(given):
        raise IllegalArgumentError(
            f"on_undecodable is {given!r:.80}; it is 'raise', 'retry', 'dead-letter', or a function of "
            "(message, error) that returns 'retry', 'dead-letter' or None"
        )


class Sorted(NamedTuple):
    """Holds the messages that the user gets, and those that are given back. All others are done."""

    kept: list[Any]
    refused: list[Refused]


class Payloads:
    """Decodes messages by a consumer's codecs. For the consumer's loop, except `sort_now`.

    With "raise" the user gets every message, and its `value` raises. A message whose schema cannot be
    fetched is given back for a retry: nothing is wrong with it.
    """

    def __init__(
        self, codecs: Codecs, on_undecodable: OnUndecodable, group: str, namespace: Namespace
    ) -> None:
        self._codecs = codecs
        self._on_undecodable = on_undecodable
        self._group = group
        self._namespace = namespace
        # A topic of another program's messages has one for each.
        self._unfit, self._without_schema = RareLine(), RareLine()

    async def sort(self, messages: Sequence[MessageExt]) -> Sorted:
        """Decode messages, and ask for the places of those that do not fit."""
        kept: list[MessageExt] = []
        refused: list[Refused] = []
        for message in messages:
            topic = self._namespace.unwrap(message.origin_topic)
            try:
                if self._on_undecodable == "raise":
                    await self._codecs.prepare(message, topic)
                else:
                    await self._codecs.decode(message, topic)
            except SchemaRegistryError as error:
                self._log(message, error, "retry")
                refused.append(Refused(message, error, RETRY))
            except UndecodableError as error:
                place = await self._ask(message, error)
                self._log(message, error, place or "done")
                if place is not None:
                    level = RETRY if place == "retry" else DEAD_LETTER
                    refused.append(Refused(message, error, level))
            else:
                kept.append(message)
        return Sorted(kept, refused)

    def sort_now(self, messages: Sequence[MessageExt]) -> Sorted | None:
        """Decode messages in this thread. Return None if `sort` is needed, to fetch a schema or to ask."""
        for message in messages:
            topic = self._namespace.unwrap(message.origin_topic)
            if not self._codecs.prepare_now(message, topic):
                return None
            if self._on_undecodable == "raise" or self._codecs.of(topic) is None:
                continue
            try:
                _ = message.value
            except (UndecodableError, SchemaRegistryError):
                return None
        return Sorted(list(messages), [])

    def around(self, listener: Listener) -> Listener:
        """Return a listener of the same kind that hands the kept messages to this one. For the loop."""
        if takes_await(listener) or current().is_virtual:
            call = cast("CoroutineListener", listener)

            async def listen_on_loop(messages: list[MessageExt]) -> Any:
                found = await self.sort(messages)
                return await _call_and_await(call, found, messages)

            return listen_on_loop
        function = cast("FunctionListener", listener)
        loop = asyncio.get_running_loop()

        def listen(messages: list[MessageExt]) -> Any:
            found = self.sort_now(messages)
            if found is None:
                found = asyncio.run_coroutine_threadsafe(self.sort(messages), loop).result()
            return _call(function, found, messages)

        return listen

    async def admit(
        self,
        messages: list[MessageT],
        give_back: Callable[[MessageExt, int, CometMQError], Awaitable[None]] | None,
    ) -> list[MessageT]:
        """Return the messages of a poll: the kept ones, and those that nobody takes back."""
        found = await self.sort(messages)
        left = {id(message) for message in found.kept}
        for message, error, level in found.refused:
            # A poll cannot wait for a registry; the value raises what the registry said.
            if give_back is None or isinstance(error, SchemaRegistryError):
                left.add(id(message))
                continue
            try:
                await give_back(message, level, error)
            except CometMQError as failure:
                log.warning(
                    "a message that does not fit its codec could not be given back, the poll returns it",
                    group=self._group,
                    msg_id=message.msg_id,
                    reason=str(failure),
                )
                left.add(id(message))
        return [message for message in messages if id(message) in left]

    async def _ask(self, message: MessageExt, error: UndecodableError) -> Place | None:
        if not callable(self._on_undecodable):
            return "retry" if self._on_undecodable == "retry" else "dead-letter"
        judge = self._on_undecodable
        try:
            if takes_await(judge) or current().is_virtual:
                place: Any = judge(message, error)
            else:
                place = await asyncio.to_thread(judge, message, error)
            if inspect.isawaitable(place):
                place = await place
        except Exception as failure:
            # The user's code; the message must not be lost with it.
            log.warning("on_undecodable failed, the message comes again", exc_info=failure)
            return "retry"
        if place is not None and place not in _PLACES:
            log.warning(
                "on_undecodable returned an unknown place, the message comes again", place=place
            )
            return "retry"
        answer: Place | None = place
        return answer

    def _log(self, message: MessageExt, error: CometMQError, place: str) -> None:
        line = self._without_schema if isinstance(error, SchemaRegistryError) else self._unfit
        if messages := line.count():
            log.warning(
                "messages do not fit their codec",
                group=self._group,
                messages=messages,
                msg_id=message.msg_id,
                goes_to=place,
                reason=str(error),
            )


def _call(listener: FunctionListener, found: Sorted, messages: list[MessageExt]) -> Any:
    outcome: object = ConsumeResult.SUCCESS
    if found.kept:
        try:
            outcome = listener(found.kept)
        except Exception as error:
            if len(found.kept) == len(messages):
                raise
            outcome = error
    return _partly(outcome, found, messages)


async def _call_and_await(
    listener: CoroutineListener, found: Sorted, messages: list[MessageExt]
) -> Any:
    outcome: object = ConsumeResult.SUCCESS
    if found.kept:
        try:
            outcome = listener(found.kept)
            if inspect.isawaitable(outcome):  # in virtual time functions come here, too
                outcome = await outcome
        except Exception as error:
            if len(found.kept) == len(messages):
                raise
            outcome = error
    return _partly(outcome, found, messages)


def _partly(outcome: object, found: Sorted, messages: list[MessageExt]) -> object:
    if len(found.kept) == len(messages):
        return outcome
    return Partly(outcome, found.kept, found.refused)


def payloads_of(
    codecs: object, on_undecodable: OnUndecodable, group: str, namespace: Namespace
) -> Payloads | None:
    """Return the payloads of a consumer with these options, or None without codecs."""
    found = codecs_of(codecs)
    return None if found is None else Payloads(found, on_undecodable, group, namespace)
