"""Give a test that failed a second try, alone, at the end of a run of CI, and say which tests are slow.

`.ci/run` sets COMETMQ_AGAIN to a directory. Each pytest process writes a file there about the tests that
failed and those that took longest, and ends with 0 if all that went wrong is in that file and may be tried
again. At the end

    python -m tests.again DIRECTORY

runs these tests again, one test function after the other, each in a process of its own, with the interpreter,
the settings and the options that it had. The failed cases of one function run together, because they often
fail together: they share a server, for example. The program ends with 1 if one fails again, or is in
`tests/unsteady.toml`, the list of tests that are known to be unsteady. DIRECTORY/TEST/first.txt and second.txt
are what the two tries said, and DIRECTORY/closing.txt is what the last lines of CI say.
"""

from __future__ import annotations

import datetime
import hashlib
import heapq
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

VARIABLE: Final = "COMETMQ_AGAIN"
LIST: Final = Path(__file__).with_name("unsteady.toml")
# If a change breaks more test functions than this, it is no matter of luck.
MOST_FAILURES: Final = 10
MOST_KNOWN: Final = 10
SLOWEST: Final = 20
# The largest number of lines of an error in closing.txt, and of letters in a line.
MOST_LINES: Final = 12
LONGEST: Final = 400
# The second try of a test without a limit of its own, such as a campaign of crashes.
LIMIT_S: Final = 1800.0

_SETTINGS: Final = ("COMETMQ_", "JAVA_", "PYTHON", "SPARK_")
_FIELDS: Final = {"name": str, "date": datetime.date, "suspicion": str}


class Invocation(msgspec.Struct):
    """The record of one pytest process: how it was started, and its results."""

    executable: str
    directory: str
    settings: dict[str, str]
    options: list[str]
    # By node id, what each failed test said.
    failures: dict[str, str] = {}
    slowest: list[tuple[float, str]] = []


class SecondTries:
    """The plugin. It sees the reports of all tests, also of those that workers of xdist run."""

    def __init__(self, config: pytest.Config, directory: Path) -> None:
        self._directory = directory
        self._invocation = Invocation(
            executable=sys.executable,
            directory=str(config.rootpath),
            settings=_settings(),
            options=_options(config),
        )
        self._seconds: dict[str, float] = {}
        self._done: set[str] = set()
        self._broken: list[str] = []
        self._workers_lost = 0
        self._said = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took_s: float = getattr(report, "duration", 0.0)
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + took_s
        # A worker that crashed is reported by xdist, once for its test, as neither of the three phases.
        crashed = report.when not in ("setup", "call", "teardown")
        if crashed:
            self._workers_lost -= 1
        if crashed or report.when == "teardown":
            self._done.add(report.nodeid)
        if report.failed:
            sections = "".join(f"\n--- {title}\n{text}" for title, text in report.sections)
            said = f"{report.when}: {report.longreprtext}{sections}\n"
            failures = self._invocation.failures
            failures[report.nodeid] = failures.get(report.nodeid, "") + said

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.append(f"{report.nodeid} could not be collected")

    def pytest_internalerror(self) -> None:
        self._broken.append("pytest failed itself")

    def pytest_keyboard_interrupt(self) -> None:
        self._broken.append("the run was interrupted")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        if error is not None:
            self._workers_lost += 1

    # Last, when xdist has ended its workers.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        failures = self._invocation.failures
        why_not = self._why_not(session, exitstatus)
        if why_not:
            # Nobody tries again what failed the run for good.
            failures.clear()
        times = [(round(seconds, 2), name) for name, seconds in self._seconds.items()]
        self._invocation.slowest = heapq.nlargest(SLOWEST, times)
        _write(
            self._directory / f"{time.time_ns()}-{os.getpid()}.json",
            msgspec.json.encode(self._invocation),
        )
        if exitstatus == pytest.ExitCode.TESTS_FAILED and not why_not:
            session.exitstatus = pytest.ExitCode.OK
            self._said = f"{len(failures)} failed, and will be tried again at the end of the run"
        elif why_not:
            self._said = f"not tried again: {why_not}"

    def _why_not(self, session: pytest.Session, exitstatus: int) -> str:
        """Return why failures of this process stand, or an empty text."""
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return ""
        if self._broken:
            return self._broken[0]
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not self._invocation.failures:
            return f"pytest ended with {int(exitstatus)}, for another reason than a failed test"
        if self._workers_lost:
            return "a worker ended outside of any test"
        functions = {function_of(name) for name in self._invocation.failures}
        if len(functions) > MOST_FAILURES:
            return f"tests of {len(functions)} functions failed, more than {MOST_FAILURES}"
        if len(self._done) != session.testscollected:
            return f"only {len(self._done)} of {session.testscollected} tests were run"
        return ""

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._said:
            terminalreporter.write_line(self._said)


def register(config: pytest.Config) -> None:
    """Add the plugin to the process whose surroundings ask for it.

    The processes that it starts do not inherit the variable: neither workers of xdist, for which this one
    speaks, nor a pytest that a test runs.
    """
    directory = os.environ.pop(VARIABLE, "")
    if directory and not hasattr(config, "workerinput"):
        Path(directory).mkdir(parents=True, exist_ok=True)
        config.pluginmanager.register(SecondTries(config, Path(directory)), "second-tries")


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}


def _options(config: pytest.Config) -> list[str]:
    options = [f"-p{name}" for name in config.getoption("plugins") or []]
    if expression := config.getoption("markexpr"):
        options += ["-m", expression]
    if (limit_s := config.getoption("timeout", None)) is not None:
        options.append(f"--timeout={limit_s:g}")
    return options


def _write(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, whenever the machine stops."""
    aside = path.with_suffix(".new")
    with aside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    names = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(names)
    finally:
        os.close(names)


def known_names(path: Path = LIST) -> list[str]:
    """Return the tests that are known to be unsteady. ValueError names what is wrong with the list."""
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("test", [])
    if len(entries) > MOST_KNOWN:
        raise ValueError(
            f"{path.name} lists {len(entries)} tests, more than {MOST_KNOWN}; mend some of them"
        )
    for entry in entries:
        right = entry.keys() == _FIELDS.keys() and all(
            isinstance(entry[field], kind) and entry[field] for field, kind in _FIELDS.items()
        )
        if not right:
            raise ValueError(
                f"{path.name}: {entry} has not just a name (the node id), a date (2026-11-28) and a "
                "suspicion"
            )
    return [entry["name"] for entry in entries]


def is_known(node_id: str, known: list[str]) -> bool:
    """Say whether a test is listed, by its node id or by that of the function for all parameters."""
    return node_id in known or function_of(node_id) in known


def function_of(node_id: str) -> str:
    """Return the node id of the test function, without the parameters of the case."""
    return node_id.partition("[")[0]


class SecondTry:
    """The failed cases of one test function, which run a second time while nothing else does."""

    def __init__(self, invocation: Invocation, function: str, directory: Path) -> None:
        self.cases = [one for one in invocation.failures if function_of(one) == function]
        self.name = (
            self.cases[0] if len(self.cases) == 1 else f"{function}, {len(self.cases)} cases"
        )
        self._invocation = invocation
        readable = re.sub(r"\W+", "-", self.cases[0])[-80:].strip("-")
        digest = hashlib.sha256((function + repr(invocation.settings)).encode()).hexdigest()
        self.place = directory / f"{readable}-{digest[:8]}"

    def errors(self, *, again: bool) -> list[str]:
        """Return the last lines in which pytest shows the error of a try. People may see only the end
        of CI's output.
        """
        file = self.place / ("second.txt" if again else "first.txt")
        lines = [
            line for line in file.read_text(errors="replace").splitlines() if line[:4] == "E   "
        ]
        return [f"    {line[:LONGEST]}" for line in lines[-MOST_LINES:]]

    def passes(self) -> bool:
        """Run the cases, write what both tries said, and return whether all passed."""
        self.place.mkdir(exist_ok=True)
        first = "\n".join(self._invocation.failures[name] for name in self.cases)
        (self.place / "first.txt").write_text(first)
        others = {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS)}
        command = [self._invocation.executable, "-m", "pytest", "-q", "--color=no"]
        second = self.place / "second.txt"
        with second.open("wb") as output:
            process = subprocess.Popen(
                [*command, *self._invocation.options, *self.cases],
                cwd=self._invocation.directory,
                env={**others, **self._invocation.settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(LIMIT_S)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                output.write(b"\nended after %d s, which is the limit of a second try\n" % LIMIT_S)
                return False
        # A test that is skipped this time has proved nothing.
        summary = next(
            (
                line
                for line in reversed(second.read_text(errors="replace").splitlines())
                if re.search(r"\d+ \w+.* in [\d.]+s", line)
            ),
            "",
        )
        proved = sum(map(int, re.findall(r"\b(\d+) (?:passed|xfailed)\b", summary)))
        return status == 0 and proved == len(self.cases)


def try_again(directory: Path, unsteady_list: Path = LIST) -> int:
    """Run what the files in the directory name; return 1 if one fails again, or is known."""
    known = known_names(unsteady_list)
    invocations = [
        msgspec.json.decode(path.read_bytes(), type=Invocation)
        for path in sorted(directory.glob("*.json"))
    ]
    tries = [
        SecondTry(invocation, function, directory)
        for invocation in invocations
        for function in dict.fromkeys(map(function_of, invocation.failures))
    ]
    closing = ["slowest:", *slowest(invocations)]
    outcomes: dict[str, list[str]] = {"unsteady": [], "known": [], "failed again": []}
    if len(tries) > MOST_FAILURES:
        _say(
            f"tests of {len(tries)} functions failed, more than {MOST_FAILURES}: none is tried again"
        )
        outcomes["failed"] = [one.name for one in tries]
        tries = []
    for one in tries:
        _say(f"again: {one.name}")
        kind = "unsteady" if one.passes() else "failed again"
        if any(is_known(name, known) for name in one.cases):
            kind = "known"
        _say(f"    {kind}; {one.place}/first.txt, second.txt")
        if kind == "failed again":
            _say((one.place / "second.txt").read_text(errors="replace")[-4000:])
        outcomes[kind] += [f"{one.name}  {one.place}", *one.errors(again=kind != "unsteady")]
    outcomes["known to be unsteady, so mend it"] = outcomes.pop("known")
    for kind, names in outcomes.items():
        if names:
            closing += [f"{kind}:", *(f"    {name}" for name in names)]
    _write(directory / "closing.txt", "".join(f"{line}\n" for line in closing).encode())
    del outcomes["unsteady"]
    return 1 if any(outcomes.values()) else 0


def slowest(invocations: list[Invocation]) -> list[str]:
    """Return a line for each of the tests that took longest in any of these processes."""
    tests = sorted((one for each in invocations for one in each.slowest), reverse=True)
    return [f"{seconds:7.1f} s  {name}" for seconds, name in tests[:SLOWEST]]


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - it is a program


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m tests.again DIRECTORY, the one that COMETMQ_AGAIN named")
    sys.exit(try_again(Path(sys.argv[1])))
