"""Hold users and policies as they are at one time, and make the next state of a change.

Java: AuthenticationMetadataManagerImpl, AuthorizationMetadataManagerImpl; refusals have their words
and codes. Java has none of the limits.

A `Book` never changes: a change makes a new one. So the book that is being written to the disk, the one
in force and the next one can be three books that share all common parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn, TypeAlias

import msgspec

from cometmq.access.users.policies import (
    ALLOW,
    ANYTHING,
    CUSTOM,
    DEFAULT,
    DENY,
    Policies,
    source_network,
)
from cometmq.errors import CometMQError
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.request_type import Action

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"
SUBJECT_PREFIX: Final = "User:"

MAX_USERS: Final = 10_000
MAX_ENTRIES_PER_USER: Final = 1_000
# An answer with all of them fits into a frame.
MAX_ENTRIES: Final = 50_000
MAX_USERNAME_LENGTH: Final = 128
MAX_PASSWORD_LENGTH: Final = 512
MAX_RESOURCE_LENGTH: Final = 300
MAX_SOURCE_IPS: Final = 64

_KINDS: Final = ("Topic", "Group", "Cluster", "Namespace")
_ACTIONS: Final = {action.value.lower(): action.value for action in Action}


class UserRefusedError(CometMQError):
    """A change of users or policies that is not made. The text never has a password."""


# Policies in the form in which they are kept, or why they cannot be.
Checked: TypeAlias = list[PolicyInfo] | UserRefusedError


def refuse(text: str, code: int = ResponseCode.NO_PERMISSION) -> NoReturn:
    raise UserRefusedError(text, code=code)


class State(msgspec.Struct, rename="camel", omit_defaults=True):
    """Holds the contents of the file. `migrated_from_v1` says that plain_acl.yml was imported once,
    `version` counts the changes.
    """

    users: list[UserInfo] = []
    acls: list[AclInfo] = []
    migrated_from_v1: bool = False
    version: int = 0


@dataclass(frozen=True, slots=True)
class Book:
    """All users by name, and policies by subject (`User:name`). Treat the mappings as constants."""

    users: Mapping[str, UserInfo] = field(default_factory=dict)
    acls: Mapping[str, AclInfo] = field(default_factory=dict)
    entry_count: int = 0
    migrated_from_v1: bool = False
    # Counts the changes.
    version: int = 0

    # Users

    def create_user(self, info: UserInfo) -> Book:
        """Add a user, Normal and enabled unless `info` says otherwise. Raises UserRefusedError.

        A user that is there exactly so is no mistake, other than in Java: `mqadmin createUser -c`
        asks a master and then its slave, which passes it on to the master.
        """
        name = _checked_name(info.username)
        if not (info.password or "").strip():
            refuse("password can not be blank")
        _check_password(info.password or "")
        made = UserInfo(
            username=name,
            password=info.password,
            user_type=_known(info.user_type, (SUPER, NORMAL)) or NORMAL,
            user_status=_known(info.user_status, (ENABLE, DISABLE)) or ENABLE,
        )
        if name in self.users:
            if self.users[name] == made:
                return self
            refuse("The user is existed")
        _limit("users", len(self.users) + 1, "MAX_USERS", MAX_USERS, "delete some first")
        return self.with_user(made)

    def update_user(self, info: UserInfo) -> Book:
        """Change the given properties of a user. Raises UserRefusedError."""
        old = self.users.get(_checked_name(info.username))
        if old is None:
            refuse("The user is not exist")
        _check_password(info.password or "")
        return self.with_user(
            UserInfo(
                username=old.username,
                password=info.password if (info.password or "").strip() else old.password,
                user_type=_known(info.user_type, (SUPER, NORMAL)) or old.user_type,
                user_status=_known(info.user_status, (ENABLE, DISABLE)) or old.user_status,
            )
        )

    def with_user(self, info: UserInfo) -> Book:
        return replace(self, users={**self.users, info.username or "": info})

    def without_user(self, name: str) -> Book:
        """Remove a user, if there is one, and its policies."""
        users = {key: user for key, user in self.users.items() if key != name}
        return replace(self.without_acl(SUBJECT_PREFIX + name), users=users)

    # Policies

    def put_acl(self, info: AclInfo) -> Book:
        """Say of a subject what `info` says; what it says of no resource stays.

        Raises UserRefusedError.
        """
        return PutAcl.of(info)(self)

    def put_policies(self, subject: str | None, policies: Checked) -> Book:
        """Do what `put_acl` does with policies that are checked; raise what was found of them."""
        subject = self._checked_subject(subject, "The subject of {} is not exist.")
        if isinstance(policies, UserRefusedError):
            raise policies
        entries = {policy.policy_type: policy for policy in self._policies_of(subject)}
        for policy in policies:
            known = entries.get(policy.policy_type)
            merged = {entry.resource: entry for entry in (known and known.entries) or ()}
            merged.update((entry.resource, entry) for entry in policy.entries or ())
            entries[policy.policy_type] = PolicyInfo(policy.policy_type, list(merged.values()))
        return self.with_acl(AclInfo(subject, list(entries.values())))

    def delete_acl(
        self, subject: str | None, policy_type: str | None, resource: str | None
    ) -> Book:
        """Remove entries of a subject's policies: of one resource, or of all without it.

        Removing an entry that does not exist is no mistake; in Java it is one if nothing is said at
        all. Raises UserRefusedError.
        """
        subject = self._checked_subject(subject, "The subject is not exist.")
        if subject not in self.acls:
            return self
        if resource is None or not resource.strip():
            return self.without_acl(subject)
        type_ = _known(policy_type, (CUSTOM, DEFAULT)) or CUSTOM
        key = checked_resource(resource)
        left = []
        for policy in self._policies_of(subject):
            entries = [
                entry
                for entry in policy.entries or ()
                if policy.policy_type != type_ or entry.resource != key
            ]
            if entries:
                left.append(PolicyInfo(policy.policy_type, entries))
        return self.with_acl(AclInfo(subject, left)) if left else self.without_acl(subject)

    def with_acl(self, info: AclInfo) -> Book:
        """Replace all that is said of a subject. Raises UserRefusedError for too much."""
        subject = info.subject or ""
        count = _count(info)
        remedy = "say it by prefixes (Topic:orders*) instead of names, or delete some first"
        _limit(
            f"policy entries of {subject}",
            count,
            "MAX_ENTRIES_PER_USER",
            MAX_ENTRIES_PER_USER,
            remedy,
        )
        total = self.entry_count + count - _count(self.acls.get(subject))
        _limit("policy entries", total, "MAX_ENTRIES", MAX_ENTRIES, remedy)
        return replace(self, acls={**self.acls, subject: info}, entry_count=total)

    def without_acl(self, subject: str) -> Book:
        gone = self.acls.get(subject)
        if gone is None:
            return self
        acls = {key: acl for key, acl in self.acls.items() if key != subject}
        return replace(self, acls=acls, entry_count=self.entry_count - _count(gone))

    def policies_of(self, name: str) -> Policies:
        return Policies(self.acls.get(SUBJECT_PREFIX + name))

    def _policies_of(self, subject: str) -> Iterable[PolicyInfo]:
        acl = self.acls.get(subject)
        return (acl and acl.policies) or ()

    def _checked_subject(self, subject: str | None, unknown: str) -> str:
        name = subject_name(subject)
        if name is None:
            refuse("The subject is null.")
        if name not in self.users:
            refuse(unknown.format(SUBJECT_PREFIX + name))
        return SUBJECT_PREFIX + name

    # As a whole

    def state(self) -> State:
        return State(
            list(self.users.values()),
            list(self.acls.values()),
            self.migrated_from_v1,
            self.version,
        )


def book_of(state: State) -> Book:
    """Make a book of the contents of a file or of a master's answer, by the rules for changes.

    Raises UserRefusedError for entries that no change could have made.
    """
    book = Book(migrated_from_v1=state.migrated_from_v1, version=state.version)
    # One by one each would copy those before it.
    users: dict[str, UserInfo] = {}
    _limit("users", len(state.users), "MAX_USERS", MAX_USERS, "delete some first")
    for user in state.users:
        one = Book().create_user(user)
        users.update(one.users)
    book = replace(book, users=users)
    acls: dict[str, AclInfo] = {}
    total = 0
    for acl in state.acls:
        if acl.policies:
            made = book.put_acl(acl)
            acls.update(made.acls)
            total += made.entry_count
    _limit("policy entries", total, "MAX_ENTRIES", MAX_ENTRIES, "delete some first")
    return replace(book, acls=acls, entry_count=total)


def changes_between(old: Book, new: Book) -> tuple[list[str], list[str]]:
    """Return the names of users and the subjects that the two books do not have alike."""
    return _differing(old.users, new.users), _differing(old.acls, new.acls)


def _differing(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    if old is new:
        return []
    # Most are the same objects, and a look at each name of both takes as long again.
    others = [name for name, value in new.items() if old.get(name) is not value]
    others += [name for name in old if name not in new]
    return [name for name in others if old.get(name) != new.get(name)]


def subject_name(subject: str | None) -> str | None:
    """Return the user's name of `User:name`, None for any other text (Java: Subject.of)."""
    kind, colon, name = (subject or "").partition(":")
    return name if colon and name and kind.lower() == "user" else None


def checked_resource(text: str | None) -> str:
    """Return a resource in the form in which it is kept. Raises UserRefusedError."""
    if text == ANYTHING:
        return ANYTHING
    kind, colon, name = (text or "").partition(":")
    known = _known(kind, _KINDS)
    if known is None and kind.lower() == "any":
        return ANYTHING
    # A star in the middle would mean less than it says: Java cuts the text there.
    if known is None or not (colon and name) or "*" in name[:-1]:
        refuse("The resource is null. Give one such as Topic:orders, Group:billing* or Cluster:*")
    _limit(
        "characters in a resource",
        len(name),
        "MAX_RESOURCE_LENGTH",
        MAX_RESOURCE_LENGTH,
        "no topic or group has so long a name",
    )
    return f"{known}:{name}"


def _checked_policies(policies: Iterable[PolicyInfo] | None) -> list[PolicyInfo]:
    if not policies:
        refuse("The body of acl is null")
    return [
        PolicyInfo(
            _known(policy.policy_type, (CUSTOM, DEFAULT)) or CUSTOM,
            [_checked_entry(entry) for entry in policy.entries],
        )
        # Java passes over policies without entries.
        for policy in policies
        if policy.entries
    ] or refuse("The policies is empty.")


def _checked_entry(entry: PolicyEntryInfo) -> PolicyEntryInfo:
    resource = checked_resource(entry.resource)
    given = [action.lower() for action in entry.actions or ()]
    if "any" in given:
        refuse("The actions can not be Any.")
    # Java passes over actions that it does not know.
    actions = list(dict.fromkeys(_ACTIONS[action] for action in given if action in _ACTIONS))
    if not actions:
        refuse("The actions is empty.")
    for ip in entry.source_ips or ():
        if not ip.strip():
            refuse("The source ip is empty.")
        try:
            source_network(ip)
        except ValueError:
            refuse("The source ip is invalid.")
    _limit(
        f"source addresses for {resource}",
        len(entry.source_ips or ()),
        "MAX_SOURCE_IPS",
        MAX_SOURCE_IPS,
        "give networks such as 10.0.0.0/8",
    )
    decision = _known(entry.decision, (ALLOW, DENY))
    if decision is None:
        refuse("The decision is null or illegal.")
    return PolicyEntryInfo(
        resource=resource,
        actions=actions,
        source_ips=list(entry.source_ips) if entry.source_ips else None,
        decision=decision,
    )


def _checked_name(name: str | None) -> str:
    if not (name or "").strip():
        refuse("The username is blank", ResponseCode.INVALID_PARAMETER)
    assert name is not None
    _limit(
        "characters in a user's name",
        len(name),
        "MAX_USERNAME_LENGTH",
        MAX_USERNAME_LENGTH,
        "choose a shorter one",
    )
    return name


def _check_password(password: str) -> None:
    _limit(
        "characters in a password",
        len(password),
        "MAX_PASSWORD_LENGTH",
        MAX_PASSWORD_LENGTH,
        "choose a shorter one",
    )


def _known(text: str | None, known: tuple[str, ...]) -> str | None:
    """Return the known text that is meant, whatever its case; None for others, as in Java."""
    for each in known:
        if text is not None and text.lower() == each.lower():
            return each
    return None


def _count(acl: AclInfo | None) -> int:
    return sum(len(policy.entries or ()) for policy in (acl and acl.policies) or ())


def _limit(what: str, count: int, name: str, limit: int, remedy: str) -> None:
    if count > limit:
        refuse(f"{count} {what}, the limit {name} is {limit}; {remedy}")


# A change takes the newest book and returns the next one; it raises UserRefusedError.
Change = Callable[[Book], Book]


@dataclass(frozen=True, slots=True)
class PutAcl:
    """The change that `Book.put_acl` makes. To make this takes 10 ms and more for a thousand entries,
    so it is done in a thread; to have it make the change takes a fraction of one.
    """

    subject: str | None
    policies: Checked

    @staticmethod
    def of(info: AclInfo) -> PutAcl:
        try:
            return PutAcl(info.subject, _checked_policies(info.policies))
        except UserRefusedError as error:
            # A fault of the subject is reported first, and only the newest book has that.
            return PutAcl(info.subject, error)

    def __call__(self, book: Book) -> Book:
        return book.put_policies(self.subject, self.policies)
