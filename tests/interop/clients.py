"""Runs the client programs of the interop suite: Java 4.9 and the newest, Go, Node, C++, those that
speak gRPC (Java, Python, Node, Go, Rust), and our own.

All programs (the one over the C++ client in part, see `cpp_client`) understand the same scenarios and print JSON lines (`{"event": ...}`):

| scenario | arguments | events |
| --- | --- | --- |
| produce | namesrv topic mode (sync, async, oneway, batch) count first size tags prefix queue delays recall until-stdin (Java) | sent, recalled, summary |
| consume | namesrv topic group expression expected members member delay-ms until-stdin from fail-times max-reconsume-times reply client-rebalance pop-invisible-ms pop-delays-s (Java 5) | started, message, summary |
| request | namesrv topic count first ttl-ms | replied, failed, summary (Java, ours) |
| transact | namesrv topic group member count first size verdicts (commit, rollback, unknown, raise) check | started, sent, state, all-sent, checked, summary (Java, ours) |
| offsets | namesrv topic (`a,b`) group timestamp | queue, summary (Java) |
| traces | namesrv topic | pulled, trace, summary (Java) |
| pull | namesrv topic (`a,b`) expression | pulled, message, summary (Java) |

Producers and consumers also take `trace` and `namespace` (Java, ours), `access-key` and `secret-key`,
`tls` (Java, ours) and `may-fail`: then a scenario that fails says so by the event `failed`. Consumers
take `orderly` (Java, Go, ours).

A produced message of index i has the key `<prefix>-<i>`, the tag `tags[i % len(tags)]`, the user
property `index`, a non-ASCII user property `note`, and `body_pattern(i, size)` as its body. Its
delay is `delays[i % len(delays)]` (`level:2`, `sec:1`, `ms:1500`, `at:2000` for so many ms from then,
or nothing), and it fails its consumer `fail-times[i % len(fail-times)]` times.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.interop.peers import (
    QUICK_JAVA,
    PeerError,
    clean_environment,
    cpp_directory,
    go_binary,
    grpc_directory,
    grpc_go_binary,
    grpc_node_program,
    grpc_rust_binary,
    java_command,
    node_program,
)
from tests.waits import JVM_WAIT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Event = dict[str, Any]

# What a program that serves prints when a scenario is over.
ENDED = b'{"event":"ended"}\n'
# `ClientProcess` replaces the word in braces.
_CLIENT_JAVA = (*QUICK_JAVA, "-Xmx256m", "-Duser.home={home}", "-Djava.io.tmpdir={home}")
NOTE = "grün € 😀"
# How long a consumer that was told how many messages come waits for them: it still says how many came.
EXPECTED_WITHIN_MS = int(0.8 * JVM_WAIT_S * 1000)


def body_pattern(index: int, size: int) -> bytes:
    """The body that every client program sends as message `index`."""
    return bytes((index * 31 + j * 7 + j // 256) & 0xFF for j in range(size))


class ClientProcess:
    """The process of a client program, its home and its standard error.

    A program that serves runs one scenario after the other, since to start a JVM takes longer than
    most scenarios: a line on its standard input names a scenario, the line `end` ends it, and the
    event `ended` says that the next may come. Any other program runs the scenario of its command
    line, which ends when standard input closes.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="interop-client-"))
        self.errors = (self.home / "stderr").open("w+b")
        self.popen = subprocess.Popen(
            [part.replace("{home}", str(self.home)) for part in command],
            cwd=self.home,
            # Clients write logs below the home directory; a temporary one keeps the real one clean.
            env={**clean_environment(), "HOME": str(self.home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )

    def tell(self, line: str) -> None:
        """Write a line to standard input; whether the process still reads it shows elsewhere."""
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.write(line.encode() + b"\n")
            self.popen.stdin.flush()

    def close_stdin(self) -> None:
        """Signal to the program that nothing more comes."""
        assert self.popen.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.popen.stdin.close()

    def close(self) -> None:
        """Kill the process if it still runs, and remove its home."""
        self.popen.kill()
        self.popen.wait()
        self.close_stdin()
        assert self.popen.stdout is not None
        self.popen.stdout.close()
        self.errors.close()
        shutil.rmtree(self.home, ignore_errors=True)


# Processes that wait for a scenario, by command line, and how many of a kind are kept.
_idle: dict[tuple[str, ...], list[ClientProcess]] = {}
IDLE_OF_A_KIND = 4


@atexit.register
def _close_idle() -> None:
    for processes in _idle.values():
        while processes:
            processes.pop().close()


def end_idle(*programs: ClientProgram) -> None:
    """End the idle processes of these programs in order; a JVM that is killed writes no archive of its classes."""
    for program in programs:
        idle = _idle.get(tuple(program.command()), [])
        while idle:
            process = idle.pop()
            process.close_stdin()
            process.popen.wait(JVM_WAIT_S)
            process.close()


class RunningClient:
    """A client that runs a scenario; its events are read in the background. A context manager.

    A process of a program that serves is taken from those that are idle and, after a clean end,
    given back to them.
    """

    def __init__(
        self, label: str, command: Sequence[str], scenario: Sequence[str], *, serves: bool
    ) -> None:
        self.label = label
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._ended = False
        self._idle = _idle.setdefault(tuple(command), [])
        if serves:
            try:
                self._process = self._idle.pop()
            except IndexError:
                self._process = ClientProcess(command)
            self._process.tell("\t".join(scenario))
        else:
            self._process = ClientProcess([*command, *scenario])
        self._serves = serves
        self._popen = self._process.popen
        self._given_back = False
        self._killed = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line == ENDED:
                self._ended = True
                break
            # A client library may print a line of its own.
            if line.startswith(b'{"event"'):
                event = json.loads(line)
                with self._changed:
                    self._events.append(event)
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def events(self) -> list[Event]:
        """The events so far; PeerError with the program's output if it has failed, so that no test waits
        for those that cannot come.
        """
        with self._changed:
            if self._failed():
                raise PeerError(
                    f"{self.label}: ended with {self._popen.returncode}\n{self._report()}"
                )
            return list(self._events)

    def _failed(self) -> bool:
        """Whether the program ended by itself and not as it should."""
        if self._killed or self._reader.is_alive():
            return False
        code = self._popen.poll()
        return code is not None and (not self._ended if self._serves else code != 0)

    def named(self, name: str) -> list[Event]:
        """The events of one name so far; raises as `events`."""
        return [event for event in self.events if event["event"] == name]

    def wait_for(
        self, condition: Callable[[list[Event]], bool], timeout_s: float = JVM_WAIT_S
    ) -> list[Event]:
        """Wait until the events so far satisfy `condition`; return them."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not condition(self._events):
                left = deadline - time.monotonic()
                ended = not self._reader.is_alive()
                if left <= 0 or ended:
                    why = "ended" if ended else f"not satisfied within {timeout_s:.0f} s"
                    raise PeerError(f"{self.label}: {why}\n{self._report()}")
                self._changed.wait(min(left, 0.5))
            return list(self._events)

    def wait_started(self, members: int = 1) -> None:
        """Wait until `members` consumers of this process run."""
        self.wait_for(lambda events: _count(events, "started") >= members)

    def wait_messages(self, count: int, timeout_s: float = JVM_WAIT_S) -> list[Event]:
        """Wait for `count` message events and return those received."""
        self.wait_for(lambda events: _count(events, "message") >= count, timeout_s)
        return self.named("message")

    def finish(self, timeout_s: float = JVM_WAIT_S) -> list[Event]:
        """Ask the scenario to end, wait for its clean end and return all events."""
        if self._serves:
            self._process.tell("end")
        else:
            self._process.close_stdin()
        self._reader.join(timeout_s)
        if self._reader.is_alive():
            self.kill()
            raise PeerError(f"{self.label}: no end after {timeout_s:.0f} s\n{self._report()}")
        if self._ended:
            self._give_back()
        elif (code := self._popen.wait(timeout_s)) or self._serves:
            raise PeerError(f"{self.label}: exit status {code}\n{self._report()}")
        return list(self._events)

    def kill(self) -> None:
        """End the process at once."""
        self._killed = True
        self._popen.kill()
        self._popen.wait()

    def _give_back(self) -> None:
        self._given_back = True
        if len(self._idle) < IDLE_OF_A_KIND:
            self._idle.append(self._process)
        else:
            self._process.close()

    def _report(self) -> str:
        self._process.errors.seek(0)
        errors = self._process.errors.read().decode(errors="replace")
        return f"last events: {self._events[-5:]}\nstderr: {errors[-3000:]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._given_back:
            self.kill()
            self._reader.join(JVM_WAIT_S)
            self._process.close()


def _count(events: list[Event], name: str) -> int:
    return sum(event["event"] == name for event in events)


class ClientProgram:
    """A client program of the suite; `label` names client and version in test reports."""

    label: str
    tools: tuple[str, ...]
    # Whether it runs one scenario after the other; see `ClientProcess`.
    serves = False

    def command(self) -> list[str]:
        """The command line up to the scenario; builds the program when needed."""
        raise NotImplementedError

    def start(self, scenario: str, **args: object) -> RunningClient:
        """Start a scenario; argument `until_stdin=True` becomes `--until-stdin=true`."""
        if scenario == "consume":
            args.setdefault("timeout_ms", EXPECTED_WITHIN_MS)
        flags = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in args.items()]
        return RunningClient(
            f"{self.label} {scenario}", self.command(), [scenario, *flags], serves=self.serves
        )

    def run(self, scenario: str, **args: object) -> list[Event]:
        """Run a scenario to its end and return its events."""
        with self.start(scenario, **args) as client:
            client.wait_for(lambda events: _count(events, "summary") > 0, JVM_WAIT_S)
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
    """The Java remoting client, line 4 (4.9.x) or 5 (the newest).

    With `binary_headers` its requests carry ROCKETMQ headers in place of JSON ones. `jvm_flags` are
    system properties of its own, such as those of TLS.
    """

    tools = ("java", "mvn")
    serves = True

    def __init__(
        self, line: int, *, binary_headers: bool = False, jvm_flags: Sequence[str] = ()
    ) -> None:
        assert line in (4, 5), line
        self.line = line
        self.label = f"java{line}{'-binary' if binary_headers else ''}"
        self._serialize_type = "ROCKETMQ" if binary_headers else "JSON"
        self._jvm_flags = jvm_flags

    def command(self) -> list[str]:
        """`java ... cometmq.interop.Main` with its home in the client's temporary directory."""
        flags = [*_CLIENT_JAVA]
        # A member that meets a race at its start tries again after this, not after 20 s.
        flags.append("-Drocketmq.client.rebalance.waitInterval=2000")
        # A busy machine exceeds the three seconds that it has for this.
        flags.append("-Dcom.rocketmq.remoting.client.connect.timeout=60000")
        flags.append(f"-Drocketmq.serialize.type={self._serialize_type}")
        flags += self._jvm_flags
        return java_command(f"client{self.line}", "cometmq.interop.Main", flags)


class GrpcClient(ClientProgram):
    """A client that speaks gRPC, to the `endpoints` of a proxy. Its scenarios are produce (with `groups`,
    `delays-ms`, `priorities`, which take turns, and `recall`), transact, consume (with `delay-ms`, which take turns,
    too) and receive (a simple consumer, with `hide-s`, `extend-s` and `hold-ms`).
    """

    # The calls that a client lacks: push (consumers), hide (change for how long a message is), recall, priority. Or
    # does not do: ordered-retries (wait with the next message of a group until a failed one has succeeded).
    lacks: frozenset[str] = frozenset()
    priorities = "1,3,0,2"
    # Parts of its errors about a message that does not fit its topic's type, about a missing topic, and about a
    # wrong secret: some do not show the answer.
    of_wrong_type: str
    of_no_topic: str
    of_wrong_secret = "Failed to fetch topic"


class GrpcJavaClient(GrpcClient):
    """Java's client that speaks gRPC."""

    label = "java-grpc"
    tools = ("java", "mvn")
    serves = True
    of_wrong_type = "FIFO"
    # It has asked three times, and does not show the answer.
    of_no_topic = "Failed to fetch topics"

    def command(self) -> list[str]:
        """`java ... cometmq.interop.grpc.Main` with its home in the client's temporary directory."""
        return java_command("grpc", "cometmq.interop.grpc.Main", _CLIENT_JAVA)


class GrpcPythonClient(GrpcClient):
    """RocketMQ's Python client that speaks gRPC."""

    label = "python-grpc"
    tools = ()
    serves = True
    of_wrong_type = "message type not match"
    # The client does not show the server's answer.
    of_no_topic = of_wrong_secret = "failed to fetch topic"

    def command(self) -> list[str]:
        """`python grpc_python_client.py DIRECTORY ROOTS`, by the interpreter that runs the tests.

        A process reads only once whom it trusts, so one that has read other roots is not this client's.
        """
        program = Path(__file__).with_name("grpc_python_client.py")
        roots = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "")
        return [sys.executable, str(program), str(grpc_directory()), roots]


class GrpcNodeClient(GrpcClient):
    """RocketMQ's client for Node.js that speaks gRPC. A priority of 0 is none to it."""

    label = "node-grpc"
    tools = ("node", "npm")
    serves = True
    priorities = "2,4,1,3"
    of_wrong_type = "message type not match"
    of_no_topic = "Failed to fetch topic routes"

    def command(self) -> list[str]:
        """`node client.js ROOTS`. As with Python's client, a process of other roots is not this client's."""
        roots = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "")
        return ["node", str(grpc_node_program()), roots]


class GrpcGoClient(GrpcClient):
    """RocketMQ's Go client that speaks gRPC, module version 5."""

    label = "go-grpc"
    tools = ("go",)
    lacks = frozenset({"recall", "priority", "ordered-retries"})
    of_wrong_type = "message type not match"
    of_no_topic = "TOPIC_NOT_FOUND"
    of_wrong_secret = "signature"

    def command(self) -> list[str]:
        """The built binary."""
        return [str(grpc_go_binary())]


class GrpcRustClient(GrpcClient):
    """RocketMQ's Rust client, which speaks gRPC."""

    label = "rust-grpc"
    tools = ("cargo",)
    lacks = frozenset({"push", "hide", "recall", "priority", "ordered-retries"})
    # It does not look at the type itself: the proxy refuses the message.
    of_wrong_type = "MESSAGE_PROPERTY_CONFLICT_WITH_TYPE"
    of_no_topic = "TOPIC_NOT_FOUND"
    of_wrong_secret = "signature"

    def command(self) -> list[str]:
        """The built binary."""
        return [str(grpc_rust_binary())]


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


class CppClient(ClientProgram):
    """RocketMQ's C++ client, by the Python face of its wheel."""

    label = "cpp"

    def command(self) -> list[str]:
        """`python cpp_client.py DIRECTORY`, by the interpreter that runs the tests."""
        return [
            sys.executable,
            str(Path(__file__).with_name("cpp_client.py")),
            str(cpp_directory()),
        ]


class CometClient(ClientProgram):
    """CometMQ's own blocking clients, as a program like the others."""

    label = "cometmq"
    tools = ()
    serves = True

    def command(self) -> list[str]:
        """`python python_client.py`, by the interpreter that runs the tests."""
        return [sys.executable, str(Path(__file__).with_name("python_client.py"))]
