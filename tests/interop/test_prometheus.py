"""Prometheus reads our alert rules and dashboards, and shows a small cluster by them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.interop.prometheus import promtool
from tests.unit.test_reference import generator

pytestmark = [pytest.mark.interop]

MADE = generator("monitoring")
DIRECTORY: Path = MADE.DIRECTORY


def asked(query: str) -> str:
    """Return a dashboard's query as Grafana sends it when all values are chosen."""
    query = query.replace("$__rate_interval", "10s")
    return re.sub(r"\$\w+", ".*", query)


class Case(NamedTuple):
    """Series that fire an alert, with their values every minute, and what keeps it quiet."""

    fires: dict[str, str]
    quiet: dict[str, str]


def one(series: str, fires: str, quiet: str) -> Case:
    return Case({series: fires}, {series: quiet})


_BUCKETS = 'cluster="c",node_id="b"'


def buckets(name: str, slow: str) -> dict[str, str]:
    """Return a histogram of which most samples lie in the bucket of `slow` seconds."""
    return {
        f'{name}_bucket{{{_BUCKETS},le="0.001"}}': "0+1x60",
        f'{name}_bucket{{{_BUCKETS},le="{slow}"}}': "0+100x60",
        f'{name}_bucket{{{_BUCKETS},le="+Inf"}}': "0+100x60",
    }


_LAG = 'rocketmq_consumer_lag_messages{cluster="c",consumer_group="g",is_system="false"}'
_MEMBERS = 'rocketmq_consumer_connections{cluster="c",consumer_group="g"}'
CASES = {
    "CometMQServerDown": one('up{job="cometmq",instance="i"}', "0x60", "1x60"),
    "CometMQServerNotReady": one("cometmq_ready", "0x60", "1x60"),
    "CometMQNoBrokers": one("cometmq_namesrv_brokers", "0x60", "1x60"),
    "CometMQNameServersDiffer": Case(
        {'cometmq_namesrv_brokers{node_id="m"}': "1x60", 'cometmq_namesrv_brokers{node_id="n"}': "2x60"},
        {'cometmq_namesrv_brokers{node_id="m"}': "2x60", 'cometmq_namesrv_brokers{node_id="n"}': "2x60"},
    ),
    "CometMQBrokerSilent": one("cometmq_namesrv_longest_silence_seconds", "90x60", "31x60"),
    "CometMQMessagesRefused": one('cometmq_refused_messages_total{cause="disk"}', "0+9x60", "9x60"),
    "CometMQDiskFillingUp": one("cometmq_disk_used_ratio", "0.8x60", "0.7x60"),
    "CometMQDiskFull": one("cometmq_disk_used_ratio", "0.9x60", "0.86x60"),
    "CometMQFlushBehind": one("rocketmq_storage_flush_behind_bytes", "300000000x60", "90000000x60"),
    "CometMQDispatchBehind": one("rocketmq_storage_dispatch_behind_bytes", "90000000x60", "9x60"),
    "CometMQLoopLate": Case(
        buckets("cometmq_loop_delay_seconds", "1"), buckets("cometmq_loop_delay_seconds", "0.1")
    ),
    "CometMQSlowSends": Case(
        buckets("cometmq_put_latency_seconds", "2"), buckets("cometmq_put_latency_seconds", "0.1")
    ),
    "CometMQGroupBehind": one(
        'rocketmq_consumer_lag_latency{consumer_group="g",is_system="false"}', "700000x60", "5000x60"
    ),
    "CometMQGroupWithoutMembers": Case(
        {_LAG: "5x60", _MEMBERS.replace('"g"', '"other"'): "1x60"}, {_LAG: "5x60", _MEMBERS: "1x60"}
    ),
    "CometMQDeadLetters": one(
        'rocketmq_send_to_dlq_messages_total{consumer_group="g",is_system="false"}', "0+1x60", "7x60"
    ),
    "CometMQTransactionsUndecided": one("rocketmq_half_messages", "200000x60", "10x60"),
    "CometMQTimersLate": one("rocketmq_timer_dequeue_latency", "90x60", "1x60"),
    "CometMQMessagesDamaged": one("cometmq_messages_found_lost_total", "0+1x60", "3x60"),
    "CometMQQueuesRepaired": one("cometmq_queue_units_repaired_total", "0+1x60", "3x60"),
}  # fmt: skip


def alert_test(name: str, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    """Return a test of promtool that an alert fires after half an hour, or does not."""
    query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}} == 1) > bool 0 or vector(0)'
    return {
        "name": f"{name} {'fires' if fires else 'is quiet'}",
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "30m", "exp_samples": [{"labels": "{}", "value": int(fires)}]}
        ],
    }  # fmt: skip


def test_every_alert_fires_when_it_should_and_else_is_quiet(tmp_path: Path) -> None:
    assert {alert.name for alert in MADE.ALERTS} == CASES.keys()
    tests = [
        alert_test(name, series, fires=fires)
        for name, case in CASES.items()
        for series, fires in ((case.fires, True), (case.quiet, False))
    ]
    file = tmp_path / "tests.yaml"
    rules = [str(DIRECTORY / "alerts.yaml")]
    file.write_text(
        yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in promtool("test", "rules", str(file), directory=tmp_path)


def test_promtool_takes_the_rules_the_configuration_and_every_query(tmp_path: Path) -> None:
    queries = sorted({asked(q) for dashboard in MADE.DASHBOARDS for q in dashboard.queries()})
    rules = [{"record": f"q{number}", "expr": query} for number, query in enumerate(queries)]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    for rules_file in (file, DIRECTORY / "alerts.yaml"):
        arguments = ("check", "rules", "--lint=all", "--lint-fatal", str(rules_file))
        assert "SUCCESS" in promtool(*arguments, directory=tmp_path)
    checked = promtool("check", "config", str(DIRECTORY / "prometheus.yaml"), directory=tmp_path)
    assert "SUCCESS" in checked
