"""Hold what all pages of a console share."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.client import AdminClient
from cometmq.console.config import ConsoleConfig
from cometmq.console.limit_catalogue import CONSOLE_LIMITS
from cometmq.console.schemas.store import Schemas
from cometmq.console.users.accounts import AccountsFile
from cometmq.console.users.audit import AuditLog
from cometmq.console.users.logins import Logins
from cometmq.console.users.sessions import Sessions
from cometmq.console.views.group_views import SeenGroups
from cometmq.console.views.report_files import ReportList
from cometmq.console.watching.recent import Recent
from cometmq.console.watching.watch import Watch
from cometmq.console.web.places import Places
from cometmq.console.web.turns import AccountTurns
from cometmq.metrics.catalogue import LIMIT_HITS, Server
from cometmq.metrics.exposition import Exposition
from cometmq.metrics.limit_hits import LimitHits
from cometmq.runtime.clock import Clock
from cometmq.runtime.rotation import LoopTurns
from cometmq.runtime.sockets.addresses import bare_host, join_address
from cometmq.runtime.tasks import TaskOwner

COOKIE: Final = "cometmq-session"
ACCOUNTS_LOOK_S: Final = 2.0
# How many pages that read messages one account has made at once. Each may hold 16 pulls of 4 MiB, and a
# search by key 64 messages.
MESSAGE_READS_AT_ONCE: Final = 4


class Console:
    """Is a console that runs: its client, its sessions, its audit log. For the loop's thread only."""

    def __init__(self, config: ConsoleConfig, clock: Clock, port: int) -> None:
        self.config = config
        self.clock = clock
        self.admin: AdminClient = config.admin
        self.tasks = TaskOwner("console")
        self.recent = Recent(clock, self.tasks)
        self.limit_hits = LimitHits()
        self.sessions = Sessions(
            clock,
            idle_s=config.idle_s,
            session_s=config.session_s,
            on_limit=self.limit_hits.hit,
        )
        self.logins = Logins(config.accounts, clock)
        self._accounts_file: AccountsFile | None = None
        if config.accounts_file is not None and config.accounts is not None:
            self._accounts_file = AccountsFile(config.accounts_file, config.accounts)
        self.audit = AuditLog(config.root, clock)
        self.watch = Watch(self.admin, clock, self.tasks)
        # Written by the pages of groups.
        self.seen_groups = SeenGroups()
        # The turns in which pages of accounts go on once they have their answers.
        self.turns = LoopTurns()
        # The turns in which an account reads messages, which may be large.
        self.message_reads = AccountTurns(MESSAGE_READS_AT_ONCE)
        # The pages that follow a topic now; see `pages.messages`.
        self.tails = Places()
        # The exports of dead letters under way; see `pages.letters_export`.
        self.exports = Places()
        # The exports of the audit log under way; see `pages.audit`.
        self.audit_exports = Places()
        self.reports = ReportList(config.reports) if config.reports is not None else None
        # How many files of reports are read now; see `pages.reports`.
        self.report_reads = Places()
        self.schemas = Schemas(config.root)
        self.is_ending = False
        self.hosts = frozenset(name.lower() for name in (bare_host(config.host), *config.hosts))
        # Browsers send a cookie to all ports of a host, so each console has a name of its own.
        self.cookie_name = f"{COOKIE}-{port}"
        self._node_id = join_address(config.host, port)

    async def start(self) -> None:
        """Open the audit log and the schemas, enter the client and begin to watch. Raises OSError."""
        await self.audit.open()
        await self.schemas.open()
        await self.admin.__aenter__()
        self.watch.start()
        if self._accounts_file is not None:
            self.tasks.every(ACCOUNTS_LOOK_S, self._look_at_accounts, "look-at-accounts")

    def metrics(self) -> bytes:
        """Return the figures of `/metrics`: how often each limit was hit."""
        base = {"cluster": "", "node_type": Server.CONSOLE.value, "node_id": self._node_id}
        out = Exposition(base)
        out.begin(LIMIT_HITS)
        for name in CONSOLE_LIMITS:
            out.sample(self.limit_hits.counts.get(name, 0), name)
        return bytes(out.text())

    async def _look_at_accounts(self) -> None:
        assert self._accounts_file is not None, "it is looked at if there is one"
        for name in await self._accounts_file.look():
            self.sessions.end_of(name)

    def end_streams(self) -> None:
        """End the streams of all live pages, because the console stops."""
        self.is_ending = True
        self.watch.wake()

    async def close(self) -> None:
        """End what runs and leave the client. Idempotent."""
        self.schemas.close()
        await self.tasks.close()
        await self.admin.__aexit__(None, None, None)

    def give_cookie(self, request: Request, answer: Response, cookie: str) -> None:
        """Have the browser keep a session's cookie, out of the reach of scripts.

        If the request came by TLS, perhaps to a trusted proxy, the cookie is sent by TLS only.
        """
        answer.set_cookie(
            self.cookie_name,
            cookie,
            max_age=int(self.config.session_s),
            httponly=True,
            secure=request.scope["scheme"] == "https",
            samesite="lax",
        )
