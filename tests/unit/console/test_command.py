"""What `cometmq console` refuses before it listens."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cometmq.cli.console import app
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
