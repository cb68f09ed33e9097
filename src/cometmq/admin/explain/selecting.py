"""Decide, as a broker does, which messages a subscription selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cometmq.errors import FilterExpressionError
from cometmq.filtering.tags import accepts, is_tag_type
from cometmq.model.message import MessageExt
from cometmq.model.subscription import EXPRESSION_SQL92, SubscriptionData


@dataclass(frozen=True, slots=True)
class Sample:
    """Counts messages that were looked at, and those of them that a subscription selects."""

    looked_at: int
    selected: int


def selects(data: SubscriptionData, message: MessageExt) -> bool | None:
    """Say whether a subscription selects a message; None if only the broker knows."""
    if data.class_filter_mode:
        return None
    if is_tag_type(data.expression_type):
        return accepts(data, message.tags)
    if data.expression_type != EXPRESSION_SQL92:
        return None
    from cometmq.filtering.sql92 import compile_sql  # loads a parser, which most calls do not need

    try:
        return compile_sql(data.sub_string)(message.properties) is True
    except FilterExpressionError:
        return None


def selected(data: SubscriptionData, messages: Sequence[MessageExt]) -> Sample:
    """Count what a subscription selects. A message counts as selected where only the broker could decide."""
    return Sample(len(messages), sum(selects(data, message) is not False for message in messages))
