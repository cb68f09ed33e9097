"""Measure the cost of access control and TLS for a send, at our broker and at Java's.

    python -m benchmarks.access              # the whole run; rewrites its table in README.md
    python -m benchmarks.access --quick      # two minutes, nothing written

Brokers without protection, with ACL 1.0, with ACL 2.0, with TLS, and with ACL 2.0 and TLS run
beside each other and are loaded in turn, never two of them at once. All loads repeat the same 4,000
messages, so that the generator need not sign while it measures; they are signed as Java's clients
sign. Java's last release with ACL 1.0 is 5.2, so it is compared with a 5.2 without; the rest is the newest.
A number in the table is the median of the rounds. The exit status is 1 when a send failed or an
acknowledged message was not stored. A run does not begin on a disk that it may fill, and ends as soon
as a broker refuses every send.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from tests.certificates import Authority
from tests.interop.guarded import OWNER, Acl1Broker, Acl2Broker, plain_acl
from tests.interop.peers import NEWEST_JAVA, JavaBroker

from benchmarks import report
from benchmarks.door import OPEN, Door
from benchmarks.frames import BenchmarkError
from benchmarks.measure import Measurement, Row, create_topic, measure_stored, run_load
from benchmarks.peers import CometPeer, JavaPeer, Peer
from benchmarks.room import STORED_BYTES_PER_SECOND, check_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.report import Cells

NEWEST = f"Java {NEWEST_JAVA}"
ROWS = (Row(64, 1, 1024), Row(4, 32, 1024))
HERE = Path(__file__).parent
BEGIN = "<!-- access:begin (written by `python -m benchmarks.access`) -->"
END = "<!-- access:end -->"
SIGNED = Door(OWNER.access_key, OWNER.secret_key)
ENCRYPTED = Door(tls=True)
BOTH = Door(OWNER.access_key, OWNER.secret_key, tls=True)


class NewestAcl2Broker(Acl2Broker):
    """The newest release with ACL 2.0."""

    module = JavaBroker.module


class Java52Broker(JavaBroker):
    """The last release with ACL 1.0, without it."""

    module = "server52"


class JavaGuardedPeer(JavaPeer):
    """Runs Java's broker of one release, with access control or without."""

    def __init__(
        self, directory: Path, label: str, broker: type[JavaBroker], door: Door, heap_mib: int
    ) -> None:
        self.broker_class = broker
        super().__init__(directory, heap_mib=heap_mib, conf={"flushDiskType": "ASYNC_FLUSH"})
        self.label = label
        self.door = door


class CometGuardedPeer(CometPeer):
    """Runs our broker with the settings of one protection."""

    def __init__(self, directory: Path, label: str, door: Door, conf: Mapping[str, str]) -> None:
        super().__init__(directory, conf={"flushDiskType": "ASYNC_FLUSH", **conf})
        self.label = label
        self.door = door


@dataclass(frozen=True, slots=True)
class Case:
    """One protection at one side: which peer has it, how to get in, and what it is compared with."""

    side: str
    protection: str
    peer: str
    door: Door
    base: str = "none"

    @property
    def name(self) -> str:
        return f"{self.side}, {self.protection}"

    @property
    def base_name(self) -> str:
        return f"{self.side}, {self.base}"


CASES = (
    Case("Java", "none", NEWEST, OPEN),
    Case("Java", "none (5.2)", "Java 5.2", OPEN, base="none (5.2)"),
    Case("Java", "ACL 1.0", "Java 5.2, ACL 1.0", SIGNED, base="none (5.2)"),
    Case("Java", "ACL 2.0", f"{NEWEST}, ACL 2.0", SIGNED),
    Case("Java", "TLS", NEWEST, ENCRYPTED),
    Case("Java", "ACL 2.0 and TLS", f"{NEWEST}, ACL 2.0", BOTH),
    Case("CometMQ", "none", "CometMQ", OPEN),
    Case("CometMQ", "ACL 1.0", "CometMQ, ACL 1.0", SIGNED),
    Case("CometMQ", "ACL 2.0", "CometMQ, ACL 2.0", SIGNED),
    Case("CometMQ", "TLS", "CometMQ, TLS", ENCRYPTED),
    Case("CometMQ", "ACL 2.0 and TLS", "CometMQ, ACL 2.0", BOTH),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_options(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    settings = {**report.machine(), "rounds": str(options.rounds)}
    settings["measured seconds per round"] = f"{options.seconds:g}"
    settings["Java heap, MiB"] = str(options.java_heap_mib)
    found: dict[str, dict[str, list[Measurement]]] = {}
    cases = [case for case in CASES if case.side in options.sides]
    try:
        with _peers(options, cases) as peers:
            for peer in peers.values():
                settings[peer.label] = peer.settings()["broker"]
            for row in ROWS:
                for case in cases:
                    _warm_up(peers[case.peer], case, row, options)
            for number in range(options.rounds):
                for row in ROWS:
                    for case in cases:
                        peer = peers[case.peer]
                        measured = measure_stored(
                            peer,
                            row,
                            ramp_seconds=options.ramp_seconds,
                            seconds=options.seconds,
                            door=case.door,
                        )
                        by_case = found.setdefault(row.title, {})
                        by_case.setdefault(case.name, []).append(measured)
                        fault = "" if measured.trustworthy else report.complaint(measured)
                        console.print(
                            f"round {number + 1} {row.title} {case.name}: "
                            f"{measured.load.acked_per_second:,.0f}/s {fault}"
                        )
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    tables = [_cells(found, cases), [["setting", "value"], *map(list, settings.items())]]
    report.show_tables(tables, console)
    if not (options.quick or options.no_write):
        report.write_rounds("access", (BEGIN, END), found, settings, tables)
    measurements = [each for row in found.values() for case in row.values() for each in case]
    return 0 if all(each.trustworthy for each in measurements) else 1


@contextlib.contextmanager
def _peers(options: argparse.Namespace, cases: Sequence[Case]) -> Iterator[dict[str, Peer]]:
    """Run every peer that a case needs within the context."""
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="bench-access-", dir=options.directory)
        )
        check_room(Path(name), needed_bytes(options, cases))
        wanted = {case.peer for case in cases}
        running: dict[str, Peer] = {}
        for label, peer in made_brokers(Path(name), options.java_heap_mib, wanted):
            running[label] = stack.enter_context(peer)
        yield running


def needed_bytes(options: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Return how much the stores of a run take at most; they stay until its end."""
    seconds = 0.0
    for case in cases:
        peer = JavaPeer if case.side == "Java" else CometPeer
        seconds += min(options.warmup_seconds, peer.warmup_limit_seconds)
        seconds += options.rounds * (options.ramp_seconds + options.seconds)
    return int(len(ROWS) * seconds * STORED_BYTES_PER_SECOND)


def made_brokers(directory: Path, heap_mib: int, wanted: set[str]) -> Iterator[tuple[str, Peer]]:
    java: dict[str, tuple[type[JavaBroker], Door]] = {
        NEWEST: (JavaBroker, OPEN),
        "Java 5.2": (Java52Broker, OPEN),
        "Java 5.2, ACL 1.0": (Acl1Broker, SIGNED),
        f"{NEWEST}, ACL 2.0": (NewestAcl2Broker, SIGNED),
    }
    for label, (broker, door) in java.items():
        if label in wanted:
            place = directory / _file_name(label)
            yield label, JavaGuardedPeer(place, label, broker, door, heap_mib)
    if not any(label.startswith("CometMQ") for label in wanted):
        return
    pair = Authority(directory / "certificates").sign("server", "IP:127.0.0.1")
    tls = {
        "tls.server.mode": "permissive",
        "tls.server.certPath": str(pair.certificate),
        "tls.server.keyPath": str(pair.key),
    }
    home = directory / "home"
    (home / "conf").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(plain_acl())
    user = json.dumps({"username": OWNER.access_key, "password": OWNER.secret_key})
    acl_2 = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": user,
        "authConfigPath": str(directory / "auth"),
    }
    ours: dict[str, tuple[Door, dict[str, str]]] = {
        "CometMQ": (OPEN, {}),
        "CometMQ, ACL 1.0": (SIGNED, {"aclEnable": "true", "rocketmqHome": str(home)}),
        "CometMQ, ACL 2.0": (SIGNED, {**acl_2, **tls}),
        "CometMQ, TLS": (OPEN, tls),
    }
    for label, (door, conf) in ours.items():
        if label in wanted:
            yield label, CometGuardedPeer(directory / _file_name(label), label, door, conf)


def _file_name(label: str) -> str:
    return "".join(character if character.isalnum() else "-" for character in label)


def _warm_up(peer: Peer, case: Case, row: Row, options: argparse.Namespace) -> None:
    """Have Java's compiler see the load. This also makes the topic."""
    create_topic(peer, row, case.door)
    seconds = min(options.warmup_seconds, peer.warmup_limit_seconds)
    run_load(peer, row, ramp_seconds=seconds / 2, seconds=seconds / 2, door=case.door)


def _cells(found: dict[str, dict[str, list[Measurement]]], cases: Sequence[Case]) -> Cells:
    """Return a heading, then a line for each row and case; ratios are to the same side without."""
    table = [[
        "connections × in flight, body", "broker, protection", "sends/s", "lowest–highest round",
        "of its own without", "broker's CPU, µs/send", "more than without", "p50 / p99, ms",
        "generator's CPU, cores",
    ]]  # fmt: skip
    for title, by_case in found.items():
        for case in cases:
            each, base = by_case[case.name], by_case[case.base_name]
            rates = [one.load.acked_per_second for one in each]
            rate = statistics.median(rates)
            cpu, base_cpu = _cpu_us(each), _cpu_us(base)
            doubtful = "" if all(one.trustworthy for one in each) else " (!)"
            table.append(
                [
                    title,
                    case.name,
                    f"{rate:,.0f}{doubtful}",
                    f"{min(rates):,.0f}–{max(rates):,.0f}",
                    f"{rate / statistics.median(one.load.acked_per_second for one in base):.2f}×",
                    f"{cpu:.1f}",
                    f"{cpu - base_cpu:+.1f}",
                    f"{_latency_ms(each, 'p50')} / {_latency_ms(each, 'p99')}",
                    f"{statistics.median(one.generator_cpu_share for one in each):.2f}",
                ]
            )
    return table


def _cpu_us(each: Sequence[Measurement]) -> float:
    return statistics.median(one.server_cpu_us_per_send or 0.0 for one in each)


def _latency_ms(each: Sequence[Measurement], percentile: str) -> str:
    values: list[float] = [getattr(one.load, f"latency_{percentile}_us") or 0.0 for one in each]
    return f"{statistics.median(values) / 1e3:.2f}"


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.access", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured part of a round")
    parser.add_argument("--ramp-seconds", type=float, default=1.0, help="unmeasured part before it")
    parser.add_argument("--warmup-seconds", type=float, default=20.0, help="per row, for Java")
    parser.add_argument("--java-heap-mib", type=int, default=1024, help="-Xms and -Xmx of each")
    parser.add_argument("--sides", default="Java,CometMQ")
    parser.add_argument("--directory", type=Path, help="where the stores lie; default: temporary")
    parser.add_argument("--quick", action="store_true", help="1 short round, nothing written")
    parser.add_argument("--no-write", action="store_true", help="only print")
    given = parser.parse_args(arguments)
    given.sides = tuple(given.sides.split(","))
    if given.quick:
        given.rounds, given.seconds, given.warmup_seconds = 1, 1.5, 2.0
    return given


if __name__ == "__main__":
    os.environ.pop("NAMESRV_ADDR", None)
    sys.exit(main())
