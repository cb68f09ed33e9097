"""The command `cometmq console`: the web console on a cluster that runs elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cometmq.cli import connection
from cometmq.cli.connection import Security
from cometmq.cli.help import Command, Group
from cometmq.cli.servers.log_options import LogOptions, begin_log
from cometmq.cli.servers.serving import (
    Open,
    say,
    serve,
)
from cometmq.cli.spread import spread
from cometmq.errors import ConfigError
from cometmq.runtime.loop import run

if TYPE_CHECKING:
    from cometmq.console.users.accounts import Accounts
    from cometmq.console.web.serving import ConsoleServer

app = typer.Typer(cls=Group, help="Run the web console, or make a password for its accounts file.")


_AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A further name by which browsers may call the console, such as a proxy's. Can be "
        "given several times.",
    ),
]
_TrustedProxies = Annotated[
    str,
    typer.Option(
        metavar="ADDRESSES",
        help="Addresses and networks of proxies, such as 127.0.0.1,10.0.3.0/28. From these alone the "
        "console believes X-Forwarded-For and X-Forwarded-Proto.",
    ),
]
_MetricsFrom = Annotated[
    str,
    typer.Option(
        metavar="ADDRESSES",
        help="Addresses and networks that may ask for /metrics without a login, besides this machine.",
    ),
]
_Accounts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A JSON file of accounts that may log in, read again when it changes. Without it the console makes an operator and a "
        "reader at each start and prints their passwords.",
    ),
]
_NoLogin = Annotated[
    bool,
    typer.Option("--no-login", help="Ask for no login: everybody who reaches the port may act."),
]
_Reports = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Show the reports of pipelines in DIR."),
]
_Certificate = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Serve https with this certificate."),
]
_CertificateKey = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The certificate's key."),
]
_PageWaitMs = Annotated[
    int,
    typer.Option(
        min=1,
        max=60_000,
        help="How many ms a page waits for answers; it then says which are missing.",
    ),
]


_Host = Annotated[str, typer.Option(help="The address to listen on.")]
_Port = Annotated[int, typer.Option(help="The port, 0 for a free one.", min=0, max=65535)]
_Root = Annotated[Path, typer.Option(metavar="DIR", help="Where the audit log is kept.")]


@app.callback(invoke_without_command=True)
@spread
def console(
    context: typer.Context,
    *,
    namesrv_addr: connection.NamesrvAddr = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8080,
    allow_host: _AllowHost = None,
    trusted_proxies: _TrustedProxies = "",
    metrics_from: _MetricsFrom = "",
    accounts: _Accounts = None,
    no_login: _NoLogin = False,
    root: _Root = Path("cometmq-console"),
    reports: _Reports = None,
    certificate: _Certificate = None,
    certificate_key: _CertificateKey = None,
    page_wait_ms: _PageWaitMs = 1000,
    timeout_ms: connection.TimeoutMs = 5000,
    security: Security,
    open_to_all: Open = False,
    logs: LogOptions,
) -> None:
    """Run the web console for a cluster of CometMQ or of Apache RocketMQ."""
    if context.invoked_subcommand is not None:
        return
    from cometmq.console.config import ConsoleConfig
    from cometmq.console.web.serving import ConsoleServer
    from cometmq.runtime.sockets.address_list import AddressList

    begin_log(logs.log_level or "warning", logs)
    given = security.connection(namesrv_addr, timeout_ms)
    who, passwords = _chosen_accounts(accounts, no_login=no_login)
    config = ConsoleConfig(
        admin=given.admin(),
        root=root,
        accounts=who,
        host=host,
        port=port,
        hosts=tuple(allow_host or ()),
        certificate=certificate,
        certificate_key=certificate_key,
        reports=reports,
        open_to_all=open_to_all,
        accounts_file=accounts,
        trusted_proxies=AddressList("--trusted-proxies", trusted_proxies),
        metrics_from=AddressList("--metrics-from", metrics_from),
        wait_s=page_wait_ms / 1000,
    )

    run(_serve(ConsoleServer(config), passwords))


def _chosen_accounts(
    file: Path | None, *, no_login: bool
) -> tuple[Accounts | None, dict[str, str]]:
    """Return the accounts, None if nobody logs in, and the passwords of those that are made here."""
    from cometmq.console.users.accounts import load_accounts, made_accounts

    if no_login:
        if file is not None:
            raise ConfigError("--no-login and --accounts: give one of them")
        return None, {}
    return made_accounts() if file is None else (load_accounts(file), {})


async def _serve(server: ConsoleServer, passwords: dict[str, str]) -> None:
    def say_ready() -> None:
        say(f"The console is ready: {server.url}")
        for name, password in passwords.items():
            say(f"  {name:<9} {password}")

    await serve(server, say_ready)


@app.command("password", cls=Command)
def password() -> None:
    """Ask for a password and print its hash, for an accounts file."""
    from cometmq.console.users.accounts import hashed

    typer.echo(hashed(typer.prompt("Password", hide_input=True, confirmation_prompt=True)))
