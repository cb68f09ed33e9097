"""The accounts file, and the passwords in it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs
from tests.waits import WAIT_S
from typer.testing import CliRunner

from cometmq.cli.servers.console import app
from cometmq.console.users.accounts import AccountsFile, Role, hashed, load_accounts, made_accounts
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


@pytest.mark.parametrize(
    ("mode", "warns"), [(0o600, False), (0o400, False), (0o640, True), (0o602, True)]
)
def test_a_file_that_others_can_read_is_warned_of(tmp_path: Path, mode: int, warns: bool) -> None:
    file = written(tmp_path, [GOOD])
    file.chmod(mode)
    with capture_logs() as said:
        load_accounts(file)
    assert any("chmod 600" in line.get("remedy", "") for line in said) is warns


async def test_only_accounts_that_have_changed_lose_their_sessions(tmp_path: Path) -> None:
    stays, demoted, gone = (dict(GOOD, name=name) for name in ("stays", "demoted", "gone"))
    renewed = dict(GOOD, name="renewed")
    file = written(tmp_path, [stays, demoted, gone, renewed])
    accounts = load_accounts(file)
    watched = AccountsFile(file, accounts)
    assert await watched.look() == []
    assert accounts.changes == 0
    other = hashed("another long password")
    written(tmp_path, [stays, {**demoted, "role": "reader"}, {**renewed, "password": other}])
    assert sorted(await watched.look()) == ["demoted", "gone", "renewed"]
    assert accounts.verify("gone", "a long password") is None
    assert accounts.verify("renewed", "another long password") is not None
    assert await watched.look() == []


async def test_a_broken_file_leaves_the_accounts_as_they_were(tmp_path: Path) -> None:
    file = written(tmp_path, [GOOD])
    accounts = load_accounts(file)
    watched = AccountsFile(file, accounts)
    for damage in ("[", "[]", None):
        if damage is None:
            file.unlink()
        else:
            written(tmp_path, damage)
        with capture_logs() as said:
            assert await watched.look() == []
        assert [line["event"] for line in said] == ["the accounts stay as they were"]
        assert "anna" in accounts
    written(tmp_path, [{**GOOD, "name": "carl"}])
    assert await watched.look() == ["anna"]


@pytest.mark.parametrize("is_written_to", [False, True])
async def test_a_pipe_in_the_place_of_the_file_does_not_end_the_looks(
    tmp_path: Path, is_written_to: bool
) -> None:
    file = written(tmp_path, [GOOD])
    accounts = load_accounts(file)
    watched = AccountsFile(file, accounts)
    file.unlink()
    os.mkfifo(file)
    writer = os.open(file, os.O_RDWR) if is_written_to else -1
    async with asyncio.timeout(WAIT_S):
        assert await watched.look() == []
    assert "anna" in accounts
    if is_written_to:
        os.close(writer)
    file.unlink()
    written(tmp_path, [{**GOOD, "name": "carl"}])
    assert await watched.look() == ["anna"]


async def test_a_file_that_could_not_be_read_is_read_with_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account was taken out while no file could be opened, and could log in for ever after."""
    file = written(tmp_path, [GOOD, {**GOOD, "name": "gone"}])
    accounts = load_accounts(file)
    watched = AccountsFile(file, accounts)
    written(tmp_path, [GOOD])
    with monkeypatch.context() as patched, capture_logs() as said:
        patched.setattr(os, "open", Mock(side_effect=OSError(24, "Too many open files")))
        assert await watched.look() == []
        assert await watched.look() == []
    assert [line["event"] for line in said] == ["the accounts stay as they were"]
    assert await watched.look() == ["gone"]
    assert await watched.look() == []
    assert accounts.changes == 1


def test_a_file_that_is_nested_without_end_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no JSON"):
        load_accounts(written(tmp_path, "[" * 200_000))
