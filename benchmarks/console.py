"""How long the console's pages take at 5,000 topics and 5,000 groups.

    python -m benchmarks.console              # the whole run; rewrites its table in README.md
    python -m benchmarks.console --quick      # 200 topics and groups, 1 round, nothing written

A broker gets the topics (2 queues each) and groups; group i has consumed one of the two messages in
each queue of topic i. `cometmq console` runs in a process of its own, so that each number is what a
browser waits for: the request, the console's questions to broker and name server, the page. For each
page an action comes first, after which the console knows nothing of the cluster but what its watch
sees; so `fresh` has to ask. `again` is the same page at once. The exit status is 1 when a page was
slower than a second or did not come.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.console.running import Served, Visitor

from benchmarks import report
from benchmarks.frames import BenchmarkError, ControlConnection
from benchmarks.peers import CometPeer
from cometmq.aio import AdminClient
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.queue import MessageQueue
from cometmq.model.topic import TopicConfig

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from benchmarks.report import Cells

LIMIT_MS: Final = 1_000.0
QUEUES: Final = 2
BEGIN: Final = "<!-- console:begin (written by `python -m benchmarks.console`) -->"
END: Final = "<!-- console:end -->"
_READY_S: Final = 60.0
_AT_ONCE: Final = 64
_BATCH: Final = 500


@dataclass(slots=True)
class Visit:
    """Is one load of a page, in milliseconds: with nothing known, and at once again."""

    fresh_ms: float
    again_ms: float
    bytes: int


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="console-", dir=options.directory) as root:
            return run(Path(root), options)
    except BenchmarkError as error:
        print(f"no result: {error}")
        return 1


def run(root: Path, options: argparse.Namespace) -> int:
    settings = {**report.machine(), "topics": str(options.count), "groups": str(options.count)}
    with CometPeer(root / "peer", conf={}) as peer:
        began = time.monotonic()
        asyncio.run(fill(peer, options.count))
        print(f"filled in {time.monotonic() - began:.0f} s")
        with served_console(peer, root / "console") as served:
            visitor = Visitor(served)
            wait_for_the_watch(visitor, options.count)
            address = ":".join(map(str, peer.address))
            pages = pages_of(options.count, address)
            name = broker_name(peer)
            visits = {
                page: [visit(visitor, page, address, name) for _ in range(options.rounds)]
                for page in pages
            }
        settings |= {"rounds": str(options.rounds), **peer.settings()}
    table = cells(visits)
    for line in table:
        print("  ".join(f"{cell:>12}" if at else f"{cell:<42}" for at, cell in enumerate(line)))
    slow = [page for page, each in visits.items() if max(one.fresh_ms for one in each) > LIMIT_MS]
    slow += [page for page, each in visits.items() if max(one.again_ms for one in each) > LIMIT_MS]
    for page in sorted(set(slow)):
        print(f"FAULT: {page} took longer than a second")
    if not options.quick and not options.no_write:
        rows: Cells = [["setting", "value"], *([key, value] for key, value in settings.items())]
        rounds = {page: {"console": each} for page, each in visits.items()}
        report.write_rounds("console", (BEGIN, END), rounds, settings, (table, rows))
    return 1 if slow else 0


def pages_of(count: int, address: str) -> list[str]:
    """Return the addresses of all pages, with the names of the middle of the lists."""
    middle, last = f"{count // 2:05d}", count // 50
    return [
        "/",
        "/find?q=topic",
        f"/find?q={middle}",
        "/brokers",
        *(f"/broker?address={address}&part={part}" for part in BROKER_PARTS),
        "/topics/new",
        f"/topic/change?name=topic-{middle}",
        f"/topic/send?name=topic-{middle}",
        "/topics",
        f"/topics?page={last}",
        f"/topics?q={middle}",
        *(f"/topic?name=topic-{middle}&tab={tab}" for tab in TOPIC_TABS),
        "/groups/new",
        "/groups",
        f"/groups?page={last}",
        f"/groups?q={middle}",
        "/groups?sort=lag",
        *(f"/group?name=group-{middle}&view={view}" for view in GROUP_VIEWS),
        "/producers",
        "/messages",
        f"/messages?topic=topic-{middle}",
        "/letters",
        f"/letters?group=group-{middle}",
        "/delayed",
        "/transactions",
        "/trace",
        "/why",
        f"/why/group?name=group-{middle}",
        "/why/disk",
        "/why/restart",
        "/reports",
        "/audit",
    ]


BROKER_PARTS: Final = ("state", "settings", "files", "replication", "values")
TOPIC_TABS: Final = ("queues", "brokers", "groups", "producers")
GROUP_VIEWS: Final = ("progress", "members", "offsets", "configuration")


def visit(visitor: Visitor, page: str, address: str, broker: str) -> Visit:
    """Load a page after an action, and once more."""
    done = visitor.post("/broker/permit", name=broker, address=address)
    if done.status != 303:
        raise BenchmarkError(f"the action was answered {done.status}: {done.text[:300]}")
    times = []
    for _ in range(2):
        began = time.perf_counter()
        answer = visitor.send("GET", page)
        times.append((time.perf_counter() - began) * 1000)
        if answer.status != 200:
            raise BenchmarkError(f"{page} was answered {answer.status}: {answer.text[:300]}")
    return Visit(times[0], times[1], len(answer.body))


def cells(visits: dict[str, list[Visit]]) -> Cells:
    table: Cells = [
        ["page", "fresh, ms", "slowest", "again, ms", "slowest", "KiB"],
    ]
    for page, each in visits.items():
        fresh, again = [one.fresh_ms for one in each], [one.again_ms for one in each]
        shown = re.sub(r"address=[^&]*&?", "", page).rstrip("?")
        table.append(
            [
                f"`{shown}`",
                f"{statistics.median(fresh):.0f}",
                f"{max(fresh):.0f}",
                f"{statistics.median(again):.0f}",
                f"{max(again):.0f}",
                f"{each[0].bytes / 1024:.0f}",
            ]
        )
    return table


# The cluster and the console ----------------------------------------------------------------------


async def fill(peer: CometPeer, count: int) -> None:
    """Make topics, groups, two messages in each queue, and the groups' offsets."""
    topics = [f"topic-{number:05d}" for number in range(count)]
    groups = [f"group-{number:05d}" for number in range(count)]
    namesrv = ":".join(map(str, peer.name_server))
    async with AdminClient(namesrv, timeout_ms=30_000) as admin:
        for begin in range(0, count, _BATCH):
            await admin.topics.create_many(
                TopicConfig(name, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
                for name in topics[begin : begin + _BATCH]
            )
            await admin.groups.create_many(
                SubscriptionGroupConfig(name) for name in groups[begin : begin + _BATCH]
            )
        await asyncio.to_thread(send_two_to_each, peer, topics)
        broker = (await admin.brokers.addresses())[0].broker_name
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(call: Callable[[], Awaitable[object]]) -> None:
            async with turns:
                await call()

        def commit(number: int, queue_id: int) -> Callable[[], Awaitable[object]]:
            queue = MessageQueue(topics[number], broker, queue_id)
            return lambda: admin.offsets.commit(groups[number], queue, 1)

        await asyncio.gather(
            *(one(commit(number, queue)) for number in range(count) for queue in range(QUEUES))
        )


def send_two_to_each(peer: CometPeer, topics: list[str]) -> None:
    with ControlConnection(peer.address) as connection:
        for topic in topics:
            for queue_id in range(QUEUES):
                for _ in range(2):
                    answer = connection.send(topic, queue_id, 100)
                    if answer.code != 0:
                        raise BenchmarkError(f"a send to {topic} was refused: {answer.remark}")


def broker_name(peer: CometPeer) -> str:
    async def ask() -> str:
        async with AdminClient(":".join(map(str, peer.name_server))) as admin:
            return (await admin.brokers.addresses())[0].broker_name

    return asyncio.run(ask())


@contextmanager
def served_console(peer: CometPeer, root: Path) -> Iterator[Served]:
    """Run `cometmq console` as a user does, and read its address and passwords."""
    namesrv = ":".join(map(str, peer.name_server))
    command: list[Any] = [
        sys.executable, "-m", "cometmq", "console", "-n", namesrv, "--port", "0", "--root", root,
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        passwords: dict[str, str] = {}
        url = ""
        while len(passwords) < 2:
            line = process.stdout.readline()
            if not line:
                raise BenchmarkError("the console did not start")
            if found := re.search(r"http://\S+", line):
                url = found[0]
            elif found := re.match(r"\s+(operator|reader)\s+(\S+)", line):
                passwords[found[1]] = found[2]
        yield Served(url, int(url.rpartition(":")[2].strip("/")), passwords, root)
    finally:
        process.terminate()
        process.wait(_READY_S)


def wait_for_the_watch(visitor: Visitor, count: int) -> None:
    """Wait until the first look at all groups is done: at 5,000 it takes some seconds."""
    deadline = time.monotonic() + _READY_S
    while f"{count * QUEUES:,}" not in visitor.get("/").text:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"no lag after {_READY_S:.0f} s: {visitor.get('/').text[:2000]}")
        time.sleep(0.5)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.console", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--count", type=int, default=5_000, help="topics, and groups")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the store lies; default: temporary")
    parser.add_argument("--quick", action="store_true", help="small, 1 round, nothing written")
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args(arguments)
    if given.quick:
        given.count, given.rounds = 200, 1
    return given


if __name__ == "__main__":
    os.environ.pop("NAMESRV_ADDR", None)
    sys.exit(main())
