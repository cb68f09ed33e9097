"""Read one account file of ACL 1.0: YAML of a bounded size, without tags, anchors and aliases.

    globalWhiteRemoteAddresses: [10.10.103.*]
    accounts:
      - accessKey: RocketMQ
        secretKey: 12345678
        whiteRemoteAddress:
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, topicB=PUB|SUB]
        groupPerms: [groupA=DENY]
    dataVersion: [{timestamp: 1700000000000, counter: 1}]

Other keys are skipped, as Java does. Every fault names the line. A value is the text that the file
has, as for Java 5: `0123456` and `2026-01-01` are keys like any other, no octal number and no date.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, cast

import yaml

from cometmq.access.plain.accounts import Account, PlainAccount
from cometmq.access.plain.addresses import WhiteList
from cometmq.errors import ConfigError
from cometmq.model.topic import DataVersion

# Parsing a megabyte takes half a second of a thread beside the loop.
MAX_FILE_BYTES: Final = 1024 * 1024
# Nothing that belongs into the file is nested as deeply.
_MOST_NESTED: Final = 8
MAX_ACCOUNTS: Final = 10_000
MAX_ENTRIES: Final = 10_000

_NULL: Final = "tag:yaml.org,2002:null"
# libyaml parses ten times as fast; both loaders make plain values only.
_SAFE_LOADER: Final[type[Any]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SAFE_LOADER):  # type: ignore[misc]  # PyYAML has no types
    """Takes every plain value as a text, but for null."""

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag == "tag:yaml.org,2002:null"]
        for first, resolvers in _SAFE_LOADER.yaml_implicit_resolvers.items()
    }


# As YAML has them; what else is written is refused, as by Java 5.
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
_OPENING: Final = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSING: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


@dataclass(frozen=True)
class AccountFile:
    """Holds what a file says. `accounts` are in its order, none twice."""

    accounts: dict[str, tuple[PlainAccount, Account]] = field(default_factory=dict)
    white: WhiteList = field(default_factory=lambda: WhiteList([]))
    version: DataVersion = field(default_factory=DataVersion)
    # Access keys that the file has twice: the first counts.
    repeated: tuple[str, ...] = ()
    # Whether the file has nothing but comments.
    is_empty: bool = False


class _FaultError(Exception):
    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def read_accounts(data: bytes, path: str) -> AccountFile:
    """Read the bytes of an account file. Raises ConfigError with path, line and reason.

    No error shows a secret key.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"{path} has {len(data)} bytes, the limit of an account file is {MAX_FILE_BYTES}; "
            "spread the accounts over several files in conf/acl"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}, line {line}: it is not UTF-8") from error
    try:
        return _read(text)
    except _FaultError as fault:
        raise ConfigError(f"{path}, line {fault.line}: {fault}") from None


def load_yaml(text: str) -> Any:
    """Return the values of a text that `read_accounts` accepts: texts, None, lists and mappings.

    Only `admin` of an account is a truth value, as it is written.
    """
    values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader, by libyaml where it is
    for account in (values or {}).get("accounts") or []:
        if account.get("admin") is not None:
            account["admin"] = account["admin"].lower() in _TRUE
    return values


def _read(text: str) -> AccountFile:
    try:
        _check_shape(text)
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The text around the mark may hold a secret, so only the parser's own words are shown. When a
        # text ends too early, libyaml places the fault beyond the last line.
        line = min(mark.line + 1, text.count("\n") + 1) if mark else 1
        raise _FaultError(line, f"no YAML: {error.problem}") from None
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise _FaultError(1, f"no YAML: {type(error).__name__}") from None
    if root is None:
        return AccountFile(is_empty=True)
    entries = _mapping(root, "the file")
    accounts: dict[str, tuple[PlainAccount, Account]] = {}
    repeated: list[str] = []
    for node in _items(entries.get("accounts"), "accounts", MAX_ACCOUNTS):
        plain, account = _account(node)
        if plain.access_key in accounts:
            repeated.append(plain.access_key)
        else:
            accounts[plain.access_key] = plain, account
    white = entries.get("globalWhiteRemoteAddresses")
    return AccountFile(accounts, _white_list(white), _version(entries), tuple(repeated))


def _check_shape(text: str) -> None:
    """Refuse what grows when it is loaded, before anything is built of it."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _FaultError(
                event.start_mark.line + 1, "anchors and aliases are not read; write the value again"
            )
        if getattr(event, "tag", None):
            raise _FaultError(event.start_mark.line + 1, "tags are not read; write a plain value")
        if isinstance(event, _OPENING):
            depth += 1
            if depth > _MOST_NESTED:
                raise _FaultError(
                    event.start_mark.line + 1, f"it is nested more than {_MOST_NESTED} levels deep"
                )
        elif isinstance(event, _CLOSING):
            depth -= 1


def _account(node: yaml.Node) -> tuple[PlainAccount, Account]:
    entries = _mapping(node, "an account")
    line = node.start_mark.line + 1
    for key in ("accessKey", "secretKey"):
        if _text(entries.get(key), key) is None:
            raise _FaultError(line, f"an account has no {key}")
    admin = (_text(entries.get("admin"), "admin") or "false").lower()
    if admin not in _TRUE + _FALSE:
        raise _FaultError(
            entries["admin"].start_mark.line + 1, f"admin is {admin!r:.40}; write true or false"
        )
    plain = PlainAccount(
        access_key=_text(entries["accessKey"], "accessKey") or "",
        secret_key=_text(entries["secretKey"], "secretKey") or "",
        white_remote_address=_text(entries.get("whiteRemoteAddress"), "whiteRemoteAddress") or "",
        admin=admin in _TRUE,
        default_topic_perm=_text(entries.get("defaultTopicPerm"), "defaultTopicPerm"),
        default_group_perm=_text(entries.get("defaultGroupPerm"), "defaultGroupPerm"),
        topic_perms=_texts(entries.get("topicPerms"), "topicPerms"),
        group_perms=_texts(entries.get("groupPerms"), "groupPerms"),
    )
    try:
        return plain, Account(plain)
    except ConfigError as error:
        raise _FaultError(line, f"the account {plain.access_key!r:.100}: {error}") from error


def _white_list(node: yaml.Node | None) -> WhiteList:
    try:
        return WhiteList(list(_texts(node, "globalWhiteRemoteAddresses")))
    except ConfigError as error:
        assert node is not None, "no list has no wrong address"
        raise _FaultError(node.start_mark.line + 1, str(error)) from error


def _version(entries: dict[str, yaml.Node]) -> DataVersion:
    """Return the version that the last change by a request wrote (Java: DataVersion)."""
    for node in _items(entries.get("dataVersion"), "dataVersion", MAX_ENTRIES):
        fields = _mapping(node, "dataVersion")
        numbers = {}
        for key in ("counter", "timestamp"):
            text = _text(fields.get(key), key) or "0"
            if not text.isdecimal() or len(text) > 18:
                raise _FaultError(node.start_mark.line + 1, f"{key} of dataVersion is no number")
            numbers[key] = int(text)
        return DataVersion(counter=numbers["counter"], timestamp=numbers["timestamp"])
    return DataVersion()


def _mapping(node: yaml.Node, what: str) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise _FaultError(node.start_mark.line + 1, f"{what} is no mapping of keys to values")
    entries: dict[str, yaml.Node] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode):
            entries[key.value] = value
    return entries


def _items(node: yaml.Node | None, key: str, limit: int) -> list[yaml.Node]:
    if node is None or (isinstance(node, yaml.ScalarNode) and _text(node, key) is None):
        return []
    if not isinstance(node, yaml.SequenceNode):
        raise _FaultError(node.start_mark.line + 1, f"{key} is no list")
    if len(node.value) > limit:
        raise _FaultError(
            node.start_mark.line + 1, f"{key} has {len(node.value)} entries, the limit is {limit}"
        )
    return cast("list[yaml.Node]", node.value)


def _texts(node: yaml.Node | None, key: str) -> tuple[str, ...]:
    return tuple(filter(None, (_text(item, key) for item in _items(node, key, MAX_ENTRIES))))


def _text(node: yaml.Node | None, key: str) -> str | None:
    """Return a value as the file has it, null as None."""
    if node is None:
        return None
    if not isinstance(node, yaml.ScalarNode):
        raise _FaultError(node.start_mark.line + 1, f"{key} is neither a text nor a number")
    return None if node.tag == _NULL else str(node.value)
