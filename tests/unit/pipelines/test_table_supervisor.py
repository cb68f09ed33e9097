"""The supervisor of the table service, with drivers that need no Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.unit.pipelines.supervising import STEADY_S
from tests.waits import PROCESS_WAIT_S, eventually

from cometmq.cli.pipeline.failure import sentence_of
from cometmq.errors import ConfigError, DataLossError
from cometmq.pipelines.table.days import Days
from cometmq.pipelines.table.notes import VARIABLE, Notes, notes_of
from cometmq.pipelines.table.settings import Config
from cometmq.pipelines.table.supervisor import Supervisor

ROOT = Path(__file__).parents[3]


class Service:
    def __init__(self, directory: Path, max_restarts: int) -> None:
        self.directory = directory
        self._log = directory / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.unit.pipelines.supervising"),
                    *(str(directory), str(max_restarts)),
                ],
                stderr=log,
                cwd=ROOT,
            )

    @property
    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def drivers(self) -> list[int]:
        """The process ids of all drivers so far."""
        started = len(list(self.directory.glob("started-*")))
        texts = [(self.directory / f"started-{at}").read_text() for at in range(started)]
        return [int(text) for text in texts if text]

    def metrics(self) -> dict[str, float]:
        """The samples by name and labels, none before there is a page."""
        ports = re.findall(r"metrics are served at 127.0.0.1:(\d+)", self._log.read_text())
        if not ports:
            return {}
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[0]}/metrics") as answer:
            text = answer.read().decode()
        pairs = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in pairs}

    def force(self) -> None:
        """Send signals until it has ended. Two that wait at once would count as one."""

        def has_ended() -> bool:
            self.process.send_signal(signal.SIGTERM)
            return self.process.poll() is not None

        eventually(has_ended, wait_s=PROCESS_WAIT_S)

    def stall(self, batches: int) -> None:
        """Set the clock forward so far that a driver without progress behind these batches is late."""
        eventually(lambda: self.metrics().get("cometmq_table_batches_total") == batches)
        self.process.send_signal(signal.SIGUSR1)

    def wait_for_hanging(self, driver: int, has_ended: Callable[[], bool]) -> None:
        """Set the clock forward until this driver has ended: it noted its failure and hangs."""
        hangs = self.directory / f"hangs-{driver}"

        def is_over() -> bool:
            # The supervisor may read the note only now, and gives the driver its time from then on.
            if has_ended():
                return True
            if hangs.exists() and not is_gone(self.drivers()[driver]):
                self.process.send_signal(signal.SIGUSR2)
            return False

        eventually(is_over, wait_s=PROCESS_WAIT_S)

    def ended(self) -> int:
        return self.process.wait(PROCESS_WAIT_S)

    def day(self) -> dict[str, object]:
        (path,) = self.directory.glob("table-*.json")
        found: dict[str, object] = json.loads(path.read_bytes())
        return found


@contextmanager
def service(directory: Path, *acts: str, max_restarts: int = 10) -> Iterator[Service]:
    (directory / "acts.json").write_text(json.dumps(acts))
    one = Service(directory, max_restarts)
    try:
        yield one
    finally:
        one.force()


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_driver_that_is_lost_is_started_again_and_its_cause_is_a_line(tmp_path: Path) -> None:
    with service(tmp_path, "killed", "fail the broker is gone", "work") as one:
        one.wait_for_hanging(1, lambda: "the broker is gone" in "".join(one.lines))
        eventually(lambda: one.metrics().get("cometmq_table_batches_total") == 2.0)
        first, second = one.lines[1:]
        assert first == (
            "the driver ended: SIGKILL killed it; the service starts it again in 0.01 s "
            "(restart 1 of 10 in a row)"
        )
        assert second == (
            "the driver ended: the broker is gone; the service starts it again in 0.02 s "
            "(restart 2 of 10 in a row)"
        )
        found = one.metrics()
        assert found['cometmq_table_restarts_total{cause="killed"}'] == 1
        assert found['cometmq_table_restarts_total{cause="failed"}'] == 1
        assert found["cometmq_table_running"] == 1
        assert found['cometmq_table_undecodable_rows{topic="orders"}'] == 2
        assert found['cometmq_table_undecoded_messages{topic="orders"}'] == 1
        assert found["cometmq_table_cpu_seconds_total"] > 0
        assert found['cometmq_table_freshness_target_seconds{topic="orders"}'] == 60
        assert found['cometmq_table_freshness_seconds{topic="orders"}'] < 60
        assert found['cometmq_table_lag_messages{topic="orders"}'] == 3
        # Of the first driver 10, and 20 more when the third one has 30: the second noted none.
        assert found['cometmq_table_written_rows_total{topic="orders"}'] == 30
        assert found['cometmq_table_rows{topic="orders"}'] == 30
        one.process.send_signal(signal.SIGTERM)
        assert one.ended() == 0
        day = one.day()
        assert day["restart_count"] == 2
        assert "30 rows in 1 topics" in str(day["summary"])
        (page,) = tmp_path.glob("table-*.html")
        assert "SIGKILL killed it" in page.read_text()


def test_a_driver_that_is_late_is_killed_and_started_again(tmp_path: Path) -> None:
    with service(tmp_path, "silent", "silent", "final enough") as one:
        one.stall(batches=1)
        one.stall(batches=2)
        assert one.ended() == 2
        assert one.lines[1].startswith(
            "the driver ended: it showed no progress for 600 s (stalled_after); the service starts it again"
        )
        assert all(map(is_gone, one.drivers()))


def test_it_gives_up_after_as_many_deaths_as_the_limit_says(tmp_path: Path) -> None:
    acts = ["killed"] * 4
    with service(tmp_path, *acts, max_restarts=3) as one:
        assert one.ended() == 1
        assert one.lines[-1] == (
            "the driver ended 4 times in a row, and max_restarts is 3, so the service ends; the last "
            "cause: SIGKILL killed it. Remove the cause, and run the same command again: it continues where it stopped"
        )
        assert len(one.drivers()) == 4
        assert one.day()["restart_count"] == 4


def test_the_time_in_which_drivers_stand_still_begins_no_new_row_of_deaths(tmp_path: Path) -> None:
    # Less than the time for which each driver stands still, and more than a busy machine takes between two notes.
    (tmp_path / "steady").write_text("300")
    with service(tmp_path, "silent", "silent", "final enough", max_restarts=1) as one:
        one.stall(batches=1)
        one.stall(batches=2)
        assert one.ended() == 1
        assert one.lines[-1].startswith("the driver ended 2 times in a row")


def test_a_driver_that_gets_on_for_long_begins_a_new_row_of_deaths(tmp_path: Path) -> None:
    (tmp_path / "steady").write_text(str(STEADY_S))
    with service(tmp_path, "while", "while", "while", "work", max_restarts=1) as one:
        eventually(lambda: len(one.drivers()) == 4, wait_s=PROCESS_WAIT_S)
        assert [line.partition("(")[2] for line in one.lines[1:]] == [
            "restart 1 of 1 in a row)"
        ] * 3


def test_what_a_restart_would_meet_again_ends_the_service(tmp_path: Path) -> None:
    with service(tmp_path, "wrong") as one:
        assert one.ended() == 2
        assert one.lines[-1] == "what is given does not fit"
    (tmp_path / "started-0").unlink()
    with service(tmp_path, "killed", "final the topic was made again") as one:
        assert one.ended() == 2
        assert one.lines[-1] == "the service ends, because a restart would fail in the same way"


def test_a_stop_before_the_first_driver_starts_none(tmp_path: Path) -> None:
    def stop(line: str) -> None:
        assert line.startswith("metrics are served")
        signal.raise_signal(signal.SIGTERM)

    config = Config(path="/data/archive", topics=["orders"], metrics="127.0.0.1:0")
    days = Days(tmp_path, config.freshness_s, stop)
    started = tmp_path / "started"
    assert Supervisor(config, ["touch", str(started)], stop, days).run() == 0
    assert not started.exists()


def test_what_is_given_is_wrong_only_while_no_driver_has_worked(tmp_path: Path) -> None:
    away = "given the object store is away"
    with service(tmp_path, away) as one:
        assert one.ended() == 2
        assert len(one.lines) == 1
    (tmp_path / "started-0").unlink()
    with service(tmp_path, "killed", away, "wrong", "work") as one:
        eventually(lambda: len(one.drivers()) == 4, wait_s=PROCESS_WAIT_S)
        assert "the object store is away; the service starts it again in" in one.lines[2]
        assert "it ended with status 2; the service starts it again in" in "".join(one.lines)


def test_a_driver_that_hangs_after_a_wrong_configuration_gives_its_status(
    tmp_path: Path,
) -> None:
    with service(tmp_path, "stuck topics is []") as one:
        one.wait_for_hanging(0, lambda: one.process.poll() is not None)
        assert one.ended() == 2
        assert all(map(is_gone, one.drivers()))


def test_an_archive_that_another_process_has_is_tried_again_up_to_the_limit(
    tmp_path: Path,
) -> None:
    busy = "held another archive is at work"
    with service(tmp_path, busy, "work", max_restarts=1) as one:
        eventually(lambda: one.metrics().get("cometmq_table_batches_total") == 1.0)
    for path in tmp_path.glob("started-*"):
        path.unlink()
    with service(tmp_path, busy, busy, max_restarts=1) as one:
        assert one.ended() == 1
        assert "the last cause: another archive is at work. Remove the cause" in one.lines[-1]


def as_shown(error: Exception) -> Exception:
    """Return what `said_in_a_sentence` makes of an archive's error."""
    shown = sentence_of(error, Path("pipeline.toml"), "table") or error
    shown.__cause__ = error
    return shown


def held() -> ConfigError:
    error = ConfigError("another archive is at work")
    error.__cause__ = BlockingIOError(11, "locked")
    return error


@pytest.mark.parametrize(
    ("error", "is_final", "is_given_wrong"),
    [
        (as_shown(ConfigError("topics is []")), False, True),
        (as_shown(held()), False, False),
        (DataLossError("messages are gone"), True, False),
        (OSError("the disk is full"), False, False),
    ],
)
def test_a_driver_notes_whether_a_restart_could_help(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_final: bool, is_given_wrong: bool
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as noted, os.fdopen(writing, "wb") as pipe:
        monkeypatch.setenv(VARIABLE, str(pipe.fileno()))
        with pytest.raises(type(error)), Notes().failure_noted():
            raise error
        note = notes_of(noted.readline())
    assert note is not None
    assert (note.is_final, note.is_given_wrong) == (is_final, is_given_wrong)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_the_driver_finish(tmp_path: Path, number: signal.Signals) -> None:
    with service(tmp_path, "work") as one:
        eventually(lambda: one.metrics().get("cometmq_table_batches_total") == 1.0)
        one.process.send_signal(number)
        assert one.ended() == 0
        assert len(one.lines) == 1
        assert all(map(is_gone, one.drivers()))


def test_a_stop_of_a_driver_whose_report_does_not_hold_says_so_by_its_status(
    tmp_path: Path,
) -> None:
    with service(tmp_path, "look") as one:
        eventually(lambda: one.metrics().get("cometmq_table_batches_total") == 1.0)
        one.process.send_signal(signal.SIGTERM)
        assert one.ended() == 1
        assert len(one.lines) == 1


def test_a_second_signal_kills_a_driver_that_does_not_finish(tmp_path: Path) -> None:
    with service(tmp_path, "stubborn") as one:
        eventually(lambda: one.metrics().get("cometmq_table_batches_total") == 1.0)
        one.force()
        # One more may have come behind its end, when a signal has its former effect again.
        assert one.ended() in (128 + signal.SIGTERM, -signal.SIGTERM)
        assert all(map(is_gone, one.drivers()))


def test_the_end_of_a_supervisor_ends_its_driver(tmp_path: Path) -> None:
    with service(tmp_path, "work") as one:
        eventually(lambda: one.metrics().get("cometmq_table_batches_total") == 1.0)
        one.process.kill()
        (driver,) = one.drivers()
        eventually(lambda: is_gone(driver), wait_s=PROCESS_WAIT_S)


def test_a_service_goes_on_with_the_report_of_the_day(tmp_path: Path) -> None:
    for _ in range(2):
        with service(tmp_path, "killed", "work") as one:
            eventually(lambda: one.metrics().get("cometmq_table_batches_total") == 2.0)
            one.process.send_signal(signal.SIGTERM)
            assert one.ended() == 0
        for path in tmp_path.glob("started-*"):
            path.unlink()
    # Unless midnight came in between.
    if len(list(tmp_path.glob("table-*.json"))) == 1:
        assert one.day()["restart_count"] == 2
