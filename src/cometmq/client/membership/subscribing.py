"""Check what a consumer subscribes to (Java: FilterAPI, MessageSelector)."""

from __future__ import annotations

from cometmq.errors import IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.model.names import check_topic
from cometmq.model.subscription import (
    EXPRESSION_CLASS,
    EXPRESSION_SQL92,
    SUB_ALL,
    MessageSelector,
)


def message_selector(
    topic: str, tags: str, sql: str | None, predicate: str | None = None
) -> MessageSelector:
    """Return the selection by tags, by SQL or by a predicate's name that a user asks for.

    Raises IllegalArgumentError for an illegal topic, for more than one kind of selection, and for
    tags that are no expression.
    """
    _check_one(topic)
    check_topic(topic)
    values: list[tuple[str, object]] = [("tags", tags), ("sql", sql), ("predicate", predicate)]
    for name, value in values:
        if value is not None and not isinstance(value, str):
            meant = _meant(value) if name == "tags" else ""
            raise IllegalArgumentError(
                f"{name} is {value!r:.200}, a {type(value).__name__}; pass text{meant}"
                + (", the name under which the broker has the function" * (name == "predicate"))
            )
    given = {"tags": None if tags == SUB_ALL else tags, "sql": sql, "predicate": predicate}
    chosen = [f"{name} ({value!r})" for name, value in given.items() if value is not None]
    if len(chosen) > 1:
        raise IllegalArgumentError(
            f"a topic is selected by {' or '.join(chosen)}, not by both; tags are the property "
            "TAGS, which SQL and predicates can test"
        )
    selector = MessageSelector(tags)
    if sql is not None:
        selector = MessageSelector(sql, EXPRESSION_SQL92)
    elif predicate is not None:
        selector = MessageSelector(predicate, EXPRESSION_CLASS)
    build_subscription(topic, *selector)  # refuses what is no expression
    return selector


def _meant(tags: object) -> str:
    """Say how a list of tags is written."""
    if not isinstance(tags, list | tuple | set | frozenset):
        return ""
    written = " || ".join(
        map(str, tags if isinstance(tags, list | tuple) else sorted(map(str, tags)))
    )
    return f"; did you mean {written!r:.200}"


def _check_one(topic: object) -> None:
    if isinstance(topic, list | tuple | set | frozenset):
        raise IllegalArgumentError(
            f"the topic is {topic!r:.200}, a {type(topic).__name__}; did you mean to call subscribe once "
            "for each of them"
        )
