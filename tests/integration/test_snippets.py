"""Every snippet of README and docs is run or checked, or says why not.

Programs in Python run beside a cluster, here or in the test that `RUN_BY` names. Of commands the names
and options must exist; JSON, TOML, YAML and properties must parse, and keys of properties must be keys.
A snippet that cannot be run stands behind `<!-- not run: REASON -->` and is counted.
"""

from __future__ import annotations

import functools
import json
import os
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import yaml
from tests.integration.test_readme import ROOT, against, patient_announcements
from tests.waits import PROCESS_WAIT_S, eventually
from typer.testing import CliRunner

import cometmq
from cometmq.broker.config import CONFIG_CLASSES as BROKER_CLASSES
from cometmq.cli.main import app
from cometmq.namesrv.config import CONFIG_CLASSES as NAMESRV_CLASSES
from cometmq.runtime.configuration.check import misspelt_keys
from cometmq.runtime.configuration.config import parse_properties
from cometmq.testing import Cluster

__all__ = ["patient_announcements"]

PAGES: Final = [
    path.relative_to(ROOT).as_posix()
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
]
# The tests that run the programs of these pages.
RUN_BY: Final = {
    "README.md": "tests/integration/test_readme.py",
    "docs/administration.md": "tests/integration/test_administration_guide.py",
    "docs/client-guide.md": "tests/integration/test_snippets.py",
    "docs/coming-from.md": "tests/integration/test_snippets.py",
    "docs/explain.md": "tests/integration/test_administration_guide.py",
    "docs/frameworks.md": "tests/integration/test_frameworks.py",
    "docs/getting-started.md": "tests/unit/test_tidy.py",
    "docs/payloads.md": "tests/integration/test_snippets.py",
    "docs/pipelines.md": "tests/spark/test_guides.py",
    "docs/reference/api/clients.md": "tests/integration/test_snippets.py",
    "docs/security.md": "tests/integration/test_readme.py",
    "docs/spark-options.md": "tests/spark/test_guides.py",
    "docs/spark.md": "tests/spark/test_guides.py",
    "docs/sql.md": "tests/spark/test_views.py",
    "docs/tables.md": "tests/spark/test_published_tables.py",
    "docs/testing.md": "tests/integration/test_testing_guide.py",
    "docs/tutorial.md": "tests/integration/test_snippets.py",
}
# How many snippets say that nothing runs them. Each says why, above itself.
NOT_RUN: Final = {
    "docs/client-guide.md": 1,
    "docs/coming-from.md": 3,
    "docs/pipelines.md": 2,
    "docs/spark.md": 7,
}
_BLOCK: Final = re.compile(
    r"(?:^<!-- not run: (?P<reason>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Snippet(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    reason: str | None


def snippets(page: str) -> list[Snippet]:
    text = (ROOT / page).read_text()
    return [
        Snippet(
            page,
            text.count("\n", 0, found.start("text")),
            found["language"],
            found["text"],
            found["reason"],
        )
        for found in _BLOCK.finditer(text)
    ]


ALL: Final = [snippet for page in PAGES for snippet in snippets(page)]


def of(page: str) -> list[str]:
    """Return the programs of a page that run."""
    return [each.text for each in snippets(page) if each.language == "python" and not each.reason]


def test_programs_run_by_a_test_that_names_their_page() -> None:
    pages = {each.page for each in ALL if each.language in ("python", "py")}
    assert pages == set(RUN_BY)
    for page, test in RUN_BY.items():
        assert Path(page).name in (ROOT / test).read_text(), (page, test)


def test_what_nothing_runs_says_why_and_is_counted() -> None:
    assert Counter(each.page for each in ALL if each.reason) == NOT_RUN


def test_the_programs_of_the_client_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Cluster() as cluster:
        shown = against(
            cluster,
            "\n".join(of("docs/client-guide.md")).replace("charged.db", f"{tmp_path}/charged.db"),
        )
        letters = cluster.call("dead_letters", "guide-billing", 1)
    for line in ("stored: ", "100 orders sent", "1000 readings sent", "billed at try 2",
                 "b'paid' b'packed' b'sent'", "LocalTransactionState.COMMIT", "viewed ", "revoked "):  # fmt: skip
        assert line in shown
    assert [letter.body for letter in letters] == [b"garbage"]


def test_the_programs_for_those_who_come_from_another_client_run() -> None:
    with Cluster() as cluster:
        shown = against(cluster, "\n".join(of("docs/coming-from.md")))
    for client in ("Java's", "rocketmq-client-python's", "aiokafka's", "confluent-kafka's"):
        assert f"{client}: one espresso" in shown


def test_the_programs_about_payloads_run() -> None:
    with Cluster() as cluster:
        shown = against(cluster, "\n".join(of("docs/payloads.md")))
    assert "billing O-1 1250" in shown


def test_the_programs_about_metrics_and_spans_run() -> None:
    metrics, spans = of("docs/reference/api/clients.md")
    with Cluster() as cluster:
        against(cluster, metrics.replace("start_http_server(8000)", "start_http_server(0)"))
        assert "send orders" in against(cluster, f"{spans}\nprovider.shutdown()\n")


# -- the tutorial --

_NAMED: Final = re.compile(r"\A# (\S+\.py)(?:: (\w+))?\n")
_QUICK: Final = {"messageDelayLevel": "1s " * 17 + "1s"}


def parts() -> dict[tuple[str, str | None], str]:
    found = {}
    for code in of("docs/tutorial.md"):
        named = _NAMED.match(code)
        assert named is not None, "a program of the tutorial begins with the name of its file"
        found[named[1], named[2]] = code
    return found


@contextmanager
def billing(directory: Path, environment: dict[str, str], log: Path) -> Iterator[None]:
    """Run the service as the reader does, and end it by a signal."""
    with (
        log.open("a") as file,
        subprocess.Popen(
            [sys.executable, "billing.py"], cwd=directory, env=environment, stdout=file
        ) as process,
    ):
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(PROCESS_WAIT_S) == 0
        finally:
            process.kill()


def test_the_tutorial_ends_with_a_service_that_works(tmp_path: Path) -> None:
    programs = parts()
    for (name, function), code in programs.items():
        if function is None:
            (tmp_path / name).write_text(code)
    log = tmp_path / "log"

    def ordered(*orders: str) -> None:
        subprocess.run(
            [sys.executable, "shop.py", *orders], cwd=tmp_path, env=environment, check=True
        )

    def shown(wanted: str) -> str:
        return eventually(log.read_text, lambda text: wanted in text)

    with Cluster(properties=_QUICK) as cluster:
        environment = {**os.environ, "NAMESRV_ADDR": cluster.namesrv}
        ordered("O-1=2.40", "O-2=3.10")
        with billing(tmp_path, environment, log):
            shown("billed O-1 2.4")
            shown("billed O-2 3.1")
        assert "billing has ended" in log.read_text()
        ordered("O-3=5.00", "O-3=5.00")
        with billing(tmp_path, environment, log):
            shown("billed O-3 5.0")
            ordered("O-4=0", "O-5=1.80")
            shown("billed O-5 1.8")
            cluster.call("dead_letters", "billing", 1)
        service = (tmp_path / "billing.py").read_text()
        mended = programs["billing.py", "bill"].split("\n", 1)[1]
        service = re.sub(
            r"def bill\(.*?\n\n\n", lambda _: f"{mended}\n\n", service, flags=re.DOTALL
        )
        (tmp_path / "billing.py").write_text(service)
        with billing(tmp_path, environment, log):
            for command in ("explain group billing", "admin deadLetters -g billing",
                            "admin redriveDeadLetters -g billing --yes"):  # fmt: skip
                assert f"cometmq {command}\n" in (ROOT / "docs" / "tutorial.md").read_text()
                subprocess.run(
                    [sys.executable, "-m", "cometmq", *command.split()], env=environment, check=True
                )
            shown("billed O-4 0")
    for number in ("O-1", "O-2", "O-3", "O-4", "O-5"):
        assert log.read_text().count(f"billed {number}") == 1, number
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # nothing of a directory above counts
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, env=environment, check=True
    )


# -- commands --

_COMMAND: Final = re.compile(r"^(?:    |)(?:\$ )?cometmq (?!.*\.\.\.)([^#|>\n]+)", re.MULTILINE)
_INLINE: Final = re.compile(r"`cometmq ([^`\n]+)`")
_CONTINUED: Final = re.compile(r"\\\n\s*")


def commands(page: str) -> set[str]:
    text = _CONTINUED.sub(" ", (ROOT / page).read_text())
    # An option of the output may stand in front of the command.
    text = re.sub(r"cometmq admin -o \w+ ", "cometmq admin ", text)
    return {found.strip() for found in [*_COMMAND.findall(text), *_INLINE.findall(text)]}


@functools.cache
def help_of(names: tuple[str, ...]) -> str:
    result = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "250"})
    return result.output if result.exit_code == 0 else ""


def faults_of(command: str) -> list[str]:
    """Return what a command line names that is not there."""
    try:
        words = shlex.split(command)
    except ValueError:
        return [f"{command}: cannot be parsed"]
    names = list(takewhile(lambda word: re.fullmatch("[a-zA-Z][a-zA-Z]*", word), words))
    # What follows a command may be its arguments.
    known = next(
        (names[:count] for count in range(len(names), 0, -1) if help_of(tuple(names[:count]))), []
    )
    if names and names[0].islower() and not known:
        return [f"{command}: no such command"]
    shown = help_of(tuple(known))
    options = [word.split("=")[0] for word in words[len(known) :] if re.match("--?[a-zA-Z]", word)]
    return [
        f"{command}: no option {option}"
        for option in options
        if not re.search(rf"(?<!\S){option}(?!\S)", shown)
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_commands_and_options_exist(page: str) -> None:
    faults = [fault for command in sorted(commands(page)) for fault in faults_of(command)]
    assert faults == []


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^    |`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE)
        assert set(named) <= targets, page


# -- data --

# More entries of the same kind, which a page leaves out.
_ELLIPSIS: Final = re.compile(r",?\s*…(?=\s*[\]}])")


@pytest.mark.parametrize("language", ["json", "toml", "yaml", "properties"])
def test_data_parses_and_keys_exist(language: str) -> None:
    found = [each for each in ALL if each.language == language and not each.reason]
    assert found
    for each in found:
        place = f"{each.page}:{each.line}"
        try:
            if language == "toml":
                tomllib.loads(each.text)
            elif language == "yaml":
                yaml.safe_load(each.text)
            elif language == "json":
                json.loads(_ELLIPSIS.sub("", each.text))
            else:
                given = parse_properties(each.text, place)
                assert (
                    misspelt_keys(given, *BROKER_CLASSES, *NAMESRV_CLASSES, server="server") == []
                )
        except (ValueError, yaml.YAMLError) as error:
            pytest.fail(f"{place}: {error}")


# -- pages of the API --


def test_the_pages_of_the_api_have_what_programs_import_as_headings() -> None:
    headings = set()
    for path in (ROOT / "docs" / "reference" / "api").glob("*.md"):
        for heading in re.findall(r'heading: "([^"]+)"', path.read_text()):
            headings.update(heading.split(", "))
    for heading in headings:
        if heading.startswith("cometmq."):
            assert pkgutil.resolve_name(heading) is not None
    others = {"CometMQError", "__version__"}  # among the errors, and no class
    missing = [name for name in cometmq.__all__ if f"cometmq.{name}" not in headings]
    assert set(missing) == others
