"""Runs the client programs of the interop suite: Java 4.9 and 5.x, Go, Node, and our own.

All programs understand the same scenarios and print JSON lines (`{"event": ...}`):

| scenario | arguments | events |
| --- | --- | --- |
| produce | namesrv topic mode (sync, async, oneway, batch) count first size tags prefix queue delays recall | sent, recalled, summary |
| consume | namesrv topic group expression expected members member delay-ms until-stdin from fail-times max-reconsume-times reply | started, message, summary |
| request | namesrv topic count first ttl-ms | replied, failed, summary (Java, ours) |
| transact | namesrv topic group member count first size verdicts (commit, rollback, unknown, raise) check | started, sent, state, all-sent, checked, summary (Java, ours) |
| offsets | namesrv topic (`a,b`) group timestamp | queue, summary (Java) |
| traces | namesrv topic | pulled, trace, summary (Java) |
| pull | namesrv topic (`a,b`) expression | pulled, message, summary (Java) |

Producers and consumers also take `trace` and `namespace` (Java, ours).

A produced message of index i has the key `<prefix>-<i>`, the tag `tags[i % len(tags)]`, the user
property `index`, a non-ASCII user property `note`, and `body_pattern(i, size)` as its body. Its
delay is `delays[i % len(delays)]` (`level:2`, `sec:1`, `ms:1500`, `at:2000` for so many ms from then,
or nothing), and it fails its consumer `fail-times[i % len(fail-times)]` times.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.interop.peers import (
    PeerError,
    clean_environment,
    go_binary,
    java_classpath,
    node_program,
)

if TYPE_CHECKING:
    from collections.abc import Callable

Event = dict[str, Any]

NOTE = "grün € 😀"
RUN_TIMEOUT_S = 300.0
FINISH_TIMEOUT_S = 120.0
# How long a consumer that was told how many messages come waits for them.
EXPECTED_WITHIN_MS = 240_000


def body_pattern(index: int, size: int) -> bytes:
    """The body that every client program sends as message `index`."""
    return bytes((index * 31 + j * 7 + j // 256) & 0xFF for j in range(size))


class RunningClient:
    """One client process; its events are read in the background. A context manager."""

    def __init__(self, label: str, command: list[str]) -> None:
        self.label = label
        self.events: list[Event] = []
        self._changed = threading.Condition()
        self._home = Path(tempfile.mkdtemp(prefix="interop-client-"))
        self._errors = (self._home / "stderr").open("w+b")
        # Clients write logs below the home directory; a temporary one keeps the real one clean.
        environment = {**clean_environment(), "HOME": str(self._home)}
        command = [part.replace("{home}", str(self._home)) for part in command]
        self._process = subprocess.Popen(
            command,
            cwd=self._home,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # A client library may print a line of its own.
            if line.startswith(b'{"event"'):
                event = json.loads(line)
                with self._changed:
                    self.events.append(event)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def named(self, name: str) -> list[Event]:
        """The events of one name so far."""
        with self._changed:
            return [event for event in self.events if event["event"] == name]

    def wait_for(
        self, condition: Callable[[list[Event]], bool], timeout_s: float = 180.0
    ) -> list[Event]:
        """Wait until the events so far satisfy `condition`; return them."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition(self.events):
                left = deadline - time.monotonic()
                ended = not self._reader.is_alive()
                if left <= 0 or ended:
                    why = "ended" if ended else f"not satisfied within {timeout_s:.0f} s"
                    raise PeerError(f"{self.label}: {why}\n{self._report()}")
                self._changed.wait(min(left, 0.5))
            return list(self.events)

    def wait_started(self, members: int = 1) -> None:
        """Wait until `members` consumers of this process run."""
        self.wait_for(lambda events: _count(events, "started") >= members)

    def wait_messages(self, count: int, timeout_s: float = 180.0) -> list[Event]:
        """Wait for `count` message events and return those received."""
        self.wait_for(lambda events: _count(events, "message") >= count, timeout_s)
        return self.named("message")

    def finish(self, timeout_s: float = FINISH_TIMEOUT_S) -> list[Event]:
        """Close standard input, wait for a clean end and return all events."""
        self._close_stdin()
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise PeerError(
                f"{self.label}: no end after {timeout_s:.0f} s\n{self._report()}"
            ) from error
        self._reader.join(timeout_s)
        if code != 0:
            raise PeerError(f"{self.label}: exit status {code}\n{self._report()}")
        return list(self.events)

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def _close_stdin(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def _report(self) -> str:
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")
        return f"last events: {self.events[-5:]}\nstderr: {errors[-3000:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._close_stdin()
        if self._process.poll() is None:
            self.kill()
        self._reader.join(FINISH_TIMEOUT_S)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
        shutil.rmtree(self._home, ignore_errors=True)


def _count(events: list[Event], name: str) -> int:
    return sum(event["event"] == name for event in events)


class ClientProgram:
    """A client program of the suite; `label` names client and version in test reports."""

    label: str
    tools: tuple[str, ...]

    def command(self) -> list[str]:
        """The command line up to the scenario; builds the program when needed."""
        raise NotImplementedError

    def start(self, scenario: str, **args: object) -> RunningClient:
        """Start a scenario; argument `until_stdin=True` becomes `--until-stdin=true`."""
        if scenario == "consume":
            args.setdefault("timeout_ms", EXPECTED_WITHIN_MS)
        flags = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in args.items()]
        return RunningClient(f"{self.label} {scenario}", [*self.command(), scenario, *flags])

    def run(self, scenario: str, **args: object) -> list[Event]:
        """Run a scenario to its end and return its events."""
        with self.start(scenario, **args) as client:
            client.wait_for(lambda events: _count(events, "summary") > 0, RUN_TIMEOUT_S)
            return client.finish()

    def produce(self, **args: object) -> list[Event]:
        """The `sent` events of a produce scenario; raises when a send failed."""
        events = self.run("produce", **args)
        failed = [event for event in events if event["event"] == "failed"]
        if failed or events[-1]["failed"]:
            raise PeerError(f"{self.label}: failed sends: {failed[:3]} {events[-1]}")
        return [event for event in events if event["event"] == "sent"]

    def pull(self, **args: object) -> list[Event]:
        """The `message` events of a pull scenario: every message of a topic."""
        return [event for event in self.run("pull", **args) if event["event"] == "message"]


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


class JavaClient(ClientProgram):
    """The Java remoting client, line 4 (4.9.x) or 5 (5.x).

    With `binary_headers` its requests carry ROCKETMQ headers in place of JSON ones.
    """

    tools = ("java", "mvn")

    def __init__(self, line: int, *, binary_headers: bool = False) -> None:
        assert line in (4, 5), line
        self.line = line
        self.label = f"java{line}{'-binary' if binary_headers else ''}"
        self._serialize_type = "ROCKETMQ" if binary_headers else "JSON"

    def command(self) -> list[str]:
        """`java ... cometmq.interop.Main` with its home in the client's temporary directory."""
        classpath = java_classpath(f"client{self.line}")
        # A short-lived client gains from a quick compiler, and two cores from a serial collector.
        flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m", "-Duser.home={home}"]
        # A member that meets a race at its start tries again after this, not after 20 s.
        flags.append("-Drocketmq.client.rebalance.waitInterval=2000")
        flags.append(f"-Drocketmq.serialize.type={self._serialize_type}")
        return ["java", *flags, "-cp", classpath, "cometmq.interop.Main"]


class GoClient(ClientProgram):
    """The Go client, module version 2."""

    label = "go"
    tools = ("go",)

    def command(self) -> list[str]:
        """The built binary."""
        return [str(go_binary())]


class NodeClient(ClientProgram):
    """The pure JavaScript remoting client on Node.js."""

    label = "node"
    tools = ("node", "npm")

    def command(self) -> list[str]:
        """`node client.js`."""
        return ["node", str(node_program())]


class CometClient(ClientProgram):
    """CometMQ's own blocking clients, as a program like the others."""

    label = "cometmq"
    tools = ()

    def command(self) -> list[str]:
        """`python python_client.py`, by the interpreter that runs the tests."""
        return [sys.executable, str(Path(__file__).with_name("python_client.py"))]
