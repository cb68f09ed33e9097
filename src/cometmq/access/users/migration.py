"""Take the accounts of ACL 1.0 over as users and policies, once (Java: AuthMigrator).

Java does so at each start, for the users that are not there: a user that was deleted comes back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cometmq.access.config import AccessConfig
from cometmq.access.plain.accounts import PlainAccount, split_permission
from cometmq.access.plain.files import AccountFiles
from cometmq.access.users.book import NORMAL, SUBJECT_PREFIX, SUPER, Book, UserRefusedError
from cometmq.access.users.policies import ALLOW, CUSTOM, DEFAULT, DENY
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.protocol.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from cometmq.protocol.request_type import Action
from cometmq.runtime.state_files.files import Files

log = get_logger(__name__)

_ACTIONS = {
    "PUB": [Action.PUB.value],
    "SUB": [Action.SUB.value],
    "PUB|SUB": [Action.PUB.value, Action.SUB.value],
    "SUB|PUB": [Action.PUB.value, Action.SUB.value],
}


def read_accounts(config: AccessConfig, files: Files) -> list[PlainAccount]:
    """Read the account files of ACL 1.0; this blocks. Raises ConfigError if one is damaged."""
    if config.rocketmq_home is None:
        raise ConfigError(
            "migrateAuthFromV1Enabled=true needs rocketmqHome, the directory whose "
            "conf/plain_acl.yml has the accounts: set it, or take the key out"
        )
    table = AccountFiles(config, files).read()
    if table.faults:
        raise ConfigError("; ".join(table.faults.values()))
    if table.white:
        log.warning("global white addresses not taken over: users sign every request")
    return list(table.plain.values())


def with_accounts(book: Book, accounts: Iterable[PlainAccount]) -> Book:
    """Add a user for each account that has none, with the policies that say the same.

    An administrator becomes a Super user. Raises UserRefusedError for rights that policies cannot
    express.
    """
    for account in accounts:
        if account.access_key in book.users:
            continue
        try:
            book = _with_account(book, account)
        except UserRefusedError as error:
            raise UserRefusedError(
                f"the account {account.access_key} cannot be taken over: {error}",
                code=error.code or 0,
            ) from error
    return replace(book, migrated_from_v1=True)


def _with_account(book: Book, account: PlainAccount) -> Book:
    book = book.create_user(
        UserInfo(
            username=account.access_key,
            password=account.secret_key,
            user_type=SUPER if account.admin else NORMAL,
        )
    )
    if account.white_remote_address:
        log.warning(
            "white address not taken over: users sign every request",
            user=account.access_key,
            address=account.white_remote_address,
        )
    policies = [
        PolicyInfo(type_, entries)
        for type_, entries in (
            (CUSTOM, list(_custom(account))),
            (DEFAULT, list(_default(account))),
        )
        if entries
    ]
    if not policies:
        return book
    return book.put_acl(AclInfo(SUBJECT_PREFIX + account.access_key, policies))


def _custom(account: PlainAccount) -> Iterator[PolicyEntryInfo]:
    for entry in account.topic_perms:
        name, permission = split_permission(entry, "topicPerms")
        yield _entry(f"Topic:{name}", permission)
    for entry in account.group_perms:
        name, permission = split_permission(entry, "groupPerms")
        yield _entry(f"Group:{name.removeprefix(names.RETRY_PREFIX)}", permission)


def _default(account: PlainAccount) -> Iterator[PolicyEntryInfo]:
    if account.default_topic_perm:
        yield _entry("Topic:*", account.default_topic_perm)
    if account.default_group_perm:
        yield _entry("Group:*", account.default_group_perm)


def _entry(resource: str, permission: str) -> PolicyEntryInfo:
    """Say of a resource what ACL 1.0 says; what it does not know is DENY there.

    Java takes an unknown word here for a permission to do everything.
    """
    actions = _ACTIONS.get(permission.strip())
    return PolicyEntryInfo(
        resource=resource,
        actions=actions or [Action.ALL.value],
        decision=DENY if actions is None else ALLOW,
    )
