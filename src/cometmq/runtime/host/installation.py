"""Judge the Python, the packages and the form in which CometMQ is installed."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Final

from cometmq._version import __version__
from cometmq.model.reports.finding import Finding, error, ok, warning

# Distributions that each install a module `rocketmq`, over that of the others.
_RIVALS: Final = ("rocketmq", "rocketmq-client-python", "rocketmq-python-client")
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*(?:>=\s*([0-9.]+))?")
_EXTRA: Final = re.compile(r"extra == ['\"](.*?)['\"]")
_UNTIL: Final = re.compile(r"python_version < ['\"](\d+)\.(\d+)")
# The extra of servers, and those that it names.
_SERVERS: Final = frozenset({"server", "cli", "metrics", "speed"})


def installed_version(name: str) -> str | None:
    """Return the version of an installed distribution, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def own_requirements() -> list[str]:
    """Return what the installed CometMQ requires for servers on this Python, as its metadata says."""
    try:
        lines = metadata.requires("cometmq") or []
    except metadata.PackageNotFoundError:
        return []
    return [line for line in lines if _is_for_servers(line)]


def _is_for_servers(line: str) -> bool:
    extra, until = _EXTRA.search(line), _UNTIL.search(line)
    if line.startswith("cometmq") or (extra is not None and extra[1] not in _SERVERS):
        return False
    return until is None or sys.version_info < (int(until[1]), int(until[2]))


def check_installation(
    interpreted_because: str,
    *,
    version_of: Callable[[str], str | None] = installed_version,
    requirements: Callable[[], list[str]] = own_requirements,
) -> list[Finding]:
    """Judge the installation. `interpreted_because` is empty if compiled modules are in use."""
    return [
        ok("version", f"cometmq {__version__}, Python {platform.python_version()}"),
        _form(interpreted_because),
        _loop(version_of),
        _own(version_of),
        _requirements(version_of, requirements()),
        _rivals(version_of),
    ]


def _form(interpreted_because: str) -> Finding:
    if not interpreted_because:
        return ok("compiled modules", "in use")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    remedy = (
        "unset COMETMQ_PURE"
        if "COMETMQ_PURE" in interpreted_because
        else "in a checkout, with a C compiler, run "
        f"make compiled PYTHON={sys.executable} VENV=.venv-{version}, then pip install ."
    )
    return warning(
        "compiled modules",
        f"not in use: {interpreted_because}",
        f"they save a third of the work of each send: {remedy}",
    )


def _loop(version_of: Callable[[str], str | None]) -> Finding:
    if version := version_of("uvloop"):
        return ok("event loop", f"uvloop {version}")
    return warning(
        "event loop",
        "asyncio's own: uvloop is not installed",
        "servers are slower without it: pip install 'cometmq[speed]'",
    )


def _own(version_of: Callable[[str], str | None]) -> Finding:
    check, version = "package", version_of("cometmq")
    if version is None:
        return warning(
            check,
            "the source is used without being installed",
            "nothing has checked its dependencies: pip install '.[server]' in the checkout",
        )
    if version != __version__:
        return warning(
            check,
            f"cometmq {version} is installed, and {__version__} is running",
            "two copies are in reach: look at PYTHONPATH and the working directory, or install again",
        )
    return ok(check, f"cometmq {version} is installed")


def _requirements(version_of: Callable[[str], str | None], lines: list[str]) -> Finding:
    faults, names = [], []
    for line in lines:
        match = _REQUIREMENT.match(line)
        # uvloop has a finding of its own, as CometMQ works without it.
        if match is None or match[1] == "uvloop":
            continue
        name, least = match[1], match[2]
        names.append(name)
        version = version_of(name)
        if version is None:
            faults.append(f"{name} is missing")
        elif least and _release(version) < _release(least):
            faults.append(f"{name} {version} is older than {least}")
    if faults:
        return error(
            "dependencies", ", ".join(faults), "pip install --upgrade '.[server]' in the checkout"
        )
    return ok("dependencies", f"{len(names)} packages, none missing or too old")


def _rivals(version_of: Callable[[str], str | None]) -> Finding:
    check = "other clients"
    found = [f"{name} {version}" for name in _RIVALS if (version := version_of(name))]
    if len(found) > 1:
        return warning(
            check,
            f"{' and '.join(found)} overwrite each other's module `rocketmq`",
            "pip uninstall all of them and install the one you use, if any: CometMQ needs none",
        )
    if found:
        return ok(check, f"{found[0]}; its module `rocketmq` does not touch `cometmq`")
    return ok(check, "none")


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers with which a version begins: enough to compare it with a lower bound."""
    numbers = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    parts = [int(part) for part in numbers[0].split(".")] if numbers else [0]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)
