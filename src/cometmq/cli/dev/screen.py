"""Show what `cometmq dev` runs: a panel or lines when it is ready, then a table that lives."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cometmq.cli.servers.serving import say
from cometmq.logs.setup import change_log_level, configure_logging
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.tasks import TaskOwner

if TYPE_CHECKING:
    from cometmq.cli.dev.console import DevConsole
    from cometmq.cli.dev.servers import DevServers, Node

_SNIPPET: Final = """\
from cometmq import Message, Producer

with Producer("my-producers", namesrv="{namesrv}") as producer:
    print(producer.send(Message("orders", b"hello", tags="paid")))
"""
_TLS_SNIPPET: Final = """\
from cometmq import Message, Producer, Tls

tls = Tls(ca_file="{ca}")
with Producer("my-producers", namesrv="{namesrv}", tls=tls) as producer:
    print(producer.send(Message("orders", b"hello", tags="paid")))

cometmq admin clusterList -n {namesrv} --ca-file {ca}
java -Dtls.enable=true -Dtls.config.file={java} ...
"""
_PERIOD_S: Final = 1.0
# Groups of the sample that have something to show (cli.dev_sample).
_WORTH_A_LOOK: Final = ("fraud-check", "reporting", "mailer", "returns-desk")
_STYLES: Final = {"serving": "green", "in step": "green", "behind": "yellow"}


class Row(NamedTuple):
    """Holds what the table says of a broker at one moment. Sizes are in bytes, rates per second."""

    name: str
    role: str
    address: str
    messages_in: float | None
    messages_out: float
    log_end: int
    gap: int | None
    state: str
    trouble: str


class Figures:
    """Takes the figures of all brokers. For the loop's thread only."""

    def __init__(self, servers: DevServers) -> None:
        self._servers = servers
        self._before: dict[str, tuple[float, int, int]] = {}

    def take(self) -> list[Row]:
        """Return a row for each broker; rates are those since the last call."""
        return [self._row(node) for node in self._servers.nodes()]

    def _row(self, node: Node) -> Row:
        broker = node.broker
        now_s = SYSTEM_CLOCK.monotonic()
        came, went = broker.traffic.user_put(), broker.traffic.user_taken
        before_s, came_before, went_before = self._before.get(broker.address, (now_s, came, went))
        self._before[broker.address] = now_s, came, went
        passed_s = max(now_s - before_s, 1e-9)
        is_slave = node.master is not None
        return Row(
            node.name,
            node.role,
            broker.address,
            None if is_slave else (came - came_before) / passed_s,
            (went - went_before) / passed_s,
            broker.store.commit_log.end,
            node.gap if is_slave else None,
            node.state(),
            node.trouble(),
        )


class DevScreen:
    """Shows the servers until `close`. `keeps_log` says that the log goes to a file, `lacks` why there
    is no web console though nobody has refused it, `lacks_proxy` the same of the proxy, `has_sample` that a shop fills the cluster.

    On a terminal the table and the console's passwords stay at the bottom, whatever is logged.
    """

    def __init__(
        self,
        servers: DevServers,
        web: DevConsole | None = None,
        *,
        lacks: str = "",
        lacks_proxy: str = "",
        has_sample: bool = False,
        temporary: bool,
        keeps_log: bool,
    ) -> None:
        self._servers = servers
        self._web = web
        self._lacks = lacks
        self._lacks_proxy = lacks_proxy
        self._has_sample = has_sample
        self._temporary = temporary
        self._keeps_log = keeps_log
        self._console = Console(highlight=False, emoji=False, markup=False)
        self._tasks = TaskOwner("dev-screen")
        self._figures = Figures(servers)
        self._rows: list[Row] = []
        self._live: Live | None = None

    def show(self) -> None:
        """Say that the servers are ready, and show from then on how they do."""
        nodes = list(self._servers.nodes())
        welcome = self._welcome(nodes)
        if not self._console.is_terminal:
            say(f"CometMQ is ready\n{welcome.plain}")
        else:
            with self._console.capture() as shown:
                self._console.print(
                    Panel(welcome, title="CometMQ is ready", expand=False, padding=(1, 2))
                )
            say(shown.get().rstrip("\n"))
        if len(nodes) == 1 and not self._console.is_terminal:
            return
        self._rows = self._figures.take()
        self._tasks.every(_PERIOD_S, self._look, "look")
        if self._console.is_terminal:
            # A thread of its own writes to the terminal, which may be held up.
            self._live = Live(
                get_renderable=lambda: Group(table(self._rows), *access_lines(self._web)),
                console=self._console,
                refresh_per_second=2,
            )
            self._live.start()
            if not self._keeps_log:
                # So that a warning is printed above the table, not through it.
                configure_logging(self._servers.plan.log_level, json=False, stream=sys.stderr)

    async def close(self) -> None:
        """Leave the table as it is. Idempotent."""
        leave_quietly()
        await self._tasks.close()
        if self._live is not None:
            self._live.stop()
            self._live = None
            if not self._keeps_log:
                configure_logging("error")

    def _look(self) -> None:
        before, self._rows = self._rows, self._figures.take()
        if self._live is not None:
            return
        for old, row in zip(before, self._rows, strict=True):
            if (old.state, old.trouble) != (row.state, row.trouble):
                why = f": {row.trouble}" if row.trouble else ""
                say(f"{row.name} {row.role} is {row.state}{why}")

    def _welcome(self, nodes: list[Node]) -> Text:
        servers = self._servers
        kept = " (removed at the end)" if self._temporary else ""
        lines = [("name server", servers.namesrv_address)]
        if len(nodes) == 1:
            broker = nodes[0].broker
            lines += [
                ("broker", broker.address),
                ("metrics", f"http://{broker.metrics_address}/metrics"),
            ]
        elif not self._console.is_terminal:
            lines += [(f"{node.name} {node.role}", node.broker.address) for node in nodes]
        if self._web is not None:
            lines.append(("console", self._web.url))
            lines += [(f"  {name}", password) for name, password in self._web.passwords.items()]
        elif self._lacks:
            lines.append(("console", self._lacks))
        if servers.proxy is not None:
            lines.append(
                ("gRPC endpoint", f"{servers.proxy.endpoint} (clients of RocketMQ 5, without TLS)")
            )
        elif self._lacks_proxy:
            lines.append(("gRPC endpoint", self._lacks_proxy))
        lines.append(("store", f"{servers.plan.root}{kept}"))
        if self._has_sample:
            lines.append(("sample", f"a shop; see {', '.join(_WORTH_A_LOOK)}"))
        if left_aside := servers.plan.settings.left_aside:
            lines.append(("left aside", f"{', '.join(left_aside)}: options decide these"))
        width = max(13, *(len(label) + 2 for label, _ in lines))
        text = Text()
        for label, value in lines:
            text.append(f"{label:<{width}}", style="bold").append(f"{value}\n")
        text.append("\n")
        certificates = servers.plan.certificates
        if certificates is None:
            text.append(_SNIPPET.format(namesrv=servers.namesrv_address), style="cyan")
        else:
            text.append(
                _TLS_SNIPPET.format(
                    namesrv=servers.namesrv_address,
                    ca=certificates.authority,
                    java=certificates.java_client,
                ),
                style="cyan",
            )
        return text.append("\nCtrl-C stops it.", style="dim")


def table(rows: list[Row]) -> RenderableType:
    """Return the table of all brokers, and below it what keeps one from its work."""
    # Fits into 80 columns. Numbers have room to grow, or the columns would jump.
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("broker", no_wrap=True, overflow="ellipsis")
    grid.add_column("role", no_wrap=True)
    grid.add_column("address", no_wrap=True, overflow="ellipsis")
    grid.add_column("in/s", justify="right", no_wrap=True, min_width=6)
    grid.add_column("out/s", justify="right", no_wrap=True, min_width=6)
    grid.add_column("log end", justify="right", no_wrap=True, min_width=8)
    grid.add_column("gap", justify="right", no_wrap=True, min_width=8)
    grid.add_column("state", no_wrap=True)
    last = ""
    for row in rows:
        grid.add_row(
            row.name if row.name != last else "",
            row.role,
            row.address,
            "" if row.messages_in is None else f"{row.messages_in:,.0f}",
            f"{row.messages_out:,.0f}",
            size_text(row.log_end),
            "" if row.gap is None else size_text(row.gap),
            Text(row.state, style=_STYLES.get(row.state, "red")),
        )
        last = row.name
    notes = [
        Text(f"{row.name} {row.role}: {row.trouble}", style="yellow", overflow="fold")
        for row in rows
        if row.trouble
    ]
    return Group(Text(), grid, *notes)


def access_lines(web: DevConsole | None) -> list[Text]:
    """Return where the console is and by which passwords people log in, nothing without a console."""
    if web is None:
        return []
    accounts = "   ".join(f"{name} {password}" for name, password in web.passwords.items())
    return [Text(), Text(f"console {web.url}", style="bold"), Text(accounts, style="dim")]


def size_text(count: int) -> str:
    """Return a number of bytes in 8 characters at most."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    units = iter(("KiB", "MiB", "GiB", "TiB"))
    unit = "B"
    while size >= 1000 and (larger := next(units, None)):
        size, unit = size / 1024, larger
    return f"{size:.{1 if size < 99.95 else 0}f} {unit}"


def leave_quietly() -> None:
    """Keep the warnings of slaves that lose their masters out of the log: the command is
    stopping.
    """
    change_log_level("error")


def addresses(servers: DevServers, web: DevConsole | None, *, temporary: bool) -> dict[str, Any]:
    """Return for programs what the screen shows to people."""

    certificates = servers.plan.certificates

    def of(node: Node) -> dict[str, Any]:
        broker = node.broker
        return {"address": broker.address, "metrics": f"http://{broker.metrics_address}/metrics"}

    return {
        "namesrv": servers.namesrv_address,
        "brokers": [
            {
                "name": master.name,
                "cluster": master.broker.config.broker_cluster_name,
                **of(master),
                "slaves": [
                    {"brokerId": slave.broker.config.broker_id, **of(slave)}
                    for slave in master.slaves
                ],
            }
            for master in servers.masters
        ],
        "console": None if web is None else {"url": web.url, "passwords": web.passwords},
        "proxy": None if servers.proxy is None else {"endpoint": servers.proxy.endpoint},
        "store": str(servers.plan.root),
        "temporary": temporary,
        "tls": None
        if certificates is None
        else {
            "caFile": str(certificates.authority),
            "certFile": str(certificates.client),
            "keyFile": str(certificates.client_key),
            "javaConfigFile": str(certificates.java_client),
        },
        "pid": os.getpid(),
    }
