"""Let one consumer have several listeners, each for a topic or for some of its tags."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Final, cast

from cometmq.client.consuming.listeners.listening import (
    CoroutineListener,
    FunctionListener,
    Listener,
    Verdict,
    takes_await,
)
from cometmq.errors import IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.model.message import MessageExt
from cometmq.model.names import check_topic
from cometmq.model.subscription import SUB_ALL

_ALL: Final = None


class NoHandlerError(LookupError):
    """Says that no handler takes a message. It comes again, since a newer member may have one."""


class Handlers:
    """Knows the handler of each message by its topic and tag, both as the user names them."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[str | None, Listener]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def add(self, topic: str, tags: str | Collection[str], handler: Listener) -> None:
        """Add a handler. Raises IllegalArgumentError if another one takes some of its messages."""
        if not callable(handler):
            raise IllegalArgumentError(
                f"the handler {handler!r} cannot be called; decorate by on(topic) a function or a coroutine "
                "function that takes a list of messages"
            )
        check_takes_messages(handler)
        for other in self._all():
            if takes_await(other) != takes_await(handler):
                raise IllegalArgumentError(
                    f"the handlers {_name(other)} and {_name(handler)} are a function and a coroutine "
                    "function; all handlers of a consumer are of one kind"
                )
        taken = self._by_topic.get(topic, {})
        wanted = _tags_of(topic, tags)
        both = taken.keys() if _ALL in wanted else taken.keys() & {*wanted, _ALL}
        for tag in both:
            what = topic if tag is _ALL or _ALL in wanted else f"{topic} with tag {tag}"
            raise IllegalArgumentError(
                f"the handlers {_name(taken[tag])} and {_name(handler)} both take messages of {what}; "
                "each message goes to one handler, so name tags that are not shared"
            )
        self._by_topic[topic] = {**taken, **dict.fromkeys(wanted, handler)}

    def topics(self) -> Collection[str]:
        return self._by_topic.keys()

    def expression(self, topic: str) -> str:
        """Return the tag expression that selects the messages of all handlers of a topic."""
        tags = [tag for tag in self._by_topic[topic] if tag is not _ALL]
        return " || ".join(tags) or SUB_ALL

    def of(self, message: MessageExt) -> Listener | None:
        by_tag = self._by_topic.get(message.topic, {})
        return by_tag.get(message.tags) or by_tag.get(_ALL)

    def key(self, message: MessageExt) -> int:
        """Return a number that is the same for all messages of one handler."""
        return id(self.of(message))

    def listener(self) -> Listener:
        """Return the listener that hands a list of messages, which have one handler, to that handler."""
        if any(map(takes_await, self._all())):

            async def listen_on_loop(messages: list[MessageExt]) -> Verdict:
                return await cast("CoroutineListener", self._need(messages[0]))(messages)

            return listen_on_loop

        def listen(messages: list[MessageExt]) -> Verdict:
            return cast("FunctionListener", self._need(messages[0]))(messages)

        return listen

    def _need(self, message: MessageExt) -> Listener:
        handler = self.of(message)
        if handler is None:
            raise NoHandlerError(
                f"no handler takes messages of {message.topic} with tag {message.tags}; the message comes "
                "again, and is a dead letter after its last try"
            )
        return handler

    def _all(self) -> list[Listener]:
        return [handler for by_tag in self._by_topic.values() for handler in by_tag.values()]


def check_takes_messages(listener: Callable[..., object]) -> None:
    """Raise IllegalArgumentError for a listener that cannot be called with a list of messages alone."""
    try:
        signature = inspect.signature(listener)
    except Exception:  # noqa: BLE001 - callables in C may have none; Python 3.14 evaluates annotations, which may fail
        return
    try:
        signature.bind([])
    except TypeError as error:
        name = getattr(listener, "__qualname__", repr(listener))
        raise IllegalArgumentError(
            f"the listener {name} cannot be called with a list of messages: {error}; let it "
            "take one argument, the list"
        ) from None


def _tags_of(topic: str, tags: str | Collection[str]) -> list[str | None]:
    check_topic(topic)
    for tag in [] if isinstance(tags, str) else tags:
        if not isinstance(tag, str) or not tag.strip() or "|" in tag or tag.strip() == SUB_ALL:
            raise IllegalArgumentError(
                f"the tag {tag!r:.100} of topic {topic} is no tag; pass a list of names, or '*' for all"
            )
    expression = tags if isinstance(tags, str) else " || ".join(tags)
    if not expression:
        raise IllegalArgumentError(
            f"tags of topic {topic} are empty; name some, or leave them out for all messages"
        )
    return list(build_subscription(topic, expression).tags_set) or [_ALL]


def _name(handler: Listener) -> str:
    return getattr(handler, "__qualname__", repr(handler))
