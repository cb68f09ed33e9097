"""Give a cluster in virtual time its faults: each is a method, and can be drawn from a seed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from cometmq.runtime.randomness import Randomness
from cometmq.runtime.spelling import did_you_mean
from cometmq.testing.faults import FAULTS, Damage, NodeName, NodeNames, Nodes, fault

if TYPE_CHECKING:
    from cometmq.testing.virtual.servers import VirtualServers

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]

# Which calls of a disk a drawn failure may hit, and with which errors.
_OPERATIONS: Final = ("any", "allocate", "sync", "write", "write_at", "read")
_ERRORS: Final = ("EIO", "ENOSPC")


def _link(randomness: Randomness, nodes: Nodes) -> dict[str, Any] | None:
    """Draw two nodes of which one is a broker, because all links lead to brokers or from them."""
    if not nodes.brokers:
        return None
    broker = randomness.choice(nodes.all_brokers())
    others = [*nodes.name_servers, *nodes.clients]
    if nodes.slaves:
        others += [name for name in nodes.all_brokers() if name != broker]
    return {"a": broker, "b": randomness.choice(others)}


def _server(randomness: Randomness, nodes: Nodes) -> dict[str, Any] | None:
    return {"node": randomness.choice([*nodes.name_servers, *nodes.all_brokers()])}


def _any_node(randomness: Randomness, nodes: Nodes) -> dict[str, Any] | None:
    return {"node": randomness.choice(nodes.all())}


def _broker(randomness: Randomness, nodes: Nodes) -> dict[str, Any] | None:
    return {"node": randomness.choice(nodes.all_brokers())} if nodes.brokers else None


def _with(args: dict[str, Any] | None, **more: Any) -> dict[str, Any] | None:
    return None if args is None else {**args, **more}


def _sides(randomness: Randomness, nodes: Nodes) -> dict[str, Any] | None:
    everybody = nodes.all()
    randomness.shuffle(everybody)
    half = randomness.randint(1, len(everybody) - 1) if len(everybody) > 1 else 0
    return {"side": everybody[:half], "other_side": everybody[half:]} if half else None


def _healed(args: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("heal", {"a": args["a"], "b": args["b"]})]


def _restarted(args: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [("restart", {"node": args["node"]})]


def _mended(args: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """A broker whose disk has failed takes no more messages until it is started again."""
    node = {"node": args["node"]}
    return [("mend_disk", node), ("restart", node)]


class ClusterFaults:
    """Has the faults of a running cluster in virtual time.

    Each names nodes as the cluster does: `namesrv-0`, `broker-a`, the names that `node` made, and
    `main`, where the test runs and which cannot be stopped.
    A fault that names no node of the cluster, or has an argument that does not fit, raises
    FaultError. All but `restart` happen at once and are plain methods. A fault that has happened
    already, such as a kill of a node that is down, changes nothing.
    """

    # Not for type checkers, which would then take any name for a method.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Say at once that no fault has this name, where it was asked for and what may be meant."""
            if name.startswith("_"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            # Imported here because clusters in real time do without all that.
            from cometmq.testing.virtual.origins import calling_line

            line, _ = calling_line()
            meant = did_you_mean(name, [each for each in dir(type(self)) if each[0] != "_"])
            raise AttributeError(
                f"a cluster has no fault or method {name}, asked for at {line}"
                + (meant or f"; its faults are {', '.join(sorted(FAULTS))}")
            )

    @property
    @abstractmethod
    def nodes(self) -> Nodes:
        """The names of the nodes."""

    @abstractmethod
    def fault_begins(self, name: str, args: Mapping[str, Any]) -> None:
        """Refuse the fault if the cluster cannot have any now; else write it to the history."""

    @property
    @abstractmethod
    def _virtual(self) -> VirtualServers:
        """The servers of a cluster in virtual time."""

    # Links

    @fault(draw=_link, end=_healed)
    def cut(self, a: NodeName, b: NodeName) -> None:
        """Reset the connections between two nodes and refuse new ones, until `heal`."""
        self._virtual.network.cut(a, b)

    @fault(
        draw=lambda r, n: _with(_link(r, n), one_way=r.random() < 0.5),
        end=_healed,
    )
    def blackhole(self, a: NodeName, b: NodeName, one_way: bool = False) -> None:
        """Let nothing arrive between two nodes, until `heal`; connections stay open on both sides.

        With `one_way` only what `a` sends to `b` is lost.
        """
        self._virtual.network.blackhole(a, b, one_way=one_way)

    @fault(
        draw=lambda r, n: _with(_link(r, n), min_s=0.0, max_s=round(r.uniform(0.01, 2), 3)),
        end=_healed,
    )
    def delay(self, a: NodeName, b: NodeName, min_s: Seconds, max_s: Seconds) -> None:
        """Have what is sent between two nodes take between `min_s` and `max_s`, until `heal`.

        Bytes of one connection keep their order; connections overtake each other.
        """
        self._virtual.network.delay(a, b, min_s, max_s)

    @fault(
        draw=lambda r, n: _with(_link(r, n), bytes_per_s=r.choice((1_000, 20_000, 500_000))),
        end=_healed,
    )
    def slow(self, a: NodeName, b: NodeName, bytes_per_s: Positive) -> None:
        """Carry no more than `bytes_per_s` between two nodes, until `heal`."""
        self._virtual.network.slow(a, b, bytes_per_s)

    @fault(draw=_link)
    def reset_connections(self, a: NodeName, b: NodeName) -> None:
        """Reset the connections between two nodes. They can make new ones at once."""
        self._virtual.network.reset_connections(a, b)

    @fault(draw=_sides, end=lambda _: [("heal_all", {})])
    def partition(self, side: NodeNames, other_side: NodeNames) -> None:
        """Cut every link between the nodes of one side and those of the other, until `heal_all`."""
        self._virtual.network.partition(side, other_side)

    @fault()
    def heal(self, a: NodeName, b: NodeName) -> None:
        """End all faults of the link between two nodes."""
        self._virtual.network.heal(a, b)

    @fault()
    def heal_all(self) -> None:
        """End the faults of all links."""
        self._virtual.network.heal_all()

    # Nodes

    @fault(draw=_server, end=_restarted, takes_node=True)
    def kill(self, node: NodeName) -> None:
        """Kill a node as `kill -9` does: its peers see resets, its disk keeps what was written."""
        self._virtual.kill(node)

    @fault(draw=_server, end=_restarted, takes_node=True)
    def power_off(self, node: NodeName) -> None:
        """Take a node's power: its peers see nothing, its disk loses what was not synced."""
        self._virtual.power_off(node)

    @fault(draw=_any_node, end=lambda args: [("resume", dict(args))], takes_node=True)
    def pause(self, node: NodeName) -> None:
        """Stop a node as SIGSTOP does: it does nothing and hears nothing, until `resume`."""
        self._virtual.pause(node)

    @fault()
    def resume(self, node: NodeName) -> None:
        """Let a paused node go on."""
        self._virtual.resume(node)

    @fault()
    async def restart(self, node: NodeName) -> None:
        """Start a node again with the disk that it has; one that runs is stopped cleanly first.

        Returns when the server answers. A node of clients is empty afterwards: make new clients.
        """
        await self._virtual.restart(node)

    @fault(draw=_server, end=_restarted, takes_node=True)
    def wipe(self, node: NodeName) -> None:
        """Take a node's power and empty its disk. `restart` starts it with nothing."""
        self._virtual.wipe(node)

    # Disks

    @fault(
        draw=lambda r, n: _with(
            _broker(r, n),
            operation=r.choice(_OPERATIONS),
            error=r.choice(_ERRORS),
            after=r.randrange(20),
            times=r.randint(1, 3),
        ),
        end=_mended,
        takes_node=True,
    )
    def fail_disk(
        self,
        node: NodeName,
        operation: str,
        error: str = "EIO",
        after: Count = 0,
        times: Annotated[int, msgspec.Meta(ge=1)] = 1,
    ) -> None:
        """Have a call of a node's disk fail with an error such as EIO, `times` times.

        The first `after` calls still succeed.
        """
        self._virtual.node(node).disk.fail(operation, error, after=after, times=times)

    @fault()
    def mend_disk(self, node: NodeName) -> None:
        """End what `fail_disk`, `fill_disk` and `slow_disk` have begun."""
        self._virtual.node(node).disk.mend()

    @fault(draw=_broker, end=lambda args: [("free_disk", dict(args))])
    def fill_disk(self, node: NodeName) -> None:
        """Leave no room on a node's disk, until `free_disk`."""
        self._virtual.node(node).disk.fill()

    @fault()
    def free_disk(self, node: NodeName) -> None:
        """Give a full disk its room back."""
        self._virtual.node(node).disk.free()

    @fault(
        draw=lambda r, n: _with(_broker(r, n), seconds=round(r.uniform(0.05, 5), 3)),
        end=lambda args: [("slow_disk", {"node": args["node"], "seconds": 0.0})],
    )
    def slow_disk(self, node: NodeName, seconds: Seconds) -> None:
        """Have each piece of work for a node's disk take `seconds` longer; 0 ends that."""
        self._virtual.node(node).disk.slow(seconds)

    @fault(
        draw=lambda r, n: _with(
            _broker(r, n), path=r.choice(("commitlog", "consumequeue")), offset=r.randrange(1 << 24)
        )
    )
    def flip_bit(self, node: NodeName, path: str, offset: Count) -> None:
        """Flip a bit of what a node's disk holds under `path`, relative to its store.

        `offset` counts the bits of the files there, one file after the other, and begins again
        behind the last. A running broker has the bytes in memory that it has written since its start: among
        those it finds the bit after its next start.
        """
        self._virtual.flip_bit(node, path, offset)

    @fault()
    def damage_state(self, node: NodeName, name: str, how: Damage) -> None:
        """Empty, cut or overwrite a broker's state file `config/<name>`, or change a digit in it.

        Does nothing as long as the file has no backup.
        """
        self._virtual.damage_state(node, name, how)

    # Clocks

    @fault(
        draw=lambda r, n: _with(_any_node(r, n), ms=r.choice((-1, 1)) * r.randint(100, 600_000)),
        end=lambda args: [("skew_clock", {"node": args["node"], "ms": -args["ms"]})],
    )
    def skew_clock(self, node: NodeName, ms: int) -> None:
        """Set a node's wall clock forward by `ms`, or back; its timers do not notice."""
        self._virtual.node(node).skew_clock(ms)

    @fault(
        draw=lambda r, n: _with(_any_node(r, n), rate=round(r.uniform(0.9, 1.1), 4)),
        end=lambda args: [("drift_clock", {"node": args["node"], "rate": 1.0})],
    )
    def drift_clock(self, node: NodeName, rate: Positive) -> None:
        """Have a node's clocks go `rate` times as fast, until a rate of 1."""
        self._virtual.node(node).drift_clock(rate)
