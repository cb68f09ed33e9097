"""Serve a console with uvicorn, on a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import uvicorn

from cometmq.console.app import create_app
from cometmq.console.config import ConsoleConfig
from cometmq.console.state import Console
from cometmq.console.web.certificate import Certificate
from cometmq.console.web.connections import (
    MAX_CONNECTIONS,
    MAX_HEADER_BYTES,
    Connection,
    Refusal,
    room_for,
)
from cometmq.console.web.encrypted import Encrypted
from cometmq.console.web.listening import listening
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.host.process_limits import descriptors_for_connections
from cometmq.runtime.rotation import LoopTurns
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.arrivals import Socket
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

_END_S: Final = 3
# About how many files a console has open without a browser.
_OTHER_FILES: Final = 50


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
        certificate = None
        try:
            if config.certificate is not None and config.certificate_key is not None:
                certificate = Certificate(config.certificate, config.certificate_key, SYSTEM_CLOCK)
                await certificate.load()
            await console.start()
        except ConfigError:
            for sock in sockets:
                sock.close()
            raise
        except OSError as error:
            for sock in sockets:
                sock.close()
            raise ConfigError(f"the console cannot use {config.root}: {error}") from error
        self._console = console
        if certificate is not None:
            certificate.start(self._tasks)
        _warn_of_few_files()
        if config.danger:
            log.warning(
                "the console serves other machines",
                address=self.url,
                meaning=config.danger,
                remedy="give --certificate and --certificate-key, and --accounts; or listen on "
                "127.0.0.1, behind a proxy with TLS that --trusted-proxies names",
            )
        self._server = _Server(_uvicorn_config(config, console), self._tasks, certificate)
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


def _uvicorn_config(config: ConsoleConfig, console: Console) -> uvicorn.Config:
    # A class of this console's own, which knows its proxies and counts for its limits.
    connection = type(
        "Connection",
        (Connection,),
        {
            "trusted": config.trusted_proxies,
            "turns": LoopTurns(),
            "on_limit": staticmethod(console.limit_hits.hit),
        },
    )
    return uvicorn.Config(
        create_app(console),
        http=connection,
        ws="none",
        lifespan="off",
        log_config=None,
        # uvicorn logs a line for each request that is no HTTP, so strangers could fill the log.
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_graceful_shutdown=_END_S,
        # From these uvicorn knows that it serves https; `encrypted` shakes hands.
        ssl_certfile=config.certificate,
        ssl_keyfile=config.certificate_key,
    )


def _warn_of_few_files() -> None:
    """Say when the limit on open files is lower than that of connections. The console goes on."""
    below, limit = descriptors_for_connections()
    if below < MAX_CONNECTIONS + _OTHER_FILES:
        log.warning(
            "few files may be open at once: the console refuses connections before its own limit",
            limit=limit,
            for_connections=max(0, below - _OTHER_FILES),
            max_connections=MAX_CONNECTIONS,
            remedy="raise the limit (ulimit -n, or LimitNOFILE in the systemd unit)",
        )


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to the process that runs the console.

    With a certificate it accepts connections by itself: see `encrypted`.
    """

    def __init__(
        self, config: uvicorn.Config, tasks: TaskOwner, certificate: Certificate | None
    ) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._tasks = tasks
        self._certificate = certificate
        self._encrypted: Encrypted | None = None

    async def startup(self, sockets: list[Socket] | None = None) -> None:
        if self._certificate is None:
            await super().startup(sockets)
        else:
            self._encrypted = Encrypted(
                self._certificate,
                self._new_protocol,
                self._refusal,
                self._tasks,
                on_limit=self._connection.on_limit,
            )
            await self._encrypted.start(sockets or [])
            self.servers = []
            self.started = True
        self.ready.set()

    async def shutdown(self, sockets: list[Socket] | None = None) -> None:
        if self._encrypted is not None:
            self._encrypted.close()
        await super().shutdown(sockets)

    @property
    def _connection(self) -> type[Connection]:
        found: type[Connection] = self.config.http_protocol_class  # type: ignore[assignment]  # it was given
        return found

    def _new_protocol(self) -> asyncio.Protocol:
        return self._connection(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    def _refusal(self, peer_ip: str, waiting: Collection[str], descriptor: int) -> Refusal | None:
        served: set[Connection] = self.server_state.connections  # type: ignore[assignment]  # made above
        return room_for(served, waiting, peer_ip, descriptor, self._connection.trusted)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
