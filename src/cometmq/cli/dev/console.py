"""The console of `cometmq dev`: on a thread and a loop of its own, so that making a page does not hold
up the brokers' loop.
"""

from __future__ import annotations

import asyncio
import gc
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cometmq import extras
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.portal import LoopThread
from cometmq.runtime.sockets.addresses import join_address

if TYPE_CHECKING:
    from cometmq.cli.dev.servers import DevPlan
    from cometmq.console.web.serving import ConsoleServer
    from cometmq.runtime.sockets.arrivals import Socket

log = get_logger(__name__)

# That of RocketMQ's dashboard, as `cometmq console` has it.
_USUAL_PORT: Final = 8080
HOW_TO_GET_IT: Final = extras.command("console")
_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")


def is_installed() -> bool:
    """Say whether the packages of the extra `console` are there."""
    return not extras.lacking(*_PACKAGES)


class DevConsole:
    """Runs a console for the servers of a plan, with an operator and a reader of its own.

    `port` None stands for the console's usual one, or a free one if that is taken. `url` and
    `passwords` (by account) are known after `listen`. `serve` comes after the servers are ready:
    importing the console takes as long as starting them. A browser that is quicker waits.
    """

    def __init__(self, plan: DevPlan, port: int | None) -> None:
        self._plan = plan
        self._port = port
        self._thread = LoopThread("console")
        self._sockets: list[Socket] = []
        self._serving: Future[ConsoleServer] | None = None
        self.url = ""
        self.passwords: dict[str, str] = {}

    async def listen(self) -> None:
        """Take the port and make the passwords. Raises ConfigError."""
        from cometmq.console.users.accounts import made_passwords
        from cometmq.console.web.listening import listening

        port = _USUAL_PORT if self._port is None else self._port
        self._sockets = await listening(self._plan.host, port, or_free_port=self._port is None)
        self.passwords = made_passwords()
        scheme = "http" if self._plan.certificates is None else "https"
        number = int(self._sockets[0].getsockname()[1])
        self.url = f"{scheme}://{join_address(self._plan.host, number)}"

    def serve(self, namesrv: str) -> None:
        """Begin to serve the cluster of this name server. Returns at once; a failure is logged."""
        self._thread.start()
        self._serving = self._thread.submit(self._serve(namesrv))

    async def close(self) -> None:
        """End the pages that are open, and the thread. Idempotent."""
        serving, self._serving = self._serving, None
        if serving is not None:
            with suppress(Exception):  # it has been logged
                server = await asyncio.wrap_future(serving)
                await asyncio.wrap_future(self._thread.submit(server.close()))
        await asyncio.to_thread(self._thread.stop)
        for sock in self._sockets:
            sock.close()

    async def _serve(self, namesrv: str) -> ConsoleServer:
        try:
            from cometmq.admin.client import AdminClient
            from cometmq.console.config import ConsoleConfig
            from cometmq.console.users.accounts import accounts_of
            from cometmq.console.web.serving import ConsoleServer

            plan = self._plan
            files = plan.certificates
            config = ConsoleConfig(
                admin=AdminClient(namesrv),
                root=plan.root / "console",
                accounts=accounts_of(self.passwords),
                host=plan.host,
                certificate=None if files is None else files.server,
                certificate_key=None if files is None else files.server_key,
            )
            server = ConsoleServer(config, self._sockets)
            await server.start()
            # The modules that the console has imported came after the servers' freeze (runtime.garbage); a full pass over
            # it, here or on their thread, would hold their loop.
            gc.freeze()
        except Exception:  # the outermost edge of the console; the cluster goes on without it
            log.exception("the console does not run")
            raise
        return server


def console_for(plan: DevPlan, *, wanted: bool | None, port: int | None) -> DevConsole | None:
    """Return the console that the options ask for, None for none.

    `wanted` None asks for one if its packages are there. Raises ConfigError.
    """
    if wanted is False:
        if port is not None:
            raise ConfigError("--no-console and --console-port: give one of them")
        return None
    if is_installed():
        return DevConsole(plan, port)
    if wanted or port is not None:
        raise extras.missing("console", "the console", extras.lacking(*_PACKAGES))
    return None
