"""Judges how accessible a page is, by axe-core, which comes from npm (`python -m tests.console.axe`)."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page

PROJECT: Final = Path(__file__).parent / "npm"
SCRIPT: Final = PROJECT / "node_modules" / "axe-core" / "axe.min.js"
# What the rules of WCAG 2.2 A and AA say, and what axe calls good practice.
SERIOUS: Final = ("serious", "critical")


def script() -> str:
    """Return axe-core's source, fetched when needed. Skips the test where there is no npm."""
    if not SCRIPT.exists():
        if shutil.which("npm") is None:
            pytest.skip("not installed: npm, which fetches axe-core")
        fetch()
    return SCRIPT.read_text()


def fetch() -> None:
    """Install what `npm/package-lock.json` names, once, whoever asks."""
    with (PROJECT / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not SCRIPT.exists():
            command = ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"]
            subprocess.run(command, cwd=PROJECT, check=True, timeout=300)


def load(page: Page) -> None:
    """Load axe-core into a page."""
    # Evaluated by the debugger, which the content security policy does not hold up.
    page.evaluate(script())


def findings(page: Page, *rules: str) -> list[str]:
    """Return a line for each serious finding on a page that has axe-core: the rule, and the first element.

    Without `rules` it is judged by all of them.
    """
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    said: dict[str, Any] = page.evaluate("options => axe.run(options)", options)
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]} ({node['failureSummary'][:300]})"
        for one in said["violations"]
        if one["impact"] in SERIOUS
        for node in one["nodes"][:3]
    ]


if __name__ == "__main__":
    if shutil.which("npm") is not None:
        fetch()
