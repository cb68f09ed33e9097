"""Select messages by tag: `TagA || TagB` (Java: FilterAPI, ExpressionMessageFilter).

A broker compares hash codes, which lie beside the offsets in the consume queue; a client then
compares the texts, because two tags may share a code.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

from cometmq.errors import IllegalArgumentError
from cometmq.model.java.hashing import java_hash
from cometmq.model.subscription import EXPRESSION_TAG, MAX_TAGS, SUB_ALL, SubscriptionData

TagMatcher = Callable[[int], bool]
# A larger set takes 80 bytes for each code, which is too much for the codes that waiting pulls may
# name.
_FEW_CODES: Final = 8


def build_subscription(
    topic: str,
    expression: str | None,
    expression_type: str | None = EXPRESSION_TAG,
    sub_version: int = 0,
) -> SubscriptionData:
    """Make the subscription of a group to `topic`; `sub_version` is in ms, 0 = unversioned.

    A tag expression that is None, empty or `*` selects every message; else `||` separates the tags
    to select. An expression of another type (`SQL92`) is taken over unchanged.

    Raises IllegalArgumentError for `||` without a tag, for more than MAX_TAGS tags, and for an empty
    expression of another type.
    """
    if not is_tag_type(expression_type):
        if not expression:
            raise IllegalArgumentError(f"an expression of type {expression_type} may not be empty")
        return SubscriptionData(
            topic, expression, sub_version=sub_version, expression_type=str(expression_type)
        )
    if not expression or expression == SUB_ALL:
        return SubscriptionData(topic, SUB_ALL, sub_version=sub_version)
    if expression.count("||") >= MAX_TAGS:
        raise IllegalArgumentError(
            f"a tag expression names {expression.count('||') + 1} tags, the limit MAX_TAGS is "
            f"{MAX_TAGS}; subscribe to * and select in the listener"
        )
    # A dict, not a set: the tags keep the order in which they were written.
    tags = list(dict.fromkeys(tag for part in expression.split("||") if (tag := part.strip())))
    if not tags:
        raise IllegalArgumentError(
            f"the tag expression {expression!r} names no tag; use '*' for all or 'TagA || TagB'"
        )
    codes = list(dict.fromkeys(java_hash(tag) for tag in tags))
    return SubscriptionData(topic, expression, tags, codes, sub_version)


def tag_matcher(subscription: SubscriptionData) -> TagMatcher | None:
    """Return the broker's test on a tag code from the consume queue, or None when all codes pass.

    Every code passes for expressions of other types: the tag code does not show what they select.
    """
    if selects_all(subscription) or not is_tag_type(subscription.expression_type):
        return None
    codes = subscription.code_set
    return frozenset(codes).__contains__ if len(codes) <= _FEW_CODES else _ManyCodes(codes)


class _ManyCodes:
    """Tests a tag code against many, which take four bytes each."""

    __slots__ = ("_codes",)

    def __init__(self, codes: Iterable[int]) -> None:
        self._codes = array("i", sorted(codes))

    def __call__(self, code: int) -> bool:
        codes = self._codes
        at = bisect_left(codes, code)
        return at < len(codes) and codes[at] == code


def accepts(subscription: SubscriptionData, tag: str | None) -> bool:
    """Return whether a message's tag passes the client's test, which compares the texts."""
    if selects_all(subscription) or not subscription.tags_set:
        return True
    return tag is not None and tag in subscription.tags_set


def is_tag_type(expression_type: str | None) -> bool:
    """Return whether the type is TAG, which old clients leave out or empty.

    Java: ExpressionType.isTagType.
    """
    return not expression_type or expression_type == EXPRESSION_TAG


def selects_all(subscription: SubscriptionData) -> bool:
    return subscription.sub_string == SUB_ALL
