"""Commands that work, and the errors of others, without the extra `spark` or without Java."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cometmq.errors import ConfigError
from cometmq.spark.java import java_version, require_java

WITHOUT = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None  # as if they were not installed
import {package}
assert not hasattr({package}, "DefaultSource")
try:
    {package}.DefaultSource
except AttributeError as error:
    print(error)
"""


@pytest.mark.parametrize("package", ["pyspark_cometmq", "pyspark_cometmq_store"])
def test_the_packages_that_pyspark_looks_for_import_without_it(package: str) -> None:
    code = WITHOUT.format(package=package)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'cometmq[spark]'" in ended.stdout


def java(directory: Path, version: str) -> Path:
    """Make a Java home whose `java` prints this version."""
    path = directory / "bin" / "java"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    path.chmod(0o755)
    return directory


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_the_version_of_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, version: int | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, text)))
    assert java_version() == version


def test_an_old_java_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, 'java version "1.8.0_401"')))
    with pytest.raises(ConfigError, match="needs Java 17 or newer, not Java 8: install Java 17"):
        require_java()


def test_without_java_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="has none: install Java 17 or 21") as caught:
        require_java()
    assert "\n" not in str(caught.value)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="none is here: install Java 17"):
        require_java()
