"""The keys of the table [table], and their limits."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.errors import ConfigError
from cometmq.pipelines.table.settings import Config


def config(**given: Any) -> Config:
    return Config(**{"path": "/data/archive", "topics": ["orders"], **given})


@pytest.mark.parametrize(
    ("freshness", "interval_s", "proof_s", "messages"),
    [
        ("2s", 1.0, 20.0, 20_000),
        ("1m", 30.0, 600.0, 600_000),
        ("10m", 300.0, 6000.0, 1_000_000),
    ],
)
def test_the_stream_follows_from_the_freshness(
    freshness: str, interval_s: float, proof_s: float, messages: int
) -> None:
    stream = config(freshness=freshness, commit_group="tables", compact_files=4).archive()
    assert (stream.mode, stream.interval_s, stream.proof_interval_s, stream.max_messages) == (
        "stream",
        interval_s,
        proof_s,
        messages,
    )
    assert (stream.publish, stream.commit_group, stream.compact_files) == (
        ["iceberg", "delta"],
        "tables",
        4,
    )


def test_max_messages_may_be_given() -> None:
    assert config(max_messages=7).archive().max_messages == 7


def test_the_path_may_be_in_s3() -> None:
    assert config(path="s3a://bucket/archive").archive().publish == ["iceberg", "delta"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"freshness": "1s"}, "freshness is '1s', give a duration of 2s to 24h"),
        ({"freshness": "soon"}, "freshness is 'soon', give a duration"),
        ({"freshness": "2d"}, "freshness is '2d', give a duration of 2s to 24h"),
        ({"stalled_after": "10s"}, "stalled_after is '10s', give a duration of 60s"),
        ({"metrics": "9405"}, "metrics is '9405', give a host and a port"),
        ({"metrics": "127.0.0.1:http"}, "metrics is '127.0.0.1:http'"),
        ({"metrics": "127.0.0.1:70000"}, "metrics is '127.0.0.1:70000'"),
        ({"max_restarts": -1}, "max_restarts is -1, give 0 or more"),
        ({"topics": []}, "one of topics and topic_pattern must be given"),
        ({"path": "archive"}, "path is 'archive', give it from the root on"),
        ({"compact_files": 1}, "compact_files is 1, give 2 or more"),
        ({"publish": []}, "publish is \\[\\], name a format"),
        ({"path": "hdfs://node/archive"}, "tables are published of archives in directories"),
    ],
)
def test_values_that_do_not_fit(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**given)


def test_a_place_of_metrics_may_be_of_ipv6() -> None:
    assert config(metrics="[::1]:9405").metrics_place() == ("::1", 9405)
