"""The accounts file, and the passwords in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cometmq.cli.console import app
from cometmq.console.accounts import Role, hashed, load_accounts, made_accounts
from cometmq.errors import ConfigError

STORED = hashed("a long password")
GOOD = {"name": "anna", "role": "operator", "password": STORED}


def written(path: Path, accounts: object) -> Path:
    file = path / "accounts.json"
    file.write_text(accounts if isinstance(accounts, str) else json.dumps(accounts))
    return file


def test_an_account_of_a_file_logs_in(tmp_path: Path) -> None:
    accounts = load_accounts(written(tmp_path, [GOOD, {**GOOD, "name": "ben", "role": "reader"}]))
    anna = accounts.verify("anna", "a long password")
    assert anna is not None
    assert anna.role is Role.OPERATOR
    ben = accounts.verify("ben", "a long password")
    assert ben is not None
    assert ben.role is Role.READER
    assert accounts.verify("anna", "another password") is None
    assert accounts.verify("carl", "a long password") is None


@pytest.mark.parametrize(
    ("accounts", "says"),
    [
        ("{", "is no JSON"),
        ("{}", "one account or more"),
        ("[]", "one account or more"),
        ([1], "account 1: must be an object"),
        ([{**GOOD, "more": 1}], "account 1: must be an object"),
        ([GOOD, {**GOOD, "name": ""}], "account 2: name, role and password must be texts"),
        ([{**GOOD, "role": "root"}], "neither reader nor operator"),
        ([{**GOOD, "password": "a long password"}], "cometmq console password"),
        ([{**GOOD, "password": "scrypt:zz:00"}], "cometmq console password"),
        ([GOOD, GOOD], "'anna' more than once"),
    ],
)
def test_a_fault_of_a_file_is_named(tmp_path: Path, accounts: object, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_accounts(written(tmp_path, accounts))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"accounts\.json"):
        load_accounts(tmp_path / "accounts.json")


def test_made_passwords_differ_and_are_long() -> None:
    passwords = {password for _ in range(2) for password in made_accounts()[1].values()}
    assert len(passwords) == 4
    assert min(map(len, passwords)) >= 20


def test_the_command_prints_what_a_file_holds(tmp_path: Path) -> None:
    typed = "correct horse battery\n"
    done = CliRunner().invoke(app, ["password"], input=typed * 2)
    assert done.exit_code == 0, done.output
    stored = done.output.split()[-1]
    assert "correct" not in done.output
    accounts = load_accounts(written(tmp_path, [{**GOOD, "password": stored}]))
    assert accounts.verify("anna", "correct horse battery") is not None


def test_the_command_refuses_a_short_password() -> None:
    done = CliRunner().invoke(app, ["password"], input="short\nshort\n")
    assert done.exit_code != 0
    assert isinstance(done.exception, ConfigError)
    assert "12 to 1024 characters" in str(done.exception)
