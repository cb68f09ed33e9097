"""The console of `cometmq dev`: on a thread and a loop of its own, so that making a page does not hold
up the brokers' loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

from cometmq.errors import ConfigError
from cometmq.runtime.portal import LoopThread

if TYPE_CHECKING:
    from cometmq.cli.dev_servers import DevPlan
    from cometmq.console.accounts import Accounts
    from cometmq.console.serving import ConsoleServer

T = TypeVar("T")
HOW_TO_GET_IT: Final = "pip install 'cometmq[console]'"
_PACKAGES: Final = ("jinja2", "starlette", "uvicorn")


def is_installed() -> bool:
    """Say whether the packages of the extra `console` are there."""
    return all(find_spec(name) is not None for name in _PACKAGES)


class DevConsole:
    """Runs a console for the servers of a plan, with an operator and a reader of its own.

    `port` None stands for the console's usual one, or a free one if that is taken. `url` and
    `passwords` (by account) are known after `start`.
    """

    def __init__(self, plan: DevPlan, port: int | None) -> None:
        self._plan = plan
        self._port = port
        self._thread = LoopThread("console")
        self._preparing: asyncio.Future[Accounts] | None = None
        self._server: ConsoleServer | None = None
        self.url = ""
        self.passwords: dict[str, str] = {}

    def begin(self) -> None:
        """Import what the console needs and hash its passwords, while the servers start."""
        self._thread.start()
        self._preparing = self._on_thread(self._prepare())

    async def start(self, namesrv: str) -> None:
        """Serve the cluster of this name server. Call `begin` before. Raises ConfigError."""
        assert self._preparing is not None, "begun"
        accounts = await self._preparing
        await self._on_thread(self._serve(namesrv, accounts))

    async def close(self) -> None:
        """End the pages that are open, and the thread. Idempotent."""
        if self._server is not None:
            await self._on_thread(self._server.close())
            self._server = None
        await asyncio.to_thread(self._thread.stop)

    def _on_thread(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        return asyncio.wrap_future(self._thread.submit(coroutine))

    async def _prepare(self) -> Accounts:
        import cometmq.console.serving  # noqa: F401 - most of a start's time
        from cometmq.admin.client import AdminClient  # noqa: F401 - it, too
        from cometmq.console.accounts import made_accounts

        accounts, self.passwords = made_accounts()
        return accounts

    async def _serve(self, namesrv: str, accounts: Accounts) -> None:
        from cometmq.admin.client import AdminClient
        from cometmq.console.config import PORT, ConsoleConfig
        from cometmq.console.serving import ConsoleServer

        plan = self._plan
        files = plan.certificates
        server = ConsoleServer(
            ConsoleConfig(
                admin=AdminClient(namesrv),
                root=plan.root / "console",
                accounts=accounts,
                host=plan.host,
                port=PORT if self._port is None else self._port,
                or_free_port=self._port is None,
                certificate=None if files is None else files.server,
                certificate_key=None if files is None else files.server_key,
            )
        )
        await server.start()
        self._server, self.url = server, server.url


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
        raise ConfigError(f"the console needs further packages: {HOW_TO_GET_IT}")
    return None
