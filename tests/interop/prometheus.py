"""Runs Prometheus of Debian's package `prometheus`, and asks it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml
from tests.waits import WAIT_S, eventually

from cometmq.testing.ports import HeldPort


def tool(name: str) -> str:
    """Return the path of `prometheus` or `promtool`; without it skip the test, in CI fail it."""
    path = shutil.which(name)
    if path is None:
        sentence = f"{name} is not installed (Debian's package prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return path


def promtool(*arguments: str, directory: Path) -> str:
    """Run promtool; return what it printed. The test fails when promtool does."""
    done = subprocess.run(
        [tool("promtool"), *arguments],
        check=False,
        cwd=directory,
        capture_output=True,
        text=True,
        # All tests of the rules took 24 seconds on a busy machine.
        timeout=10 * WAIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Prometheus:
    """Asks a running Prometheus by its HTTP API."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer. Raises OSError, also for an error of a query."""
        url = f"{self._address}/api/v1/{path}?{urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return json.load(answer)["data"]

    def query(self, query: str) -> list[Mapping[str, Any]]:
        """Return the lines that the query has now."""
        return list(self.ask("query", query=query)["result"])


@contextmanager
def prometheus(
    directory: Path, config: Path, jobs: Mapping[str, Sequence[str]]
) -> Iterator[Prometheus]:
    """Run Prometheus with the rules and jobs of `config`; scrape often. `jobs` has the targets of each,
    which stand in a file beside the configuration where the job reads them from files.
    """
    settings = yaml.safe_load(config.read_text())
    settings["global"] = {"scrape_interval": "2s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(config.parent / name) for name in settings["rule_files"]]
    for job in settings["scrape_configs"]:
        job["scrape_timeout"] = "2s"
        targets = [{"targets": [*jobs[job["job_name"]]]}]
        if "static_configs" in job:
            job["static_configs"] = targets
        else:
            (pattern,) = job["file_sd_configs"][0]["files"]
            listed = directory / pattern.replace("*", "targets")
            listed.parent.mkdir()
            listed.write_text(yaml.safe_dump(targets))
    file = directory / "prometheus.yaml"
    file.write_text(yaml.safe_dump(settings))
    program = tool("prometheus")
    with HeldPort() as held:
        options = {
            "config.file": file,
            "storage.tsdb.path": directory / "data",
            "web.listen-address": f"127.0.0.1:{held.port}",
            "log.level": "warn",
        }
        command = [program, *(f"--{name}={value}" for name, value in options.items())]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                running = Prometheus(held.port)
                eventually(lambda: running.query("vector(1)"), passing=(OSError,))
                yield running
            finally:
                server.terminate()
