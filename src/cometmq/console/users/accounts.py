"""Hold the accounts that may log in to the console, with their roles, and check their
passwords.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.runtime.randomness import secret_bytes
from cometmq.runtime.state_files.files import open_without_waiting

log = get_logger(__name__)

# The cost of a guess: about 50 ms and 16 MiB (RFC 7914, as OWASP's sheet on passwords advises).
_N, _R, _P = 2**14, 8, 1
_SALT_BYTES: Final = 16
_GENERATED_BYTES: Final = 12
MAX_PASSWORD: Final = 1024
MIN_PASSWORD: Final = 12
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
_OTHERS: Final = 0o077
# A file's times, size and number.
FileMark = tuple[int, int, int, int] | None


class Role(Enum):
    """The rights of an account: to look at everything, or to change it, too."""

    READER = "reader"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Account:
    name: str
    role: Role


def generated_password() -> str:
    """Return a password that nobody can guess, in letters that can be typed."""
    return base64.b32encode(secret_bytes(_GENERATED_BYTES)).decode().rstrip("=").lower()


def hashed(password: str) -> str:
    """Return the hash that an accounts file holds in place of a password. It takes about 50 ms.

    Raises ConfigError for a password that is too short or too long.
    """
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise ConfigError(
            f"a password must have {MIN_PASSWORD} to {MAX_PASSWORD} characters; this one has {len(password)}"
        )
    salt = secret_bytes(_SALT_BYTES)
    return f"scrypt:{salt.hex()}:{_derived(password, salt).hex()}"


class Accounts:
    """Holds the accounts of a console.

    `verify` may be called from any thread; it takes as long for a name that is not there. `changes`
    counts the replacements of the accounts.
    """

    def __init__(self, accounts: Iterable[tuple[Account, str]]) -> None:
        self._accounts = {account.name: (account, stored) for account, stored in accounts}
        self.changes = 0
        # The version of the file from which they were read.
        self.mark: FileMark = None
        # The hash to compare with when the name is unknown, so that the time does not reveal names.
        self._nobody = hashed(generated_password())

    def verify(self, name: str, password: str) -> Account | None:
        """Return the account, or None if the name or the password is wrong. It takes about 50 ms."""
        account, stored = self._accounts.get(name, (None, self._nobody))
        _, salt, expected = stored.split(":")
        given = _derived(password[:MAX_PASSWORD], bytes.fromhex(salt))
        return account if hmac.compare_digest(given, bytes.fromhex(expected)) else None

    def become(self, others: Accounts) -> list[str]:
        """Take over the accounts of another object; return the names of those that are gone or have
        changed.
        """
        before, self._accounts = self._accounts, others._accounts
        self.changes += 1
        return [name for name, kept in before.items() if self._accounts.get(name) != kept]

    def __contains__(self, name: object) -> bool:
        return name in self._accounts

    def __len__(self) -> int:
        return len(self._accounts)


def made_passwords() -> dict[str, str]:
    """Return passwords for an operator and a reader, by the names of these accounts."""
    return {role.value: generated_password() for role in (Role.OPERATOR, Role.READER)}


def accounts_of(passwords: Mapping[str, str]) -> Accounts:
    """Return the accounts of `made_passwords`. It takes about 150 ms."""
    return Accounts((Account(role.value, role), hashed(passwords[role.value])) for role in Role)


def made_accounts() -> tuple[Accounts, dict[str, str]]:
    """Return an operator and a reader with passwords of their own, and these passwords by name."""
    passwords = made_passwords()
    return accounts_of(passwords), passwords


def load_accounts(path: Path) -> Accounts:
    """Read an accounts file: a JSON list of objects with name, role and password.

    The password is what `cometmq console password` prints. Warn of a file that other users can
    read: they can guess its passwords as fast as their machine goes. Raises ConfigError that names
    the fault.
    """
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            at = os.fstat(file.fileno())
            if not stat.S_ISREG(at.st_mode):
                raise ConfigError(f"{path} is a pipe or a device, not a file")
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
        entries = json.loads(data)
    except OSError as error:
        raise ConfigError(f"cannot read the accounts of the console: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{path} must be a JSON list with one account or more")
    accounts = [_account(path, number, entry) for number, entry in enumerate(entries, 1)]
    names = Counter(account.name for account, _ in accounts)
    for name, count in names.items():
        if count > 1:
            raise ConfigError(f"{path} has the account {name!r} more than once")
    mode = stat.S_IMODE(at.st_mode)
    if mode & _OTHERS:
        log.warning(
            "other users of this machine can read or change the accounts of the console",
            file=str(path),
            mode=f"{mode:04o}",
            remedy=f"chmod 600 {path}",
        )
    loaded = Accounts(accounts)
    loaded.mark = _mark(at)
    return loaded


class AccountsFile:
    """Reads an accounts file again when it has changed. A file that is broken changes nothing.

    A file that could not be read is read again at the next look; otherwise an account that was
    removed from it could still log in.
    """

    def __init__(self, path: Path, accounts: Accounts) -> None:
        self._path = path
        self._accounts = accounts
        self._mark = accounts.mark
        self._fault = ""

    async def look(self) -> list[str]:
        """Read the file if it has changed; return the accounts whose sessions have to end."""
        mark = await asyncio.to_thread(_mark_of, self._path)
        if mark is not None and mark == self._mark:
            return []
        # Noted before the file is read, so that a change meanwhile is read again.
        self._mark = mark
        try:
            read = await asyncio.to_thread(load_accounts, self._path)
        except ConfigError as error:
            if isinstance(error.__cause__, OSError):
                # The file may be good while too many files are open: it is read again.
                self._mark = None
            self._keep_old(str(error))
            return []
        self._fault = ""
        changed = self._accounts.become(read)
        log.info("new accounts are in force", file=str(self._path), accounts=len(read))
        return changed

    def _keep_old(self, reason: str) -> None:
        if reason != self._fault:
            log.error("the accounts stay as they were", reason=reason)
        self._fault = reason


def _mark_of(path: Path) -> FileMark:
    """Return the version by which a change of the file is seen, None if it cannot be read."""
    try:
        return _mark(path.stat())
    except OSError:
        return None


def _mark(at: os.stat_result) -> FileMark:
    return at.st_mtime_ns, at.st_ctime_ns, at.st_size, at.st_ino


def _account(path: Path, number: int, entry: object) -> tuple[Account, str]:
    where = f"{path}, account {number}"
    if not isinstance(entry, dict) or set(entry) != {"name", "role", "password"}:
        raise ConfigError(f"{where}: must be an object with name, role and password")
    if not all(isinstance(value, str) and value for value in entry.values()):
        raise ConfigError(f"{where}: name, role and password must be texts")
    try:
        role = Role(entry["role"])
    except ValueError as error:
        raise ConfigError(
            f"{where}: role {entry['role']!r} is neither reader nor operator"
        ) from error
    try:
        scheme, salt, digest = entry["password"].split(":")
        usable = (
            scheme == "scrypt" and len(bytes.fromhex(salt)) > 0 and len(bytes.fromhex(digest)) == 64
        )
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{where}: the password must be what `cometmq console password` prints")
    return Account(entry["name"], role), entry["password"]


def _derived(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P)
