"""A test that fails is tried once more at the end of a run of CI, and nothing else is forgiven."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.again import Invocation, is_known, known_names, slowest, try_again

ROOT = Path(__file__).parents[2]
# The plugins of this environment would take most of the time of these processes.
PLUGINS = ("-pno:cacheprovider", "-pxdist.plugin", "-ppytest_timeout")
COMMAND = (sys.executable, "-m", "pytest", "-q", *PLUGINS)
CONFTEST = """
from tests import again

def pytest_configure(config):
    again.register(config)
"""
ONCE = """
import os, pathlib, time

def test_passes():
    assert "COMETMQ_AGAIN" not in os.environ

def test_fails_once():
    seen = pathlib.Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first, f"by chance, with {os.environ['COMETMQ_SOME_SEED']}"
"""
ALWAYS = """
def test_fails_always():
    raise RuntimeError("never right")
"""
BROKEN = """
import no_such_module_anywhere
"""
MANY = "".join(
    f"""
def test_fails_{number}():
    assert {number} < 0
"""
    for number in range(11)
)
CASES = """
import pathlib, pytest

@pytest.fixture(scope="module")
def starts():
    with pathlib.Path(__file__).with_name("starts").open("a+") as file:
        file.write("x")
        file.seek(0)
        return len(file.read())

@pytest.mark.parametrize("number", range(30))
def test_by_one_server(number, starts):
    assert starts == 2 or number == 0
"""
CRASHES_ONCE = """
import os, pathlib

def test_passes():
    pass

def test_crashes_once():
    seen = pathlib.Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        os._exit(7)
"""
SKIPPED_THEN = """
import pathlib, pytest

def test_fails_and_is_skipped():
    seen = pathlib.Path(__file__).with_name("seen")
    if seen.exists():
        pytest.skip("no port was free")
    seen.touch()
    raise RuntimeError("failed first")
"""
SETUP = """
import pathlib, pytest

@pytest.fixture
def room():
    seen = pathlib.Path(__file__).with_name("seen")
    yield
    if not seen.exists():
        seen.touch()
        raise RuntimeError("not torn down")

def test_is_torn_down(room):
    pass
"""


class Suite:
    """A suite of one module, which CI runs, and the directory for second tries."""

    def __init__(self, directory: Path, module: str) -> None:
        self.directory = directory
        self.again = directory / "again"
        (directory / "pytest.ini").write_text("[pytest]\nmarkers =\n    cluster: some\n")
        (directory / "conftest.py").write_text(CONFTEST)
        (directory / "test_it.py").write_text(module)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*COMMAND, *options],
            cwd=self.directory,
            env={
                **os.environ,
                "COMETMQ_AGAIN": str(self.again),
                "COMETMQ_SOME_SEED": "17",
                "PYTHONPATH": str(ROOT),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def failures(self) -> dict[str, str]:
        (path,) = self.again.glob("*.json")
        return msgspec.json.decode(path.read_bytes(), type=Invocation).failures

    def closing(self) -> str:
        return (self.again / "closing.txt").read_text()


@pytest.fixture(autouse=True)
def _other_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a second try get its settings from the first one, not from this process."""
    monkeypatch.delenv("COMETMQ_SOME_SEED", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


# A worker takes as long to start as pytest: one shows what workers do.
@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_that_fails_once_is_named_and_passes(tmp_path: Path, workers: str) -> None:
    suite = Suite(tmp_path, ONCE)
    done = suite.run("-n", workers, "-m", "not cluster", "--timeout", "50")
    assert done.returncode == 0, done.stdout
    assert "1 failed, and will be tried again at the end of the run" in done.stdout
    assert list(suite.failures()) == ["test_it.py::test_fails_once"]
    assert try_again(suite.again) == 0
    assert "unsteady:\n    test_it.py::test_fails_once  " in suite.closing()
    assert re.search(r"^ +E +.*by chance, with 17", suite.closing(), re.MULTILINE)
    (place,) = (path for path in suite.again.iterdir() if path.is_dir())
    assert "by chance, with 17" in (place / "first.txt").read_text()
    assert "1 passed" in (place / "second.txt").read_text()
    # The processes of a run leave what they need to be run again as they were.
    (record,) = suite.again.glob("*.json")
    invocation = msgspec.json.decode(record.read_bytes(), type=Invocation)
    assert invocation.options[-3:] == ["-m", "not cluster", "--timeout=50"]
    assert invocation.executable == sys.executable


def test_the_cases_of_a_function_are_tried_again_together(tmp_path: Path) -> None:
    suite = Suite(tmp_path, CASES)
    assert suite.run().returncode == 0
    assert len(suite.failures()) == 29
    assert try_again(suite.again) == 0
    assert "unsteady:\n    test_it.py::test_by_one_server, 29 cases  " in suite.closing()
    (place,) = (path for path in suite.again.iterdir() if path.is_dir())
    assert "29 passed" in (place / "second.txt").read_text()


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_test_that_fails_again_fails_the_run(
    tmp_path: Path, workers: str, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = Suite(tmp_path, ALWAYS)
    assert suite.run("-n", workers).returncode == 0
    assert try_again(suite.again) == 1
    assert "failed again:\n    test_it.py::test_fails_always" in suite.closing()
    assert "unsteady" not in suite.closing()
    # People may see only the end of CI's output.
    assert re.search(r"^ +E +.*never right", suite.closing(), re.MULTILINE)
    assert "never right" in capsys.readouterr().out


def test_a_test_that_is_known_to_be_unsteady_does_not_pass_by_a_second_try(tmp_path: Path) -> None:
    suite = Suite(tmp_path, ONCE)
    assert suite.run().returncode == 0
    listed = tmp_path / "unsteady.toml"
    listed.write_text(
        '[[test]]\nname = "test_it.py::test_fails_once"\ndate = 2026-11-28\nsuspicion = "a race"\n'
    )
    assert try_again(suite.again, listed) == 1
    assert "known to be unsteady, so mend it:\n    test_it.py::test_fails_once" in suite.closing()


@pytest.mark.parametrize("workers", ["0", "1"])
@pytest.mark.parametrize(
    ("module", "options", "reason"),
    [
        pytest.param(MANY, (), "tests of 11 functions failed, more than 10", id="too-many"),
        pytest.param(MANY, ("-x",), "not tried again: ", id="ended-early"),
        pytest.param(BROKEN, (), "could not be collected", id="not-collected"),
    ],
)
def test_what_is_no_matter_of_one_test_fails_at_once(
    tmp_path: Path, workers: str, module: str, options: tuple[str, ...], reason: str
) -> None:
    suite = Suite(tmp_path, module)
    done = suite.run("-n", workers, *options)
    assert done.returncode != 0
    assert reason in done.stdout
    assert suite.failures() == {}


def test_a_worker_that_crashes_is_a_failure_of_its_test(tmp_path: Path) -> None:
    suite = Suite(tmp_path, CRASHES_ONCE)
    done = suite.run("-n", "1")
    assert done.returncode == 0, done.stdout
    assert "crashed while running" in suite.failures()["test_it.py::test_crashes_once"]
    assert try_again(suite.again) == 0
    assert "unsteady:\n    test_it.py::test_crashes_once" in suite.closing()


def test_a_process_that_ends_in_the_middle_leaves_its_failure_standing(tmp_path: Path) -> None:
    suite = Suite(tmp_path, CRASHES_ONCE)
    assert suite.run().returncode == 7
    assert list(suite.again.glob("*.json")) == []


def test_a_test_that_is_skipped_the_second_time_has_proved_nothing(tmp_path: Path) -> None:
    suite = Suite(tmp_path, SKIPPED_THEN)
    assert suite.run().returncode == 0
    assert try_again(suite.again) == 1


def test_a_fixture_that_fails_fails_its_test(tmp_path: Path) -> None:
    suite = Suite(tmp_path, SETUP)
    assert suite.run().returncode == 0
    assert "teardown: " in suite.failures()["test_it.py::test_is_torn_down"]
    assert try_again(suite.again) == 0


def test_more_than_ten_failures_of_several_processes_are_not_tried_again(tmp_path: Path) -> None:
    for number in range(2):
        names = {f"test_{number}.py::test_{test}": "wrong" for test in range(6)}
        data = msgspec.json.encode(Invocation(sys.executable, str(tmp_path), {}, [], names))
        (tmp_path / f"{number}.json").write_bytes(data)
    assert try_again(tmp_path) == 1
    assert "failed:\n    test_0.py::test_0" in (tmp_path / "closing.txt").read_text()


def test_the_slowest_tests_of_all_processes_are_named(tmp_path: Path) -> None:
    suite = Suite(tmp_path, "import time\n\ndef test_slow():\n    time.sleep(0.2)\n")
    suite.run()
    suite.run("-n", "1")
    assert try_again(suite.again) == 0
    # On a loaded machine one of them takes longer.
    assert suite.closing().count(" s  test_it.py::test_slow\n") == 2
    many = [Invocation("", "", {}, [], slowest=[(float(n), f"t{n}") for n in range(30)])]
    assert slowest(many)[0] == "   29.0 s  t29"
    assert len(slowest(many)) == 20


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[[test]]\nname = "a"\ndate = 2026-11-28\n', "has not just a name"),
        ('[[test]]\nname = "a"\ndate = "soon"\nsuspicion = "b"\n', "has not just a name"),
        (
            '[[test]]\nname = "a"\ndate = 2026-11-28\nsuspicion = "b"\n' * 11,
            "lists 11 tests, more than 10; mend some of them",
        ),
    ],
    ids=["no-suspicion", "no-date", "too-many"],
)
def test_a_list_of_unsteady_tests_that_is_no_list_is_refused(
    tmp_path: Path, text: str, reason: str
) -> None:
    path = tmp_path / "unsteady.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason):
        known_names(path)


def test_the_list_of_unsteady_tests_can_be_read() -> None:
    for name in known_names():
        assert (ROOT / name.partition("::")[0]).is_file()


def test_a_listed_function_stands_for_all_its_parameters() -> None:
    assert is_known("tests/a.py::test_b[1]", ["tests/a.py::test_b"])
    assert is_known("tests/a.py::test_b[1]", ["tests/a.py::test_b[1]"])
    assert not is_known("tests/a.py::test_b[2]", ["tests/a.py::test_b[1]"])
