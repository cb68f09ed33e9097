"""What `cometmq console` refuses before it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cometmq.admin import AdminClient
from cometmq.cli.console import app
from cometmq.console.accounts import Accounts
from cometmq.console.config import ConsoleConfig
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
