"""Decide by the policies of ACL 2.0 what a user may do (Java: AclAuthorizationHandler, Resource).

An entry of a policy names resources, actions, perhaps source addresses, and allows or denies. Its
resource has one of these forms:

    *               everything
    Topic:*         every topic; so also Group:*, Cluster:*
    Topic:order*    every topic whose name begins with `order`
    Topic:orders    this topic

Of the entries that match a request the most exact one decides: a name before a prefix, a longer
prefix before a shorter one, any name of a kind before everything. Entries of the Default policy
count only where none of the Custom policy matches. Nothing matches means no. The order in which
entries were made never counts (docs/internals/access.md says where RocketMQ 5.3.3 differs).
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from cometmq.model import names
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo
from cometmq.protocol.request_type import Action, ResourceKind
from cometmq.runtime.sockets.address_list import read_network

CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ALLOW: Final = "Allow"
DENY: Final = "Deny"
ANYTHING: Final = "*"
_KINDS: Final = {
    ResourceKind.TOPIC: "Topic",
    ResourceKind.GROUP: "Group",
    ResourceKind.CLUSTER: "Cluster",
}

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Verdict(NamedTuple):
    """Says whether a request is allowed, and in Java's words why not."""

    is_allowed: bool
    why: str = ""


_ALLOWED: Final = Verdict(is_allowed=True)
_DENIED: Final = Verdict(is_allowed=False, why="the decision is deny.")
_UNMATCHED: Final = Verdict(is_allowed=False, why="no matched policies.")


class _Entry:
    """One entry. Its addresses are decoded when a request first comes to them: a user with a thousand
    entries would hold the loop for 10 ms and more otherwise. The last address is remembered, because a
    request may name thousands of resources.
    """

    __slots__ = ("_actions", "_does_all", "_last", "_networks", "_source_ips", "verdict")

    def __init__(self, info: PolicyEntryInfo) -> None:
        self._actions = frozenset(info.actions or ())
        self._does_all = Action.ALL.value in self._actions
        self._source_ips = info.source_ips or ()
        self._networks: tuple[_Network, ...] | None = None
        self._last: tuple[str, bool] | None = None
        self.verdict = _ALLOWED if info.decision == ALLOW else _DENIED

    def matches(self, actions: Iterable[Action], ip: str) -> bool:
        if not self._does_all and self._actions.isdisjoint([action.value for action in actions]):
            return False
        if not self._source_ips:
            return True
        if self._last is None or self._last[0] != ip:
            if self._networks is None:
                self._networks = tuple(map(source_network, self._source_ips))
            self._last = ip, _is_within(ip, self._networks)
        return self._last[1]


class _Prefixes:
    """Finds the entries whose prefix begins a name, without trying all entries."""

    __slots__ = ("_entries", "_shorter", "_sorted")

    def __init__(self, entries: dict[str, _Entry]) -> None:
        self._sorted = sorted(entries)
        self._entries = [entries[prefix] for prefix in self._sorted]
        # For each prefix, the place of the longest shorter prefix that it begins with; -1 for none.
        self._shorter: list[int] = []
        begun: list[int] = []
        for place, prefix in enumerate(self._sorted):
            while begun and not prefix.startswith(self._sorted[begun[-1]]):
                begun.pop()
            self._shorter.append(begun[-1] if begun else -1)
            begun.append(place)

    def of(self, name: str) -> Iterator[_Entry]:
        """Yield the entries whose prefix begins the name, the longest first.

        The last prefix that sorts before the name is the longest of them, or begins with all of them.
        """
        place = bisect_right(self._sorted, name) - 1
        while place >= 0:
            if name.startswith(self._sorted[place]):
                yield self._entries[place]
            place = self._shorter[place]


class _Policy:
    """The entries of one type, found by the resource that they name instead of one after the
    other.
    """

    __slots__ = ("_by_resource", "_prefixes")

    def __init__(self, entries: Iterable[PolicyEntryInfo]) -> None:
        self._by_resource = {entry.resource: _Entry(entry) for entry in entries}
        prefixes: dict[str, dict[str, _Entry]] = {}
        for resource, entry in self._by_resource.items():
            kind, colon, name = (resource or "").partition(":")
            if colon and name.endswith("*") and name != ANYTHING:
                prefixes.setdefault(kind, {})[name[:-1]] = entry
        self._prefixes = {kind: _Prefixes(each) for kind, each in prefixes.items()}

    def decide(
        self, kind: str, name: str, actions: Iterable[Action], ip: str, *, by_name: bool
    ) -> Verdict | None:
        for entry in self._about(kind, name, by_name=by_name):
            if entry is not None and entry.matches(actions, ip):
                return entry.verdict
        return None

    def _about(self, kind: str, name: str, *, by_name: bool) -> Iterator[_Entry | None]:
        """Yield what may be said of a resource, the most exact first."""
        yield self._by_resource.get(f"{kind}:{name}")
        if by_name:
            return
        prefixes = self._prefixes.get(kind)
        if prefixes is not None:
            yield from prefixes.of(name)
        yield self._by_resource.get(f"{kind}:*")
        yield self._by_resource.get(ANYTHING)


class Policies:
    """The policies of one user. Making them takes time in proportion to their entries. A decision
    looks entries up by the name of the resource instead of trying all.
    """

    __slots__ = ("_policies",)

    def __init__(self, acl: AclInfo | None) -> None:
        by_type = {
            policy.policy_type: policy.entries or () for policy in (acl and acl.policies) or ()
        }
        self._policies = [
            _Policy(by_type[type_]) for type_ in (CUSTOM, DEFAULT) if type_ in by_type
        ]

    def decide(
        self, kind: str, name: str, actions: Iterable[Action], ip: str, *, by_name: bool = False
    ) -> Verdict:
        """Judge a request that does one of `actions` with the resource, from the address `ip`.

        `kind` is Topic, Group or Cluster. With `by_name` only entries count that name the resource.
        """
        for policy in self._policies:
            if (verdict := policy.decide(kind, name, actions, ip, by_name=by_name)) is not None:
                return verdict
        return _UNMATCHED


def resource_of(
    actions: tuple[Action, ...], kind: ResourceKind, name: str
) -> tuple[str, str, tuple[Action, ...]]:
    """Return the kind, name and actions by which policies judge a request for a resource.

    A group's retry topic stands for the group: members of the group may read and fill it. Java
    looks at the group that a send claims to come from instead, so that an account that may consume
    in one group could send to the retry topics of all.
    """
    if kind is not ResourceKind.CLUSTER and name.startswith(names.RETRY_PREFIX):
        actions = tuple(
            dict.fromkeys(Action.SUB if action is Action.PUB else action for action in actions)
        )
        return _KINDS[ResourceKind.GROUP], name.removeprefix(names.RETRY_PREFIX), actions
    return _KINDS[kind], name, actions


def source_network(text: str) -> _Network:
    """Return the addresses that `10.0.0.7` or `10.0.0.0/8` stands for. Raises ValueError."""
    return read_network(text, strict=False)


def _is_within(ip: str, networks: Iterable[_Network]) -> bool:
    try:
        address = ipaddress.ip_address(ip.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return any((mapped or address) in network for network in networks)
