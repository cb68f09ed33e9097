"""Flood a broker and a name server, and measure what a well-behaved client notices.

    python -m tests.floods [--only NAME …] [--seconds 15] [--share 1.0] [--json FILE] [--report]

Each flood meets servers of its own. The client of `tests.floods.honest` is measured before the flood
(its quiet value) and during it. The generator runs on one core, and only when nothing else wants it
(SCHED_IDLE), as if it ran on a machine of its own. `--report` writes the table in
docs/reliability.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.memory import AnonymousPeak, read_memory
from tests.floods import report
from tests.floods.honest import TOPIC
from tests.floods.kinds import FLOODS, Flood
from tests.floods.servers import Loop, Server, Servers, running

_RAMP_S: Final = 2.0
# The server's limits are written down once in a second.
_WRITTEN_WITHIN_S: Final = 1.5
_ATTACK_LIMIT_S: Final = 300.0


@dataclass
class Outcome:
    """Holds what one flood did."""

    name: str
    title: str
    quiet: dict[str, object]
    flooded: dict[str, object]
    loop: Loop
    quiet_loop: Loop
    resident_before_mib: int
    resident_peak_mib: int
    anonymous_before_mib: int
    anonymous_peak_mib: int
    counts: dict[str, int]
    remarks: dict[str, str]
    stop_s: float = 0.0
    died: bool = False
    log: dict[str, int] = field(default_factory=dict)
    # How often each limit refused something while it was flooded.
    limits: dict[str, int] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.floods", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", action="append", choices=FLOODS, default=[])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--quiet-seconds", type=float, default=8.0)
    parser.add_argument("--share", type=float, default=1.0, help="part of the usual numbers")
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--report", action="store_true", help="write the table in the documents")
    parser.add_argument("--from-json", type=Path, help="report these figures; measure nothing")
    options = parser.parse_args()
    if options.from_json is not None:
        report.write(json.loads(options.from_json.read_text()))
        return 0
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="floods-") as root:
        for name in options.only or FLOODS:
            directory = Path(root, name)
            directory.mkdir()
            outcome = measure(
                name, directory, options.seconds, options.quiet_seconds, options.share
            )
            empty_files(directory)
            outcomes.append(asdict(outcome))
            sys.stdout.write(report.lines(outcomes[-1]) + "\n")
            sys.stdout.flush()
            if options.json is not None:
                options.json.write_text(json.dumps(outcomes, indent=1))
    if options.report:
        report.write(outcomes)
    return 1 if any(outcome["died"] for outcome in outcomes) else 0


def empty_files(directory: Path) -> None:
    """Give back the room of files, but not the files: ext4 looks past each inode that was freed in the
    last half minute when it makes one, which cost the next flood's broker 0.3 ms for each new file.
    """
    for file in directory.rglob("*"):
        if file.is_file():
            os.truncate(file, 0)


def measure(name: str, directory: Path, seconds: float, quiet_s: float, share: float) -> Outcome:
    """Flood servers of their own in `directory`."""
    flood = FLOODS[name]
    with (
        running(directory, flood.settings, TOPIC) as servers,
        attacking(name, servers, seconds + _RAMP_S + 3.0, share) as attack,
    ):
        assert attack.stdout is not None
        first = attack.stdout.readline()
        assert first == b"ready\n", f"the attack {name} did not begin: {first!r}"
        if flood.cold:
            servers.restart_cold()
        return _measured(name, flood, servers, attack, seconds, quiet_s)


def _measured(
    name: str,
    flood: Flood,
    servers: Servers,
    attack: subprocess.Popen[bytes],
    seconds: float,
    quiet_s: float,
) -> Outcome:
    target = servers.namesrv if flood.of_namesrv else servers.broker
    begin_s = time.monotonic()
    quiet = honest(servers, quiet_s, of_namesrv=flood.of_namesrv)
    quiet_loop = target.loop(begin_s, time.monotonic())
    target.forget_peak()
    before = read_memory(target.pid)
    hits_before = target.limit_hits()
    assert attack.stdin is not None
    with AnonymousPeak(target.pid) as peak:
        attack.stdin.write(b"go\n")
        attack.stdin.flush()
        time.sleep(_RAMP_S)
        if flood.computes:
            target.process.send_signal(signal.SIGUSR2)
        began_s = time.monotonic()
        flooded = honest(servers, seconds, of_namesrv=flood.of_namesrv)
        ended_s = time.monotonic()
        if flood.computes:
            target.process.send_signal(signal.SIGUSR2)
        reported, _ = attack.communicate(timeout=_ATTACK_LIMIT_S)
        time.sleep(_WRITTEN_WITHIN_S)
        died = target.process.poll() is not None
        resident_kib = 0 if died else read_memory(target.pid).peak_resident_kib
    reported_of = json.loads(reported or b'{"counts": {}, "remarks": {}}')
    return Outcome(
        name,
        flood.title,
        quiet,
        flooded,
        target.loop(began_s, ended_s),
        quiet_loop,
        before.resident_kib >> 10,
        resident_kib >> 10,
        before.anonymous_kib >> 10,
        peak.peak_kib >> 10,
        reported_of["counts"],
        reported_of["remarks"],
        servers.broker.stop() if not flood.of_namesrv else servers.namesrv.stop(),
        died,
        lines_of(target),
        {
            name: count - hits_before.get(name, 0)
            for name, count in target.limit_hits().items()
            if count > hits_before.get(name, 0)
        },
    )


def honest(servers: Servers, seconds: float, *, of_namesrv: bool) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.floods.honest", servers.broker.address]
    command += ["--seconds", str(seconds)]
    if of_namesrv:
        command += ["--namesrv", servers.namesrv.address]
    done = subprocess.run(command, capture_output=True, check=False, timeout=seconds + 120)
    if done.returncode:
        return {"failed": done.stderr.decode()[-500:]}
    measured: dict[str, object] = json.loads(done.stdout)
    return measured


@contextlib.contextmanager
def attacking(
    name: str, servers: Servers, seconds: float, share: float
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the generator on the last core, whenever nothing else wants it, until the context ends."""
    command = [sys.executable, "-m", "tests.floods.attack", name]
    command += ["--broker", servers.broker.address, "--namesrv", servers.namesrv.address]
    command += ["--metrics", servers.metrics, "--seconds", str(seconds), "--share", str(share)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def lines_of(server: Server) -> dict[str, int]:
    """Return how often each line of the log came."""
    counts: dict[str, int] = {}
    for line in server.log.read_text(errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            event = str(json.loads(line).get("event"))
            counts[event] = counts.get(event, 0) + 1
    return dict(sorted(counts.items(), key=lambda each: -each[1])[:12])


if __name__ == "__main__":
    sys.exit(main())
