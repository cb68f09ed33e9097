"""Prometheus reads our alert rules and dashboards, and shows a small cluster by them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server
from tests.integration.server_processes import ServerProcess, server_process
from tests.interop.prometheus import Prometheus, prometheus, promtool
from tests.unit.test_reference import generator
from tests.waits import PROCESS_WAIT_S, SEND_WAIT_MS, eventually

from cometmq import (
    ClientMetrics,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from cometmq.pipelines.table.board import Board
from cometmq.pipelines.table.metrics import TableMetrics
from cometmq.pipelines.table.notes import Figures, TableFigures, TopicFigures
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.testing.ports import HeldPort

pytestmark = [pytest.mark.interop]

MADE = generator("monitoring")
DIRECTORY: Path = MADE.DIRECTORY


def asked(query: str) -> str:
    """Return a dashboard's query as Grafana sends it when all values are chosen."""
    query = query.replace("$__rate_interval", "20s")
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
        # Another cluster may have more.
        {'cometmq_namesrv_brokers{node_id="m"}': "2x60", 'cometmq_namesrv_brokers{node_id="n"}': "2x60",
         'cometmq_namesrv_brokers{job="cometmq-other"}': "3x60"},
    ),
    "CometMQBrokerSilent": one("cometmq_namesrv_longest_silence_seconds", "90x60", "31x60"),
    "CometMQMessagesRefused": Case(
        {'cometmq_refused_messages_total{cause="disk_full"}': "0+9x60"},
        {'cometmq_refused_messages_total{cause="disk_full"}': "9x60",
         'cometmq_refused_messages_total{cause="message_illegal"}': "0+9x60"},
    ),
    "CometMQDiskFillingUp": one("cometmq_disk_used_ratio", "0.8x60", "0.7x60"),
    "CometMQDiskFull": one("cometmq_disk_used_ratio", "0.9x60", "0.86x60"),
    "CometMQFlushBehind": one("rocketmq_storage_flush_behind_bytes", "300000000x60", "90000000x60"),
    "CometMQDispatchBehind": one("rocketmq_storage_dispatch_behind_bytes", "90000000x60", "9x60"),
    "CometMQSlaveWithoutMaster": one("cometmq_replication_connected", "0x60", "1x60"),
    "CometMQSlaveDiverged": one("cometmq_replication_diverged", "1x60", "0x60"),
    "CometMQSlaveBehind": one('cometmq_replication_lag_bytes{slave="s"}', "300000000x60", "9x60"),
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
    "CometMQLimitHit": Case(
        {'cometmq_limit_hits_total{limit="maxHeldPulls"}': "0+1x60"},
        {'cometmq_limit_hits_total{limit="maxHeldPulls"}': "3x60",
         'cometmq_limit_hits_total{limit="SILENT_TIMEOUT_S"}': "0+1x60"},
    ),
    "CometMQQueuesRepaired": one("cometmq_queue_units_repaired_total", "0+1x60", "3x60"),
    "CometMQTableBehind": Case(
        {'cometmq_table_freshness_seconds{topic="t"}': "200x60",
         'cometmq_table_freshness_target_seconds{topic="t"}': "60x60"},
        {'cometmq_table_freshness_seconds{topic="t"}': "150x60",
         'cometmq_table_freshness_target_seconds{topic="t"}': "60x60"},
    ),
    "CometMQTableNotRunning": one("cometmq_table_running", "0x60", "1x60"),
    "CometMQTableRestarts": one('cometmq_table_restarts_total{cause="killed"}', "0+1x60", "0x25 1x35"),
    "CometMQTableProblems": one("cometmq_table_problems", "2x60", "0x60"),
    "CometMQTableNotPublished": one('cometmq_table_behind{format="delta"}', "1x60", "0x60"),
}  # fmt: skip


# What is there for a short time only: the interval of the values, and when the alert fires.
BRIEF = [
    # A broker stops: after 120 seconds the name server forgets it.
    ("CometMQBrokerSilent", {"cometmq_namesrv_longest_silence_seconds": "0+15x8 0x99"}, "15s", "2m"),
    # The first dead letter of a group makes the series.
    ("CometMQDeadLetters",
     {'rocketmq_send_to_dlq_messages_total{consumer_group="g",is_system="false"}': "_x20 1x40"},
     "1m", "30m"),
]  # fmt: skip


def alert_test(
    name: str, series: dict[str, str], interval: str = "1m", at: str = "30m", *, fires: bool
) -> dict[str, Any]:
    """Return a test of promtool that an alert fires after half an hour, or does not."""
    query = f'count(ALERTS{{alertname="{name}",alertstate="firing"}} == 1) > bool 0 or vector(0)'
    return {
        "name": f"{name} {'fires' if fires else 'is quiet'}",
        "interval": interval,
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": at, "exp_samples": [{"labels": "{}", "value": int(fires)}]}
        ],
    }  # fmt: skip


def test_every_alert_fires_when_it_should_and_else_is_quiet(tmp_path: Path) -> None:
    assert {alert.name for alert in MADE.ALERTS} == CASES.keys()
    tests = [
        alert_test(name, series, fires=fires)
        for name, case in CASES.items()
        for series, fires in ((case.fires, True), (case.quiet, False))
    ]
    tests += [alert_test(*brief, fires=True) for brief in BRIEF]
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


# Queries that have no data in a cluster where nothing goes wrong, and that is small.
NOTHING_WRONG = frozenset(
    {
        "cometmq_refused_messages_total",
        "cometmq_sent_back_messages_total",
        "cometmq_client_send_retries_total",
        "rocketmq_send_to_dlq_messages_total",
        # Nobody pops.
        "cometmq_pop_inflight_messages",
        "cometmq_pop_oldest_age_seconds",
        "cometmq_pop_revive_late_seconds",
        "rocketmq_pop_revive_retry_messages_total",
    }
)


def listen(_messages: list[MessageExt]) -> ConsumeResult:
    return ConsumeResult.SUCCESS


@contextmanager
def traffic(namesrv: str, registry: CollectorRegistry) -> Iterator[None]:
    """Send to a topic, and have a group consume it, within the context."""
    metrics = ClientMetrics(registry)
    stop = threading.Event()
    consumer = PushConsumer(
        "billing", listen, namesrv=namesrv, consume_from=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe("orders")
    with Producer("shop", namesrv=namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        metrics.watch(producer)
        metrics.watch(consumer)

        def send() -> None:
            while not stop.wait(0.02):
                # The first sends of a new queue are measured, and then one of 64.
                producer.send_batch([Message("orders", b"x" * 100), Message("orders", b"y")])
                producer.send(Message("orders", b"x" * 100))

        producer.send(Message("orders", b"first"))
        sender = threading.Thread(target=send)
        with consumer:
            sender.start()
            try:
                yield
            finally:
                stop.set()
                sender.join()


def table_service() -> TableMetrics:
    """Return the metrics of a service whose driver has written two batches."""
    board = Board(60.0)
    board.is_running, board.cpu_s = True, 12.5
    for rows in (0, 100, 200):
        until_ms = SYSTEM_CLOCK.now_ms()
        topic = TopicFigures("orders", rows, 0, 3, until_ms, 2, 40_000, 1, 0)
        board.take(Figures((topic,), (TableFigures("delta", 1, None),), rows // 100, 0))
    return TableMetrics(board)


@contextmanager
def demo(directory: Path) -> Iterator[dict[str, list[str]]]:
    """Run a name server, a master, its slave and clients; yield the targets of each job."""
    registry = CollectorRegistry()
    targets = []
    servers: list[ServerProcess] = []
    with ExitStack() as stack:
        roles: dict[str, dict[str, Any]] = {
            "namesrv": {},
            "master": {"haListenPort": stack.enter_context(HeldPort()).port},
            "slave": {"brokerRole": "SLAVE", "brokerId": 1},
        }
        for role, own in roles.items():
            held = stack.enter_context(HeldPort())
            place = directory / role
            place.mkdir()
            settings = {
                "metricsExporterType": "PROM",
                "metricsPromExporterPort": held.port,
                **({"namesrvAddr": servers[0].address} if servers else {}),
                **own,
            }
            kind = "broker" if servers else "namesrv"
            targets.append(f"127.0.0.1:{held.port}")
            servers.append(stack.enter_context(server_process(kind, place, settings=settings)))
        servers[1].refuses()
        servers[0].refuses()
        registry.register(table_service())
        http, _ = start_http_server(0, "127.0.0.1", registry)
        stack.callback(http.server_close)
        stack.callback(http.shutdown)
        stack.enter_context(traffic(servers[0].address, registry))
        yield {"cometmq": targets, "clients": [f"127.0.0.1:{http.server_port}"]}


def without_data(server: Prometheus, queries: set[str]) -> set[str]:
    """Return the queries that have no line now, or none with a number."""
    return {
        query
        for query in queries
        if all(line["value"][1] == "NaN" for line in server.query(asked(query)))
    }


def test_every_query_of_the_dashboards_shows_the_demo_cluster(tmp_path: Path) -> None:
    """Prometheus also evaluates all alert rules without an error, and none of them fires."""
    queries = {q for dashboard in MADE.DASHBOARDS for q in dashboard.queries()}
    expected = {q for q in queries if NOTHING_WRONG.isdisjoint(MADE.metric_names(q))}
    config = DIRECTORY / "prometheus.yaml"
    with (
        demo(tmp_path) as jobs,
        prometheus(tmp_path, config, jobs) as server,
    ):
        targets = eventually(
            lambda: server.ask("targets", state="active")["activeTargets"],
            lambda found: len(found) == 4 and all(t["health"] == "up" for t in found),
        )
        assert {target["lastError"] for target in targets} == {""}
        missing = set(expected)

        def still_missing() -> set[str]:
            missing.intersection_update(without_data(server, missing))
            return missing

        # Brokers register every 30 seconds, and a first sample has no rate.
        eventually(still_missing, lambda left: not left, wait_s=PROCESS_WAIT_S)
        for query in queries - expected:
            server.query(asked(query))  # raises for an error

        def evaluated() -> list[Any]:
            return [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]

        rules = eventually(evaluated, lambda found: all(r["health"] != "unknown" for r in found))
        assert {rule["name"] for rule in rules} == CASES.keys()
        assert [rule["lastError"] for rule in rules if rule["health"] != "ok"] == []
        # A machine that stood still for a while has silent brokers for a moment.
        eventually(
            lambda: [rule["name"] for rule in evaluated() if rule["state"] == "firing"],
            lambda firing: not firing,
        )
        # What the variables of the dashboards ask for has values.
        for dashboard in MADE.DASHBOARDS:
            for name, metric in dashboard.variables.items():
                label = {"node": "node_id"}.get(name, name)
                values = server.ask(f"label/{label}/values", **{"match[]": metric})
                assert values, (dashboard.uid, name)
