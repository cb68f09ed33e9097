"""Give a cluster's brokers access control, with the accounts of a test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cometmq.remoting.credentials import Credentials
from cometmq.runtime.state_files.files import Files

_FILE: Final = Path("conf", "plain_acl.yml")


@dataclass(frozen=True)
class Account:
    """An account of ACL 1.0 at the brokers of a cluster, with its permissions.

    Permissions are DENY, PUB, SUB or PUB|SUB, those of `topics` and `groups` by name. Both keys have
    more than 6 characters. Clients sign with `credentials`.
    """

    access_key: str
    secret_key: str = field(default="a-secret-of-this-test", repr=False)
    admin: bool = False
    topics: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    default_topic: str = "DENY"
    default_group: str = "DENY"

    @property
    def credentials(self) -> Credentials:
        return Credentials(self.access_key, self.secret_key)


# The account by which a cluster asks its own brokers.
ADMINISTRATOR: Final = Account("cometmq-test-cluster", "asks-for-assertions", admin=True)


def access_properties(home: Path, accounts: Iterable[Account], files: Files) -> dict[str, str]:
    """Return the settings of a broker that knows these accounts; {} without any.

    Write their file below `home` unless it is there: a restart keeps what requests have changed.
    """
    accounts = tuple(accounts)
    if not accounts:
        return {}
    import yaml  # takes longer to import than most clusters to start

    path = home / _FILE
    if not files.exists(path):
        files.make_directories(path.parent)
        entries = [_entry(account) for account in (ADMINISTRATOR, *accounts)]
        files.write_new(path, [yaml.safe_dump({"accounts": entries}, sort_keys=False).encode()])
        files.sync(path.parent)
    return {"aclEnable": "true", "rocketmqHome": str(home)}


def _entry(account: Account) -> dict[str, Any]:
    return {
        "accessKey": account.access_key,
        "secretKey": account.secret_key,
        "admin": account.admin,
        "defaultTopicPerm": account.default_topic,
        "defaultGroupPerm": account.default_group,
        "topicPerms": [f"{name}={text}" for name, text in account.topics.items()],
        "groupPerms": [f"{name}={text}" for name, text in account.groups.items()],
    }
