"""The demo as a process, and its verdict when something is wrong."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples.demo import __main__ as demo
from examples.demo.tally import Tally, percentile
from examples.order_events import OrderEvent, load_events
from rich.console import Console
from tests.waits import PROCESS_WAIT_S

from cometmq import MessageQueue, SendResult, SendStatus

ROOT = Path(__file__).parents[2]
DEADLINE_S = PROCESS_WAIT_S
QUEUE = MessageQueue("t", "broker-a", 0)
RESULT = SendResult(SendStatus.SEND_OK, "", "", QUEUE, 0)
VERDICT = "OK sent = stored = received: 10,000 = 10,000 = 10,000"


def test_the_demo_proves_that_nothing_was_lost_and_pipes_plain_text(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    result = subprocess.run(
        [sys.executable, "-m", "examples.demo", str(tmp_path / "reports")],
        cwd=ROOT,
        env={**environment, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    assert VERDICT in result.stdout
    assert "\x1b" not in result.stdout
    # The line of addresses names a directory of unknown length.
    lines = [line for line in result.stdout.splitlines() if not line.startswith("name server")]
    assert max(map(len, lines)) <= 80
    counts = dict(
        re.findall(r"│ (sent|stored|received|duplicates|out of order) +│ +([\d,]+)", result.stdout)
    )
    assert counts == {
        "sent": "10,000",
        "stored": "10,000",
        "received": "10,000",
        "duplicates": "0",
        "out of order": "0",
    }
    # Without a Java for Spark a sentence says what to install, and the rest of the demo counts.
    said = " ".join(result.stdout.split())
    assert "not shown: archive and audit. Spark needs Java 17 or newer" in said
    assert "install Java 17 or 21" in said
    assert len(re.findall(r"│ broker-a:\d │ consumer-[12] │", result.stdout)) == 8
    assert not Path(result.stdout.split("store ")[1].split("\n")[0]).exists()


def test_the_demo_shows_its_progress_on_a_terminal(tmp_path: Path) -> None:
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo", str(tmp_path)],
        cwd=ROOT,
        env={
            **os.environ,
            "TERM": "xterm-256color",
            "COLUMNS": "80",
            "JAVA_HOME": str(tmp_path),
        },
        stdout=secondary,
        stderr=secondary,
    ) as process:
        os.close(secondary)
        shown = b""
        try:
            while data := os.read(primary, 65536):
                shown += data
        except OSError:
            pass  # Linux reports the end of a terminal's last writer as an error
        os.close(primary)
        assert process.wait(DEADLINE_S) == 0
    text = shown.decode()
    assert VERDICT in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "10000/10000" in text


def test_the_second_part_finds_the_store_of_the_first(tmp_path: Path) -> None:
    def run(part: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "examples.demo", "--part", part, str(tmp_path / "demo")],
            cwd=ROOT,
            env={**os.environ, "JAVA_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    early = run("pipelines")
    assert early.returncode == 1
    assert "run --part messages first" in early.stderr
    messages = run("messages")
    assert (messages.returncode, messages.stderr) == (0, "")
    assert VERDICT in messages.stdout
    assert "archive and audit" not in messages.stdout
    pipelines = run("pipelines")
    assert (pipelines.returncode, pipelines.stderr) == (0, "")
    assert "not shown: archive and audit." in pipelines.stdout
    assert VERDICT not in pipelines.stdout


def test_what_follows_is_said_with_the_time_that_it_takes_here(tmp_path: Path) -> None:
    def said() -> str:
        command = [
            str(ROOT / "scripts" / "demo-follows"),
            "reports",
            str(tmp_path / "spark"),
            str(tmp_path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return " ".join(done.stdout.split())

    (tmp_path / ".seconds").write_text("61\n")
    assert "It needs PySpark, 430 MB, once. That takes about 5 minutes here." in said()
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / ".ready").touch()
    assert "PySpark" not in said()
    assert "That takes about a minute here. Ctrl-C leaves what is done" in said()


def test_the_list_of_packages_is_left_out_and_the_bars_are_not() -> None:
    lines = ["Resolved 202 packages", *[" \x1b[32m+\x1b[39m \x1b[1mtyper\x1b[0m==0.29.2"] * 200]
    code = (
        f"import sys, time\nfor line in {lines!r}: print(line, file=sys.stderr)\n"
        # A read of the terminal brings lines of the list only, and finds nothing behind them yet.
        "time.sleep(0.1)\nprint(' + uv==0.9', file=sys.stderr)\ntime.sleep(0.1)\nprint(' bar', end='\\r bar')\nsys.exit(3)"
    )
    primary, secondary = pty.openpty()
    with subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "without-list", sys.executable, "-c", code],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
    ) as process:
        os.close(secondary)
        shown = b""
        try:
            while data := os.read(primary, 65536):
                shown += data
        except OSError:
            pass  # Linux reports the end of a terminal's last writer as an error
        os.close(primary)
        assert process.wait(DEADLINE_S) == 3
    assert shown.replace(b"\r\n", b"\n") == b"Resolved 202 packages\n bar\r bar"


@pytest.fixture
def events() -> list[OrderEvent]:
    return list(load_events())[:200]


def played(tally: Tally, sent: list[OrderEvent], came: list[OrderEvent]) -> Tally:
    for event in sent:
        tally.sending(event)
        tally.sent(event, RESULT)
    for event in came:
        tally.came(event, "consumer-1", QUEUE)
    return tally


def verdict(tally: Tally, stored: int) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), highlight=False, width=80)
    holds = demo.verdict(console, tally, stored)
    assert isinstance(console.file, io.StringIO)
    return holds, console.file.getvalue()


async def test_a_whole_run_holds_and_a_duplicate_is_named(events: list[OrderEvent]) -> None:
    tally = played(Tally(events), events, [*events, events[7]])
    assert tally.complete.is_set()
    holds, text = verdict(tally, 200)
    assert holds
    assert "200 = 200 = 200" in text
    assert f"delivered more than once: {events[7].event_id}\n" in text
    assert tally.duplicates == {events[7].event_id: 2}


async def test_a_lost_event_fails_the_demo(events: list[OrderEvent]) -> None:
    tally = played(Tally(events), events, events[:-1])
    assert not tally.complete.is_set()
    holds, text = verdict(tally, 200)
    assert not holds
    assert "FAILED sent / stored / received: 200 / 200 / 199" in text


async def test_an_event_the_broker_does_not_have_fails_the_demo(events: list[OrderEvent]) -> None:
    assert not verdict(played(Tally(events), events, events), 199)[0]


async def test_two_events_of_an_order_that_change_places_fail_the_demo(
    events: list[OrderEvent],
) -> None:
    second = next(event for event in events if event.sequence == 2)
    first = next(e for e in events if e.order_id == second.order_id and e.sequence == 1)
    changed = [{first: second, second: first}.get(event, event) for event in events]
    holds, text = verdict(played(Tally(events), events, changed), 200)
    assert not holds
    assert second.event_id in text


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert percentile(values, 50) == 51.0
    assert percentile(values, 99) == 100.0
    assert percentile([], 99) == 0.0
