"""Flood a server, as a process of its own.

    python -m tests.floods.attack NAME --broker HOST:PORT --namesrv HOST:PORT --metrics HOST:PORT

Prints `ready` when everything is prepared, begins at the first line of standard input, and ends with a
line of JSON: what was sent and answered, and what the server said when it refused.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import sys
from dataclasses import dataclass

from tests.floods.swarm import Swarm


@dataclass
class Attack:
    """Says whom to flood, for how long, and with which part of the usual numbers."""

    broker: str
    namesrv: str
    metrics: str
    seconds: float
    share: float

    def of(self, count: int, least: int = 1) -> int:
        """Return the part of a number that a short run uses."""
        return max(least, int(count * self.share))

    def port(self, offset: int) -> str:
        """Return the address of another port of the broker."""
        host, _, port = self.broker.rpartition(":")
        return f"{host}:{int(port) + offset}"


def main() -> None:
    from tests.floods.kinds import FLOODS

    parser = argparse.ArgumentParser(prog="python -m tests.floods.attack", description=__doc__)
    parser.add_argument("name", choices=FLOODS)
    parser.add_argument("--broker", required=True)
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--metrics", required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    attack = Attack(
        options.broker, options.namesrv, options.metrics, options.seconds, options.share
    )
    swarms: list[Swarm] = []
    course = FLOODS[options.name].course(attack, swarms)
    next(course)
    _say("ready")
    sys.stdin.readline()
    for _ in course:
        pass
    counts: dict[str, int] = {}
    remarks: dict[str, str] = {}
    for swarm in swarms:
        for name, count in swarm.counts.items():
            counts[name] = counts.get(name, 0) + count
        remarks |= swarm.remarks
    _say(json.dumps({"counts": counts, "remarks": remarks}))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
