"""A stream refuses options that it cannot serve when it is planned, before any task runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.micro_batches import MicroBatches
from tests.spark.test_stream_outages import fill, options_of, quiet_query

from cometmq.errors import CometMQError
from cometmq.testing.cluster import Cluster

OFFSETS = '{"orders": {"broker-a": {"0": %d, "1": -1, "2": -1, "3": -1}}}'


@pytest.fixture(scope="module")
def cluster(cluster: Cluster) -> Cluster:
    fill(cluster, 8)
    return cluster


@pytest.fixture
def query() -> Iterator[MicroBatches]:
    query = quiet_query()
    yield query
    query.stop()


def begin(query: MicroBatches, options: dict[str, str]) -> None:
    query.start(options)
    query.trigger()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"subscribe": "refunds"},
            "knows a route of topic refunds; there are .*orders.* -t refunds,",
        ),
        ({"subscribe": "oders"}, r"knows a route of topic oders; did you mean orders\? Correct"),
        ({"namesrv": "127.0.0.1:1"}, "no name server of 127.0.0.1:1 answers"),
        ({"namesrv": "nowhere"}, "'nowhere' is no name-server address"),
        ({"startingOffsets": OFFSETS % 99}, "the offset 99, its queue ends at 2"),
        ({"startingOffsets": OFFSETS % -5}, "the offset -5; below zero only -2"),
        ({"startingOffsets": '{"orders": {}}'}, "says nothing of orders@broker-a:0"),
        ({"endingOffsets": "latest"}, "is for a batch, not a stream"),
        ({"maxMessagesPerTrigger": "0"}, "it must lie in 1.."),
        ({"maxBytesPerTrigger": "much"}, "it must be a whole number"),
        ({"commitGroup": "a b"}, "a b"),
        ({"commitGroup": "nobody"}, "nobody"),
        ({"maxMessages": "5"}, "no option maxMessages; did you mean maxMessagesPerTrigger"),
        ({"failOnDataLoss": "false"}, "so give gapLog too"),
        ({"sqlFilter": "a = = 1"}, "a = = 1|line 1|not|enable"),
    ],
)
def test_what_does_not_fit_is_said_when_the_first_batch_is_planned(
    cluster: Cluster, query: MicroBatches, given: dict[str, str], text: str
) -> None:
    with pytest.raises(CometMQError, match=text):
        begin(query, {**options_of(cluster, timeoutMs="100"), **given})
    assert not query.offset_log


SESSION = """
from cometmq.errors import ConfigError
from cometmq.spark.session import spark_session
try:
    spark_session()
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (
            "echo 'openjdk version \"11.0.20\" 2023-07-18' >&2",
            "needs Java 17 or newer, not Java 11",
        ),
        (None, "needs Java 17 or newer and JAVA_HOME="),
    ],
)
def test_a_session_without_a_fitting_java_is_refused_in_one_sentence(
    tmp_path: Path, script: str | None, text: str
) -> None:
    if script is not None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(0o755)
    environment: dict[str, Any] = {**os.environ, "JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True, check=True
    )
    (line,) = ended.stdout.splitlines()
    assert text in line
    assert "install Java 17 or 21" in line
