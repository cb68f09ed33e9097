"""Keep the broker's table of consumer groups (Java: SubscriptionGroupManager)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import msgspec

from cometmq.broker.config import BrokerConfig
from cometmq.broker.topics.creation_limits import CreationLimit
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.sysflag import PERM_READ
from cometmq.protocol.bodies.cluster import SubscriptionGroupWrapper
from cometmq.runtime.clock import Clock

log = get_logger(__name__)


class GroupManager:
    """Keeps the groups by name. `on_change` is called after each change, and those in `on_remove` with
    the name of a group that was removed. Configs are replaced, never changed in place. With `is_copy`, which a slave sets, the
    table is that of a master: groups that consumers make by use leave its version as it is. For the
    loop's thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        on_change: Callable[[], None],
        table: SubscriptionGroupWrapper | None = None,
    ) -> None:
        self._config = config
        self._clock = clock
        self._on_change = on_change
        self.is_copy = False
        self.on_remove: list[Callable[[str], None]] = []
        self._limit = CreationLimit(
            "group",
            clock,
            "maxGroupsMadePerSecond",
            lambda: config.max_groups_made_per_second,
            "maxGroups",
            lambda: config.max_groups,
        )
        self.table = table or SubscriptionGroupWrapper()
        for name in names.BUILT_IN_GROUPS:
            self.table.subscription_group_table.setdefault(name, _new_group(name))

    def all(self) -> Collection[SubscriptionGroupConfig]:
        return self.table.subscription_group_table.values()

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group, without making it; None if there is none."""
        return self.table.subscription_group_table.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the group; make it first if groups may be made by use, else return None.

        Java: findSubscriptionGroupConfig. Raises Refused when clients make too many groups.
        """
        self.make((group,))
        return self.table.subscription_group_table.get(group)

    def make(self, groups: Iterable[str]) -> None:
        """Make those of the groups that are not there, if groups may be made by use.

        Raises Refused when clients make too many groups, once those before have been made.
        """
        table = self.table.subscription_group_table
        made: dict[str, SubscriptionGroupConfig] = {}
        try:
            for group in groups:
                if group in table or group in made or not self._may_be_made(group):
                    continue
                self._limit.take(group, len(table) + len(made))
                made[group] = _new_group(group)
        finally:
            self.put_all(list(made.values()))

    def _may_be_made(self, group: str) -> bool:
        allowed = self._config.auto_create_subscription_group or names.is_system_group(group)
        return allowed and names.group_fault(group) is None

    def put(self, group: SubscriptionGroupConfig) -> None:
        """Make or change a group."""
        self.put_all([group])

    def put_all(self, groups: list[SubscriptionGroupConfig]) -> None:
        """Make or change groups in one piece, with one version and one line in the log for all."""
        changed = [group for group in groups if self.get(group.group_name) != group]
        if not changed:
            return
        self.table.subscription_group_table |= {group.group_name: group for group in changed}
        self._next_version()
        log.info("consumer group set", group=changed[0].group_name, more_groups=len(changed) - 1)
        self._on_change()

    def forbids(self, group: str, topic: str) -> bool:
        """Say whether the group may not read the topic (Java: getForbidden, INDEX_PERM_READ)."""
        topics = self.table.forbidden_table.get(group)
        return topics is not None and max(topics.get(topic, 0), 0) & PERM_READ != 0

    def forbid(self, group: str, topic: str, *, forbidden: bool) -> None:
        """Forbid the group to read the topic, or allow it again.

        Java forgets all topics of a group when the last bit of one of them is cleared.
        """
        if self.forbids(group, topic) == forbidden:
            return
        topics = self.table.forbidden_table.setdefault(group, {})
        topics[topic] = max(topics.get(topic, 0), 0) ^ PERM_READ
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self.table.forbidden_table[group]
        self._next_version()
        self._on_change()

    def topic_removed(self, topic: str) -> None:
        """Forget which groups may not read the topic: one made later under its name is another."""
        table = self.table.forbidden_table
        groups = [group for group, topics in table.items() if topic in topics]
        if not groups:
            return
        for group in groups:
            del table[group][topic]
            if not table[group]:
                del table[group]
        self._next_version()
        self._on_change()

    def remove(self, group: str) -> bool:
        """Forget a group and return whether there was one. The caller removes its offsets."""
        if self.table.subscription_group_table.pop(group, None) is None:
            return False
        self.table.forbidden_table.pop(group, None)
        self._next_version()
        for listener in self.on_remove:
            listener(group)
        self._on_change()
        return True

    def skip_versions(self, count: int) -> None:
        """Move the version beyond any that others can have seen before a crash."""
        self.table.data_version.counter += count
        self._next_version()
        self._on_change()

    def _next_version(self) -> None:
        if not self.is_copy:
            self.table.data_version.next(self._clock.now_ms())

    def copy(self, master: SubscriptionGroupWrapper) -> Iterator[None]:
        """Make the table that of the master, in steps; its version comes last."""
        table, wanted = self.table.subscription_group_table, master.subscription_group_table
        gone = [g for g in table if g not in wanted and g not in names.BUILT_IN_GROUPS]
        for group in gone:
            self.remove(group)
            yield
        count = 0
        for name, config in wanted.items():
            if table.get(name) != config:
                table[name] = config
                count += 1
            yield
        self.table.forbidden_table = {
            group: dict(topics) for group, topics in master.forbidden_table.items()
        }
        self.table.data_version = msgspec.structs.replace(master.data_version)
        self._on_change()
        log.info("consumer groups copied from the master", changed=count, removed=len(gone))

    def unknown(self, group: str) -> str:
        """Return the remark of an answer about a group that does not exist."""
        if fault := names.group_fault(group):
            return fault
        if self._config.auto_create_subscription_group:
            return (
                f"subscription group [{group}] does not exist; a heartbeat, a pull or a send with it "
                "creates it"
            )
        return (
            f"subscription group [{group}] does not exist and autoCreateSubscriptionGroup is "
            "false; create the group first"
        )


def _new_group(name: str) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name=name)
