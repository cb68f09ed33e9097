"""What a consumer may subscribe to (Java: FilterAPI, MessageSelector)."""

from __future__ import annotations

from cometmq.errors import IllegalArgumentError
from cometmq.filtering.tags import build_subscription
from cometmq.model.names import check_topic
from cometmq.model.subscription import EXPRESSION_SQL92, SUB_ALL, MessageSelector


def message_selector(topic: str, tags: str, sql: str | None) -> MessageSelector:
    """The selection by tags or by SQL that a user asks for.

    Raises IllegalArgumentError for a topic that cannot be, for both at once, and for tags that are no
    expression.
    """
    check_topic(topic)
    if sql is not None and tags != SUB_ALL:
        raise IllegalArgumentError(
            f"a topic is selected by tags ({tags!r}) or by SQL ({sql!r}), not by both; TAGS is a "
            "property that SQL can test"
        )
    selector = MessageSelector(tags) if sql is None else MessageSelector(sql, EXPRESSION_SQL92)
    build_subscription(topic, *selector)  # refuses what is no expression
    return selector
