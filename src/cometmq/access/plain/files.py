"""Find, read and change the account files of ACL 1.0. All of it blocks: for a worker's thread.

Java: PlainPermissionManager. The files are `conf/plain_acl.yml` below `rocketmqHome` and every
`.yml` and `.yaml` beneath `conf/acl` there. Of an access key that several files have, the first
counts: those of `conf/acl` sorted by their paths, then `plain_acl.yml`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from cometmq.access.config import AccessConfig
from cometmq.access.plain.account_file import (
    MAX_ACCOUNTS,
    MAX_FILE_BYTES,
    AccountFile,
    load_yaml,
    read_accounts,
)
from cometmq.access.plain.accounts import Account, PlainAccount
from cometmq.access.plain.addresses import WhiteList
from cometmq.errors import ConfigError
from cometmq.model.topic import DataVersion
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.state_files.json_file import JsonFile

MAX_FILES: Final = 256
_MOST_NESTED: Final = 8
_SUFFIXES: Final = (".yml", ".yaml")
_TOOLS: Final = "tools.yml"


@dataclass(frozen=True)
class Table:
    """Holds what all account files say together."""

    accounts: dict[str, Account] = field(default_factory=dict)
    plain: dict[str, PlainAccount] = field(default_factory=dict)
    file_of: dict[str, Path] = field(default_factory=dict)
    white: list[WhiteList] = field(default_factory=list)
    versions: dict[Path, DataVersion] = field(default_factory=dict)
    # Why files are not in force as they are, by path: the last good content counts.
    faults: dict[Path, str] = field(default_factory=dict)
    # Faults that an operator may want to correct.
    warnings: tuple[str, ...] = ()


@dataclass
class _Known:
    """A file as it was read last: `content` is that of the last good bytes."""

    data: bytes | None = None
    content: AccountFile | None = None
    fault: str = ""


class AccountFiles:
    """The account files of one server. For one thread at a time."""

    def __init__(self, config: AccessConfig, files: Files) -> None:
        if config.rocketmq_home is None:
            raise ConfigError(
                "aclEnable=true needs rocketmqHome, the directory whose conf/plain_acl.yml has the "
                "accounts: set it in the configuration file, or ROCKETMQ_HOME in the environment"
            )
        home = config.rocketmq_home
        self.default = home / config.plain_acl_file
        self.directory = home / "conf" / "acl"
        self._tools = home / "conf" / _TOOLS
        self._files = files
        self._known: dict[Path, _Known] = {}

    def read(self) -> Table:
        """Read all files and return what they say. Never raises for a file that is damaged."""
        paths = list(self._paths())
        faults: dict[Path, str] = {}
        if len(paths) > MAX_FILES:
            faults[self.directory] = (
                f"{len(paths)} account files, the limit is {MAX_FILES}; the rest is not read"
            )
            paths = [*paths[: MAX_FILES - 1], self.default]
        for path in [path for path in self._known if path not in paths and path != self.default]:
            del self._known[path]
        for path in paths:
            known = self._known.setdefault(path, _Known())
            self._refresh(path, known)
            if known.fault:
                faults[path] = known.fault
        return self._table(paths, faults)

    def change(self, path: Path, edit: Callable[[dict[str, Any]], None], now_ms: int) -> Table:
        """Have `edit` change the values of a file, write it durably, and return what is in force.

        Keep what `edit` does not change, and the comments above the first line; the previous file
        stays as `.bak`. Raises ConfigError for a damaged file, or for a change that would damage it
        (then nothing is written), and OSError.
        """
        data = self._bytes(path) or b""
        read_accounts(data, str(path))  # a damaged file must not be written over
        text = data.decode()
        values = load_yaml(text) or {}
        edit(values)
        version = DataVersion()
        versions = values.get("dataVersion")
        if isinstance(versions, list) and versions and isinstance(versions[0], dict):
            version.counter = int(versions[0].get("counter") or 0)
        version.next(now_ms)
        values["dataVersion"] = [{"counter": version.counter, "timestamp": version.timestamp}]
        written = _opening_comments(text) + _dumped(values)
        read_accounts(written.encode(), str(path))
        JsonFile(path, keep_permissions=True, files=self._files).write(written)
        return self.read()

    def _paths(self) -> Iterator[Path]:
        found = sorted(self._below(self.directory, 0))
        yield from found
        if self.default not in found:
            yield self.default

    def _below(self, directory: Path, depth: int) -> Iterator[Path]:
        if depth > _MOST_NESTED:
            return
        for name, is_directory in self._files.names(directory):
            path = directory / name
            if path == self._tools:  # a client's keys
                continue
            if is_directory:
                yield from self._below(path, depth + 1)
            elif name.endswith(_SUFFIXES):
                yield path

    def _refresh(self, path: Path, known: _Known) -> None:
        try:
            data = self._bytes(path)
        except OSError as error:
            known.fault = f"{path} cannot be read: {error.strerror or error}"
            return
        except ConfigError as error:
            known.fault = str(error)
            return
        if data is None:
            # Java makes an empty one. A file that was there is missed: an editor may be replacing it.
            known.fault = f"{path} is not there" if known.content is not None else ""
            return
        if data == known.data and not known.fault:
            return
        try:
            content = read_accounts(data, str(path))
        except ConfigError as error:
            known.fault = str(error)
            return
        if content.is_empty and known.content is not None and not known.content.is_empty:
            # A program that writes a file empties it first. Java passes over an empty one, too.
            known.fault = f"{path} is empty; to take all accounts back write `accounts: []`"
            return
        known.data, known.content, known.fault = data, content, ""

    def _bytes(self, path: Path) -> bytes | None:
        size = self._files.size(path)
        if size is None:
            return None
        if size > MAX_FILE_BYTES:
            raise ConfigError(
                f"{path} has {size} bytes, the limit of an account file is {MAX_FILE_BYTES}; spread "
                "the accounts over several files in conf/acl"
            )
        return self._files.read(path)

    def _table(self, paths: list[Path], faults: dict[Path, str]) -> Table:
        table = Table(faults=faults)
        warnings: list[str] = []
        for path in paths:
            content = self._known[path].content
            if content is None:
                continue
            table.versions[path] = content.version
            if content.white:
                table.white.append(content.white)
            if warning := self._exposure(path):
                warnings.append(warning)
            warnings += [f"{path} has the account {key} twice" for key in content.repeated]
            for key, (plain, account) in content.accounts.items():
                if key in table.accounts:
                    warnings.append(f"{path} repeats {key} of {table.file_of[key]}, which counts")
                elif len(table.accounts) >= MAX_ACCOUNTS:
                    faults[path] = f"there are more than {MAX_ACCOUNTS} accounts, the limit"
                    break
                else:
                    table.accounts[key], table.plain[key] = account, plain
                    table.file_of[key] = path
        return Table(**{**table.__dict__, "warnings": tuple(warnings[:20])})

    def _exposure(self, path: Path) -> str:
        """Say who else may read or write the secret keys of a file, "" if nobody may."""
        try:
            mode = self._files.permissions(path) or 0
        except OSError:
            return ""
        what = " and ".join(
            verb for verb, bits in (("read", 0o004), ("change", 0o022)) if mode & bits
        )
        if not what:
            return ""
        who = "every user of this machine" if mode & 0o006 else "its group"
        return (
            f"{path} has secret keys, and {who} may {what} it (mode {mode & 0o777:o}): chmod 640, or "
            "600, and give it to the user of this server"
        )


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - aliases are not read
        return True


def _dumped(values: dict[str, Any]) -> str:
    text: str = yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def _opening_comments(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.strip() and not line.startswith("#"):
            break
        lines.append(line)
    return "".join(lines)
