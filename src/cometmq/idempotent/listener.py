"""Wrap a listener so that it skips messages that were done before."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

from cometmq.client.consuming.listeners.listening import (
    CoroutineListener,
    FunctionListener,
    Listener,
    Verdict,
    takes_await,
)
from cometmq.client.consuming.listeners.nothing_returned import check_none_means
from cometmq.errors import IllegalArgumentError, KeyStoreError
from cometmq.idempotent.keys import MAX_KEY_LENGTH, KeyState, KeyStore, check_seconds
from cometmq.logs.loggers import get_logger
from cometmq.model.message import MessageExt
from cometmq.model.results import ConsumeReport, ConsumeResult

log = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Returns the text that tells one business event from all others, or None to have the message
# consumed in any case.
KeyOf = Callable[[MessageExt], str | None]

LEASE_S: Final = 15 * 60.0


def business_key(message: MessageExt) -> str:
    """Return the first of the message's KEYS, or its unique id if it has none.

    The unique id reveals a message that was delivered twice, but not one that was sent twice.
    """
    keys = message.keys
    return keys[0] if keys else message.msg_id


@overload
def idempotent(
    listener: CoroutineListener,
    store: KeyStore,
    *,
    scope: str,
    key: KeyOf = ...,
    lease_s: float = ...,
    none_means: ConsumeResult = ...,
) -> CoroutineListener: ...


@overload
def idempotent(
    listener: FunctionListener,
    store: KeyStore,
    *,
    scope: str,
    key: KeyOf = ...,
    lease_s: float = ...,
    none_means: ConsumeResult = ...,
) -> FunctionListener: ...


def idempotent(
    listener: Listener,
    store: KeyStore,
    *,
    scope: str,
    key: KeyOf = business_key,
    lease_s: float = LEASE_S,
    none_means: ConsumeResult = ConsumeResult.SUCCESS,
) -> Listener:
    """Wrap `listener` so that it gets only messages whose key is not done.

    The result is of the same kind as `listener`, a function or a coroutine function, and suits
    concurrent and orderly consumers.

    `scope`, usually the consumer group, keeps the users of one store apart; the topic is part of
    the key too. A message is done when the listener has returned SUCCESS or None (with a
    ConsumeReport, up to its `ack_index`). Pass the consumer's `none_means`, if it has one. When somebody else has a message in progress, that message and those behind
    it in the list are consumed later: by another delivery if the consumer is concurrent, after a
    pause if it is orderly.

    `lease_s` is how long a message may be in progress. Choose more than the listener ever needs for
    a list, or two consumers may work on the same event at a time. The shorter it is, the sooner the
    event of a crashed process is consumed again.

    If the store fails before the listener is called, the messages are consumed later. If it fails
    afterwards, they are acknowledged and the failure is logged.
    """
    if not scope or not isinstance(scope, str):
        raise IllegalArgumentError(f"scope is {scope!r}; pass text, the consumer group for example")
    if not callable(listener):
        raise IllegalArgumentError(f"the listener {listener!r} cannot be called; pass a function")
    check_seconds("lease_s", lease_s)
    keeper = _Keeper(store, scope, key, lease_s, check_none_means(none_means))
    if takes_await(listener):
        return _coroutine(cast("CoroutineListener", listener), keeper)
    return _function(cast("FunctionListener", listener), keeper)


def _function(listener: FunctionListener, keeper: _Keeper) -> FunctionListener:
    def listen(messages: list[MessageExt]) -> Verdict:
        batch = keeper.begin(messages)
        verdict: Any = None
        try:
            verdict = listener(list(batch.fresh)) if batch.fresh else ConsumeResult.SUCCESS
            verdict = keeper.none_means if verdict is None else verdict
        finally:
            keeper.conclude(batch, verdict)
        return batch.verdict(verdict)

    return listen


def _coroutine(listener: CoroutineListener, keeper: _Keeper) -> CoroutineListener:
    async def listen(messages: list[MessageExt]) -> Verdict:
        batch = await keeper.apart(keeper.begin, messages)
        verdict: Any = None
        try:
            verdict = await listener(list(batch.fresh)) if batch.fresh else ConsumeResult.SUCCESS
            verdict = keeper.none_means if verdict is None else verdict
        finally:
            # Shielded: a consumer that closes meanwhile must not leave the keys to their leases.
            await asyncio.shield(keeper.apart(keeper.conclude, batch, verdict))
        return batch.verdict(verdict)

    return listen


@dataclass(slots=True)
class _Batch:
    """One list of messages, of which the listener gets those in `fresh`.

    `places` has the position of each fresh message in the list; `held` has its key and token, or
    None if it has no key. `cut` says that the list ends early because somebody else has the next
    message in progress.
    """

    length: int
    fresh: list[MessageExt] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    held: list[tuple[str, str] | None] = field(default_factory=list)
    cut: bool = False

    def done_count(self, verdict: object) -> int:
        """Return how many of the fresh messages are done, going by what the listener returned."""
        if verdict is ConsumeResult.SUCCESS:
            return len(self.fresh)
        if isinstance(verdict, ConsumeReport) and verdict.result is ConsumeResult.SUCCESS:
            if verdict.ack_index is None:
                return len(self.fresh)
            return min(max(0, verdict.ack_index + 1), len(self.fresh))
        return 0

    def verdict(self, verdict: Verdict) -> Verdict:
        """Turn the listener's verdict on the fresh messages into one on the whole list."""
        result = verdict.result if isinstance(verdict, ConsumeReport) else verdict
        if self.cut and result is ConsumeResult.SUCCESS:
            # The messages that are done are skipped when they come again. The list cannot be
            # acknowledged in part, because orderly consumers know no `ack_index`.
            return ConsumeResult.RECONSUME_LATER
        if not isinstance(verdict, ConsumeReport) or verdict.ack_index is None:
            return verdict
        done = self.done_count(verdict)
        last = self.length if done == len(self.fresh) else self.places[done]
        return dataclasses.replace(verdict, ack_index=last - 1)


class _Keeper:
    """Begins and concludes the keys of lists of messages."""

    def __init__(
        self, store: KeyStore, scope: str, key: KeyOf, lease_s: float, none_means: ConsumeResult
    ) -> None:
        self.none_means = none_means
        self._store = store
        self._scope = scope
        self._key = key
        self._lease_s = lease_s

    async def apart(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a thread if the store blocks, else directly."""
        if self._store.blocking:
            return await asyncio.to_thread(function, *args, **kwargs)
        return function(*args, **kwargs)

    def begin(self, messages: Sequence[MessageExt]) -> _Batch:
        batch = _Batch(len(messages))
        seen: set[str] = set()
        try:
            for place, message in enumerate(messages):
                name = self._name(message)
                if name is None:
                    batch.fresh.append(message)
                    batch.places.append(place)
                    batch.held.append(None)
                    continue
                if name in seen:
                    continue  # the list has this event twice, and the first one stands for both
                begun = self._store.begin(name, self._lease_s)
                if begun.state is KeyState.BUSY:
                    batch.cut = True
                    break
                if begun.state is KeyState.FREE:
                    seen.add(name)
                    batch.fresh.append(message)
                    batch.places.append(place)
                    batch.held.append((name, begun.token))
        except BaseException:
            self.conclude(batch, None)
            raise
        return batch

    def conclude(self, batch: _Batch, verdict: object) -> None:
        """Report to the store which keys are done and which are free again; log its failures."""
        done = batch.done_count(verdict)
        for place, held in enumerate(batch.held):
            if held is None:
                continue
            name, token = held
            try:
                if place >= done:
                    self._store.abandon(name, token)
                elif not self._store.finish(name, token):
                    log.warning(
                        "the listener took longer than its lease, its message is consumed twice",
                        key=name,
                        lease_s=self._lease_s,
                    )
            except KeyStoreError as error:
                log.warning("a key store failed", key=name, done=place < done, reason=str(error))

    def _name(self, message: MessageExt) -> str | None:
        key = self._key(message)
        if key is None:
            return None
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            raise IllegalArgumentError(
                f"the key of a message of {message.topic} is {key!r:.100}; it must be text of 1 to "
                f"{MAX_KEY_LENGTH} characters, or None"
            )
        return f"{self._scope}/{message.topic}/{key}"
