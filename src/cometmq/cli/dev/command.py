"""The command `cometmq dev`: a name server, brokers and the web console in one process.

It is meant for development and first steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli.forms import Form
from cometmq.cli.servers.log_options import LogOptions, begin_log
from cometmq.cli.servers.serving import Open
from cometmq.cli.spread import spread
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.cli.dev.console import DevConsole
    from cometmq.cli.dev.servers import DevPlan, DevServers
    from cometmq.tls.authority import Certificates


_Port = Annotated[
    int, typer.Option(help="The name server's port, 0 for a free one.", min=0, max=65535)
]
_BrokerPort = Annotated[
    int,
    typer.Option(
        help="The first broker's port, 0 for a free one; each further broker's is 10 higher.",
        min=0,
        max=65535,
    ),
]
_Host = Annotated[str, typer.Option(help="The address to listen on and to hand out to clients.")]
_Brokers = Annotated[int, typer.Option(metavar="N", help="How many masters to run.", min=1, max=16)]
_Slaves = Annotated[
    int, typer.Option(metavar="M", help="How many slaves of each master.", min=0, max=4)
]
_Store = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Keep the messages in DIR (default: a temporary directory, removed at the end).",
    ),
]
_Tls = Annotated[
    bool,
    typer.Option(
        "--tls",
        help="Serve TLS beside plain connections, by certificates made in DIR/tls, and say what "
        "clients need.",
    ),
]
_Console = Annotated[
    bool | None,
    typer.Option(
        "--console/--no-console",
        help="Run the web console, too (default: if the extra `console` is installed).",
    ),
]
_ConsolePort = Annotated[
    int | None,
    typer.Option(
        help="The console's port, 0 for a free one (default: 8080, a free one if that is taken).",
        min=0,
        max=65535,
    ),
]
_Proxy = Annotated[
    bool | None,
    typer.Option(
        "--proxy/--no-proxy",
        help="Serve the gRPC clients of RocketMQ 5, too (default: if the extra `proxy` is installed).",
    ),
]
_ProxyPort = Annotated[
    int | None,
    typer.Option(
        help="The proxy's port, 0 for a free one (default: 8081, a free one if that is taken).",
        min=0,
        max=65535,
    ),
]
_ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--configFile",
        metavar="FILE",
        help="A properties file with RocketMQ's keys, for the brokers and the name server. Ports, "
        "names and directories in it are left aside.",
    ),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A key of a server's configuration; overrides the file's. May be repeated.",
    ),
]
_Sample = Annotated[
    bool,
    typer.Option(
        "--sample",
        help="Fill the cluster with a small shop: orders that go on coming, a group that lags, "
        "dead letters, retries, delayed messages and transactions.",
    ),
]
_Output = Annotated[
    Form,
    typer.Option(
        "-o",
        "--output",
        help="json: when ready, print one line of JSON with the addresses, the console's "
        "passwords, the store and the pid. Also stop at the end of standard input if that is a "
        "pipe.",
    ),
]


@spread
def dev(
    port: _Port = 9876,
    broker_port: _BrokerPort = 10911,
    host: _Host = "127.0.0.1",
    brokers: _Brokers = 1,
    slaves: _Slaves = 0,
    store: _Store = None,
    *,
    tls: _Tls = False,
    console: _Console = None,
    console_port: _ConsolePort = None,
    proxy: _Proxy = None,
    proxy_port: _ProxyPort = None,
    config_file: _ConfigFile = None,
    settings: _Settings = None,
    sample: _Sample = False,
    output: _Output = Form.TABLE,
    as_json: Annotated[bool, typer.Option("--json", help="The same as -o json.")] = False,
    open_to_all: Open = False,
    logs: LogOptions,
) -> None:
    """Run a name server, brokers, the web console and a gRPC proxy in one process, ready within a second."""
    from cometmq.cli.dev.console import console_for
    from cometmq.cli.dev.proxy import proxy_for
    from cometmq.cli.dev.servers import DevPlan, DevServers
    from cometmq.cli.dev.settings import dev_settings
    from cometmq.runtime.host.bus_errors import explain_bus_errors
    from cometmq.runtime.loop import run

    level = logs.log_level or "warning"
    begin_log(level, logs)
    explain_bus_errors(logs.log_file)
    with ExitStack() as stack:
        root = (store or stack.enter_context(_temporary_directory())).resolve()
        try:
            certificates = _certificates(root / "tls", host) if tls else None
            plan = DevPlan(
                root=root,
                host=host,
                port=port,
                broker_port=broker_port,
                brokers=brokers,
                slaves=slaves,
                log_level=level,
                certificates=certificates,
                open_to_all=open_to_all,
                settings=dev_settings(config_file, settings or ()),
            )
            _check_accounts(plan, is_needed=sample or console is not False)
            grpc, lacks_proxy = proxy_for(plan, wanted=proxy, port=proxy_port)
            serving = _serve(
                DevServers(plan, grpc),
                console_for(plan, wanted=console, port=console_port),
                is_console_wanted=console is not False,
                lacks_proxy=lacks_proxy,
                has_sample=sample,
                temporary=store is None,
                as_json=as_json or output is Form.JSON,
                keeps_log=logs.log_file is not None,
            )
            run(serving)
        except ConfigError as error:
            if "another process has the port" in str(error):
                raise ConfigError(f"{error}; see --port and --broker-port") from error
            raise


def _check_accounts(plan: DevPlan, *, is_needed: bool) -> None:
    if plan.settings.has_access_control and is_needed:
        raise ConfigError(
            "the settings ask for access control, and the console and the sample of cometmq "
            "dev have no account: add --no-console, leave out --sample, and run cometmq "
            "console with an account"
        )


@contextmanager
def _temporary_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cometmq-dev-", ignore_cleanup_errors=True) as made:
        yield Path(made)


def _certificates(directory: Path, host: str) -> Certificates:
    from cometmq.runtime.clock import SYSTEM_CLOCK
    from cometmq.runtime.sockets.addresses import host_name
    from cometmq.tls.authority import make_certificates

    names = ["127.0.0.1", "::1", "localhost", host_name(), host]
    named = [name for name in names if name and name not in ("0.0.0.0", "::")]  # noqa: S104 - a comparison
    return make_certificates(directory, named, SYSTEM_CLOCK)


class _Dev:
    """Is the cluster together with its console and the shop that uses it."""

    def __init__(
        self, servers: DevServers, console: DevConsole | None, *, has_sample: bool
    ) -> None:
        self._servers = servers
        self._console = console
        self._has_sample = has_sample
        self._running = AsyncExitStack()

    async def start(self) -> None:
        async with AsyncExitStack() as stack:
            if self._console is not None:
                stack.push_async_callback(self._console.close)
                await self._console.listen()
            await self._servers.start()
            stack.push_async_callback(self._servers.close)
            if self._has_sample:
                from cometmq.cli.dev.sample import Sample

                sample = Sample(self._servers.namesrv_address, self._servers.plan.root / "sample")
                stack.push_async_callback(sample.close)
                sample.start()
            if self._console is not None:
                self._console.serve(self._servers.namesrv_address)
                # It goes first, or its last questions would find nobody.
                stack.push_async_callback(self._console.close)
            self._running = stack.pop_all()

    async def close(self) -> None:
        await self._running.aclose()


async def _serve(
    servers: DevServers,
    console: DevConsole | None,
    *,
    is_console_wanted: bool,
    lacks_proxy: str,
    has_sample: bool,
    temporary: bool,
    as_json: bool,
    keeps_log: bool,
) -> None:
    import json

    from cometmq.cli.dev.console import HOW_TO_GET_IT
    from cometmq.cli.dev.screen import DevScreen, addresses, leave_quietly
    from cometmq.cli.servers.serving import say, serve

    all_of_it = _Dev(servers, console, has_sample=has_sample)
    lacks = f"not installed: {HOW_TO_GET_IT}" if console is None and is_console_wanted else ""
    if as_json:
        if lacks:
            typer.echo(f"The console is {lacks}", err=True)
        if lacks_proxy:
            typer.echo(f"The proxy is {lacks_proxy}", err=True)
        ready = lambda: say(json.dumps(addresses(servers, console, temporary=temporary)))  # noqa: E731 - beside its other form
        await serve(all_of_it, ready, until_input_ends=True, on_stop=leave_quietly)
        return
    screen = DevScreen(
        servers,
        console,
        lacks=lacks,
        lacks_proxy=lacks_proxy,
        has_sample=has_sample,
        temporary=temporary,
        keeps_log=keeps_log,
    )
    await serve(all_of_it, screen.show, on_stop=screen.close)
