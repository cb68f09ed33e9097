"""Define `cometmq doctor` and `cometmq probe`, which say whether all is well, and what to do if it
is not.

The exit status of `doctor` is 0 if all is well, 1 if the worst finding is a warning, 2 if it is an
error. That of `probe` is 0 if the server serves, else 1.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from cometmq.cli.connection import Connection, Security
from cometmq.cli.forms import Form, Output
from cometmq.cli.spread import spread

if TYPE_CHECKING:
    from cometmq.model.reports.finding import Finding
    from cometmq.runtime.daemon_threads import DaemonThreads
    from cometmq.store.config import StoreConfig

# Findings by what was looked at, in the order in which they are shown.
Areas = dict[str, "list[Finding]"]


class Kind(Enum):
    BROKER = "broker"
    NAMESRV = "namesrv"


_DEFAULT_ADDRESSES: Final = {Kind.BROKER: "127.0.0.1:10911", Kind.NAMESRV: "127.0.0.1:9876"}

_EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="HOST:PORT",
        help="Check the endpoint of gRPC clients: is a proxy there, by plain text or TLS, and does it answer?",
    ),
]
_TopicOption = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--topic",
        metavar="TOPIC",
        help="With --endpoint: check that clients can use this topic there.",
    ),
]


@spread
def doctor(
    *,
    namesrv_addr: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namesrvAddr",
            metavar="HOST:PORT",
            help="Check the cluster of these name servers, separated by semicolons. Default: "
            "namesrvAddr of the file, then the environment's NAMESRV_ADDR.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "-c",
            "--configFile",
            metavar="FILE",
            help="Check a broker's configuration, and the disk that it names for the store.",
        ),
    ] = None,
    endpoint: _EndpointOption = None,
    topic: _TopicOption = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="How long one check may take.", min=0.1, max=600
        ),
    ] = 5.0,
    output: Output = Form.TABLE,
    security: Security,
) -> None:
    """Check installation, machine, configuration, disk, cluster and endpoint, and say what to do.

    Changes nothing. The exit status is 0 if all is well, 1 after warnings, 2 after errors.
    """
    from cometmq.cli.doctor import screen
    from cometmq.model.reports.finding import worst
    from cometmq.runtime.configuration.config import load_properties
    from cometmq.runtime.loop import run

    given = security.connection(namesrv_addr, int(timeout_s * 1000))
    if topic is not None and endpoint is None:
        raise typer.BadParameter("--topic needs --endpoint, the proxy that is asked for it")
    properties = load_properties(config_file) if config_file is not None else None
    asked = None if endpoint is None else _Endpoint(endpoint, topic)
    areas = run(_examine(properties, config_file, given, timeout_s, asked))
    if output is Form.JSON:
        screen.print_json(areas)
    else:
        screen.print_table(areas)
    raise typer.Exit(worst(finding for findings in areas.values() for finding in findings))


@spread
def probe(
    *,
    kind: Annotated[Kind, typer.Argument(help="The kind of server.")],
    address: Annotated[
        str | None,
        typer.Argument(
            metavar="[HOST:PORT]",
            help="Its address. Default: this machine, and the port that such a server has by default.",
        ),
    ] = None,
    ready: Annotated[
        bool, typer.Option("--ready", help="Fail, too, while a broker refuses messages.")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="How long to wait for it.", min=0.1, max=600
        ),
    ] = 3.0,
    output: Output = Form.TABLE,
    security: Security,
) -> None:
    """Ask one server whether it serves: for the health checks of containers.

    The exit status is 0 if it does, else 1.
    """
    import json

    from cometmq.admin.checkup import probe as ask
    from cometmq.cli.admin.remedies import in_commands
    from cometmq.logs.plain import plain
    from cometmq.runtime.loop import run

    asked = address or _DEFAULT_ADDRESSES[kind]
    given = security.connection(None, int(timeout_s * 1000))
    fault = run(
        ask(
            kind.value,
            asked,
            ready=ready,
            timeout_s=timeout_s,
            credentials=given.credentials,
            tls=given.tls,
        )
    )
    state = "ready" if ready else "alive"
    if output is Form.JSON:
        result = {"server": kind.value, "address": asked, state: not fault, "fault": fault or None}
        typer.echo(json.dumps(result))
    elif fault:
        typer.echo(plain(f"{kind.value} {asked}: {in_commands(fault)}"), err=True)
    else:
        typer.echo(f"{kind.value} {asked}: {state}")
    if fault:
        raise typer.Exit(1)


class _Endpoint(NamedTuple):
    """Names a proxy, and the topic to ask it for."""

    address: str
    topic: str | None

    async def check(self, given: Connection, timeout_s: float) -> list[Finding]:
        from cometmq.extras import needs
        from cometmq.tls.contexts import tls_of

        with needs("proxy", "the check of an endpoint"):
            from cometmq.proxy.checkup import EndpointCheckup
        checkup = EndpointCheckup(
            self.address,
            topic=self.topic,
            timeout_s=timeout_s,
            credentials=given.credentials,
            tls=tls_of(given.tls),
        )
        return await checkup.check()


async def _examine(
    properties: dict[str, str] | None,
    file: Path | None,
    given: Connection,
    timeout_s: float,
    endpoint: _Endpoint | None,
) -> Areas:
    from cometmq import _compiled
    from cometmq.runtime.daemon_threads import DaemonThreads
    from cometmq.runtime.host.installation import check_installation
    from cometmq.runtime.host.machine import check_machine, read_machine

    # A check that waits for a disk that does not answer must not hold up the others, nor the end.
    threads = DaemonThreads(4, "doctor")
    machine = read_machine()
    addresses = (
        given.namesrv
        or (properties or {}).get("namesrvAddr")
        or os.environ.get("NAMESRV_ADDR")
        or ""
    )
    areas: Areas = {
        "Installation": await _within(
            timeout_s, "installation", threads.run(check_installation, _compiled.state())
        )
        + _code_mount(_compiled.PACKAGE),
        "Machine": check_machine(machine),
    }
    if properties is not None:
        store: list[StoreConfig] = []

        def settings() -> list[Finding]:
            from cometmq.broker.operation.settings_check import check_settings

            found, config = check_settings(
                properties,
                file=file,
                name_servers=addresses,
                memory_bytes=machine.usable_memory_bytes,
            )
            store.extend([config] if config is not None else [])
            return found

        areas[f"Configuration {file}"] = await _within(timeout_s, "settings", threads.run(settings))
        areas["Disk"] = [
            finding for config in store for finding in await _disk(config, threads, timeout_s)
        ]
    threads.close()
    if servers := [part.strip() for part in addresses.split(";") if part.strip()]:
        from cometmq.admin.checkup import ClusterCheckup

        async with ClusterCheckup(
            servers, timeout_s=timeout_s, credentials=given.credentials, tls=given.tls
        ) as checkup:
            areas["Cluster"] = await checkup.check()
    if endpoint is not None:
        areas["Endpoint"] = await endpoint.check(given, timeout_s)
    return {area: findings for area, findings in areas.items() if findings}


async def _disk(config: StoreConfig, threads: DaemonThreads, timeout_s: float) -> list[Finding]:
    from cometmq.runtime.clock import SYSTEM_CLOCK
    from cometmq.runtime.host.mounts import check_store_mount, mount_of, read_mount_table
    from cometmq.store.offline.checkup import check_place, existing

    def look() -> list[Finding]:
        place = existing(config.commit_log_path)
        return [
            check_store_mount(place, mount_of(place, read_mount_table())),
            *check_place(config, monotonic=SYSTEM_CLOCK.monotonic),
        ]

    return await _within(timeout_s, "store: disk", threads.run(look))


def _code_mount(package: Path) -> list[Finding]:
    from cometmq.runtime.host.mounts import check_code_mount, mount_of, read_mount_table

    fault = check_code_mount(package, mount_of(package.resolve(), read_mount_table()))
    return [fault] if fault is not None else []


async def _within(
    timeout_s: float, check: str, findings: Awaitable[list[Finding]]
) -> list[Finding]:
    """Return the findings, or a finding that the check did not end in time or failed."""
    import asyncio

    from cometmq.errors import CometMQError
    from cometmq.model.reports.finding import error

    try:
        return await asyncio.wait_for(findings, timeout_s)
    except CometMQError:
        raise
    except TimeoutError:
        return [
            error(
                check,
                f"no result within {timeout_s:g} s",
                "a disk or a name server of the network hangs, or the machine is overloaded: look "
                "for waiting processes (ps -eo state,cmd | grep ^D), or try a longer --timeout",
            )
        ]
    except OSError as failure:
        return [error(check, str(failure), "repair what it names, or run doctor as another user")]
