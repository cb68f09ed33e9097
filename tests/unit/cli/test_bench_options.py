"""The benchmark's options: which it takes, and which it refuses by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cometmq.cli.bench.command import truth
from cometmq.cli.bench.producer import filling_properties
from cometmq.cli.main import app
from cometmq.errors import ConfigError


def refusal(*arguments: str) -> str:
    """Return what `cometmq bench …` says when it refuses options; it then exits with status 2."""
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (["-m", "yes"], "-m yes: it takes true or false"),
        (["-a", "true"], "needs both keys"),
        (["-a", "true", "-ak", "key"], "needs both keys"),
        (["-ak", "key"], "without -a true"),
        (["-sk", "secret"], "without -a true"),
        (["-d", "true"], "sends no delayed messages"),
        (["-e", "3"], "sends no delayed messages"),
        (["-cl", "9"], "level 5 only"),
        (["-ct", "GZIP"], "none of ZLIB, LZ4, ZSTD"),
        (["-k", "yes"], "-k yes: it takes true or false"),
        (["--save", "/nowhere/result.json"], "no such directory"),
    ],
)
def test_the_producer_refuses_what_it_cannot_do(options: list[str], missing: str) -> None:
    text = refusal("producer", "-n", "127.0.0.1:1", *options)
    assert missing in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (["-r", "0.5"], "refuses no messages"),
        (["-m", "yes"], "-m yes: it takes true or false"),
        (["-a", "true"], "needs both keys"),
        (["-ak", "key"], "without -a true"),
        (["-f", "TAG"], "-f and -e belong together"),
        (["-e", "file"], "-f and -e belong together"),
        (["-f", "SQL92", "-e", "file"], "filters by tags only"),
        (["-f", "LUA", "-e", "file"], "none of TAG"),
        (["-f", "TAG", "-e", "/nowhere/expression"], "cannot be read"),
        (["--from", "middle"], "neither first nor last"),
    ],
)
def test_the_consumer_refuses_what_it_cannot_do(options: list[str], missing: str) -> None:
    text = refusal("consumer", "-n", "127.0.0.1:1", *options)
    assert missing in text
    assert "\n" not in text


def test_an_expression_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "expression"
    path.write_bytes(b"\xff\xfe\xfd")
    assert "cannot be read" in refusal("consumer", "-f", "TAG", "-e", str(path))


def test_a_name_server_must_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert "NAMESRV_ADDR" in refusal("producer")
    assert "NAMESRV_ADDR" in refusal("consumer")


def test_truth_is_true_or_false() -> None:
    assert truth("-k", " True ")
    assert not truth("-k", "FALSE")
    with pytest.raises(ConfigError):
        truth("-k", "1")


@pytest.mark.parametrize("size_bytes", [1, 10, 100, 1000])
def test_properties_just_exceed_the_size(size_bytes: int) -> None:
    lengths = [len(name) + len(text) for name, text in filling_properties(size_bytes).items()]
    assert sum(lengths[:-1]) <= size_bytes < sum(lengths)


def test_no_properties_for_size_0() -> None:
    assert filling_properties(0) == {}
