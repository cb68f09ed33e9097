"""A listener that skips what was done."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import structlog

from cometmq.client.listening import (
    CoroutineListener,
    FunctionListener,
    Listener,
    Verdict,
    takes_await,
)
from cometmq.errors import IllegalArgumentError, KeyStoreError
from cometmq.idempotent.keys import MAX_KEY_LENGTH, KeyState, KeyStore, check_seconds
from cometmq.model.message import MessageExt
from cometmq.model.results import ConsumeReport, ConsumeResult

log = structlog.get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

# Gives the text that tells one business event from all others; None has the message consumed anyway.
KeyOf = Callable[[MessageExt], str | None]

LEASE_S: Final = 15 * 60.0


def business_key(message: MessageExt) -> str:
    """The first of the message's KEYS; without any its unique id, which tells only a message that was
    delivered twice, not one that was sent twice."""
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
) -> CoroutineListener: ...


@overload
def idempotent(
    listener: FunctionListener,
    store: KeyStore,
    *,
    scope: str,
    key: KeyOf = ...,
    lease_s: float = ...,
) -> FunctionListener: ...


def idempotent(
    listener: Listener,
    store: KeyStore,
    *,
    scope: str,
    key: KeyOf = business_key,
    lease_s: float = LEASE_S,
) -> Listener:
    """`listener`, called only with messages whose key is not done; of the same kind as it is, a
    function or a coroutine function, for concurrent and orderly consumers.

    `scope` keeps those apart who share a store, usually the consumer group; the topic does too.
    Messages are done when the listener returned SUCCESS (of a ConsumeReport, up to its `ack_index`).
    One whose key somebody else has in progress is consumed later, with what follows it in the list:
    concurrently by another delivery, in order after a pause.

    `lease_s` is how long that may take: longer than the listener ever needs for a list, or the same
    event may be consumed twice at a time; shorter, and the event of a process that crashed is
    consumed again sooner.

    When the store fails before the listener was called, the messages are consumed later; when it fails
    afterwards, they are acknowledged, with a log entry.
    """
    if not scope or not isinstance(scope, str):
        raise IllegalArgumentError(f"scope is {scope!r}; pass text, the consumer group for example")
    if not callable(listener):
        raise IllegalArgumentError(f"the listener {listener!r} cannot be called; pass a function")
    check_seconds("lease_s", lease_s)
    keeper = _Keeper(store, scope, key, lease_s)
    if takes_await(listener):
        return _coroutine(cast("CoroutineListener", listener), keeper)
    return _function(cast("FunctionListener", listener), keeper)


def _function(listener: FunctionListener, keeper: _Keeper) -> FunctionListener:
    def listen(messages: list[MessageExt]) -> Verdict:
        batch = keeper.begin(messages)
        verdict: Any = None
        try:
            verdict = listener(list(batch.fresh)) if batch.fresh else ConsumeResult.SUCCESS
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
        finally:
            # Shielded: a consumer that closes meanwhile must not leave the keys to their leases.
            await asyncio.shield(keeper.apart(keeper.conclude, batch, verdict))
        return batch.verdict(verdict)

    return listen


@dataclass(slots=True)
class _Batch:
    """One list of messages: what of it goes to the listener, in `fresh`, and where that stands.

    `held` are key and token of each fresh message, None without a key; `cut` says that the list was
    not taken to its end, because somebody else has a message in progress.
    """

    length: int
    fresh: list[MessageExt] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    held: list[tuple[str, str] | None] = field(default_factory=list)
    cut: bool = False

    def done_count(self, verdict: object) -> int:
        """How many of the fresh messages the listener is done with, by what it returned."""
        if verdict is ConsumeResult.SUCCESS:
            return len(self.fresh)
        if isinstance(verdict, ConsumeReport) and verdict.result is ConsumeResult.SUCCESS:
            if verdict.ack_index is None:
                return len(self.fresh)
            return min(max(0, verdict.ack_index + 1), len(self.fresh))
        return 0

    def verdict(self, verdict: Verdict) -> Verdict:
        """What the listener said, for the whole list."""
        result = verdict.result if isinstance(verdict, ConsumeReport) else verdict
        if self.cut and result is ConsumeResult.SUCCESS:
            # What is done is skipped when it comes again. A part cannot be acknowledged: orderly
            # consumers know no `ack_index`.
            return ConsumeResult.RECONSUME_LATER
        if not isinstance(verdict, ConsumeReport) or verdict.ack_index is None:
            return verdict
        done = self.done_count(verdict)
        last = self.length if done == len(self.fresh) else self.places[done]
        return dataclasses.replace(verdict, ack_index=last - 1)


class _Keeper:
    """Begins and concludes the keys of lists."""

    def __init__(self, store: KeyStore, scope: str, key: KeyOf, lease_s: float) -> None:
        self._store = store
        self._scope = scope
        self._key = key
        self._lease_s = lease_s

    async def apart(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` where it may wait for the store."""
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
                    continue  # the same event twice in one list: done with the first
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
        """Tell the store what became of the keys; its failures are logged."""
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
