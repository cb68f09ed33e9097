"""Judge requests by the accounts of ACL 1.0 (Java: PlainAccessValidator, PlainPermissionManager).

The verdicts are those of Java 5.2.0. Where Java checks nothing but the signature, the row of the
request table says which right is needed; docs/security.md lists the differences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from cometmq.access.access_request import AccessRequest
from cometmq.access.config import AccessConfig
from cometmq.access.freshness import Freshness
from cometmq.access.plain.accounts import ANY, DENY, PUB, SUB, Account, permits
from cometmq.access.plain.files import AccountFiles, Table
from cometmq.access.rules import Identity
from cometmq.errors import AccessRefusedError, ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.metrics import catalogue as metric_catalogue
from cometmq.metrics.exposition import Exposition
from cometmq.model.names import RETRY_PREFIX, WAITING_TOPICS
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.request_type import AnyRequestType, ResourceKind, Right
from cometmq.remoting.credentials import ACCESS_KEY
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.clock import BlockingClock
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.tasks import TaskOwner
from cometmq.runtime.workers import Workers

log = get_logger(__name__)

# As often as Java (AclFileWatchService).
WATCH_PERIOD_S: Final = 5.0
_MOST_PEERS: Final = 10_000
_MOST_SHOWN: Final = 100

_NEEDED: Final = {Right.PUB: PUB, Right.SUB: SUB, Right.ANY: ANY}
_NO_RIGHT: Final = Right.NONE
_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
# Producers ask for its route before a topic of their own is made (Java: AUTO_CREATE_TOPIC_KEY_TOPIC).
_ROUTED_FOR_ALL: Final = frozenset({"TBW102", _TRACE_TOPIC})
# A consumer that answers a request sends to a topic of the cluster, and only the asker gets it (MixAll).
_REPLY_SUFFIX: Final = "_REPLY_TOPIC"


class PlainRules:
    """The accounts in `plain_acl.yml` and beneath `conf/acl`; see `Rules`."""

    def __init__(
        self,
        config: AccessConfig,
        *,
        clock: BlockingClock,
        files: Files,
        workers: Workers,
        identity: Callable[[], Identity],
    ) -> None:
        self.identity = identity
        self._files = AccountFiles(config, files)
        self._freshness = Freshness(config, clock)
        self._clock = clock
        self._worker = workers.worker("access-files")
        self._table = Table()
        self._changes = 0
        # Whether a global white list has the address of a peer, by address.
        self._white_peers: dict[str, bool] = {}
        self._is_closed = False

    @property
    def table(self) -> Table:
        """The table that is in force."""
        return self._table

    def register(self, handlers: Handlers) -> None:
        from cometmq.access.plain.handlers import AccountHandlers

        AccountHandlers(self).register(handlers)

    async def open(self) -> None:
        table = await self._in_worker(self._files.read)
        if table.faults:
            raise ConfigError("; ".join(table.faults.values()))
        if not table.versions:
            raise ConfigError(
                f"aclEnable=true, and neither {self._files.default} nor a file beneath "
                f"{self._files.directory} is there: write the accounts, or correct rocketmqHome"
            )
        self._take(table)
        if not table.accounts and not table.white:
            log.warning(
                "no account and no white address: nobody is served", path=str(self._files.default)
            )
        elif not any(account.is_admin for account in table.accounts.values()):
            log.warning("no account has admin: true, so nobody can administer this server")

    def start(self, tasks: TaskOwner) -> None:
        tasks.every(WATCH_PERIOD_S, self.look, "access-files")

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._worker.shutdown(wait=True)

    # Judging

    def check(self, asked: AccessRequest) -> None:
        self._judge(self._signed_by(asked), asked)

    def judge(self, asked: AccessRequest) -> None:
        self._judge(self._known(asked), asked)

    def _judge(self, account: Account | None, asked: AccessRequest) -> None:
        row = asked.row
        if account is None or account.is_admin or row.right is _NO_RIGHT:
            return
        needed = _needed(account, row)
        for kind, name in asked.resources():
            if not asked.is_reply(name, self.identity):
                _check_permission(account, row, needed, kind, name)

    def _signed_by(self, asked: AccessRequest) -> Account | None:
        """Return the account that has signed a request, freshly; None where white lists let it pass.

        `_known` believes what the request says.
        """
        account = self._known(asked)
        if account is None:
            return None
        access_key = account.access_key
        wrong = account.secret.fault(asked.row.code, asked.ext, asked.body)
        if wrong is not None:
            why = f": {wrong}" if wrong else ""
            raise _refused(f"Check signature failed for accessKey={access_key}{why}", "signature")
        if fault := self._freshness.fault(access_key, asked.ext):
            raise _refused(f"not fresh: {fault} (accessKey={access_key})", "stale", access_key)
        return account

    def check_resource(self, asked: AccessRequest, kind: ResourceKind, name: str) -> None:
        account = self._known(asked)
        if account is None or account.is_admin:
            return
        _check_permission(account, asked.row, _NEEDED[asked.row.right], kind, name)

    def sender_of(self, asked: AccessRequest) -> str:
        account = self._known(asked)
        return "" if account is None else account.access_key

    def permits(
        self, account: str, peer_ip: str, row: AnyRequestType, kind: ResourceKind, name: str
    ) -> bool:
        if not account:  # a white list let its address pass, whatever it asks for
            return True
        known = self._table.accounts.get(account)
        if known is None:
            return False
        if known.is_admin or peer_ip in known.white:
            return True
        try:
            _check_permission(known, row, _NEEDED[row.right], kind, name)
        except AccessRefusedError:
            return False
        return True

    def _known(self, asked: AccessRequest) -> Account | None:
        """Return the account of a request; None where white lists let it pass as it is."""
        if self._table.white and self._is_white(asked.peer_ip):
            return None
        access_key = asked.ext.get(ACCESS_KEY)
        if access_key is None:
            raise _refused(
                f"No accessKey is configured: request code {asked.row.code} ({asked.row.name}) must "
                "be signed here",
                "unsigned",
            )
        account = self._table.accounts.get(access_key)
        if account is None:
            raise _refused(f"No acl config for {access_key:.{_MOST_SHOWN}}", "unknown")
        return None if asked.peer_ip in account.white else account

    def _is_white(self, peer_ip: str) -> bool:
        is_white = self._white_peers.get(peer_ip)
        if is_white is None:
            if len(self._white_peers) >= _MOST_PEERS:
                self._white_peers.clear()
            is_white = any(peer_ip in white for white in self._table.white)
            self._white_peers[peer_ip] = is_white
        return is_white

    # The files

    async def change(self, path: Path | None, edit: Callable[[dict[str, Any]], None]) -> None:
        """Change an account file, by default `plain_acl.yml`, and take over what it says then.

        Raises ConfigError or OSError, and then nothing has changed.
        """
        where = self._files.default if path is None else path
        now_ms = self._clock.now_ms()
        self._take(await self._in_worker(lambda: self._files.change(where, edit, now_ms)))

    @property
    def default_file(self) -> Path:
        return self._files.default

    async def look(self) -> None:
        """Read the account files, and put them in force if they have changed."""
        before = self._table

        def changed() -> Table | None:
            # Ten thousand accounts take 10 ms to be compared, so that is done here, too.
            table = self._files.read()
            return table if table != before else None

        table = await asyncio.wrap_future(self._worker.submit(changed))
        if table is not None:
            self._take(table)

    def _take(self, table: Table) -> None:
        """Put a table in force, and say once what is wrong with its files."""
        before = self._table
        for path, fault in table.faults.items():
            if before.faults.get(path) != fault:
                log.error(
                    "account file is damaged, its last good contents stay in force", reason=fault
                )
        for path in before.faults.keys() - table.faults.keys():
            log.info("account file is good again", path=str(path))
        for warning in table.warnings:
            if warning not in before.warnings:
                log.warning("account file", why=warning)
        self._table = table
        self._changes += 1
        self._white_peers.clear()
        log.info("accounts in force", accounts=len(table.accounts), files=len(table.versions))

    async def _in_worker(self, read: Callable[[], Table]) -> Table:
        return await asyncio.wrap_future(self._worker.submit(read))

    def collect(self, out: Exposition) -> Iterator[None]:
        out.one(metric_catalogue.ACCESS_ACCOUNTS, len(self._table.accounts))
        out.one(metric_catalogue.ACCESS_CHANGES, self._changes)
        out.one(metric_catalogue.ACCESS_DAMAGED_FILES, len(self._table.faults))
        out.one(metric_catalogue.ACCESS_SIGNERS, self._freshness.signer_count)
        yield


def _needed(account: Account, row: AnyRequestType) -> int:
    """Return the permission that a request takes. Raises AccessRefusedError if only administrators
    may send it.
    """
    needed = _NEEDED.get(row.right)
    if needed is None:
        raise _refused(
            f"Need admin permission for request code={row.code}, but "
            f"accessKey={account.access_key} is not",
            "permission",
            account.access_key,
        )
    return needed


def _check_permission(
    account: Account, row: AnyRequestType, needed: int, kind: ResourceKind, name: str
) -> None:
    """Raise AccessRefusedError unless the account has a permission (Java: PlainPermissionChecker)."""
    if kind is ResourceKind.TOPIC and name.startswith(RETRY_PREFIX):
        # A member of a group also sends to its retry topic.
        kind, name, needed = ResourceKind.GROUP, name[len(RETRY_PREFIX) :], SUB
    if kind is ResourceKind.TOPIC:
        # Messages of all users wait in these topics, so a default, which is meant for the topics of
        # users, does not cover them.
        hidden = needed == SUB and name in WAITING_TOPICS
        owned = account.topics.get(name, DENY if hidden else account.default_topic)
        listed = name in account.topics
        if needed == PUB and name == _TRACE_TOPIC:
            return
        if needed == ANY and (name in _ROUTED_FOR_ALL or name.endswith(_REPLY_SUFFIX)):
            return
    else:
        owned = account.groups.get(name, account.default_group)
        listed = name in account.groups
    if not permits(needed, owned):
        what = f"{'topic' if kind is ResourceKind.TOPIC else 'group'}:{name:.{_MOST_SHOWN}}"
        raise _refused(
            f"No {'' if listed else 'default '}permission for {what}: request code {row.code} "
            f"({row.name}) needs {row.right.name}, accessKey={account.access_key}",
            "permission",
            account.access_key,
        )


def _refused(text: str, reason: str, account: str = "") -> AccessRefusedError:
    # Java answers an AclException with this code.
    return AccessRefusedError(text, code=ResponseCode.SYSTEM_ERROR, reason=reason, account=account)
