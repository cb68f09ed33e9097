"""Holds what all pages of a console share."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from cometmq.admin.client import AdminClient
from cometmq.console.audit import AuditLog
from cometmq.console.config import ConsoleConfig
from cometmq.console.logins import Logins
from cometmq.console.recent import Recent
from cometmq.console.schemas import Schemas
from cometmq.console.sessions import Sessions
from cometmq.console.watch import Watch
from cometmq.runtime.addresses import bare_host
from cometmq.runtime.clock import Clock
from cometmq.runtime.tasks import TaskOwner

COOKIE: Final = "cometmq-session"


class Console:
    """Is a console that runs: its client, its sessions, its audit log. For the loop's thread only."""

    def __init__(self, config: ConsoleConfig, clock: Clock, port: int) -> None:
        self.config = config
        self.clock = clock
        self.admin: AdminClient = config.admin
        self.tasks = TaskOwner("console")
        self.recent = Recent(clock, self.tasks)
        self.sessions = Sessions(clock, idle_s=config.idle_s, session_s=config.session_s)
        self.logins = Logins(config.accounts, clock)
        self.audit = AuditLog(config.root, clock)
        self.watch = Watch(self.admin, clock, self.tasks)
        # The pages that follow a topic now; see `pages.messages`.
        self.tails = 0
        self.schemas = Schemas(config.root)
        self.is_ending = False
        self.hosts = frozenset(name.lower() for name in (bare_host(config.host), *config.hosts))
        # Browsers send a cookie to all ports of a host, so each console has a name of its own.
        self.cookie_name = f"{COOKIE}-{port}"

    async def start(self) -> None:
        """Open the audit log and the schemas, enter the client and begin to watch. Raises OSError."""
        await self.audit.open()
        await self.schemas.open()
        await self.admin.__aenter__()
        self.watch.start()

    def end_streams(self) -> None:
        """Have all live pages end their streams: the console stops."""
        self.is_ending = True
        self.watch.wake()

    async def close(self) -> None:
        """End what runs and leave the client. Idempotent."""
        self.schemas.close()
        await self.tasks.close()
        await self.admin.__aexit__(None, None, None)

    def give_cookie(self, answer: Response, cookie: str) -> None:
        """Have the browser keep a session's cookie, out of the reach of scripts."""
        answer.set_cookie(
            self.cookie_name,
            cookie,
            max_age=int(self.config.session_s),
            httponly=True,
            secure=self.config.scheme == "https",
            samesite="lax",
        )
