"""`cometmq store rejoin` as a user calls it, against a broker that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from tests.integration.own_broker import OwnBroker, nameless
from tests.unit.replication.two_logs import fill, replicate
from tests.unit.store.store_box import Box, bodies
from typer.testing import CliRunner

from cometmq.cli.main import app
from cometmq.errors import ConnectError
from cometmq.remoting.client import RemotingClient
from cometmq.replication.divergence import Cause, Divergence, MasterLog, find_divergence


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def called(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[tuple[Box, OwnBroker]]:
    """The store of a former master, and the broker that was promoted, which runs."""
    former, promoted = (
        Box(tmp_path / name, mapped_file_size_commit_log=1 << 16) for name in ("former", "promoted")
    )
    mine, theirs = former.open(), promoted.open()
    fill(mine, 300, "both")
    replicate(mine, theirs)
    fill(mine, 12, "former")
    fill(theirs, 25, "new")
    mine.close()
    theirs.close()
    with OwnBroker(nameless(), promoted.config) as running:
        yield former, running
    former.close()


def test_a_former_master_is_mended_and_goes_on_behind_the_new_one(
    parted: tuple[Box, OwnBroker],
) -> None:
    former, running = parted
    master = running.broker.store
    before = (former.root / "queues.json").read_bytes()
    status, reported = called("rejoin", former.root, "--master", running.address)
    assert status == 1
    assert "12 records" in reported
    assert (
        f"To do it: cometmq store rejoin {former.root} --master {running.address} --write"
        in reported
    )
    assert (former.root / "queues.json").read_bytes() == before
    status, reported = called(
        "rejoin", former.root, "--master", running.address, "--write", "-o", "json"
    )
    done = json.loads(reported)
    assert (status, done["done"], done["records"]) == (0, True, 12)
    status, reported = called("dump", done["keptIn"])
    assert [json.loads(line)["body"].split()[0] for line in reported.splitlines()] == [
        "former"
    ] * 12
    status, reported = called("rejoin", former.root, "--master", running.address)
    assert status == 0
    assert "it needs no mending" in reported
    store = former.open()
    assert store.commit_log.end == done["from"]

    async def compare() -> Divergence | None:
        client = RemotingClient()
        try:
            return await find_divergence(store, MasterLog(client, running.address))
        finally:
            await client.close()

    assert asyncio.run(compare()) is None
    replicate(master, store)
    assert bodies(store) == bodies(master)


def test_a_difference_is_found_over_the_wire_and_both_ends_are_named(
    parted: tuple[Box, OwnBroker],
) -> None:
    former, running = parted
    store = former.open()

    async def compare() -> Divergence | None:
        client = RemotingClient()
        try:
            return await find_divergence(store, MasterLog(client, running.address))
        finally:
            await client.close()

    found = asyncio.run(compare())
    assert found is not None
    assert found.cause is Cause.DIFFERENT
    for offset in (store.commit_log.end, running.broker.store.commit_log.end):
        assert str(offset) in str(found)


def test_a_master_that_is_not_there_is_named(tmp_path: Path, unused_tcp_port: int) -> None:
    box = Box(tmp_path / "store")
    fill(box.open(), 3, "mine")
    box.close()
    with pytest.raises(ConnectError, match=str(unused_tcp_port)):
        called("rejoin", box.root, "--master", f"127.0.0.1:{unused_tcp_port}")


def test_a_whole_log_is_not_cut_off_for_a_master_that_has_none_of_it_unless_told(
    tmp_path: Path,
) -> None:
    """The master may be a wrong one, or one whose disk was replaced."""
    only, empty = (Box(tmp_path / name, mapped_file_size_commit_log=1 << 16) for name in "ab")
    fill(only.open(), 40, "mine")
    only.close()
    with OwnBroker(nameless(), empty.config) as running:
        status, reported = called("rejoin", only.root, "--master", running.address, "--write")
        assert status == 1
        assert "Nothing was changed" in reported
        assert "--write --all" in reported
        assert not list(only.root.glob("rejoin-*"))
        status, reported = called(
            "rejoin", only.root, "--master", running.address, "--write", "--all"
        )
        assert status == 0
        assert len(list(only.root.glob("rejoin-*"))) == 1
