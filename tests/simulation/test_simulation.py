"""Fixed seeds of the simulation suite, and what the suite itself promises: replay, and short schedules."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.simulation import __main__ as command_line
from tests.simulation import run as running
from tests.simulation.evidence import Violation
from tests.simulation.history import FaultInjected, History
from tests.simulation.run import run
from tests.simulation.schedule import KINDS, Schedule, SwitchPlan, draw, lives_of, read, write
from tests.simulation.shrink import Shrinker
from tests.simulation.workloads import WORKLOADS
from tests.waits import PROCESS_WAIT_S

from cometmq.aio import Producer
from cometmq.model.message import Message
from cometmq.testing import Cluster, Fault

# Runs are long for tests, and a busy machine makes them longer.
pytestmark = pytest.mark.timeout(600)

# A short run with faults of most kinds. CI runs longer ones of 24 fixed seeds, and `make sim` of any.
SEEDS = (2,)
HOURS = 0.2
# A run of a few seconds, on a machine that is ten times slower.
PROCESS_S = PROCESS_WAIT_S
REPO = Path(__file__).resolve().parents[2]


def digest(history: History) -> str:
    return hashlib.sha256("\n".join(history.lines()).encode()).hexdigest()


@pytest.mark.parametrize("seed", SEEDS)
def test_fixed_seeds_hold(seed: int) -> None:
    with command_line.quiet():
        outcome = run(draw(seed, hours=HOURS))
    assert outcome.failures == [], command_line.command(seed, HOURS, None)
    assert outcome.figures.acknowledged > 0


def test_a_run_begins_with_the_store_that_it_is_given(tmp_path: Path) -> None:
    store = tmp_path / "store"
    # Files have the size that the schedule's brokers give them.
    properties = draw(1, hours=HOURS).cluster.properties
    with Cluster(clock="virtual", properties=properties) as cluster:
        cluster.run(_send(cluster, 20))
        root = cluster.directory / "broker-a"
        cluster.call("stop_broker", 0)
        cluster.node("broker-a").disk.save(store, root=root)
    with command_line.quiet():
        running_on_it = running.Run(draw(1, hours=HOURS, store=str(store)))
        outcome = running_on_it.outcome()
    assert outcome.failures == []
    files = running_on_it.stores["broker-a"].files
    assert b"from before 19" in b"".join(
        files[name] for name in sorted(files) if "commitlog" in name
    )


async def _send(cluster: Cluster, count: int) -> None:
    with cluster.node("app"):
        async with Producer("before", namesrv=cluster.namesrv) as producer:
            for number in range(count):
                await producer.send(Message("before", b"from before %d" % number))


def test_a_broker_that_could_not_start_is_started_when_the_faults_are_over() -> None:
    """Its node was no killed one, so nobody tried again, and the run went on without the broker."""
    schedule = draw(1, hours=0.02)
    faults = [
        Fault(at_s, name, {"node": "broker-a"})
        for at_s, name in ((10, "power_off"), (11, "fill_disk"), (20, "restart"))
    ]
    short = msgspec.structs.replace(
        schedule,
        promise="liveness",
        cluster=msgspec.structs.replace(schedule.cluster, brokers=1),
        faults=tuple(faults),
    )
    with command_line.quiet():
        running_on_it = running.Run(short)
        outcome = running_on_it.outcome()
    assert outcome.failures == []
    injected = [each.name for each in outcome.history.of(FaultInjected)]
    assert injected.count("restart-failed") == 1
    assert injected.count("restart") == 2
    assert running_on_it.stores["broker-a"].state == "running"


def test_a_master_is_started_again_whose_successor_could_not_start() -> None:
    """It stayed down for the rest of the run, and its slave was reported as late: seed 7000601."""
    schedule = draw(1, hours=0.02)
    switch = SwitchPlan(
        at_s=20.0,
        broker="broker-a",
        how="stop",
        after_s=1.0,
        returns="never",
        returns_after_s=5.0,
    )
    short = msgspec.structs.replace(
        schedule,
        promise="liveness",
        cluster=msgspec.structs.replace(schedule.cluster, brokers=1, slaves=1),
        faults=(Fault(20.5, "fill_disk", {"node": "broker-a-slave-1"}),),
        switches=(switch,),
    )
    with command_line.quiet():
        outcome = run(short)
    assert outcome.failures == []
    injected = [(each.name, each.args.get("node")) for each in outcome.history.of(FaultInjected)]
    assert ("promote-failed", "broker-a-slave-1") in injected
    assert ("restart", "broker-a") in injected


def test_one_seed_gives_one_history_in_each_process() -> None:
    schedule = draw(1, hours=HOURS)  # it has a slave, which is promoted
    with command_line.quiet():
        outcome = run(schedule)
        other = run(draw(6, hours=HOURS / 4)).history
    assert outcome.failures == []
    first = outcome.history
    assert digest(other) != digest(first)
    program = (
        "from tests.simulation import test_simulation as t, __main__ as m\n"
        f"with m.quiet(): print(t.digest(t.run(t.draw(1, hours={HOURS})).history))"
    )
    # This process hashes in a way of its own.
    reported = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPO,
        env={**os.environ, "PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert reported.stdout.strip() == digest(first), reported.stderr


def test_a_schedule_is_plain_data_that_follows_from_its_seed(tmp_path: Path) -> None:
    schedules = [draw(seed) for seed in range(30)]
    assert schedules == [draw(seed) for seed in range(30)]
    assert {schedule.promise for schedule in schedules} == {"safety", "liveness"}
    for schedule in schedules:
        write(schedule, tmp_path / "schedule.json")
        assert read(tmp_path / "schedule.json") == schedule
        for plan in schedule.workloads:
            assert sum(life.messages for life in lives_of(plan)) == plan.messages
    assert tuple(WORKLOADS) == KINDS


def culprit(schedule: Schedule) -> bool:
    """Fail like a defect that takes one workload, two faults, and a number of messages."""
    kinds = [plan.kind for plan in schedule.workloads if plan.messages >= 3]
    return "normal" in kinds and {"kill", "cut"} <= {fault.name for fault in schedule.faults}


def long_schedule() -> Schedule:
    plans = [
        msgspec.structs.replace(plan, kind=kind, name=kind, start_s=0.0, messages=60)
        for kind in KINDS
        for plan in draw(1).workloads[:1]
    ]
    faults = [
        Fault(at_s, name, {"node": "broker-a"} if name != "cut" else {"a": "broker-a", "b": "x"})
        for at_s, name in enumerate(("pause", "resume", "kill", "restart", "cut") * 8)
    ]
    return msgspec.structs.replace(draw(1), workloads=tuple(plans), faults=tuple(faults))


def test_a_schedule_is_cut_to_what_its_failure_takes() -> None:
    shrinker = Shrinker(culprit)
    short = shrinker.shrink(long_schedule())
    assert culprit(short)
    assert [plan.kind for plan in short.workloads] == ["normal"]
    assert sorted(fault.name for fault in short.faults) == ["cut", "kill"]
    assert short.workloads[0].messages == 3
    assert short.workloads[0].clients == 1
    assert short.seconds < 900


def test_a_shrink_ends_after_the_runs_that_it_may_take() -> None:
    ran: list[Schedule] = []

    def fails(schedule: Schedule) -> bool:
        ran.append(schedule)
        return culprit(schedule)

    shrinker = Shrinker(fails, runs=7)
    assert culprit(shrinker.shrink(long_schedule()))
    assert len(ran) == shrinker.runs == 7


@pytest.fixture
def always_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the checker find something in every run that sends anything."""

    def check(history: History, _stores: object) -> list[Violation]:
        return [Violation(invariant="planted", what="it is always broken")] if len(history) else []

    monkeypatch.setattr(running, "check", check)


@pytest.mark.usefixtures("always_broken")
def test_a_failing_seed_is_told_with_the_command_that_replays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_line, "RUNS", 1)
    arguments = ["--seed", "6", "--hours", "0.02", "--shrink"]
    monkeypatch.setattr(sys, "argv", ["simulation", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    reported = capsys.readouterr().out
    assert ended.value.code == 1
    assert "planted: it is always broken" in reported
    assert "make sim SEED=6 HOURS=0.02" in reported
    short = read(next(tmp_path.glob("*.json")))
    assert f"--schedule {short.name}.json" in reported
    assert len(short.faults) <= len(draw(6, hours=0.02).faults)
    assert run(short).kinds == {"planted"}


def test_the_seeds_that_once_failed_are_listed_once_and_in_order() -> None:
    seeds = [seed for seed, _ in command_line.found_seeds()]
    assert seeds == sorted(set(seeds))
    assert {hours for _, hours in command_line.found_seeds()} <= {0.03, 0.05, 0.1, 0.2, 0.3, 0.5}


def test_the_seeds_that_once_failed_are_run_with_their_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "found_seeds.txt"
    listed.write_text("# why\n6    0.02  a fault\n11   0.02  another fault\n")
    seeds = command_line.found_seeds(listed)
    monkeypatch.setattr(command_line, "found_seeds", lambda: seeds)
    monkeypatch.setattr(sys, "argv", ["simulation", "--found"])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert re.search(r"^runs +2$", shown, re.MULTILINE)
    # With half an hour each, which is the default, it would be more than one.
    assert re.search(r"^cluster-hours +0\.\d$", shown, re.MULTILINE)
