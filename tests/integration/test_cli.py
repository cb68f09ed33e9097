"""The commands as processes: what they print, how they stop, what they say to a wrong setting."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S

DEADLINE_S = PROCESS_WAIT_S


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "cometmq", *arguments]


def environment(**changes: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
    return {**inherited, "COLUMNS": "100", **changes}


def ended(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


class Running:
    """Runs a server process whose output is read line by line."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[str] = []

    def wait_for(self, text: str) -> str:
        """Return the first line with `text`."""
        stdout = self.process.stdout
        assert stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if select.select([stdout], [], [], 0.1)[0]:
                line = stdout.readline().decode()
                self.lines.append(line)
                if text in line:
                    return line.rstrip("\n")
                if not line:
                    break
        raise AssertionError(f"no line with {text!r} in {self.lines}")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@contextmanager
def running(*arguments: str, **changes: str) -> Iterator[Running]:
    # Unbuffered on our side, too: `select` would not see lines that were read ahead.
    with subprocess.Popen(
        command(*arguments),
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
    ) as process:
        try:
            yield Running(process)
        finally:
            if process.poll() is None:
                process.kill()


def used_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:  # the new text of a state file, which has taken its place by now
        return 0


@pytest.fixture
def namesrv_conf(tmp_path: Path) -> Path:
    path = tmp_path / "namesrv.conf"
    path.write_text(
        f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path}/kvConfig.json\nuseTLS=true\n"
    )
    return path


@pytest.fixture
def broker_conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(
        "brokerName = broker-t\nbrokerId=7\nbrokerIP1=127.0.0.1\nbindAddress=127.0.0.1\n"
        f"listenPort=0\nstorePathRootDir={tmp_path}/store\n"
        "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=20000\ndeleteWhen=04\n"
    )
    return path


def test_a_name_server_says_when_it_is_ready_and_stops_cleanly(namesrv_conf: Path) -> None:
    with running("namesrv", "-c", str(namesrv_conf)) as server:
        line = server.wait_for("boot success")
        assert line.startswith(
            "The Name Server boot success. serializeType=JSON, address 127.0.0.1"
        )
        port = int(line.rpartition(":")[2])
        socket.create_connection(("127.0.0.1", port), DEADLINE_S).close()
        assert server.stop() == 0


def test_a_broker_registers_and_stops_cleanly(namesrv_conf: Path, broker_conf: Path) -> None:
    with running("namesrv", "-c", str(namesrv_conf)) as namesrv:
        port = namesrv.wait_for("boot success").rpartition(":")[2]
        with running("broker", "-c", str(broker_conf), "-n", f"127.0.0.1:{port}") as broker:
            line = broker.wait_for("boot success")
            assert line.startswith("The broker[broker-t, 127.0.0.1:")
            assert line.endswith(
                f"boot success. serializeType=JSON and name server is 127.0.0.1:{port}"
            )
            assert broker.stop(signal.SIGINT) == 0
        assert namesrv.stop() == 0
    assert not (broker_conf.parent / "store" / "abort").exists()


def test_dev_is_a_whole_cluster_that_leaves_nothing_behind(tmp_path: Path) -> None:
    with running("dev", "--port", "0", "--broker-port", "0", TMPDIR=str(tmp_path)) as dev:
        namesrv = dev.wait_for("name server").split()[-1]
        broker = dev.wait_for("broker").split()[-1]
        store = Path(dev.wait_for("store").split()[1])
        assert store.is_relative_to(tmp_path)
        for address in (namesrv, broker):
            host, _, port = address.partition(":")
            socket.create_connection((host, int(port)), DEADLINE_S).close()
        assert f'namesrv="{namesrv}"' in dev.wait_for("with Producer")
        # Preallocated files are small.
        used = sum(map(used_bytes, store.rglob("*")))
        assert used < 64 * 1024 * 1024
        assert dev.stop() == 0
    assert list(tmp_path.iterdir()) == []


def test_dev_keeps_a_store_that_was_named(tmp_path: Path) -> None:
    store = tmp_path / "kept"
    for _ in range(2):
        with running("dev", "--port", "0", "--broker-port", "0", "--store", str(store)) as dev:
            dev.wait_for("Ctrl-C")
            assert dev.stop() == 0
    assert (store / "config" / "topics.json").exists()


def test_dev_names_the_options_when_a_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = ended("dev", "--port", str(taken.getsockname()[1]), "--broker-port", "0")
    assert result.returncode == 2
    assert "another process has the port" in result.stderr
    assert result.stderr.endswith("see --port and --broker-port\n")


def test_the_effective_configuration_is_printed(namesrv_conf: Path, broker_conf: Path) -> None:
    shown = ended("namesrv", "-c", str(namesrv_conf), "-p")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines == sorted(lines)
    assert {"useTLS=true", "listenPort=0", "scanNotActiveBrokerInterval=5000"} <= set(lines)
    assert f"configStorePath={namesrv_conf}" in lines

    shown = ended("broker", "-c", str(broker_conf), "-p", "-n", "h:1;i:2")
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    # A master's id is 0, the option overrides the file, and unknown keys are kept.
    assert {"brokerName=broker-t", "brokerId=0", "namesrvAddr=h:1;i:2", "deleteWhen=04"} <= set(
        lines
    )
    important = ended("broker", "-c", str(broker_conf), "-m").stdout.splitlines()
    assert "brokerName=broker-t" in important
    assert set(important) < set(ended("broker", "-c", str(broker_conf), "-p").stdout.splitlines())


def test_name_servers_come_from_option_file_or_environment(broker_conf: Path) -> None:
    def shown(*options: str) -> str:
        text = ended("broker", "-c", str(broker_conf), "-m", *options, NAMESRV_ADDR="env:1").stdout
        return next(line for line in text.splitlines() if line.startswith("namesrvAddr="))

    assert shown() == "namesrvAddr=env:1"
    with broker_conf.open("a") as file:
        file.write("namesrvAddr=file:1\n")
    assert shown() == "namesrvAddr=file:1"
    assert shown("-n", "option:1") == "namesrvAddr=option:1"


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("listenPort=many", "listenPort=many does not fit, it must be a whole number"),
        ("brokerRole=SLAVE\nbrokerId=0", "brokerRole=SLAVE needs a brokerId of 1 or more"),
        ("namesrvAddr=nowhere", "namesrvAddr=nowhere does not fit, it must be of the form"),
        ("flushDiskType=SOMETIMES", "flushDiskType=SOMETIMES"),
    ],
)
def test_a_wrong_setting_is_one_sentence_and_status_2(
    broker_conf: Path, setting: str, complaint: str
) -> None:
    with broker_conf.open("a") as file:
        file.write(f"{setting}\n")
    result = ended("broker", "-c", str(broker_conf))
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.startswith("cometmq: ")
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_every_mistake_of_a_file_is_said_with_its_line(broker_conf: Path) -> None:
    lines = broker_conf.read_text().count("\n")
    with broker_conf.open("a") as file:
        file.write("listenPrt=1\nenableControllerMode=true\nflushDiskType=SYNC\n")
    result = ended("broker", "-c", str(broker_conf))
    assert result.returncode == 2
    first, *rest = result.stderr.splitlines()
    assert first == f"cometmq: {broker_conf} has 3 mistakes:"
    for number, (line, said) in enumerate(
        zip(rest, ("did you mean listenPort?", "elect their master", "SYNC_FLUSH"), strict=True), 1
    ):
        assert line.startswith(f"  line {lines + number}: ")
        assert said in line


@pytest.mark.parametrize("server", ["broker", "namesrv"])
def test_a_misspelt_key_stops_the_start_unless_lenient(
    server: str, namesrv_conf: Path, broker_conf: Path
) -> None:
    conf = broker_conf if server == "broker" else namesrv_conf
    with conf.open("a") as file:
        file.write("lissenPort=1\n")
    result = ended(server, "-c", str(conf))
    assert result.returncode == 2
    assert "did you mean listenPort?" in result.stderr
    result = ended(server, "-c", str(conf), "--lenient", "-p")
    assert result.returncode == 0
    assert "lissenPort=1\n" in result.stdout
    assert "misspelt key without effect" in result.stderr


def test_a_missing_file_and_a_wrong_level_are_named(namesrv_conf: Path) -> None:
    result = ended("namesrv", "-c", "/nowhere/namesrv.conf")
    assert result.returncode == 2
    assert result.stderr == (
        "cometmq: the properties file /nowhere/namesrv.conf cannot be read: "
        "No such file or directory\n"
    )
    result = ended("namesrv", "-c", str(namesrv_conf), "--log-level", "loud")
    assert result.returncode == 2
    assert "the log level loud is none of" in result.stderr


def test_a_store_in_use_is_status_2(broker_conf: Path) -> None:
    with running("broker", "-c", str(broker_conf)) as first:
        first.wait_for("boot success")
        second = ended("broker", "-c", str(broker_conf), "--log-level", "error")
        assert second.returncode == 2
        assert second.stderr.startswith("cometmq: ")
        assert second.stderr.count("\n") == 1
        assert first.stop() == 0


def test_the_help_lists_the_commands() -> None:
    result = ended("--help")
    assert result.returncode == 0
    for word in ("dev", "namesrv", "broker", "--version"):
        assert word in result.stdout
    assert ended("--version").stdout.startswith("cometmq ")
