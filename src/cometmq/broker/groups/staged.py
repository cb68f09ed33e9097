"""Collect aside what a long heartbeat makes of a group's subscriptions, so that they then change at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cometmq.model.subscription import ConsumerData, SubscriptionData

if TYPE_CHECKING:
    from cometmq.broker.groups.clients import ConsumerGroup

# So many subscriptions are looked at, or freed, in a step.
AT_ONCE: Final = 512
_SUBSCRIPTION_BYTES: Final = 400
_TAG_BYTES: Final = 100


class Staged:
    """Collects aside what a heartbeat makes of the subscriptions of a group, in steps.

    A newer version of a known subscription replaces it; topics that the heartbeat does not name are
    dropped. `subscriptions` are those after the heartbeat, `news` how many bytes those take that it
    brings. All holds as long as `is_current` says so.
    """

    def __init__(self, group: ConsumerGroup | None, data: ConsumerData) -> None:
        self._group = group
        self._data = data
        self._known = {} if group is None else group.subscriptions
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.subscription_bytes = self.news = 0
        # Topics that are not in the group, or no more, and topics whose expression has changed.
        self.added: list[str] = []
        self.dropped: list[str] = []
        self.reselected: list[str] = []
        self._has_new = False

    def collect(self) -> Iterator[None]:
        for number, data in enumerate(self._data.subscription_data_set, 1):
            if number % AT_ONCE == 0:
                yield
            known = self._known.get(data.topic)
            if known is None or data.sub_version > known.sub_version:
                self._has_new = True
                self.news += bytes_of(data)
                self.subscriptions[data.topic] = data
            else:
                self.subscriptions[data.topic] = known
        for number, (topic, data) in enumerate(self.subscriptions.items(), 1):
            if number % AT_ONCE == 0:
                yield
            self.subscription_bytes += bytes_of(data)
            known = self._known.get(topic)
            if known is None:
                self.added.append(topic)
            elif known.sub_string != data.sub_string:
                self.reselected.append(topic)
        # A list, because a former table is emptied in steps.
        for number, topic in enumerate(list(self._known), 1):
            if number % AT_ONCE == 0:
                yield
            if topic not in self.subscriptions:
                self.dropped.append(topic)

    def is_current(self, group: ConsumerGroup | None) -> bool:
        """Whether the group has the subscriptions that it had when this began."""
        now = {} if group is None else group.subscriptions
        return now is self._known or not (now or self._known)

    @property
    def changes(self) -> bool:
        """Whether a topic is added or dropped."""
        return bool(self.added or self.dropped)

    @property
    def has_new(self) -> bool:
        """Whether the heartbeat brings anything that is not known."""
        return self._has_new


def emptied(table: dict[str, SubscriptionData]) -> Iterator[None]:
    """Free a table in steps: thousands of subscriptions take milliseconds."""
    while len(table) > AT_ONCE:
        for _ in range(AT_ONCE):
            table.popitem()
        yield


def bytes_of(subscription: SubscriptionData) -> int:
    """Return about how many bytes of memory a subscription takes."""
    tags = subscription.tags_set
    return (
        _SUBSCRIPTION_BYTES
        + len(subscription.topic)
        + len(subscription.sub_string)
        + sum(map(len, tags))
        + _TAG_BYTES * (len(tags) + len(subscription.code_set))
    )
