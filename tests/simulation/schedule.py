"""Says what one simulated run does: its cluster, its workloads, its faults. All follow from a seed.

A schedule is plain data. `draw` makes one of a seed; `shrink` cuts one that fails; a file holds one
as JSON. A schedule run twice on one commit gives the same history twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple

import msgspec

from cometmq.runtime.randomness import Randomness
from cometmq.testing.faults import FAULTS, Fault, Nodes, draw_faults

Promise = Literal["safety", "liveness"]
How = Literal["stop", "kill", "power_off"]
Returns = Literal["never", "wiped", "mended", "as it is"]
LostTables = Literal["none", "empty", "older"]

# The names of the workloads; `tests.simulation.workloads` has them.
KINDS: Final = (
    "normal",
    "keyed",
    "orderly",
    "delayed-level",
    "delayed-time",
    "transactions",
    "batch",
    "broadcasting",
    "filtered",
    "resets",
    "retries",
    "ranges",
    "popped",
    "popped-in-order",
    "pulled-and-popped",
    "pushed-by-pop",
    "pushed-by-pop-in-order",
    "simple-consumer",
    "simple-consumer-in-order",
)
HOUR_S: Final = 3600.0
# After the last fault of a run for liveness, all that is under way completes within this time: 16
# retries take 4 h 46 min, and a group a few minutes to find its brokers again.
SETTLE_S: Final = 6 * HOUR_S


class ClusterPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds the cluster of a run. `properties` are those of every broker, by RocketMQ's names.

    Each of the `brokers` is a master with `slaves` slaves; `slave_properties` are those of all slaves.
    """

    name_servers: int
    brokers: int
    properties: dict[str, str]
    slaves: int = 0
    master_role: str = "ASYNC_MASTER"
    slave_properties: dict[str, str] = {}

    def master_names(self) -> list[str]:
        return [f"broker-{chr(ord('a') + number)}" for number in range(self.brokers)]

    def slave_names(self, master: str) -> list[str]:
        return [f"{master}-slave-{number}" for number in range(1, self.slaves + 1)]

    def all_slave_names(self) -> list[str]:
        return [each for master in self.master_names() for each in self.slave_names(master)]


class WorkloadPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds one workload of a run: which kind, when, how long, how many messages and clients.

    `seed` is the workload's own, so that a schedule with fewer workloads leaves the others as they
    are.
    """

    kind: str
    name: str
    seed: int
    start_s: float
    seconds: float
    messages: int
    clients: int


class SwitchPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds a manual switch: a master ends at `at_s`, and a slave is the master `after_s` later.

    `returns` says what becomes of the former master: "never", or after `returns_after_s` it is a slave,
    "wiped", "mended" by `cometmq store`, or "as it is". With `with_slave` the slave is killed in the same
    moment as its master ends. Right before that, messages are sent to `news` topics that nobody has sent
    to before: plain ones, delayed ones, halves of transactions.
    """

    at_s: float
    broker: str
    how: How
    after_s: float
    returns: Returns
    returns_after_s: float
    with_slave: bool = False
    news: int = 0


class TablesPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Has a master start without its tables of topics and groups ("none"), with "empty" ones, or with
    those that it had at `older_at_s` ("older").
    """

    at_s: float
    broker: str
    lost: LostTables
    older_at_s: float


class Schedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Holds all that a run does.

    `promise` is what the run is judged by: in a run for safety faults come at any time; in one for
    liveness they end, and all must complete within SETTLE_S. `seconds` is the time of workloads and
    faults; settling comes after it.
    """

    seed: int
    promise: Promise
    seconds: float
    cluster: ClusterPlan
    workloads: tuple[WorkloadPlan, ...]
    faults: tuple[Fault, ...]
    store: str | None = None
    switches: tuple[SwitchPlan, ...] = ()
    tables: tuple[TablesPlan, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.promise}-{self.seed}"


class Life(NamedTuple):
    """Says when a client joins and leaves, in seconds of the schedule, how many messages it sends
    meanwhile, and whether it is killed in the end.
    """

    name: str
    joins_s: float
    leaves_s: float
    messages: int
    is_killed: bool


def lives_of(plan: WorkloadPlan) -> list[Life]:
    """Return the lives of a workload's clients; they follow from its plan."""
    rng, ends_s = generator(plan.seed, "lives"), plan.start_s + plan.seconds
    spans: list[tuple[str, float, float, bool]] = []
    for client in range(plan.clients):
        joins_s = plan.start_s + (rng.uniform(0, plan.seconds / 4) if client else 0.0)
        for life in range(3):
            leaves_s = min(ends_s, joins_s + plan.seconds * rng.uniform(0.2, 1.5))
            spans.append((f"{plan.name}-{client}-{life}", joins_s, leaves_s, rng.random() < 0.3))
            joins_s = leaves_s + rng.expovariate(1 / 20)
            if joins_s > ends_s - 30:
                break
    share, rest = divmod(plan.messages, len(spans))
    return [
        Life(name, joins_s, leaves_s, share + (at < rest), is_killed)
        for at, (name, joins_s, leaves_s, is_killed) in enumerate(spans)
    ]


# Faults after which acknowledged messages may be gone for good: no run for liveness waits for those.
_LOSING: Final = frozenset({"wipe", "flip_bit"})
_LOSING_UNSYNCED: Final = frozenset({"power_off"})
# Clients are killed by their own lives, and have no disk.
_OF_CLIENTS: Final = frozenset(
    {"cut", "blackhole", "delay", "slow", "reset_connections", "partition", "pause", "skew_clock"}
)

# So long before a broker dies its file is damaged.
_DAMAGE_S: Final = 0.05
_OF_LINKS: Final = ("cut", "blackhole", "delay", "slow", "reset_connections")
# The share of workloads in whose time links between masters and slaves have faults of their own.
_AT_REPLICATION: Final = 0.7


def draw(seed: int, *, hours: float = 0.5, store: str | None = None) -> Schedule:
    """Draw the schedule of `seed`. Two of three are for safety."""
    rng = generator(seed, "schedule")
    promise: Promise = "liveness" if rng.random() < 1 / 3 else "safety"
    cluster = _draw_cluster(rng)
    seconds = hours * HOUR_S
    workloads = tuple(
        _draw_workload(rng, number, seconds) for number in range(rng.randint(1, 2 + round(hours)))
    )
    cluster = _draw_slaves(generator(seed, "slaves"), promise, cluster)
    faults = _draw_faults(seed, promise, cluster, workloads)
    switches = _draw_switches(generator(seed, "switches"), promise, cluster, workloads)
    if not cluster.slaves:
        faults = _with_damages(generator(seed, "damaged state files"), cluster, faults)
    if promise == "safety":
        cuts = _draw_before_switches(generator(seed, "before switches"), cluster, switches)
        faults = tuple(sorted((*faults, *cuts), key=lambda each: each.at_s))
    rng = generator(seed, "tables")
    switches = tuple(_draw_news(rng, switch) for switch in switches)
    tables = _draw_tables(rng, promise, cluster, workloads, switches)
    return Schedule(seed, promise, seconds, cluster, workloads, faults, store, switches, tables)


def _draw_cluster(rng: Random) -> ClusterPlan:
    flush = rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))
    properties = {
        "flushDiskType": flush,
        "adminFrom": "10.0.0.0/16",
        # A disk that is full is no reason to delete messages that nobody has consumed.
        "cleanFileForciblyEnable": "false",
        "enablePropertyFilter": "true",
        "mappedFileSizeCommitLog": str(rng.choice((64, 256, 1024)) * 1024),
        "mappedFileSizeConsumeQueue": str(20 * rng.choice((50, 500))),
        "timerWheelEnable": rng.choice(("true", "true", "false")),
        "transactionTimeOut": str(rng.choice((3000, 6000))),
        "transactionCheckInterval": str(rng.choice((5000, 30_000))),
    }
    if flush == "ASYNC_FLUSH" and rng.random() < 0.4:
        properties["transientStorePoolEnable"] = "true"
    return ClusterPlan(rng.choice((1, 2, 3)), rng.choice((1, 1, 2, 3)), properties)


def _draw_slaves(rng: Random, promise: Promise, cluster: ClusterPlan) -> ClusterPlan:
    """Give the masters of every second cluster slaves: few enough that a run stays short.

    An idle hour of a slave takes a second of one core, and a run for liveness may last for hours.
    """
    slaves = rng.choice((0, 0, 1, 2) if cluster.brokers < 3 else (0, 1))
    if slaves == 0:
        return cluster
    if promise == "liveness":
        slaves = 1
    role = rng.choice(("ASYNC_MASTER", "SYNC_MASTER", "SYNC_MASTER"))
    copied = {
        "slaveReadEnable": rng.choice(("true", "true", "false")),
        "haTransferBatchSize": rng.choice(("1024", "4096", "32768")),
        "slaveTimeout": rng.choice(("500", "3000")),
        # 0: consumers are sent to a slave whenever it has what they want.
        "accessMessageInMemoryMaxRatio": rng.choice(("40", "0")),
    }
    if role == "SYNC_MASTER":
        needed = rng.choice((1, 2, 1 + slaves))
        copied["inSyncReplicas"] = str(needed)
        copied["minInSyncReplicas"] = str(rng.choice((1, needed)))
    return msgspec.structs.replace(
        cluster,
        properties={**cluster.properties, **copied},
        slaves=slaves,
        master_role=role,
        slave_properties={"flushDiskType": rng.choice(("SYNC_FLUSH", "ASYNC_FLUSH"))},
    )


def _draw_switches(
    rng: Random, promise: Promise, cluster: ClusterPlan, workloads: tuple[WorkloadPlan, ...]
) -> tuple[SwitchPlan, ...]:
    """Draw at most one manual switch for each master with slaves, in the time of a workload."""
    switches: list[SwitchPlan] = []
    if cluster.slaves == 0:
        return ()
    for broker in cluster.master_names():
        if rng.random() < 0.5:
            continue
        plan = rng.choice(workloads)
        loses_nothing = promise == "liveness"
        how: How = rng.choice(("stop", "kill") if loses_nothing else ("stop", "kill", "power_off"))
        returns: Returns = rng.choice(
            ("never", "wiped") if loses_nothing else ("never", "wiped", "mended", "as it is")
        )
        switches.append(
            SwitchPlan(
                at_s=round(plan.start_s + plan.seconds * rng.uniform(0.2, 0.9), 3),
                broker=broker,
                how=how,
                after_s=round(rng.choice((0.1, 5, 60)) * rng.uniform(0.5, 1.5), 3),
                returns=returns,
                returns_after_s=round(rng.uniform(5, 120), 3),
            )
        )
    return tuple(sorted(switches, key=lambda each: each.at_s))


def _draw_news(rng: Random, switch: SwitchPlan) -> SwitchPlan:
    """Send to new topics right before half of the switches, and lose the slave's process with the master's
    in half of them.
    """
    return msgspec.structs.replace(
        switch,
        with_slave=switch.how != "stop" and rng.random() < 0.5,
        news=rng.choice((0, rng.randint(1, 8))),
    )


def _draw_tables(
    rng: Random,
    promise: Promise,
    cluster: ClusterPlan,
    workloads: tuple[WorkloadPlan, ...],
    switches: tuple[SwitchPlan, ...],
) -> tuple[TablesPlan, ...]:
    """Have some masters lose their tables, those that no operator switches.

    Such a master does not know the queues that had no message. So no run for liveness has it.
    """
    switched = {switch.broker for switch in switches}
    plans: list[TablesPlan] = []
    for broker in cluster.master_names():
        if promise == "liveness" or not cluster.slaves or broker in switched or rng.random() < 0.5:
            continue
        plan = rng.choice(workloads)
        at_s = round(plan.start_s + plan.seconds * rng.uniform(0.2, 0.9), 3)
        lost: LostTables = rng.choice(("none", "empty", "older"))
        plans.append(TablesPlan(at_s, broker, lost, round(at_s * rng.uniform(0.1, 0.9), 3)))
    return tuple(plans)


def _draw_before_switches(
    rng: Random, cluster: ClusterPlan, switches: tuple[SwitchPlan, ...]
) -> Iterator[Fault]:
    """Cut half of the masters off from their slaves shortly before they end.

    Such a master has messages that its successor lacks, so it comes back with a log that diverges.
    """
    for switch in switches:
        if rng.random() < 0.5:
            at_s = round(max(switch.at_s - rng.uniform(2, 30), 0), 3)
            for slave in cluster.slave_names(switch.broker):
                link = {"a": switch.broker, "b": slave}
                yield Fault(at_s, "cut", link)
                yield Fault(round(switch.at_s + switch.after_s, 3), "heal", link)


def _draw_workload(rng: Random, number: int, seconds: float) -> WorkloadPlan:
    kind = rng.choice(KINDS)
    lasts_s = round(min(seconds, rng.uniform(120, 900)), 3)
    return WorkloadPlan(
        kind=kind,
        name=f"{kind}-{number}",
        seed=rng.randrange(1 << 32),
        start_s=round(rng.uniform(0, seconds - lasts_s), 3),
        seconds=lasts_s,
        messages=rng.choice((5, 20, 60, 150)),
        clients=rng.randint(1, 3),
    )


def _draw_faults(
    seed: int, promise: Promise, cluster: ClusterPlan, workloads: tuple[WorkloadPlan, ...]
) -> tuple[Fault, ...]:
    """Draw faults for the time of each workload; those between them meet nobody but servers."""
    left_out = _LOSING if promise == "liveness" else frozenset[str]()
    if promise == "liveness" and cluster.properties["flushDiskType"] == "ASYNC_FLUSH":
        left_out |= _LOSING_UNSYNCED
    kinds = [
        name for name, kind in FAULTS.items() if kind.draw is not None and name not in left_out
    ]
    name_servers = [f"namesrv-{number}" for number in range(cluster.name_servers)]
    brokers, slaves = cluster.master_names(), cluster.all_slave_names()
    faults: list[Fault] = []
    for plan in workloads:
        rng = generator(seed, f"faults of {plan.name}")
        randomness = Randomness(rng.randrange(1 << 32))
        chosen = rng.sample(kinds, rng.randint(1, 6))
        every_s = rng.choice((20, 60, 200))
        servers = Nodes(name_servers, brokers, slaves=slaves)
        drawn = draw_faults(randomness, servers, plan.seconds, kinds=chosen, every_s=every_s)
        if at_clients := [name for name in chosen if name in _OF_CLIENTS]:
            everybody = servers._replace(clients=[life.name for life in lives_of(plan)])
            drawn += draw_faults(
                randomness, everybody, plan.seconds, kinds=at_clients, every_s=every_s
            )
        if slaves and rng.random() < _AT_REPLICATION:
            drawn += _draw_between(rng, randomness, cluster, plan.seconds, every_s)
        faults += [
            msgspec.structs.replace(each, at_s=round(plan.start_s + each.at_s, 3)) for each in drawn
        ]
    return tuple(sorted(faults, key=lambda each: each.at_s))


def _with_damages(
    rng: Random, cluster: ClusterPlan, faults: tuple[Fault, ...]
) -> tuple[Fault, ...]:
    """Have the file of offsets damaged before some brokers die, and once more when they run again.

    The second time the broker dies before it saves the file by itself.
    """
    if rng.random() < 0.5:
        return faults
    found = list(faults)
    for at, fault in enumerate(faults):
        node = fault.args.get("node")
        if fault.name not in ("kill", "power_off") or node not in cluster.master_names():
            continue
        runs_again = next(
            (
                later
                for later in faults[at:]
                if later.name == "restart" and later.args.get("node") == node
            ),
            None,
        )
        if runs_again is None:
            continue
        again_s = runs_again.at_s + 2
        for at_s in (fault.at_s - _DAMAGE_S, again_s - _DAMAGE_S):
            how = rng.choice(("empty", "cut", "zeros", "digit"))
            args = {"node": node, "name": "consumerOffset.json", "how": how}
            found.append(Fault(round(max(at_s, 0.0), 3), "damage_state", args))
        found.append(Fault(round(again_s, 3), fault.name, {"node": node}))
        found.append(Fault(round(again_s + 3, 3), "restart", {"node": node}))
    return tuple(sorted(found, key=lambda each: each.at_s))


def _draw_between(
    rng: Random, randomness: Randomness, cluster: ClusterPlan, seconds: float, every_s: float
) -> list[Fault]:
    """Draw faults of the links between the servers of one broker."""
    master = rng.choice(cluster.master_names())
    # For a draw they are what the links of a broker lead to.
    pair = Nodes(cluster.slave_names(master), [master])
    kinds = rng.sample(_OF_LINKS, rng.randint(1, 3))
    return draw_faults(randomness, pair, seconds, kinds=kinds, every_s=every_s)


def read(file: Path) -> Schedule:
    """Read a schedule that `write` wrote."""
    return msgspec.json.decode(file.read_bytes(), type=Schedule)


def write(schedule: Schedule, file: Path) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(schedule), indent=2) + b"\n")


def generator(seed: int, use: str) -> Random:
    """Return a generator of its own for each use of a seed: a text seeds it the same everywhere."""
    return Random(f"{seed}:{use}")
