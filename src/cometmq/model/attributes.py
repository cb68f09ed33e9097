"""Change the attributes of topics and groups (Java: AttributeParser, AttributeUtil, TopicAttributes,
SubscriptionGroupAttributes).

A request does not bring attributes but changes of them: a key with `+` in front is set, one with `-`
in front is removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.errors import IllegalArgumentError

_INT64_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class Attribute(NamedTuple):
    """Says which values an attribute may have: one of `values`, or else a whole number of at least
    `least` and at most `most`.

    One that is not `changeable` is set when the topic or group is made, and stays. `refused` says of
    values that Java knows why this broker does not take them.
    """

    values: frozenset[str] = frozenset()
    least: int = 0
    most: int = _INT64_MAX
    changeable: bool = True
    refused: Mapping[str, str] = {}


MESSAGE_TYPE: Final = "message.type"
PRIORITY: Final = "PRIORITY"
# Of so many of a hundred pops a group gets a topic of this type by priority.
PRIORITY_FACTOR: Final = "priority.factor"

TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(
        frozenset({"SimpleCQ", "BatchCQ"}),
        changeable=False,
        refused={"BatchCQ": "this broker keeps a batch as single messages"},
    ),
    "cleanup.policy": Attribute(
        frozenset({"DELETE", "COMPACTION"}),
        changeable=False,
        refused={"COMPACTION": "this broker has no compaction"},
    ),
    MESSAGE_TYPE: Attribute(
        frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", PRIORITY, "MIXED"}),
        # As Java, unless enableMixedMessageType is set there.
        refused={"MIXED": "MIXED message type is not supported"},
    ),
    "reserve.time": Attribute(least=-1),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {PRIORITY_FACTOR: Attribute(least=0, most=100)}


def parse_changes(text: str) -> dict[str, str]:
    """Return the changes in `+key=value,-key` by key, the sign in front of it.

    Raises IllegalArgumentError for a text that has another form, or that names a key twice.
    """
    changes: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not key.startswith("+" if equals else "-"):
            raise IllegalArgumentError(
                f"the change {part[:80]!r} of an attribute is neither +key=value nor -key"
            )
        if key in changes:
            raise IllegalArgumentError(f"the attribute {key[1:]!r} is changed twice in one request")
        changes[key] = value
    return changes


def changed(
    known: Mapping[str, Attribute],
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
) -> dict[str, str]:
    """Return the attributes after `changes`; `current` is None for what is made only now.

    Raises IllegalArgumentError for a key that is not `known`, a value that it cannot have, a change
    of what cannot be changed, and a removal of what is not there.
    """
    if len(changes) > 2 * len(known):
        raise IllegalArgumentError(
            f"{len(changes)} attributes are changed in one request; there are "
            f"{', '.join(sorted(known))}"
        )
    after = dict(current or {})
    names = [key[1:] for key in changes]
    if len(set(names)) < len(names):
        raise IllegalArgumentError("an attribute is both set and removed in one request")
    for key, value in changes.items():
        sign, name = key[:1], key[1:]
        if sign not in ("+", "-"):
            raise IllegalArgumentError(f"the attribute {key!r} has neither + nor - in front")
        attribute = known.get(name)
        if attribute is None:
            raise IllegalArgumentError(
                f"there is no attribute {name!r}; there are {', '.join(sorted(known))}"
            )
        if current is not None and not attribute.changeable:
            raise IllegalArgumentError(f"the attribute {name!r} cannot be changed any more")
        if sign == "+":
            _check(name, attribute, value)
            after[name] = value
        elif name in after:
            del after[name]
        else:
            raise IllegalArgumentError(f"the attribute {name!r} is not set, it cannot be removed")
    return after


def _check(name: str, attribute: Attribute, value: str) -> None:
    if why := attribute.refused.get(value):
        raise IllegalArgumentError(f"{name}={value}: {why}")
    if attribute.values:
        if value not in attribute.values:
            allowed = ", ".join(sorted(attribute.values - attribute.refused.keys()))
            raise IllegalArgumentError(f"{name}={value[:40]!r} is none of {allowed}")
        return
    # The texts that Java's Long.parseLong reads.
    is_number = _NUMBER.fullmatch(value) is not None
    if not is_number or not attribute.least <= int(value) <= attribute.most:
        raise IllegalArgumentError(
            f"{name}={value[:40]!r} is no number from {attribute.least} to {attribute.most}"
        )
