"""Serves a console with uvicorn, on a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import uvicorn

from cometmq.console.app import create_app
from cometmq.console.config import ConsoleConfig
from cometmq.console.connections import Connection
from cometmq.console.listening import listening
from cometmq.console.state import Console
from cometmq.errors import ConfigError
from cometmq.runtime.addresses import join_address
from cometmq.runtime.arrivals import Socket
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.loggers import get_logger
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

MAX_HEADER_BYTES: Final = 32 * 1024
_END_S: Final = 3


class ConsoleServer:
    """Serves a console between `start` and `close`. For the loop's thread only.

    `sockets` that listen already take the place of the port in `config`.
    """

    def __init__(self, config: ConsoleConfig, sockets: Sequence[Socket] | None = None) -> None:
        self._config = config
        self._sockets = list(sockets or ())
        self._tasks = TaskOwner("console-server")
        self._console: Console | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self.port = config.port

    @property
    def url(self) -> str:
        """The address for browsers."""
        return f"{self._config.scheme}://{join_address(self._config.host, self.port)}"

    async def start(self) -> None:
        """Listen, and return when the console answers. Raises ConfigError."""
        config = self._config
        sockets = self._sockets or await listening(config.host, config.port)
        self.port = int(sockets[0].getsockname()[1])
        console = Console(config, SYSTEM_CLOCK, self.port)
        try:
            await console.start()
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise ConfigError(f"the console cannot use {config.root}: {error}") from error
        self._console = console
        if config.danger:
            log.warning(
                "the console serves other machines",
                address=self.url,
                meaning=config.danger,
                remedy="give --certificate and --certificate-key, and --accounts; or listen on "
                "127.0.0.1, behind a proxy with TLS",
            )
        self._server = _Server(
            uvicorn.Config(
                create_app(console),
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                # It has a line for each request that is no HTTP, and strangers fill the log by it.
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=_END_S,
                ssl_certfile=config.certificate,
                ssl_keyfile=config.certificate_key,
            )
        )
        ready = self._server.ready
        self._serving = self._tasks.spawn(self._server.serve(sockets), "serve", log_failure=False)
        self._serving.add_done_callback(lambda _: ready.set())
        await ready.wait()
        if self._serving.done():
            fault = self._serving.exception()
            self._serving = None
            for sock in sockets:
                sock.close()
            await self.close()
            raise ConfigError(f"the console cannot serve {self.url}: {fault}") from fault

    async def close(self) -> None:
        """Stop listening, end the pages that are open. Idempotent."""
        server, console, serving = self._server, self._console, self._serving
        self._server = self._console = self._serving = None
        if console is not None:
            console.end_streams()
        if server is not None and serving is not None:
            server.should_exit = True
            await serving
        if console is not None:
            await console.close()
        await self._tasks.close()


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to the process that runs the console."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[Socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
