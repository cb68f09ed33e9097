"""`cometmq dev --brokers N --slaves M`: one command, and all that it says of its servers."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.integration.test_dev_json import dev, reported
from tests.waits import SEND_WAIT_MS, WAIT_S, until

from cometmq import Message, Producer
from cometmq.cli.dev.screen import Row, size_text, table
from cometmq.cli.dev.servers import DevPlan, DevServers
from cometmq.errors import ConfigError


def test_json_has_the_addresses_of_all() -> None:
    with dev("--brokers", "2", "--slaves", "1") as process:
        found = reported(process)
        assert [broker["name"] for broker in found["brokers"]] == ["dev-0", "dev-1"]
        servers = [server for broker in found["brokers"] for server in [broker, *broker["slaves"]]]
        assert [server.get("brokerId", 0) for server in servers] == [0, 1, 0, 1]
        assert len({server[kind] for server in servers for kind in ("address", "metrics")}) == 8
        with Producer("shop", namesrv=found["namesrv"]) as producer:
            producer.send(Message("orders", b"x"), timeout_ms=SEND_WAIT_MS)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


async def test_slaves_follow_their_masters(tmp_path: Path) -> None:
    servers = DevServers(
        DevPlan(root=tmp_path, host="127.0.0.1", port=0, broker_port=0, brokers=2, slaves=1)
    )
    await servers.start()
    try:
        nodes = list(servers.nodes())
        assert [(node.name, node.role) for node in nodes] == [
            ("dev-0", "master"), ("dev-0", "slave 1"), ("dev-1", "master"), ("dev-1", "slave 1"),
        ]  # fmt: skip
        await until(
            lambda: [node.state() for node in nodes], lambda seen: seen[1::2] == ["in step"] * 2
        )
        assert [node.trouble() for node in nodes] == [""] * 4
        stores = {node.broker.store_config.store_path_root_dir.name for node in nodes}
        assert stores == {"dev-0", "dev-0-slave-1", "dev-1", "dev-1-slave-1"}
    finally:
        await servers.close()


async def test_a_store_of_one_broker_is_not_left_unserved(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").touch()
    several = DevPlan(root=tmp_path, host="127.0.0.1", port=0, broker_port=0, brokers=2)
    with pytest.raises(ConfigError, match="the store of a single broker"):
        await DevServers(several).start()


async def test_ports_beyond_the_last_are_refused(tmp_path: Path) -> None:
    plan = DevPlan(root=tmp_path, host="127.0.0.1", port=0, broker_port=65_505, brokers=2, slaves=1)
    with pytest.raises(ConfigError, match=r"65505 leaves no ports .* the last port would be 65536"):
        await DevServers(plan).start()


# -- the table --


def row(name: str, role: str, **changes: Any) -> Row:
    slave = role != "master"
    known = Row(
        name, role, "127.0.0.1:10911", None if slave else 98_765.4, 12.0, 999 << 20,
        1 << 29 if slave else None, "in step" if slave else "serving", "",
    )  # fmt: skip
    return known._replace(**changes)


def drawn(width: int, *rows: Row) -> list[str]:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as shown:
        console.print(table(list(rows)))
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_its_terminal(width: int) -> None:
    lines = drawn(width, row("dev-0", "master"), row("dev-0", "slave 1"), row("dev-15", "master"))
    assert lines == [
        "",
        "broker  role     address            in/s   out/s   log end       gap  state",
        "dev-0   master   127.0.0.1:10911  98,765      12   999 MiB            serving",
        "        slave 1  127.0.0.1:10911              12   999 MiB   512 MiB  in step",
        "dev-15  master   127.0.0.1:10911  98,765      12   999 MiB            serving",
    ]


def test_what_keeps_a_slave_from_its_work_stands_below_the_table() -> None:
    alone = row("dev-0", "slave 1", state="alone", trouble="127.0.0.1:1 did not accept")
    assert (
        drawn(80, row("dev-0", "master"), alone)[-1] == "dev-0 slave 1: 127.0.0.1:1 did not accept"
    )


def test_sizes_are_short() -> None:
    sizes = [0, 999, 1000, 102_349, 1 << 20, 999 << 20, 1000 << 20, 5 << 40]
    assert [size_text(size) for size in sizes] == [
        "0 B", "999 B", "1.0 KiB", "100 KiB", "1.0 MiB", "999 MiB", "1.0 GiB", "5.0 TiB",
    ]  # fmt: skip
    assert max(len(size_text(2**n + k)) for n in range(50) for k in (-1, 0, 1)) <= 8
