"""Measure our client beside others: Java's, three Python clients of RocketMQ, and two clients of Kafka.

    make bench-clients                         # the whole run; rewrites its tables in README.md
    python -m benchmarks.clients --quick       # one short round, nothing written
    python -m benchmarks.clients --only "CometMQ" --jobs async listener

Our broker (with its gRPC proxy in the same process) and a Kafka broker serve the whole run. Clients run one
after the other, never two at once, each in a process of its own. In a round, every client does every job in
turn. A number in the tables is the median of the rounds. The exit status is 1 if a message was refused or is
missing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from tests.interop.peers import cpp_directory, grpc_directory, java_classpath

from benchmarks import report
from benchmarks.client_faces import (
    ASYNC,
    BATCH,
    BATCHED,
    DRAINS,
    IN_FLIGHT,
    ITERATION,
    LISTENER,
    MEMORY,
    MORE_CLIENTS,
    ONEWAY,
    POLLS,
    SENDS,
    SILENCE_LIMIT_S,
    SYNC,
    ClientLoad,
    ClientMemory,
)
from benchmarks.frames import BATCHES, QUEUES_PER_TOPIC, SUCCESS, BenchmarkError, ControlConnection
from benchmarks.kafka import Kafka
from benchmarks.measure import STORED_LIMIT_SECONDS, Row, run_load
from benchmarks.peers import ROOT
from benchmarks.proxy import CometProxiedPeer
from benchmarks.room import STORED_BYTES_PER_SECOND, check_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.report import Cells

OTHERS: Final = ROOT / ".venv-other-clients"
JAVA_SOURCE: Final = Path(__file__).parent / "java" / "ClientLoad.java"
TOPIC: Final = "bench_clients"
FILLED_TOPIC: Final = "bench_clients_filled"
FILLED: Final = 1_000_000
UPDATE_CONSUMER_OFFSET: Final = 15
JAVA_HEAP_MIB: Final = 512
JOBS: Final = (*SENDS, *DRAINS)
ALL: Final = frozenset(JOBS)
TITLES: Final = {
    SYNC: "send, one at a time",
    ASYNC: f"send, {IN_FLIGHT:,} in flight",
    BATCH: f"send, batches of {BATCHED}",
    ONEWAY: "send, one-way",
    LISTENER: "drain, listener",
    POLLS: "drain, polls",
    ITERATION: "drain, one by one",
}
BEGIN = "<!-- clients:begin (written by `python -m benchmarks.clients`) -->"
END = "<!-- clients:end -->"


@dataclass(frozen=True, slots=True)
class Subject:
    """Names a client, its program and its jobs. `broker` is the server to which it connects."""

    label: str
    client: str
    jobs: frozenset[str] = ALL
    broker: str = "name server"
    # A virtual machine compiles hot code for some seconds, while the code already runs.
    warms_up: bool = False
    flags: tuple[str, ...] = ()


SUBJECTS: Final = (
    Subject("CometMQ, asyncio, uvloop", "comet-asyncio"),
    Subject("CometMQ, asyncio", "comet-asyncio", flags=("--without-uvloop",)),
    Subject("CometMQ, blocking, uvloop", "comet-blocking"),
    Subject("CometMQ, blocking", "comet-blocking", flags=("--without-uvloop",)),
    Subject("Java 5.5.0", "java", ALL - {ITERATION}, warms_up=True),
    Subject("rocketmq 0.4.4 (C++)", "cpp", frozenset({*SENDS, LISTENER})),
    Subject("pyrocketmq 0.3.4 (Java)", "pyrocketmq", frozenset({*SENDS, LISTENER}), warms_up=True),
    Subject(
        "rocketmq-python-client 5.1.2 (gRPC)", "grpc", frozenset({SYNC, ASYNC, LISTENER, POLLS}),
        broker="proxy",
    ),
    Subject("aiokafka, uvloop, Kafka", "aiokafka", ALL - {BATCH, LISTENER}, broker="Kafka"),
    Subject("confluent-kafka, Kafka", "confluent", ALL - {BATCH, LISTENER}, broker="Kafka"),
)  # fmt: skip


@dataclass(slots=True)
class Brokers:
    """Keeps both brokers of a run, and the addresses by which clients reach them."""

    addresses: dict[str, str]
    comet: CometProxiedPeer
    classes: Path
    settings: dict[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parsed(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    subjects = [each for each in SUBJECTS if options.only in each.label]
    found: dict[str, dict[str, list[ClientLoad]]] = {}
    memory: dict[str, dict[str, list[ClientMemory]]] = {MEMORY: {}}
    settings = report.machine()
    settings["measured seconds per round, at most"] = f"{options.seconds:g}"
    settings["messages"] = f"{options.body_bytes} bytes; {options.filled:,} in the topics to drain"
    faults = 0
    try:
        with _brokers(options, subjects) as brokers:
            settings |= brokers.settings
            try:
                for number in range(options.rounds):
                    settings["rounds"] = f"{number + 1}"
                    faults += _round(brokers, subjects, options, number, found, console)
                    if options.memory and number == 0:
                        _look_at_memory(brokers, subjects, options, memory[MEMORY])
            except KeyboardInterrupt:
                console.print("ended early; the tables have the measurements until now")
                settings["rounds"] += ", the last one incomplete"
    except BenchmarkError as error:
        console.print(f"[red]benchmark failed:[/red] {error}")
        return 1
    settings["load average after"] = f"{os.getloadavg()[0]:.2f}"
    tables = [load_cells(found)]
    if memory[MEMORY]:
        tables.append(memory_cells(memory[MEMORY]))
    tables.append([["setting", "value"], *map(list, settings.items())])
    report.show_tables(tables, console)
    if not (options.quick or options.no_write or options.only or options.jobs != list(JOBS)):
        rounds: dict[str, Any] = {**found, **memory}
        report.write_rounds("clients", (BEGIN, END), rounds, settings, tables)
    return 1 if faults else 0


def _round(
    brokers: Brokers,
    subjects: Sequence[Subject],
    options: argparse.Namespace,
    number: int,
    found: dict[str, dict[str, list[ClientLoad]]],
    console: Console,
) -> int:
    """Have every client do every job, and add the results. Return the number of faults."""
    faults = 0
    for job in options.jobs:
        for subject in subjects:
            if job not in subject.jobs:
                continue
            try:
                load, missing = _measure(brokers, subject, job, options)
            except BenchmarkError as error:
                console.print(f"[red]{error}[/red]")
                faults += 1
                continue
            faults += load.failures + missing
            found.setdefault(TITLES[job], {}).setdefault(subject.label, []).append(load)
            console.print(_line(number, job, subject, load, missing))
    return faults


def _look_at_memory(
    brokers: Brokers,
    subjects: Sequence[Subject],
    options: argparse.Namespace,
    found: dict[str, list[ClientMemory]],
) -> None:
    for subject in subjects:
        one = ClientMemory(**_run(brokers, subject, MEMORY, TOPIC, options))
        found.setdefault(subject.label, []).append(one)


# Servers ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _brokers(options: argparse.Namespace, subjects: Sequence[Subject]) -> Iterator[Brokers]:
    """Run the brokers that the subjects need within the context, with filled topics."""
    used = {each.broker for each in subjects}
    if "Kafka" in used and not OTHERS.exists():
        raise BenchmarkError(
            f"{OTHERS.name} is missing: run `make bench-clients`, which installs it"
        )
    with contextlib.ExitStack() as stack:
        name = tempfile.TemporaryDirectory(prefix="bench-clients-", dir=options.directory)
        directory = Path(stack.enter_context(name))
        check_room(directory, int(options.seconds * STORED_BYTES_PER_SECOND * options.rounds * 10))
        comet = CometProxiedPeer(directory / "comet")
        # The `settings` of a peer run git, so they are read before anything is measured.
        settings = {f"CometMQ {name}": value for name, value in comet.settings().items()}
        stack.enter_context(comet)
        _fill_comet(comet, options)
        addresses = {
            "name server": ":".join(map(str, comet.name_server)),
            "proxy": comet.endpoint,
        }
        brokers = Brokers(addresses, comet, directory / "classes", settings)
        if any(each.warms_up for each in subjects):
            _compile(brokers.classes)
            settings["Java heap, MiB"] = str(JAVA_HEAP_MIB)
        if "Kafka" in used:
            kafka = Kafka(directory / "kafka", partitions=QUEUES_PER_TOPIC, heap_mib=1024)
            stack.enter_context(kafka)
            addresses["Kafka"] = kafka.address
            settings["Kafka"] = kafka.settings()["broker"]
            _fill_kafka(brokers, options)
        yield brokers


def _compile(classes: Path) -> None:
    classes.mkdir()
    command = ["javac", "-cp", java_classpath("client5"), "-d", str(classes), str(JAVA_SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkError(f"javac cannot compile {JAVA_SOURCE}:\n{done.stderr[-2000:]}")


def _fill_comet(comet: CometProxiedPeer, options: argparse.Namespace) -> None:
    with ControlConnection(comet.address) as connection:
        for topic in (TOPIC, FILLED_TOPIC):
            answer = connection.send(topic, 0, options.body_bytes)
            if answer.code != SUCCESS:
                raise BenchmarkError(f"{comet.label}, {topic}: {answer.code} {answer.remark}")
        row = Row(1, 4, options.body_bytes, requests=BATCHES)
        sends = options.filled // BATCHED
        run_load(comet, row, ramp_seconds=0.0, seconds=600.0, sends=sends, topic=FILLED_TOPIC)
        _await_stored(connection, FILLED_TOPIC, options.filled)


def _fill_kafka(brokers: Brokers, options: argparse.Namespace) -> None:
    """Send to Kafka with confluent-kafka until the topic has enough messages for drains."""
    filler = Subject("filler", "confluent", broker="Kafka")
    sent = 0
    while sent < options.filled:
        given = argparse.Namespace(**{**vars(options), "seconds": 2.0, "warmup_seconds": 0.1})
        sent += ClientLoad(**_run(brokers, filler, ASYNC, FILLED_TOPIC, given)).total


def _await_stored(connection: ControlConnection, topic: str, count: int) -> int:
    """Wait until the topic has this many messages; return how many are still missing at the end."""
    deadline = time.monotonic() + STORED_LIMIT_SECONDS
    while (missing := count - connection.stored_messages(topic)) > 0:
        if time.monotonic() > deadline:
            return missing
        time.sleep(0.05)
    return 0


# One measurement ----------------------------------------------------------------------------------


def _measure(
    brokers: Brokers, subject: Subject, job: str, options: argparse.Namespace
) -> tuple[ClientLoad, int]:
    """Return the result of the client, and the number of its messages that the broker does not have."""
    if job in DRAINS:
        return ClientLoad(**_run(brokers, subject, job, FILLED_TOPIC, options)), 0
    if subject.broker == "Kafka":
        return ClientLoad(**_run(brokers, subject, job, TOPIC, options)), 0
    with ControlConnection(brokers.comet.address) as connection:
        before = connection.stored_messages(TOPIC)
        load = ClientLoad(**_run(brokers, subject, job, TOPIC, options))
        return load, _await_stored(connection, TOPIC, before + load.total)


def _run(
    brokers: Brokers, subject: Subject, job: str, topic: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Run the client's process. A drain uses a new group, which begins at the start of the topic."""
    group = f"bench_{time.time_ns()}"
    available = options.filled if job in DRAINS else 0
    if available and subject.broker != "Kafka":
        with ControlConnection(brokers.comet.address) as connection:
            for queue_id in range(QUEUES_PER_TOPIC):
                place = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
                connection.call(UPDATE_CONSUMER_OFFSET, {**place, "commitOffset": "0"})
    warmup_s = options.java_warmup_seconds if subject.warms_up else options.warmup_seconds
    given = [job, brokers.addresses[subject.broker], topic, group, str(options.body_bytes)]
    given += [str(warmup_s), str(options.seconds), str(available)]
    home = brokers.classes.parent / "home"
    home.mkdir(exist_ok=True)
    try:
        done = subprocess.run(
            _command(brokers, subject, given), cwd=ROOT, capture_output=True, text=True, check=False,
            # Libraries write logs into HOME; the paths of other packages are arguments.
            env={**os.environ, "HOME": str(home)}, stdin=subprocess.DEVNULL,
            timeout=options.seconds + warmup_s + 2 * SILENCE_LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise BenchmarkError(
            f"{subject.label}, {job}: the client did not end within {error.timeout:.0f} s"
        ) from error
    if done.returncode != 0 or not done.stdout.strip():
        said = f"{done.stderr.strip()[-1500:]} (exit status {done.returncode})"
        raise BenchmarkError(f"{subject.label}, {job}: {said}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _command(brokers: Brokers, subject: Subject, given: Sequence[str]) -> list[str]:
    """Return the command line. `given` has the arguments of ClientLoad.java, without its last three."""
    if subject.client == "java":
        heap = [
            f"-Xms{JAVA_HEAP_MIB}m",
            f"-Xmx{JAVA_HEAP_MIB}m",
            "-Drocketmq.client.logLevel=ERROR",
        ]
        path = f"{brokers.classes}:{java_classpath('client5')}"
        return [
            *("java", *heap, "-cp", path, "ClientLoad", *given),
            *(str(IN_FLIGHT), str(BATCHED), str(MORE_CLIENTS)),
        ]
    job, address, topic, group, body_bytes, warmup_s, seconds, available = given
    command = [sys.executable, "-m", "benchmarks.client_load", "--client", subject.client]
    command += ["--job", job, "--address", address, "--topic", topic, "--group", group]
    command += ["--body-bytes", body_bytes, "--warmup-seconds", warmup_s, "--seconds", seconds]
    command += ["--available", available, *subject.flags]
    if subject.client == "cpp":
        command += ["--path", str(cpp_directory())]
    elif subject.client == "grpc":
        command += ["--path", str(grpc_directory())]
    elif not subject.client.startswith("comet"):
        command += ["--path", str(OTHERS)]
    if subject.client == "pyrocketmq":
        # pyrocketmq imports names that Java's client of 5.x has in other packages.
        command += ["--class-path", java_classpath("client4")]
    return command


# Tables -------------------------------------------------------------------------------------------


def _line(number: int, job: str, subject: Subject, load: ClientLoad, missing: int) -> str:
    faults = f", {load.failures} failed" if load.failures else ""
    faults += f", {missing} not stored" if missing else ""
    return (
        f"round {number + 1} {TITLES[job]}, {subject.label}: {load.messages / load.seconds:,.0f}/s, "
        f"{load.cpu_seconds / max(load.messages, 1) * 1e6:.1f} µs{faults}"
    )


def load_cells(found: dict[str, dict[str, list[ClientLoad]]]) -> Cells:
    """Return a line with the medians of the rounds for each job of each client."""
    head = ["job", "client", "messages/s", "lowest–highest round", "client's CPU, µs/message"]
    table = [[*head, "messages per second of CPU", "p50 / p99, ms"]]
    for title, by_label in found.items():
        for label, loads in by_label.items():
            rates = [one.messages / one.seconds for one in loads]
            cost_us = statistics.median(
                one.cpu_seconds / max(one.messages, 1) * 1e6 for one in loads
            )
            doubtful = " (!)" if any(one.failures for one in loads) else ""
            table.append(
                [
                    title,
                    label,
                    f"{statistics.median(rates):,.0f}{doubtful}",
                    f"{min(rates):,.0f}–{max(rates):,.0f}",
                    f"{cost_us:.1f}",
                    f"{1e6 / cost_us:,.0f}" if cost_us else "–",
                    _latency(loads)
                    if title in (TITLES[SYNC], TITLES[ASYNC], TITLES[BATCH])
                    else "–",
                ]
            )
    return table


def _latency(loads: Sequence[ClientLoad]) -> str:
    if any(one.p50_ms is None or one.p99_ms is None for one in loads):
        return "–"
    p50, p99 = (
        statistics.median(getattr(one, name) for one in loads) for name in ("p50_ms", "p99_ms")
    )
    return f"{p50:.2f} / {p99:.2f}"


def memory_cells(found: dict[str, list[ClientMemory]]) -> Cells:
    """Return a line for each client: its memory with one producer, and that of each further producer."""
    table = [["client", "one producer, resident", "threads", "each further one", "threads"]]
    for label, each in found.items():
        medians = [
            statistics.median(getattr(one, name) for one in each)
            for name in ("resident_kib", "threads", "each_kib", "each_threads")
        ]
        resident, threads, each_kib, each_threads = medians
        sizes = f"{resident / 1024:.0f} MiB", f"{each_kib:,.0f} KiB"
        table.append([label, sizes[0], f"{threads:.0f}", sizes[1], f"{each_threads:.1f}"])
    return table


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="most seconds that a round measures"
    )
    parser.add_argument("--warmup-seconds", type=float, default=1.0)
    parser.add_argument("--java-warmup-seconds", type=float, default=5.0)
    parser.add_argument("--body-bytes", type=int, default=128)
    parser.add_argument("--filled", type=int, default=FILLED, help="messages in a topic to drain")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS))
    parser.add_argument("--only", default="", help="run only clients with this text in their name")
    parser.add_argument("--directory", type=Path, default=None, help="directory of the stores")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument(
        "--quick", action="store_true", help="run one short round, and write nothing"
    )
    parser.add_argument("--no-write", action="store_true")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds, options.warmup_seconds = 1, 0.5, 0.3
        options.java_warmup_seconds, options.filled = 1.0, 100_000
    return options


if __name__ == "__main__":
    sys.exit(main())
