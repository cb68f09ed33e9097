"""Canaries are found: each by a short schedule of its own.

How many drawn schedules it takes is in docs/reliability.md (`python -m tests.simulation.canaries`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from tests.simulation import run
from tests.simulation.__main__ import quiet
from tests.simulation.canaries import CANARIES, planted
from tests.simulation.invariants import INVARIANTS
from tests.simulation.schedule import (
    ClusterPlan,
    Promise,
    Schedule,
    SwitchPlan,
    TablesPlan,
    WorkloadPlan,
)

from cometmq.testing.faults import Fault

pytestmark = pytest.mark.timeout(600)


def short(
    kind: str,
    *faults: Fault,
    promise: Promise = "safety",
    flush: str = "SYNC_FLUSH",
    messages: int = 40,
    seconds: float = 80.0,
    seed: int = 1,
    clients: int = 1,
    slaves: int = 0,
    role: str = "SYNC_MASTER",
    switches: tuple[SwitchPlan, ...] = (),
    tables: tuple[TablesPlan, ...] = (),
) -> Schedule:
    """Make a schedule of one broker, with its slaves, and one workload."""
    return Schedule(
        seed=seed,
        promise=promise,
        seconds=seconds,
        cluster=ClusterPlan(
            1,
            1,
            {
                "flushDiskType": flush,
                "adminFrom": "10.0.0.0/16",
                "enablePropertyFilter": "true",
                "transactionCheckInterval": "5000",
            },
            slaves,
            role if slaves else "ASYNC_MASTER",
        ),
        workloads=(
            WorkloadPlan(
                kind=kind,
                name=f"{kind}-0",
                seed=seed,
                start_s=0.0,
                seconds=seconds - 20,
                messages=messages,
                clients=clients,
            ),
        ),
        faults=faults,
        switches=switches,
        tables=tables,
    )


def _power_losses(*at_s: float) -> Iterator[Fault]:
    for each in at_s:
        yield Fault(each, "power_off", {"node": "broker-a"})
        yield Fault(each + 3, "restart", {"node": "broker-a"})


def _kills(*at_s: float) -> Iterator[Fault]:
    for each in at_s:
        yield Fault(each, "kill", {"node": "broker-a"})
        yield Fault(each + 3, "restart", {"node": "broker-a"})


_SLOW: Final = Fault(
    5, "delay", {"a": "broker-a", "b": "broker-a-slave-1", "min_s": 0.2, "max_s": 0.6}
)


def _damages(at_s: float) -> Iterator[Fault]:
    """Damage a file before its broker dies, and once more before the broker saves it again."""
    node = {"node": "broker-a"}
    for again_s, how in ((at_s, "empty"), (at_s + 5, "digit")):
        damage = {**node, "name": "consumerOffset.json", "how": how}
        yield Fault(again_s - 0.05, "damage_state", damage)
        yield Fault(again_s, "kill", node)
        yield Fault(again_s + 3, "restart", node)


# Both processes end behind the first messages of topics, before a slave can copy the table.
_SWITCH: Final = SwitchPlan(
    at_s=30,
    broker="broker-a",
    how="kill",
    after_s=5,
    returns="never",
    returns_after_s=5,
    with_slave=True,
    news=8,
)

SHORT: Final = {
    "skip-an-fsync": short("normal", *_power_losses(20, 30, 40, 50, 60), messages=150),
    "acknowledge-before-the-flush": short(
        "normal", *_power_losses(20, 30, 40, 50, 60), messages=150
    ),
    "acknowledge-before-the-append": short("normal"),
    "drop-a-dispatch": short("normal"),
    "reuse-an-offset": short("normal"),
    "refuse-what-is-stored": short("normal", seed=3),
    "store-a-body-short": short("normal"),
    "index-another-hash": short("normal"),
    "forget-a-half-message": short("transactions", promise="liveness"),
    "commit-a-roll-back": short("transactions"),
    "deliver-a-delay-early": short("delayed-level"),
    "commit-ahead": short("normal", seed=4),
    "forget-resets": short("resets", promise="liveness", seconds=300, seed=3),
    "serve-what-is-filtered-out": short("filtered", messages=80),
    "deliver-altered": short("normal"),
    "drop-a-delivery": short("normal"),
    "go-on-behind-a-suspended-message": short("orderly", messages=80),
    "leave-a-hole-in-a-range": short("ranges"),
    "skip-a-retry-level": short("retries"),
    "give-up-early": short("retries"),
    "lose-a-dead-letter": short("retries", promise="liveness"),
    "acknowledge-before-a-slave-has-it": short("normal", _SLOW, slaves=1),
    "report-before-the-append": short("normal", slaves=1),
    "go-on-after-a-gap": short("normal", slaves=1),
    "go-on-when-diverged": short(
        "normal",
        *_power_losses(20, 30, 40, 50, 60),
        flush="ASYNC_FLUSH",
        messages=150,
        slaves=1,
        role="ASYNC_MASTER",
    ),
    "drop-a-table-copy": short("normal", seconds=200, slaves=1),
    "look-for-nothing-in-the-log": short("normal", seconds=120, slaves=1, switches=(_SWITCH,)),
    "take-any-tables": short(
        "normal", seconds=120, slaves=1, tables=(TablesPlan(40, "broker-a", "none", 20),)
    ),
    "serve-a-write-on-a-slave": short("normal", slaves=1),
    "hide-too-short": short("popped", messages=80),
    "hide-again-too-short": short("pushed-by-pop", messages=80),
    "acknowledge-what-failed": short("pushed-by-pop", promise="liveness", messages=80),
    "acknowledge-a-suspended-message": short("pushed-by-pop-in-order", messages=80),
    "acknowledge-what-is-given-back": short("simple-consumer", promise="liveness", messages=80),
    "drop-an-acknowledgement": short("popped", messages=80, seed=3),
    "answer-acknowledgements-before-the-flush": short(
        "popped", *_power_losses(20, 30, 40, 50, 60), messages=150, seed=3
    ),
    "count-a-delivery-twice": short("popped", messages=80),
    "forget-what-is-in-flight": short("popped", *_kills(20, 30, 40, 50), messages=150),
    "lose-a-popped-dead-letter": short("popped", promise="liveness", messages=80),
    "go-on-behind-a-batch": short("popped-in-order", messages=80, seed=2),
    "forget-what-is-due": short("popped", promise="liveness", messages=80, seed=3),
    "back-up-a-damaged-file": short("normal", *_damages(30), messages=150),
}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have runs end soon: these schedules leave nothing that takes long."""
    monkeypatch.setattr(run, "_CALM_S", 70.0)
    monkeypatch.setattr(run, "SETTLE_S", 60.0)


@pytest.mark.parametrize("name", CANARIES)
def test_a_canary_is_found(name: str) -> None:
    canary, schedule = CANARIES[name], SHORT[name]
    with quiet(), planted(canary, schedule.seed):
        outcome = run.run(schedule)
    assert outcome.kinds & canary.found_by, outcome.failures


def test_every_canary_has_an_invariant_that_finds_it_and_every_invariant_a_canary() -> None:
    found_by = {name for canary in CANARIES.values() for name in canary.found_by}
    assert found_by == set(INVARIANTS)
    assert set(SHORT) == set(CANARIES)
