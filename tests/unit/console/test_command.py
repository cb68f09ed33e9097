"""Options that `cometmq console` refuses before it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cometmq.admin import AdminClient
from cometmq.cli.servers.console import app
from cometmq.console.config import ConsoleConfig
from cometmq.console.users.accounts import Accounts
from cometmq.errors import ConfigError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--no-login", "--host", "0.0.0.0"], "without a login"),
        (["--no-login", "--accounts", "accounts.json"], "give one of them"),
        (["--accounts", "not-there.json"], "cannot read the accounts"),
        (["--certificate", "console.pem"], "both a certificate and its key"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: list[str], says: str) -> None:
    root = ["-n", "127.0.0.1:9876", "--root", str(tmp_path / "root"), *options]
    done = CliRunner().invoke(app, root)
    assert done.exit_code != 0
    assert isinstance(done.exception, ConfigError), done.output
    assert says in str(done.exception)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": "127.0.0.1", "accounts": None}, ""),
        ({"host": "0.0.0.0"}, "passwords and sessions can be read"),
        ({"host": "0.0.0.0", "accounts": None, "open_to_all": True}, "acts on the cluster"),
        ({"host": "::", "certificate": Path("a.pem"), "certificate_key": Path("a.key")}, ""),
    ],
)
def test_what_other_machines_may_do_is_told(options: dict[str, Any], says: str) -> None:
    given = {"accounts": Accounts([]), "root": Path("root"), **options}
    danger = ConsoleConfig(admin=AdminClient("127.0.0.1:9876"), **given).danger
    assert says in danger
    assert bool(says) == bool(danger)


@pytest.mark.parametrize("wait_s", [0.0, -1.0, 61.0])
def test_a_page_waits_for_a_time_that_somebody_waits_for(wait_s: float) -> None:
    admin = AdminClient("127.0.0.1:9876")
    with pytest.raises(ConfigError, match="give seconds above 0, up to 60"):
        ConsoleConfig(admin=admin, accounts=Accounts([]), root=Path("root"), wait_s=wait_s)


def test_the_command_gives_pages_their_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = []

    def stop(**options: Any) -> None:
        given.append(options["wait_s"])
        raise ConfigError("far enough")

    monkeypatch.setattr("cometmq.console.config.ConsoleConfig", stop)
    for options in ([], ["--page-wait-ms", "2500"]):
        root = ["-n", "127.0.0.1:9876", "--root", str(tmp_path / "root"), *options]
        assert "far enough" in str(CliRunner().invoke(app, root).exception)
    assert given == [1.0, 2.5]
