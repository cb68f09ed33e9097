"""The command `cometmq dev`: a name server and a broker in one process.

It is meant for development and first steps.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.serving import LogFileMib, LogFiles, LogFormat, LogLevel, LogPath
from cometmq.errors import ConfigError
from cometmq.runtime.log_file import FILE_MIB, KEPT_FILES

if TYPE_CHECKING:
    from cometmq.broker.server import Broker
    from cometmq.namesrv.server import NameServer

# The store preallocates files. With these sizes a new store takes 16 MiB and 120 kB a queue, where
# RocketMQ's own sizes would take a gigabyte and 6 MB.
COMMIT_LOG_FILE_SIZE: Final = 16 * 1024 * 1024
CONSUME_QUEUE_FILE_SIZE: Final = 6000 * 20

BROKER_NAME: Final = "dev"

_SNIPPET: Final = """\
from cometmq import Message, Producer

with Producer("my-producers", namesrv="{namesrv}") as producer:
    print(producer.send(Message("orders", b"hello", tags="paid")))
"""


def dev(
    port: Annotated[
        int, typer.Option(help="The name server's port, 0 for a free one.", min=0, max=65535)
    ] = 9876,
    broker_port: Annotated[
        int, typer.Option(help="The broker's port, 0 for a free one.", min=0, max=65535)
    ] = 10911,
    host: Annotated[
        str, typer.Option(help="The address to listen on and to hand out to clients.")
    ] = "127.0.0.1",
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the messages in DIR (default: a temporary directory, removed at the end).",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="When ready, print one line of JSON with the addresses, the store and the pid. "
            "Stop at the end of standard input, too, if that is a pipe.",
        ),
    ] = False,
    log_level: LogLevel = None,
    log_file: LogPath = None,
    log_format: LogFormat = None,
    log_file_mib: LogFileMib = FILE_MIB,
    log_files: LogFiles = KEPT_FILES,
) -> None:
    """Run a name server and a broker in one process, ready within a second."""
    from cometmq.cli.serving import begin_log
    from cometmq.runtime.loop import run

    level = log_level or "warning"
    begin_log(level, log_file, log_format, log_file_mib, log_files)
    with ExitStack() as stack:
        root = store or Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="cometmq-dev-", ignore_cleanup_errors=True)
            )
        )
        try:
            servers = DevServers(root.resolve(), host, port, broker_port, level)
            run(_serve(servers, temporary=store is None, as_json=as_json))
        except ConfigError as error:
            if "another process has the port" in str(error):
                raise ConfigError(f"{error}; see --port and --broker-port") from error
            raise


async def _serve(servers: DevServers, *, temporary: bool, as_json: bool) -> None:
    from cometmq.cli.serving import serve

    tell = _tell if as_json else _welcome
    await serve(servers, lambda: tell(servers, temporary=temporary), until_input_ends=as_json)


class DevServers:
    """Runs a name server and the one broker that registers with it."""

    def __init__(
        self, root: Path, host: str, port: int, broker_port: int, log_level: str = "info"
    ) -> None:
        from cometmq.namesrv.config import NamesrvConfig
        from cometmq.namesrv.server import NameServer

        self.root = root
        self._host = host
        self._broker_port = broker_port
        self._log_level = log_level
        self._running = AsyncExitStack()
        self.broker: Broker | None = None
        self.namesrv: NameServer = NameServer(
            NamesrvConfig(
                listen_port=port,
                bind_address=host,
                log_level=log_level,
                kv_config_path=root / "namesrv" / "kvConfig.json",
                config_store_path=root / "namesrv" / "namesrv.properties",
            )
        )

    @property
    def namesrv_address(self) -> str:
        from cometmq.runtime.addresses import join_address

        return join_address(self._host, self.namesrv.port)

    async def start(self) -> None:
        """Start the name server, then the broker.

        Raises ConfigError or StoreError, and then leaves nothing running.
        """
        from cometmq.broker.config import BrokerConfig
        from cometmq.broker.server import Broker
        from cometmq.store.config import StoreConfig

        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.namesrv.close)
            await self.namesrv.start()
            self.broker = Broker(
                BrokerConfig(
                    broker_name=BROKER_NAME,
                    broker_ip1=self._host,
                    bind_address=self._host,
                    listen_port=self._broker_port,
                    namesrv_addr=self.namesrv_address,
                    log_level=self._log_level,
                    metrics_exporter_type="PROM",
                    metrics_prom_exporter_port=0,
                ),
                StoreConfig(
                    store_path_root_dir=self.root,
                    mapped_file_size_commit_log=COMMIT_LOG_FILE_SIZE,
                    mapped_file_size_consume_queue=CONSUME_QUEUE_FILE_SIZE,
                ),
            )
            await self.broker.start()
            stack.push_async_callback(self.broker.close)
            self._running = stack.pop_all()

    async def close(self) -> None:
        await self._running.aclose()


def _tell(servers: DevServers, *, temporary: bool) -> None:
    """Print for programs what `_welcome` prints for people."""
    import json

    from cometmq.cli.serving import say

    broker = servers.broker
    assert broker is not None
    say(
        json.dumps(
            {
                "namesrv": servers.namesrv_address,
                "brokers": [
                    {
                        "name": BROKER_NAME,
                        "cluster": broker.config.broker_cluster_name,
                        "address": broker.address,
                        "metrics": f"http://{broker.metrics_address}/metrics",
                    }
                ],
                "store": str(servers.root),
                "temporary": temporary,
                "pid": os.getpid(),
            }
        )
    )


def _welcome(servers: DevServers, *, temporary: bool) -> None:
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    from cometmq.cli.serving import say

    assert servers.broker is not None
    kept = " (removed at the end)" if temporary else ""
    text = Text()
    for label, value in (
        ("name server", servers.namesrv_address),
        ("broker", servers.broker.address),
        ("metrics", f"http://{servers.broker.metrics_address}/metrics"),
        ("store", f"{servers.root}{kept}"),
    ):
        text.append(f"{label:<13}", style="bold").append(f"{value}\n")
    text.append("\n").append(_SNIPPET.format(namesrv=servers.namesrv_address), style="cyan")
    text.append("\nCtrl-C stops it.", style="dim")
    console = Console()
    if not console.is_terminal:
        say(f"CometMQ is ready\n{text.plain}")
        return
    with console.capture() as shown:
        console.print(Panel(text, title="CometMQ is ready", expand=False, padding=(1, 2)))
    say(shown.get().rstrip("\n"))
