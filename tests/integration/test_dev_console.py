"""The web console inside `cometmq dev`: there at once, on a port of its own, with passwords made for it."""

from __future__ import annotations

import signal
import socket
import ssl
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from tests.integration.test_dev_json import dev, reported
from tests.waits import WAIT_S

from cometmq import extras
from cometmq.cli.dev.console import DevConsole, console_for
from cometmq.cli.dev.screen import access_lines
from cometmq.cli.dev.servers import DevPlan
from cometmq.console.web.listening import listening
from cometmq.errors import ConfigError


def page_of(console: dict[str, Any], account: str, ca_file: str | None = None) -> str:
    """The page that a browser sees after it has logged in."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPCookieProcessor()]
    if ca_file is not None:
        handlers.append(
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file))
        )
    browser = urllib.request.build_opener(*handlers)
    form = urlencode({"name": account, "password": console["passwords"][account]}).encode()
    with browser.open(f"{console['url']}/login", form, timeout=WAIT_S) as answer:
        text: str = answer.read().decode()
        return text


def test_a_console_comes_with_the_cluster_and_its_passwords_in_json(tmp_path: Path) -> None:
    with dev("--console-port", "0", "--store", str(tmp_path)) as process:
        console = reported(process)["console"]
        assert sorted(console["passwords"]) == ["operator", "reader"]
        for account in console["passwords"]:
            assert f"{account} ({account})" in page_of(console, account)
        assert "log in" in (tmp_path / "console" / "audit.jsonl").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


def test_its_port_is_named_when_it_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with dev("--console-port", port, stdin=subprocess.DEVNULL) as process:
            assert process.wait(WAIT_S) == 2
            assert process.stdout is not None
            assert process.stdout.read() == ""


def test_no_console_is_run_if_nobody_wants_one() -> None:
    with dev("--no-console") as process:
        assert reported(process)["console"] is None


def test_with_tls_it_serves_https(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    with dev("--tls", "--store", str(tmp_path), "--console-port", "0") as process:
        found = reported(process)
        assert found["console"]["url"].startswith("https://")
        page = page_of(found["console"], "reader", found["tls"]["caFile"])
        assert "reader (reader)" in page


async def test_a_free_port_is_taken_where_the_usual_one_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        [other] = await listening("127.0.0.1", port, or_free_port=True)
        with other:
            assert other.getsockname()[1] not in (0, port)
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            await listening("127.0.0.1", port)


def test_the_passwords_stay_below_the_table_of_a_terminal(tmp_path: Path) -> None:
    web = DevConsole(DevPlan(root=tmp_path, host="127.0.0.1", port=0, broker_port=0), 8080)
    web.url, web.passwords = "http://127.0.0.1:8080", {"operator": "a" * 20, "reader": "b" * 20}
    lines = [line.plain for line in access_lines(web)]
    assert lines == ["", f"console {web.url}", f"operator {'a' * 20}   reader {'b' * 20}"]
    assert access_lines(None) == []


def test_without_the_extra_one_line_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = DevPlan(root=tmp_path, host="127.0.0.1", port=0, broker_port=0)
    assert isinstance(console_for(plan, wanted=None, port=None), DevConsole)
    monkeypatch.setattr(extras, "lacking", lambda *packages: packages[0])
    assert console_for(plan, wanted=None, port=None) is None
    assert console_for(plan, wanted=False, port=None) is None
    with pytest.raises(ConfigError, match=r"pip install 'cometmq\[console\]'"):
        console_for(plan, wanted=True, port=None)
    with pytest.raises(ConfigError, match="give one of them"):
        console_for(plan, wanted=False, port=8080)
