"""Define users and policies of access control, and write them as requests have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from cometmq.errors import IllegalArgumentError
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

ACTIONS: Final = ("Pub", "Sub", "Create", "Update", "Delete", "Get", "List", "All")
DECISIONS: Final = ("Allow", "Deny")
POLICIES: Final = ("Custom", "Default")
USER_KINDS: Final = ("Super", "Normal")
USER_STATES: Final = ("enable", "disable")


@dataclass(frozen=True, slots=True)
class User:
    """A user of ACL 2.0. `kind` is Super or Normal, `state` enable or disable. `repr` does not show
    the password.
    """

    name: str
    password: str | None = field(repr=False)
    kind: str | None
    state: str | None


@dataclass(frozen=True, slots=True)
class AclEntry:
    """Says what a subject may do with a resource, or may not.

    `resource` is such as `Topic:orders`, `Group:billing*`, `Cluster:*` or `*`; `actions` are some of
    ACTIONS. With `source_ips` the entry counts only for requests from there. Custom policies go
    before Default ones.
    """

    resource: str
    actions: tuple[str, ...]
    decision: str = "Allow"
    source_ips: tuple[str, ...] = ()
    policy: str = "Custom"


@dataclass(frozen=True, slots=True)
class Acl:
    """Says what a subject such as `User:name` may do."""

    subject: str
    entries: tuple[AclEntry, ...]


def user_of(info: UserInfo) -> User:
    return User(info.username or "", info.password, info.user_type, info.user_status)


def acl_of(info: AclInfo) -> Acl:
    return Acl(
        info.subject or "",
        tuple(
            AclEntry(
                entry.resource or "",
                tuple(entry.actions or ()),
                entry.decision or "",
                tuple(entry.source_ips or ()),
                policy.policy_type or POLICIES[0],
            )
            for policy in info.policies or ()
            for entry in policy.entries or ()
        ),
    )


def acl_info(subject: str, entries: Iterable[AclEntry]) -> AclInfo:
    by_policy: dict[str, list[PolicyEntryInfo]] = {}
    for entry in entries:
        if not entry.actions:
            raise IllegalArgumentError(
                f"the entry of {entry.resource!r:.80} has no action; give some of "
                f"{', '.join(ACTIONS)}"
            )
        by_policy.setdefault(one_of("policy", entry.policy, POLICIES), []).append(
            PolicyEntryInfo(
                resource=check_resource(entry.resource),
                actions=[one_of("action", action, ACTIONS) for action in entry.actions],
                source_ips=list(entry.source_ips) or None,
                decision=one_of("decision", entry.decision, DECISIONS),
            )
        )
    if not by_policy:
        raise IllegalArgumentError(f"nothing is said of {subject!r:.80}; give entries")
    return AclInfo(
        subject=subject,
        policies=[PolicyInfo(policy_type=kind, entries=each) for kind, each in by_policy.items()],
    )


def one_of(what: str, text: str, known: tuple[str, ...]) -> str:
    """Return the known text that equals this one, ignoring the case of letters. Raises
    IllegalArgumentError.

    Brokers pass over actions that they do not know.
    """
    for each in known:
        if isinstance(text, str) and text.lower() == each.lower():
            return each
    raise IllegalArgumentError(f"{what} is {text!r:.80}; give one of {', '.join(known)}")


def check_given(what: str, text: str) -> None:
    # The text does not show the value: it may be a password.
    if not isinstance(text, str) or not text.strip():
        raise IllegalArgumentError(f"{what} is missing; give one")


def check_subject(text: str) -> str:
    kind, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not (kind and colon and name):
        raise IllegalArgumentError(f"{text!r:.80} is no subject; give one such as User:name")
    return text


def check_resource(text: str) -> str:
    kind, colon, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if text != "*" and not (kind and colon and name):
        raise IllegalArgumentError(
            f"{text!r:.80} is no resource; give one such as Topic:name, Group:prefix* or Cluster:*"
        )
    return text
