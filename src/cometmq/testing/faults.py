"""Name faults, check their arguments, and draw schedules of them from a seed.

Every method of `Cluster` that `fault` decorates is a fault. The name of the method and those of its
parameters are the names of a `Fault`, which is plain data. So a schedule is a JSON text that can be
kept and replayed.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Concatenate,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
)

import msgspec

from cometmq.errors import IllegalArgumentError
from cometmq.runtime.randomness import Randomness

Q = ParamSpec("Q")
R = TypeVar("R")
C = TypeVar("C", bound="FaultyCluster")

_NODE: Final = "the name of a node"
# Where the test itself runs. Its links and clocks can have faults, but none is drawn for it, and it cannot
# be stopped: nobody would be left to start it again.
MAIN: Final = "main"
_STOPS: Final = frozenset({"kill", "power_off", "pause", "resume", "restart", "wipe"})
# The kinds of damage to a state file.
Damage = Literal["empty", "cut", "zeros", "digit"]
# The types of the parameters that name nodes.
NodeName = Annotated[str, _NODE]
NodeNames = Annotated[list[str], _NODE]


class FaultError(IllegalArgumentError):
    """No fault or no node has that name, or an argument does not fit."""


class Nodes(NamedTuple):
    """Lists the names of a cluster's nodes, by their roles when the cluster started."""

    name_servers: Sequence[str]
    brokers: Sequence[str]
    clients: Sequence[str] = ()
    slaves: Sequence[str] = ()

    def all_brokers(self) -> list[str]:
        """Return the names of the masters, then those of the slaves."""
        return [*self.brokers, *self.slaves]

    def all(self) -> list[str]:
        """Return all names, those of name servers first."""
        return [*self.name_servers, *self.brokers, *self.slaves, *self.clients]


class Fault(msgspec.Struct, frozen=True):
    """Says that `name` happens to a cluster `at_s` seconds after its schedule began.

    `name` is a method of `Cluster`, and `args` are its arguments by name.
    """

    at_s: float
    name: str
    args: dict[str, Any] = {}

    def __str__(self) -> str:
        args = ", ".join(f"{key}={value!r}" for key, value in self.args.items())
        return f"{self.name}({args}) at {self.at_s:.3f} s"


class FaultyCluster(Protocol):
    """Is the cluster to which faults happen."""

    @property
    def nodes(self) -> Nodes:
        """Return the names of the nodes that faults may name."""

    def fault_begins(self, name: str, args: Mapping[str, Any]) -> None:
        """Refuse the fault if the cluster cannot have any now; else write it down."""


# Draws the arguments of a fault; returns None if the cluster has no nodes for it.
Draw = Callable[[Randomness, Nodes], "dict[str, Any] | None"]
# Returns names and arguments of the faults that end the one with these arguments.
End = Callable[[Mapping[str, Any]], "list[tuple[str, dict[str, Any]]]"]


class FaultKind(NamedTuple):
    """Says of one kind of fault what arguments it takes, how they are drawn, and what ends it.

    `draw` is None for a kind that only ends others, `end` for one that is over at once. While a
    fault with `takes_node` lasts, its `node` is down or paused, and no other such fault is drawn
    for that node. A fault with `in_real_time` can also happen outside of a simulation.
    """

    name: str
    parameters: inspect.Signature
    arguments: type[msgspec.Struct]
    node_parameters: Collection[str]
    draw: Draw | None
    end: End | None
    takes_node: bool
    in_real_time: bool

    def checked(self, nodes: Nodes, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments by name. Raises FaultError, which says what would fit."""
        __tracebackhide__ = True  # pytest shows the test's line, not these
        usage = f"{self.name}{self.parameters}"
        try:
            given = self.parameters.bind(*args, **kwargs).arguments
            # The struct checks types and bounds; it has a default for what is not given.
            checked = msgspec.structs.asdict(msgspec.convert(given, self.arguments))
        except (TypeError, msgspec.ValidationError) as error:
            raise FaultError(f"{self.name}: {error}; it is called as {usage}") from None
        for parameter in self.node_parameters:
            names = checked[parameter]
            for name in [names] if isinstance(names, str) else names:
                if name == MAIN and self.name in _STOPS:
                    raise FaultError(
                        f"{self.name}: the test itself runs on {MAIN}; run what is to stop on another "
                        'node, such as cluster.node("app-1")'
                    )
                if name not in (*nodes.all(), MAIN):
                    raise FaultError(
                        f"{self.name}: {parameter}={name!r} is no node of this cluster; its nodes "
                        f"are {', '.join(nodes.all())}, and {MAIN}, where the test runs"
                    )
        return checked


FAULTS: Final[dict[str, FaultKind]] = {}


def fault(
    *,
    draw: Draw | None = None,
    end: End | None = None,
    takes_node: bool = False,
    in_real_time: bool = False,
) -> Callable[[Callable[Concatenate[C, Q], R]], Callable[Concatenate[C, Q], R]]:
    """Make a method of a cluster a fault: it checks its arguments and is written to the history."""

    def decorate(method: Callable[Concatenate[C, Q], R]) -> Callable[Concatenate[C, Q], R]:
        kind = FAULTS[method.__name__] = _kind_of(method, draw, end, takes_node, in_real_time)

        @functools.wraps(method)
        def injected(self: C, /, *args: Q.args, **kwargs: Q.kwargs) -> R:
            __tracebackhide__ = True
            checked = kind.checked(self.nodes, *args, **kwargs)
            self.fault_begins(kind.name, checked)
            try:
                return method(self, **checked)  # type: ignore[call-arg]  # they are its parameters
            except ValueError as error:
                raise FaultError(f"{kind.name}: {error}") from None

        return injected

    return decorate


def _kind_of(
    method: Callable[..., Any],
    draw: Draw | None,
    end: End | None,
    takes_node: bool,
    in_real_time: bool,
) -> FaultKind:
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    hints = typing.get_type_hints(method, include_extras=True)
    fields = [
        (p.name, hints[p.name]) if p.default is p.empty else (p.name, hints[p.name], p.default)
        for p in parameters
    ]
    is_node = {p.name: _NODE in getattr(hints[p.name], "__metadata__", ()) for p in parameters}
    return FaultKind(
        name=method.__name__,
        parameters=signature.replace(
            parameters=[p.replace(annotation=p.empty) for p in parameters],
            return_annotation=inspect.Signature.empty,
        ),
        arguments=msgspec.defstruct(method.__name__, fields, kw_only=True),
        node_parameters=[name for name, is_one in is_node.items() if is_one],
        draw=draw,
        end=end,
        takes_node=takes_node,
        in_real_time=in_real_time,
    )


def kind_of(name: str) -> FaultKind:
    """Return the kind of fault of that name. Raises FaultError, which lists those that exist."""
    if name not in FAULTS:
        raise FaultError(f"no fault is called {name!r}; faults are {', '.join(sorted(FAULTS))}")
    return FAULTS[name]


def check_fault(fault: Fault, nodes: Nodes) -> None:
    """Raise FaultError unless the fault can happen to a cluster with these nodes."""
    if not fault.at_s >= 0:
        raise FaultError(f"{fault}: at_s is the seconds since the schedule began, 0 or more")
    kind_of(fault.name).checked(nodes, **fault.args)


def faults_to_json(faults: Iterable[Fault]) -> str:
    """Return a schedule as a JSON text, which `faults_from_json` reads."""
    return msgspec.json.encode(list(faults)).decode()


def faults_from_json(text: str | bytes) -> list[Fault]:
    """Return the schedule in a JSON text. Raises FaultError for a text that is none."""
    try:
        faults = msgspec.json.decode(text, type=list[Fault])
    except msgspec.DecodeError as error:
        raise FaultError(
            f"this is no schedule of faults: {error}; give a list of objects such as "
            '{"at_s": 1.5, "name": "kill", "args": {"node": "broker-a"}}'
        ) from None
    for one in faults:
        kind_of(one.name)
    return faults


def draw_faults(
    randomness: Randomness,
    cluster: FaultyCluster | Nodes,
    seconds: float,
    *,
    kinds: Iterable[str] | None = None,
    every_s: float = 30.0,
    lasting_s: tuple[float, float] = (1.0, 60.0),
) -> list[Fault]:
    """Draw a schedule of faults for the next `seconds`, one every `every_s` on the average.

    A fault that has an end lasts for a time drawn from `lasting_s` and ends within `seconds`; so
    all nodes run, and all links are whole, when the schedule is over. `kinds` are names of faults,
    without those that only end others; all by default.
    """
    nodes = cluster if isinstance(cluster, Nodes) else cluster.nodes
    drawn_kinds = [kind for kind in _chosen(kinds) if kind.draw is not None]
    faults: list[Fault] = []
    free_at_s = dict.fromkeys(nodes.all(), 0.0)
    at_s = randomness.expovariate(1 / every_s)
    while drawn_kinds and at_s < seconds:
        kind = randomness.choice(drawn_kinds)
        lasts_s = randomness.uniform(*lasting_s)
        assert kind.draw is not None, "the others were left out"
        args = kind.draw(randomness, nodes)
        ends_s = min(at_s + lasts_s, seconds)
        node = args.get("node") if args is not None and kind.takes_node else None
        if args is not None and (node is None or free_at_s[node] <= at_s):
            faults.append(Fault(_rounded(at_s), kind.name, args))
            if kind.end is not None:
                faults.extend(Fault(_rounded(ends_s), *each) for each in kind.end(args))
            if node is not None:
                free_at_s[node] = ends_s + lasting_s[0]
        at_s += randomness.expovariate(1 / every_s)
    return sorted(faults, key=lambda each: each.at_s)


def _chosen(kinds: Iterable[str] | None) -> list[FaultKind]:
    chosen = [kind_of(name) for name in (FAULTS if kinds is None else kinds)]
    if kinds is not None and (endings := [each.name for each in chosen if each.draw is None]):
        raise FaultError(
            f"{endings[0]} is not drawn by itself; kinds to draw are "
            f"{', '.join(each.name for each in FAULTS.values() if each.draw is not None)}"
        )
    return chosen


def _rounded(seconds: float) -> float:
    """Return milliseconds' precision, which is enough, so that a schedule is short to read."""
    return round(seconds, 3)
