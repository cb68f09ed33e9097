"""Two pairs of master and slave and two name servers, on hosts that are lost.

`Cluster` runs the processes, loses them, and makes a slave the master as operators do it: stop, change
role and id, start. `Member` is the process of the clients, `lost_nodes_member`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, Self

from tests.crash.hosts import Hosts
from tests.crash.lost_nodes_judge import raw_log, stored_in
from tests.waits import CLOCK, WAIT_S, eventually

from cometmq.runtime.sockets.ports import HeldPort

CLUSTER = "lost-cluster"
GROUPS = ("a", "b")
LOG_FILE = 1 << 20
DISK_BYTES = 64 << 20
DEADLINE_S = 2 * WAIT_S
# The word of a server that is up.
READY = "boot success"


class Node:
    """A server on a host, with its files. It can be killed at any time and started again."""

    def __init__(self, name: str, hosts: Hosts, host: str, directory: Path, port: int) -> None:
        self.name = name
        self.host = host
        self.hosts = hosts
        self.directory = directory
        self.port = port
        self.address = f"{hosts.address(host)}:{port}"
        self.conf: dict[str, str] = {}
        self.program = "broker"
        self.process: subprocess.Popen[bytes] | None = None
        self._read = 0
        directory.mkdir(exist_ok=True)

    @property
    def store(self) -> Path:
        return self.directory / "store"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, *, wait: bool = True) -> None:
        conf = self.directory / "conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self.conf.items()))
        self._read = self.log.stat().st_size if self.log.exists() else 0
        command = [sys.executable, "-m", "cometmq", self.program, "-c", str(conf)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.hosts.command(self.host, command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        eventually(self._is_ready, wait_s=DEADLINE_S, note=self.said()[-2000:])

    def _is_ready(self) -> bool:
        assert self.is_up, f"{self.name} ended:\n{self.said()[-3000:]}"
        return READY in self.said()

    def said(self) -> str:
        """The text that it logged since its last start."""
        with self.log.open("rb") as log:
            log.seek(self._read)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(DEADLINE_S)
            self.process = None

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(DEADLINE_S)
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


class Cluster:
    """A context manager. Nodes are named `names-0`, `names-1`, and `a-0`, `a-1`, `b-0`, `b-1`.

    `masters` are the brokers' nodes that are masters now, by the group's name.
    """

    def __init__(self, directory: Path, rng: random.Random, history: Path) -> None:
        self.directory = directory
        self.rng = rng
        self.history_path = history
        self._stack = contextlib.ExitStack()
        brokers = [f"{group}-{number}" for group in GROUPS for number in (0, 1)]
        self.hosts = Hosts(["names-0", "names-1", *brokers, "clients"])
        self.nodes: dict[str, Node] = {}
        self.masters: dict[str, Node] = {}
        # Why disks cannot be filled here, if they cannot.
        self.no_disks = ""
        self.counts: dict[str, int] = defaultdict(int)

    def __enter__(self) -> Self:
        self._stack.enter_context(self.hosts)
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        for number in (0, 1):
            node = self._new(f"names-{number}")
            node.program = "namesrv"
            node.conf = {
                "listenPort": str(node.port),
                "bindAddress": self.hosts.address(node.host),
                "protectedMode": "false",
                "kvConfigPath": str(node.directory / "kv.json"),
                "configStorePath": str(node.directory / "names.properties"),
                # Brokers that are gone are taken from routes when their connection ends; those that
                # are silent, within this time.
                "scanNotActiveBrokerInterval": "1000",
            }
        self.namesrv = ";".join(self.nodes[f"names-{number}"].address for number in (0, 1))
        for group in GROUPS:
            for number in (0, 1):
                self._new_broker(group, number)
            self.masters[group] = self.nodes[f"{group}-0"]
        for node in self.nodes.values():
            node.start(wait=False)
        for node in self.nodes.values():
            node.wait_ready()

    def _new(self, name: str) -> Node:
        # A port and its neighbours are free on every host when they are so here.
        port = self._stack.enter_context(HeldPort((-2, 1))).port
        directory = self.directory / name
        node = Node(name, self.hosts, name, directory, port)
        self._stack.callback(node.kill)
        self.nodes[name] = node
        return node

    def _new_broker(self, group: str, number: int) -> None:
        node = self._new(f"{group}-{number}")
        node.store.mkdir()
        self._mount(node.store)
        address = self.hosts.address(node.host)
        node.conf = {
            "brokerClusterName": CLUSTER,
            "brokerName": group,
            "brokerId": str(number),
            "brokerRole": "SLAVE" if number else "SYNC_MASTER",
            "brokerIP1": address,
            "brokerIP2": address,
            "bindAddress": address,
            "protectedMode": "false",
            "listenPort": str(node.port),
            "namesrvAddr": self.namesrv,
            "registerNameServerPeriod": "10000",
            "storePathRootDir": str(node.store),
            "mappedFileSizeCommitLog": str(LOG_FILE),
            "mappedFileSizeConsumeQueue": "20000",
            "maxHashSlotNum": "1000",
            "maxIndexNum": "4000",
            "timerWheelEnable": "false",
            "slaveReadEnable": "true",
            "adminFrom": self.hosts.address("clients"),
            "slaveTimeout": "1000",
            "haSendHeartbeatInterval": "500",
            "haHousekeepingInterval": "3000",
            "brokerFastFailureEnable": "false",
            "osPageCacheBusyTimeOutMills": "60000",
            "diskMaxUsedSpaceRatio": "95",
            "cleanFileForciblyEnable": "false",
        }

    def _mount(self, path: Path) -> None:
        """Give the store a disk of its own, that can be filled."""
        if os.geteuid() != 0 or shutil.which("mount") is None:
            self.no_disks = "only root mounts, with `mount`"
            return
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(path)]
        done = subprocess.run(command, check=False, capture_output=True, timeout=60)
        if done.returncode:
            self.no_disks = done.stderr.decode().strip()
            return
        self._stack.callback(
            lambda: subprocess.run(["umount", "-l", str(path)], check=False, timeout=60)
        )

    def slaves_know(self, topic: str) -> bool:
        """Say whether the topic, which was made at the masters, has reached the tables of their slaves."""
        tables = [self.slave_of(group).store / "config" / "topics.json" for group in GROUPS]
        return all(path.exists() and f'"{topic}"' in path.read_text() for path in tables)

    def slave_of(self, group: str) -> Node:
        (node,) = (
            self.nodes[f"{group}-{number}"]
            for number in (0, 1)
            if self.nodes[f"{group}-{number}"] is not self.masters[group]
        )
        return node

    # -- losses --

    def losses(self) -> list[Callable[[], None]]:
        """Every kind of loss that this machine allows; each ends with all nodes back."""
        kinds = [self._kill_slave, self._kill_master, self._kill_names, self._restart_loop]
        kinds += [self._freeze_slave, self._freeze_master, self._freeze_names]
        if not self.hosts.why_not:
            kinds += [self._cut_slave, self._cut_master, self._cut_names]
            kinds += [self._deaf_slave, self._deaf_master]
            if self.hosts.shaper:
                kinds.append(self._slow_and_kill)
        if not self.no_disks:
            kinds += [self._fill_slave, self._fill_master]
        return kinds

    def lose(self, kind: Callable[[], None]) -> None:
        self.counts[kind.__name__.removeprefix("_")] += 1
        kind()

    def _while(self, times: int = 1) -> None:
        """Let a moment pass, or several."""
        for _ in range(times):
            CLOCK.sleep(self.rng.uniform(0.3, 0.9))

    def _long(self) -> None:
        """A while that the housekeeping of connections (3 s) ends now and then."""
        self._while(self.rng.choice((1, 3, 6)))

    def _group(self) -> str:
        return self.rng.choice(GROUPS)

    def _kill(self, node: Node) -> None:
        node.kill()
        self._while()
        node.start()

    def _kill_slave(self) -> None:
        self._kill(self.slave_of(self._group()))

    def _kill_master(self) -> None:
        self._kill(self.masters[self._group()])

    def _kill_names(self) -> None:
        self._kill(self.nodes[f"names-{self.rng.randrange(2)}"])

    def _restart_loop(self) -> None:
        """A slave that comes up and dies again, also before it is ready."""
        node = self.slave_of(self._group())
        for _ in range(3):
            node.kill()
            node.start(wait=False)
            CLOCK.sleep(self.rng.uniform(0.2, 0.9))
        node.wait_ready()

    def _freeze(self, node: Node) -> None:
        node.signal(signal.SIGSTOP)
        try:
            self._long()
        finally:
            node.signal(signal.SIGCONT)

    def _freeze_slave(self) -> None:
        self._freeze(self.slave_of(self._group()))

    def _freeze_master(self) -> None:
        self._freeze(self.masters[self._group()])

    def _freeze_names(self) -> None:
        self._freeze(self.nodes[f"names-{self.rng.randrange(2)}"])

    @contextlib.contextmanager
    def _mended(self) -> Iterator[None]:
        try:
            yield
            self._long()
        finally:
            self.hosts.heal()

    def _cut_slave(self) -> None:
        with self._mended():
            self.hosts.cut(self.slave_of(self._group()).host)

    def _cut_master(self) -> None:
        with self._mended():
            self.hosts.cut(self.masters[self._group()].host)

    def _cut_names(self) -> None:
        with self._mended():
            self.hosts.cut(f"names-{self.rng.randrange(2)}")

    def _deaf_slave(self) -> None:
        """Nothing of the master reaches the slave, whose reports arrive."""
        group = self._group()
        with self._mended():
            self.hosts.cut_one_way(self.masters[group].host, self.slave_of(group).host)

    def _deaf_master(self) -> None:
        """The slave has what it is sent, and cannot say so."""
        group = self._group()
        with self._mended():
            self.hosts.cut_one_way(self.slave_of(group).host, self.masters[group].host)

    def _slow_and_kill(self) -> None:
        """Both directions between a pair are slow and lossy when the slave dies."""
        group = self._group()
        with self._mended():
            for node in (self.masters[group], self.slave_of(group)):
                self.hosts.slow(node.host)
            self._while()
            self._kill(self.slave_of(group))

    def _fill(self, node: Node) -> None:
        """The disk is full, but for some pages, and has room again."""
        filler = node.store / "filler"
        try:
            spare = self.rng.choice((8, 300)) * 1024
            with filler.open("wb") as file:
                eventually(lambda: _fills(file, spare), wait_s=10, pause_s=0)
            self._long()
        finally:
            filler.unlink(missing_ok=True)
        if not node.is_up:
            # A broker may end when it cannot go on; whoever watches it starts it again.
            node.kill()
            node.start()

    def _fill_slave(self) -> None:
        self._fill(self.slave_of(self._group()))

    def _fill_master(self) -> None:
        self._fill(self.masters[self._group()])

    # -- the manual switch --

    def promote(self, group: str) -> Node:
        """Kill the master for good, and make its slave the master. Return the node that was it.

        Now and then the last that the master stored does not reach the slave.
        """
        old, new = self.masters[group], self.slave_of(group)
        if not self.hosts.why_not and self.rng.random() < 0.7:
            self.hosts.cut(new.host)
            CLOCK.sleep(self.rng.uniform(0.2, 0.6))
            old.kill()
            self.hosts.heal()
        old.kill()
        new.stop()
        new.conf |= {"brokerRole": "SYNC_MASTER", "brokerId": "0"}
        self.masters[group] = new
        self.counts["promotion"] += 1
        return old

    def come_back(self, group: str, old: Node) -> bool:
        """Have the former master follow the new one; return whether its store had to be mended.

        If it has what the new one never got, it must say so, leave its log as it is, and go on once
        `cometmq store rejoin` has cut that off.
        """
        new = self.masters[group]
        _, end = stored_in(old.store)
        log = raw_log(old.store, end)
        old.conf |= {"brokerRole": "SLAVE", "brokerId": "1"}
        old.start()
        refused = eventually(
            lambda: self._outcome(old, new, end), wait_s=DEADLINE_S, note=old.said()[-2000:]
        )
        if refused != "refused":
            return False
        old.stop()
        assert raw_log(old.store, end) == log, "a slave that has diverged changed its log"
        command = [sys.executable, "-m", "cometmq", "store", "rejoin", str(old.store), "--write"]
        command += ["--master", new.address, "-c", str(old.directory / "conf")]
        done = subprocess.run(
            self.hosts.command(old.host, command),
            check=False,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        old.start()
        return True

    def _outcome(self, old: Node, new: Node, end: int) -> str | None:
        if "store rejoin" in old.said():
            return "refused"
        return "follows" if stored_in(old.store)[1] > end else None


class Member:
    """The process of the clients. A context manager."""

    def __init__(self, cluster: Cluster) -> None:
        command = [sys.executable, "-m", "tests.crash.lost_nodes_member", cluster.namesrv]
        command += [CLUSTER, str(cluster.history_path)]
        self._errors = (cluster.directory / "clients.log").open("w+b")
        self._process = subprocess.Popen(
            cluster.hosts.command("clients", command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def expect(self, word: str) -> None:
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode().strip()
        if said != word:
            self._errors.seek(0)
            raise AssertionError(f"{said!r}, not {word!r}:\n{self._errors.read().decode()[-4000:]}")

    def tell(self, word: str) -> None:
        stdin: IO[bytes] | None = self._process.stdin
        assert stdin is not None
        stdin.write(word.encode() + b"\n")
        stdin.flush()

    def wait(self) -> None:
        assert self._process.wait(DEADLINE_S) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()


def _fills(file: BinaryIO, spare: int) -> bool:
    """Give a file the room that is left but for `spare` bytes; return False if the broker, which goes on
    writing, took some of it meanwhile.
    """
    found = os.fstatvfs(file.fileno())
    try:
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - spare)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        file.truncate(0)
        return False
    return True
