"""Hosts for processes under test: network namespaces on a bridge, where the machine allows it.

Each host has an address and a link of its own, which can be taken down, made deaf in one direction, or
slowed. Where namespaces cannot be made, a host is a loopback address, its links cannot be touched, and
`why_not` says why. Traffic stays inside: the bridge is in a namespace, too, and has no address.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Self

_NETWORK = "10.77.0"
# What no card has: frames for it are dropped by whoever gets them.
_NOBODY = "02:00:00:00:00:99"
_numbers = itertools.count()


class Hosts:
    """A context manager over hosts of the names given."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self._prefix = f"cm{os.getpid()}-{next(_numbers)}-"
        self._made: list[str] = []
        # Where links can be cut: an empty text. Else the reason why not.
        self.why_not = ""
        # How links are slowed: netem delays and loses, tbf narrows (which delays and loses under load).
        self.shaper: str | None = None

    def address(self, name: str) -> str:
        number = self.names.index(name) + 1
        return f"127.0.0.{number + 1}" if self.why_not else f"{_NETWORK}.{number}"

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on a host. The process has the id of the one
        that is started.
        """
        if self.why_not:
            return list(command)
        return ["ip", "netns", "exec", self._prefix + name, *command]

    def cut(self, name: str) -> None:
        """Nothing comes to the host or leaves it."""
        self._hub("link", "set", f"to-{name}", "down")

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing from `source` reaches `target`; the other direction works."""
        self._on(source, "neigh", "replace", self.address(target), "lladdr", _NOBODY, "dev", "eth0")

    def slow(self, name: str) -> None:
        """Delay the packets that leave the host, and lose some of them."""
        if self.shaper == "netem":
            options = ["delay", "30ms", "20ms", "loss", "2%"]
        else:
            options = ["rate", "2mbit", "burst", "8kb", "limit", "24kb"]
        self._tc(name, "replace", "dev", "eth0", "root", str(self.shaper), *options)

    def heal(self) -> None:
        """Mend all links."""
        for name in self.names:
            self._hub("link", "set", f"to-{name}", "up")
            for other in self.names:
                self._on(name, "neigh", "del", self.address(other), "dev", "eth0", check=False)
            if self.shaper:
                self._tc(name, "del", "dev", "eth0", "root", check=False)

    def close(self) -> None:
        for namespace in self._made:
            _run(["ip", "netns", "del", namespace], check=False)
        self._made.clear()

    def __enter__(self) -> Self:
        if shutil.which("ip") is None:
            self.why_not = "`ip` (iproute2) is not installed"
            return self
        try:
            self._make()
        except subprocess.CalledProcessError as error:
            self.close()
            said = (error.stderr or b"").decode().strip()
            self.why_not = f"`{' '.join(error.cmd)}` failed: {said}"
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> None:
        hub = self._new("hub")
        self._hub("link", "add", "bridge", "type", "bridge")
        self._hub("link", "set", "bridge", "up")
        for name in self.names:
            namespace = self._new(name)
            peer = ["peer", "name", f"to-{name}", "netns", hub]
            _run(["ip", "-n", namespace, "link", "add", "eth0", "type", "veth", *peer])
            self._hub("link", "set", f"to-{name}", "master", "bridge")
            self._hub("link", "set", f"to-{name}", "up")
            self._on(name, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            self._on(name, "link", "set", "eth0", "up")
            self._on(name, "link", "set", "lo", "up")
        for shaper, options in (
            ("netem", ["delay", "1ms"]),
            ("tbf", ["rate", "2mbit", "burst", "8kb", "limit", "24kb"]),
        ):
            try:
                self._tc(self.names[0], "replace", "dev", "eth0", "root", shaper, *options)
            except (subprocess.CalledProcessError, OSError):
                continue
            self._tc(self.names[0], "del", "dev", "eth0", "root")
            self.shaper = shaper
            return

    def _new(self, name: str) -> str:
        namespace = self._prefix + name
        _run(["ip", "netns", "add", namespace])
        self._made.append(namespace)
        return namespace

    def _on(self, name: str, *words: str, check: bool = True) -> None:
        _run(["ip", "-n", self._prefix + name, *words], check=check)

    def _hub(self, *words: str) -> None:
        self._on("hub", *words)

    def _tc(self, name: str, *words: str, check: bool = True) -> None:
        _run(["tc", "-n", self._prefix + name, "qdisc", *words], check=check)


def _run(command: Sequence[str], *, check: bool = True) -> None:
    subprocess.run(command, check=check, timeout=60, capture_output=True)
