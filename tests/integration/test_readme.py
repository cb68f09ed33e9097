"""The README's code runs as it stands, and what it names exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
from tests.waits import PROCESS_WAIT_S, WAIT_S
from typer.testing import CliRunner

from cometmq.broker.operation import registration
from cometmq.cli.main import app
from cometmq.testing import Cluster

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = PROGRAM.findall(README)
PAGES = ["README.md", "CONTRIBUTING.md", "docs/README.md"]


PATIENTLY = "from tests.integration.patience import be_patient\nbe_patient()\n"


@pytest.fixture(autouse=True)
def patient_announcements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have brokers acknowledge what makes or changes a topic only when name servers know it."""
    monkeypatch.setattr(registration, "_ANNOUNCEMENT_WAIT_S", WAIT_S)


def run(code: str) -> str:
    """Run a program of a page in a process of its own, and return what it shows."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", PATIENTLY + code],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"},
        capture_output=True,
        text=True,
        timeout=PROCESS_WAIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def against(cluster: Cluster, code: str) -> str:
    assert "127.0.0.1:9876" in code
    return run(code.replace("127.0.0.1:9876", cluster.namesrv))


def test_the_first_program_sends_and_consumes_in_15_lines() -> None:
    code = BLOCKS[0]
    lines = [line for line in code.splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) <= 15
    with Cluster() as cluster:
        shown = against(cluster, code)
    assert "(('O-1',), 'paid', b'one espresso')" in shown


def test_the_asyncio_program_keeps_the_order() -> None:
    with Cluster() as cluster:
        assert "[0, 1, 2]" in against(cluster, BLOCKS[1])


def test_the_test_passes() -> None:
    run(BLOCKS[2] + "\ntest_an_order_is_stored()\n")


def test_a_client_takes_credentials_and_certificates(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the README\n")
    page = (ROOT / "docs" / "security.md").read_text()
    code = next(
        block for block in PROGRAM.findall(page) if "Credentials" in block and "Tls" in block
    )
    secret = str(tmp_path / "secret")
    run(code.replace("/run/secrets/rocketmq", secret) + "\nassert producer.group == 'shop'\n")


def test_there_is_no_block_that_nothing_runs() -> None:
    assert len(BLOCKS) == 3


@pytest.mark.parametrize(
    "command", re.findall(r"^    cometmq (.+?)(?:  +#.*)?$", README, re.MULTILINE)
)
def test_every_command_and_option_exists(command: str) -> None:
    words = shlex.split(command)
    before_options = takewhile(lambda word: not word.startswith("-"), words)
    names = [word for word in before_options if re.fullmatch("[a-z][A-Za-z]*", word)]
    result = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"(?<!\S){option}(?!\S)", result.output), option


def test_the_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^    |`)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE)
        assert set(named) <= targets, page


@pytest.mark.parametrize("page", PAGES)
def test_every_link_and_module_that_a_page_names_exists(page: str) -> None:
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
        assert (path.parent / link).exists(), link
    if page == "CONTRIBUTING.md":
        source = ROOT / "src" / "cometmq"
        for name in re.findall(r"`((?:[a-z]+/)?[a-z_]+\.py)`", path.read_text()):
            assert (source / name).exists() or list(source.rglob(name)), name
