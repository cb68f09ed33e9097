"""The keys of the table [table], and their limits."""

from __future__ import annotations

from typing import Any

import pytest

from cometmq.errors import ConfigError
from cometmq.pipelines.table.settings import Config


def config(**given: Any) -> Config:
    return Config(**{"path": "/data/archive", "topics": ["orders"], **given})


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
        ({"publish": []}, "publish is \\[\\], name a format"),
        ({"path": "s3a://bucket/archive"}, "tables are published of archives in a directory"),
    ],
)
def test_values_that_do_not_fit(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config(**given)


def test_a_place_of_metrics_may_be_of_ipv6() -> None:
    assert config(metrics="[::1]:9405").metrics_place() == ("::1", 9405)
