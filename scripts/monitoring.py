"""Write deploy/monitoring: Grafana's dashboards and Prometheus' alert rules.

    .venv/bin/python scripts/monitoring.py

Change the tables below, not the files. The unit of a panel comes from the metric's own unit in
`cometmq.metrics.catalogue`; `tests/unit/test_monitoring.py` checks that each query names
metrics and labels that exist, `tests/interop/test_prometheus.py` that Prometheus answers it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from prometheus_client import CollectorRegistry

from cometmq import ClientMetrics
from cometmq.console.limit_catalogue import CONSOLE_LIMITS
from cometmq.metrics.catalogue import BASE_LABELS, METRICS, PROCESS_METRICS, Kind
from cometmq.metrics.limits import LIMITS
from cometmq.pipelines.table.board import Board
from cometmq.pipelines.table.metrics import TableMetrics

DIRECTORY: Final = Path(__file__).parents[1] / "deploy" / "monitoring"
PAGE: Final = "https://github.com/cometmq/cometmq/blob/main/docs/operations.md"
WRITTEN: Final = "Written by scripts/monitoring.py: change the tables there, then run it."

# Grafana's names of units: of a metric's values, and of their growth a second.
UNITS: Final = {
    "": ("short", "ops"),
    "bytes": ("bytes", "binBps"),
    "messages": ("short", "mps"),
    "milliseconds": ("ms", "none"),
    "pulls": ("short", "ops"),
    "ratio": ("percentunit", "none"),
    "requests": ("short", "reqps"),
    "seconds": ("s", "percentunit"),
}
_NAME: Final = re.compile(r"\b(?:rocketmq|cometmq|process|python)_\w+|\bup\b")
_SUFFIXES: Final = ("_bucket", "_count", "_sum")


# Metrics


def client_metrics() -> dict[str, tuple[Kind, str, frozenset[str]]]:
    """Return kind, unit and labels of the metrics of clients by name."""
    registry = CollectorRegistry()
    ClientMetrics(registry)
    found = {}
    for family in registry.collect():
        counter = family.type == "counter"
        name = f"{family.name}_total" if counter else family.name
        if family.type == "histogram":
            unit = "milliseconds"
        else:
            unit = "bytes" if "bytes" in name else "messages" if "messages" in name else ""
        labels = ("group", "topic", "invocation_status", "status")
        found[name] = Kind(family.type), unit, frozenset(labels)
    return found


def table_metrics() -> dict[str, tuple[Kind, str, frozenset[str]]]:
    """Return kind, unit and labels of the metrics of the table service by name."""
    found = {}
    for family in TableMetrics(Board(60.0)).describe():
        counter = family.type == "counter"
        name = f"{family.name}_total" if counter else family.name
        unit = next((u for u in ("bytes", "seconds", "messages") if u in name), "")
        labels = frozenset(family._labelnames)  # noqa: SLF001 - it has no other name
        found[name] = Kind(family.type), unit, labels
    return found


def known_metrics() -> dict[str, tuple[Kind, str, frozenset[str]]]:
    """Return kind, unit and labels of each metric that a query may name."""
    ours = {
        name: (metric.kind, metric.unit, frozenset((*BASE_LABELS, *metric.labels)))
        for name, metric in METRICS.items()
    }
    scraped: dict[str, tuple[Kind, str, frozenset[str]]] = {"up": (Kind.GAUGE, "", frozenset())}
    for name in PROCESS_METRICS:
        kind = Kind.COUNTER if name.endswith("_total") else Kind.GAUGE
        unit = next((u for u in ("bytes", "seconds") if f"_{u}" in name), "")
        scraped[name] = kind, unit, frozenset()
    # Prometheus adds these to all, the last one its operator for Kubernetes.
    return {
        name: (kind, unit, labels | {"job", "instance", "namespace"})
        for name, (kind, unit, labels) in {
            **client_metrics(),
            **table_metrics(),
            **scraped,
            **ours,
        }.items()
    }


KNOWN: Final = known_metrics()


def metric_names(query: str) -> list[str]:
    """Return the metrics that a query names, each without the suffix of a histogram's series."""
    names = []
    for name in _NAME.findall(re.sub(r'"[^"]*"', "", query)):
        base = next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)
        histogram = base in KNOWN and KNOWN[base][0] is Kind.HISTOGRAM
        names.append(base if histogram else name)
    return names


def unit_of(query: str) -> str:
    """Return Grafana's name of the unit of a query's values."""
    _, unit, _ = KNOWN[metric_names(query)[0]]
    grows = re.search(r"\b(?:rate|increase)\(", query) and "histogram_quantile" not in query
    counted = "_count" in query
    value, growth = UNITS.get("" if counted else unit, ("short", "ops"))
    return growth if grows else value


# Dashboards


class Panel(NamedTuple):
    """A graph, or with `stat` a number, of some queries by the legends of their lines.

    In queries `%` stands for the selector of the dashboard's variables.
    """

    title: str
    queries: dict[str, str]
    about: str = ""
    stat: bool = False
    red_below: float | None = None
    red_above: float | None = None


class Dashboard(NamedTuple):
    """A page of panels, in rows of a title each. `variables` are labels by the metric to ask.

    With `traces_of` the page has a last row with the latest traces of a service in Jaeger. The user of the
    page may name another service than this one.
    """

    uid: str
    title: str
    selector: str
    rows: dict[str, list[Panel]]
    variables: dict[str, str]
    traces_of: str = ""

    def queries(self) -> Iterator[str]:
        """Yield all queries as they stand in the file."""
        for panels in self.rows.values():
            for panel in panels:
                yield from (text.replace("%", self.selector) for text in panel.queries.values())


def q(quantile: float, metric: str, by: str, selector: str = "%") -> str:
    """Return the query for a quantile of a histogram."""
    rate = f"rate({metric}_bucket{{{selector}}}[$__rate_interval])"
    return f"histogram_quantile({quantile}, sum by ({by}, le) ({rate}))"


def rate(metric: str, by: str, selector: str = "%") -> str:
    """Return the query for the growth of a counter a second."""
    return f"sum by ({by}) (rate({metric}{{{selector}}}[$__rate_interval]))"


def top(query: str, count: int = 10) -> str:
    """Return the query for the largest of many lines."""
    return f"topk({count}, {query})"


SERVERS: Final = 'cluster=~"$cluster",node_id=~"$node"'
BROKERS: Final = f'{SERVERS},node_type="broker"'
USERS: Final = '%,is_system="false"'
_CLUSTER: Final = {"cluster": "cometmq_ready", "node": "cometmq_ready"}
_SERVICE: Final = 'instance=~"$instance"'

_OVERVIEW = Dashboard(
    "cometmq-cluster", "CometMQ: cluster", SERVERS,
    {
        "Now": [
            Panel("Servers that are ready", {"{{node_type}}": "sum by (node_type) (cometmq_ready{%})"}, stat=True),
            Panel("Messages in", {"": "sum(rate(rocketmq_messages_in_total{%}[$__rate_interval]))"}, stat=True),
            Panel("Messages out", {"": "sum(rate(rocketmq_messages_out_total{%}[$__rate_interval]))"}, stat=True),
            Panel("Lag of all groups", {"": f"sum(rocketmq_consumer_lag_messages{{{USERS}}})"}, stat=True),
            Panel("Fullest disk", {"": "max(cometmq_disk_used_ratio{%})"}, stat=True, red_above=0.85),
            Panel("Servers that do not answer", {"": 'count(up{job=~"cometmq.*"} == 0) or vector(0)'}, stat=True, red_above=1),
        ],
        "Traffic": [
            Panel("Messages in, by broker", {"{{node_id}}": rate("rocketmq_messages_in_total", "node_id")}),
            Panel("Messages out, by broker", {"{{node_id}}": rate("rocketmq_messages_out_total", "node_id")}),
            Panel("Bytes in, by broker", {"{{node_id}}": rate("rocketmq_throughput_in_total", "node_id")}),
            Panel("Bytes out, by broker", {"{{node_id}}": rate("rocketmq_throughput_out_total", "node_id")}),
        ],
        "Latency and refusals": [
            Panel("Sends, 99th percentile", {"{{node_id}}": q(0.99, "cometmq_put_latency_seconds", "node_id")}, "Of a sample of sends, from the request to its answer."),
            Panel("Lateness of the loop, 99th percentile", {"{{node_id}}": q(0.99, "cometmq_loop_delay_seconds", "node_id")}, "Every request waits for this long."),
            Panel("Refused messages, by cause", {"{{node_id}} {{cause}}": rate("cometmq_refused_messages_total", "node_id, cause")}),
            Panel("Requests answered by an error", {"{{request_code}}: {{response_code}}": top(rate("cometmq_refused_requests_total", "request_code, response_code"))}),
        ],
        "Load": [
            Panel("Connections", {"{{node_id}}": "sum by (node_id) (cometmq_connections{%})"}),
            Panel("Bytes in flight, of the limit", {"{{node_id}}": "cometmq_in_flight_bytes{%}", "{{node_id}} limit": "cometmq_in_flight_limit_bytes{%}"}),
            Panel("Processor time", {"{{instance}}": 'rate(process_cpu_seconds_total{job=~"cometmq.*"}[$__rate_interval])'}, "A server uses one core, so 100 % is the most."),
            Panel("Memory", {"{{instance}}": 'process_resident_memory_bytes{job=~"cometmq.*"}'}),
            Panel("Waiting requests", {"{{node_id}} {{processor}}": "rocketmq_processor_watermark{%}"}),
            Panel("Time for a scrape", {"{{node_id}}": "cometmq_scrape_duration_seconds{%}"}),
        ],
    },
    _CLUSTER,
)  # fmt: skip

_TOPICS = Dashboard(
    "cometmq-topics", "CometMQ: topics", f'{BROKERS},topic=~"$topic"',
    {
        "In": [
            Panel("Messages in", {"{{topic}}": top(rate("rocketmq_messages_in_total", "topic"))}),
            Panel("Bytes in", {"{{topic}}": top(rate("rocketmq_throughput_in_total", "topic"))}),
            Panel("Sends, 99th percentile", {"{{topic}}": top(q(0.99, "cometmq_put_latency_seconds", "topic"))}),
            Panel("Size of bodies, median", {"{{topic}}": top(q(0.5, "rocketmq_message_size", "topic"))}),
        ],
        "Out": [
            Panel("Messages out, by group", {"{{topic}} → {{consumer_group}}": top(rate("rocketmq_messages_out_total", "topic, consumer_group"))}),
            Panel("Bytes out, by group", {"{{topic}} → {{consumer_group}}": top(rate("rocketmq_throughput_out_total", "topic, consumer_group"))}),
            Panel("Lag, by group", {"{{topic}} → {{consumer_group}}": top("sum by (topic, consumer_group) (rocketmq_consumer_lag_messages{%})")}),
            Panel("Sent back, by group", {"{{topic}} → {{consumer_group}}": top(rate("cometmq_sent_back_messages_total", "topic, consumer_group"))}, "To get them again later."),
        ],
    },
    {**_CLUSTER, "topic": "rocketmq_messages_in_total"},
)  # fmt: skip

_GROUPS = Dashboard(
    "cometmq-groups", "CometMQ: consumer groups", f'{BROKERS},consumer_group=~"$consumer_group"',
    {
        "Lag": [
            Panel("Lag", {"{{consumer_group}} {{topic}}": top("sum by (consumer_group, topic) (rocketmq_consumer_lag_messages{%})")}, "Messages that the group has not committed."),
            Panel("Age of the oldest message not committed", {"{{consumer_group}} {{topic}}": top("max by (consumer_group, topic) (rocketmq_consumer_lag_latency{%})")}),
            Panel("Queues that are furthest behind", {"{{consumer_group}} {{topic}}/{{queue_id}} on {{node_id}}": top("cometmq_consumer_queue_lag_messages{%}")}, "One queue alone: a slow or stuck member, or a locked queue."),
            Panel("Age in these queues", {"{{consumer_group}} {{topic}}/{{queue_id}} on {{node_id}}": top("cometmq_consumer_queue_lag_age_seconds{%}")}),
        ],
        "Where the messages are": [
            Panel("Handed out and not committed", {"{{consumer_group}} {{topic}}": top("sum by (consumer_group, topic) (rocketmq_consumer_inflight_messages{%})")}, "Many: the listeners are slow."),
            Panel("Not handed out yet", {"{{consumer_group}} {{topic}}": top("sum by (consumer_group, topic) (rocketmq_consumer_ready_messages{%})")}, "Many: the members pull too little, or there are none."),
            Panel("Age of the oldest that was not handed out", {"{{consumer_group}} {{topic}}": top("max by (consumer_group, topic) (rocketmq_consumer_queueing_latency{%})")}),
            Panel("Members", {"{{consumer_group}}": "sum by (consumer_group) (rocketmq_consumer_connections{%})"}),
        ],
        "Popped": [
            Panel("Popped and not acknowledged", {"{{consumer_group}} {{topic}}": top("sum by (consumer_group, topic) (cometmq_pop_inflight_messages{%})")}, "Many: the listeners are slow, or members are gone."),
            Panel("Time since the first of them was popped", {"{{consumer_group}} {{topic}}": top("max by (consumer_group, topic) (cometmq_pop_oldest_age_seconds{%})")}),
            Panel("Delivered again too late", {"{{consumer_group}} {{topic}}": top("max by (consumer_group, topic) (cometmq_pop_revive_late_seconds{%})")}, "How long the message that waits longest has been due. More than a few seconds: the broker's log says why the messages are not copied to the retry topic."),
            Panel("Delivered again", {"{{consumer_group}} {{topic}}": top(rate("rocketmq_pop_revive_retry_messages_total", "consumer_group, topic"))}),
        ],
        "Work": [
            Panel("Messages out", {"{{consumer_group}} {{topic}}": top(rate("rocketmq_messages_out_total", "consumer_group, topic"))}),
            Panel("Sent back", {"{{consumer_group}} {{topic}}": top(rate("cometmq_sent_back_messages_total", "consumer_group, topic"))}),
            Panel("Dead letters", {"{{consumer_group}}": top(rate("rocketmq_send_to_dlq_messages_total", "consumer_group"))}),
            Panel("Finding messages, 99th percentile", {"{{consumer_group}}": top(q(0.99, "cometmq_get_latency_seconds", "consumer_group"))}),
        ],
    },
    {**_CLUSTER, "consumer_group": "rocketmq_consumer_lag_messages"},
)  # fmt: skip

_STORAGE = Dashboard(
    "cometmq-storage", "CometMQ: storage", BROKERS,
    {
        "Disk": [
            Panel("Used part of the disk", {"{{node_id}} {{directory}}": "cometmq_disk_used_ratio{%}"}),
            Panel("Free", {"{{node_id}}": "cometmq_disk_free_bytes{%}"}),
            Panel("Size of the log", {"{{node_id}}": "sum by (node_id) (rocketmq_storage_size{%})"}),
            Panel("Age of the oldest message", {"{{node_id}}": "max by (node_id) (rocketmq_storage_message_reserve_time{%})"}),
        ],
        "Writing": [
            Panel("Records appended", {"{{node_id}}": rate("cometmq_messages_appended_total", "node_id")}),
            Panel("Not on disk yet", {"{{node_id}}": "sum by (node_id) (rocketmq_storage_flush_behind_bytes{%})"}),
            Panel("Syncs of the log", {f"{{{{node_id}}}} {p}": q(n, "cometmq_flush_duration_seconds", "node_id") for n, p in ((0.5, "median"), (0.99, "99 %"))}),
            Panel("Slowest append since the start", {"{{node_id}}": "cometmq_slowest_append_seconds{%}"}),
        ],
        "Behind the log": [
            Panel("Not in the queues yet", {"{{node_id}}": "sum by (node_id) (rocketmq_storage_dispatch_behind_bytes{%})"}),
            Panel("Not in the index yet", {"{{node_id}}": "cometmq_index_behind_bytes{%}"}),
            Panel("Delayed and timed messages", {"{{node_id}} timed": "rocketmq_timing_messages{%}", "{{node_id}} by level": "sum by (node_id) (cometmq_delayed_messages{%})"}),
            Panel("How overdue the next timed message is", {"{{node_id}}": "rocketmq_timer_dequeue_latency{%}"}),
            Panel("Half messages without a verdict", {"{{node_id}}": "rocketmq_half_messages{%}"}),
            Panel("Verdicts", {"{{node_id}} committed": rate("rocketmq_commit_messages_total", "node_id"), "{{node_id}} rolled back": rate("rocketmq_rollback_messages_total", "node_id")}),
        ],
        "Copies": [
            Panel("Slaves", {"{{node_id}} {{state}}": "sum by (node_id, state) (cometmq_replication_slaves{%})"}),
            Panel("What slaves lack", {"{{node_id}} {{slave}}": "max by (node_id, slave) (cometmq_replication_lag_bytes{%})"}),
            Panel("Sent to slaves", {"{{node_id}}": rate("cometmq_replication_sent_bytes_total", "node_id")}),
            Panel("Got by slaves", {"{{node_id}}": rate("cometmq_replication_received_bytes_total", "node_id")}),
            Panel("Slaves without their master", {"{{node_id}}": "sum by (node_id) (cometmq_replication_connected{%} == bool 0)"}, red_above=1),
            Panel("Slaves whose log has diverged", {"{{node_id}}": "sum by (node_id) (cometmq_replication_diverged{%})"}, red_above=1),
        ],
        "Damage": [
            Panel("Messages found lost", {"{{node_id}}": "cometmq_messages_found_lost_total{%}"}, red_above=1),
            Panel("Repaired units of queues", {"{{node_id}}": "cometmq_queue_units_repaired_total{%}"}),
        ],
    },
    _CLUSTER,
)  # fmt: skip

_NAMESRV = Dashboard(
    "cometmq-namesrv", "CometMQ: name servers", 'node_id=~"$node",node_type="namesrv"',
    {
        "Routes": [
            Panel("Brokers registered", {"{{node_id}}": "cometmq_namesrv_brokers{%}"}, "Name servers that differ for long do not get all registrations."),
            Panel("Topics", {"{{node_id}}": "cometmq_namesrv_topics{%}"}),
            Panel("Longest silence of a broker", {"{{node_id}}": "cometmq_namesrv_longest_silence_seconds{%}"}, "After 120 s it is forgotten."),
            Panel("Ready", {"{{node_id}}": "cometmq_ready{%}"}, red_below=1),
        ],
        "Load": [
            Panel("Connections", {"{{node_id}}": "cometmq_connections{%}"}),
            Panel("Requests", {"{{request_code}}": top("sum by (request_code) (rate(rocketmq_rpc_latency_count{%}[$__rate_interval]))")}),
            Panel("Requests, 99th percentile", {"{{request_code}}": top(q(0.99, "rocketmq_rpc_latency", "request_code"))}),
            Panel("Lateness of the loop, 99th percentile", {"{{node_id}}": q(0.99, "cometmq_loop_delay_seconds", "node_id")}),
        ],
    },
    {"node": 'cometmq_ready{node_type="namesrv"}'},
)  # fmt: skip

_CLIENTS = Dashboard(
    "cometmq-clients", "CometMQ: clients", 'group=~"$group"',
    {
        "Producers": [
            Panel("Attempts to send", {"{{group}} {{invocation_status}}": "sum by (group, invocation_status) (rate(rocketmq_send_cost_time_count{%}[$__rate_interval]))"}),
            Panel("Attempts, 99th percentile", {"{{group}} {{topic}}": top(q(0.99, "rocketmq_send_cost_time", "group, topic"))}),
            Panel("Retries", {"{{group}} {{topic}}": top(rate("cometmq_client_send_retries_total", "group, topic"))}),
            Panel("Sends under way", {"{{group}}": "sum by (group) (cometmq_client_pending_sends{%})"}),
        ],
        "Consumers": [
            Panel("Messages, by outcome", {"{{group}} {{status}}": rate("cometmq_client_consumed_messages_total", "group, status")}),
            Panel("Listeners, 99th percentile", {"{{group}} {{topic}}": top(q(0.99, "rocketmq_process_time", "group, topic"))}),
            Panel("From producer to listener, 99th percentile", {"{{group}} {{topic}}": top(q(0.99, "rocketmq_delivery_latency", "group, topic"))}),
            Panel("Pulled and not consumed yet", {"{{group}} {{topic}}": top("sum by (group, topic) (rocketmq_consumer_cached_messages{%})")}),
            Panel("Bytes of these", {"{{group}} {{topic}}": top("sum by (group, topic) (rocketmq_consumer_cached_bytes{%})")}),
            Panel("Not consumed yet, as far as members know", {"{{group}} {{topic}}": top("sum by (group, topic) (cometmq_client_consumer_lag{%})")}),
            Panel("Queues, by member", {"{{group}} {{instance}}": "sum by (group, instance) (cometmq_client_assigned_queues{%})"}),
        ],
    },
    {"group": "cometmq_client_connections"},
    traces_of="orders-api",
)  # fmt: skip

_TABLES = Dashboard(
    "cometmq-tables", "CometMQ: tables", 'instance=~"$instance",topic=~"$topic"',
    {
        "Freshness": [
            Panel("The tables have all messages older than this", {"{{topic}}": top("max by (topic) (cometmq_table_freshness_seconds{%})"), "{{topic}} target": top("max by (topic) (cometmq_table_freshness_target_seconds{%})", 1)}),
            Panel("Messages that the tables lack", {"{{topic}}": top("sum by (topic) (cometmq_table_lag_messages{%})")}),
            Panel("Rows written", {"{{topic}}": top(rate("cometmq_table_written_rows_total", "topic"))}),
            Panel("Gone before they could be archived", {"{{topic}}": top("sum by (topic) (cometmq_table_missing_rows{%})")}),
            Panel("Bodies that do not fit", {"{{topic}}": top("sum by (topic) (cometmq_table_undecodable_rows{%})")}),
        ],
        "Size": [
            Panel("Rows", {"{{topic}}": top("sum by (topic) (cometmq_table_rows{%})")}),
            Panel("Bytes", {"{{topic}}": top("sum by (topic) (cometmq_table_bytes{%})")}),
            Panel("Files", {"{{topic}}": top("sum by (topic) (cometmq_table_files{%})")}, "A proof after each ten times the target freshness compacts them."),
            Panel("Bytes of a file, mean", {"{{topic}}": top("sum by (topic) (cometmq_table_bytes{%}) / sum by (topic) (cometmq_table_files{%})")}),
        ],
        "Service": [
            Panel("Processor time", {"{{instance}}": rate("cometmq_table_cpu_seconds_total", "instance", _SERVICE)}, "Of the drivers, their Java and their workers on that machine."),
            Panel("Batches", {"{{instance}}": rate("cometmq_table_batches_total", "instance", _SERVICE)}),
            Panel("Restarts", {"{{instance}} {{cause}}": f"increase(cometmq_table_restarts_total{{{_SERVICE}}}[1h])"}, "Of the last hour."),
            Panel("Drivers that run", {"{{instance}}": f"cometmq_table_running{{{_SERVICE}}}"}, red_below=1),
            Panel("Problems of the last proof", {"{{instance}}": f"cometmq_table_problems{{{_SERVICE}}}"}, red_above=1),
            Panel("Tables that cannot be published", {"{{instance}} {{format}}": f"cometmq_table_behind{{{_SERVICE}}}"}, red_above=1),
        ],
    },
    {"instance": "cometmq_table_running", "topic": "cometmq_table_rows"},
)  # fmt: skip

DASHBOARDS: Final = (_OVERVIEW, _TOPICS, _GROUPS, _STORAGE, _NAMESRV, _CLIENTS, _TABLES)


def dashboard_json(dashboard: Dashboard) -> str:
    """Return a dashboard as Grafana reads it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows.items():
        head = {"type": "row", "title": title, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}}
        panels.append({"id": len(panels) + 1, **head})
        y += 1
        stats = all(panel.stat for panel in row)
        width, height = (24 // len(row), 4) if stats else (12, 8)
        for place, panel in enumerate(row):
            x = place * width if stats else place % 2 * width
            at = {"h": height, "w": width, "x": x, "y": y + (0 if stats else place // 2 * height)}
            panels.append({"id": len(panels) + 1, "gridPos": at, **_panel(panel, dashboard)})
        y += height if stats else (len(row) + 1) // 2 * height
    variables = [_SOURCE, *(_variable(*pair) for pair in dashboard.variables.items())]
    if dashboard.traces_of:
        variables += _trace_variables(dashboard.traces_of)
        panels.append({"id": len(panels) + 1, **_traces(y)})
    document = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": WRITTEN,
        "tags": ["cometmq"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


_SOURCE: Final = {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"}
_DATA: Final = {"type": "prometheus", "uid": "$source"}


def _variable(name: str, metric: str) -> dict[str, Any]:
    label = {"node": "node_id"}.get(name, name)
    return {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "type": "query",
        "datasource": _DATA,
        "query": {"query": f"label_values({metric}, {label})", "refId": name},
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(panel: Panel, dashboard: Dashboard) -> dict[str, Any]:
    texts = {
        legend: text.replace("%", dashboard.selector) for legend, text in panel.queries.items()
    }
    defaults: dict[str, Any] = {"unit": unit_of(next(iter(texts.values()))), "min": 0}
    if panel.red_below is not None or panel.red_above is not None:
        low, high = ("red", "green") if panel.red_below is not None else ("green", "red")
        bound = panel.red_below if panel.red_below is not None else panel.red_above
        steps = [{"color": low, "value": None}, {"color": high, "value": bound}]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "title": panel.title,
        "description": panel.about,
        "type": "stat" if panel.stat else "timeseries",
        "datasource": _DATA,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _DATA,
                "expr": text,
                "legendFormat": legend,
            }
            for place, (legend, text) in enumerate(texts.items())
        ],
    }


def _trace_variables(service: str) -> list[dict[str, Any]]:
    return [
        {"name": "traces", "label": "Traces", "type": "datasource", "query": "jaeger"},
        {
            "name": "service",
            "label": "Service",
            "type": "textbox",
            "query": service,
            "current": {"text": service, "value": service},
        },
    ]


def _traces(y: int) -> dict[str, Any]:
    """Return the list of the latest traces, with a link to each."""
    source = {"type": "jaeger", "uid": "$traces"}
    search = {"queryType": "search", "service": "$service", "limit": 50}
    return {
        "title": "Traces of $service",
        "description": "Spans that OpenTelemetryHook makes of sends and deliveries.",
        "type": "table",
        "gridPos": {"h": 8, "w": 24, "x": 0, "y": y},
        "datasource": source,
        "fieldConfig": {"defaults": {}, "overrides": []},
        "targets": [{"refId": "A", "datasource": source, **search}],
    }


# Alert rules


class Alert(NamedTuple):
    """A rule: `query` is true for `minutes`. `remedy` says what to do; `section` of the page."""

    name: str
    severity: str
    minutes: int
    query: str
    summary: str
    remedy: str
    section: str = "what-to-watch"


_HERE: Final = "{{ $labels.node_id }}"
_GROUP: Final = "{{ $labels.consumer_group }}"
_SLOW_LIMITS: Final = "|".join(
    sorted(limit.name for limit in (*LIMITS.values(), *CONSOLE_LIMITS.values()) if limit.slows)
)
ALERTS: Final = (
    Alert("CometMQServerDown", "critical", 2, 'up{job=~"cometmq.*"} == 0',
          "{{ $labels.instance }} does not answer", "Look at its process and its log.", "troubleshooting"),
    Alert("CometMQServerNotReady", "critical", 2, "cometmq_ready == 0",
          f"{_HERE} does not do its work", "Ask its /ready for the reason: a full or failed disk, mostly.", "health-checks"),
    Alert("CometMQNoBrokers", "critical", 2, "cometmq_namesrv_brokers == 0",
          f"No broker is registered with name server {_HERE}", "Start the brokers, and compare namesrvAddr with its address.", "troubleshooting"),
    Alert("CometMQNameServersDiffer", "warning", 10, "max by (namespace, job) (cometmq_namesrv_brokers) != min by (namespace, job) (cometmq_namesrv_brokers)",
          "Name servers know different brokers", "Give each broker all name servers in namesrvAddr, and look for lost connections.", "troubleshooting"),
    # At once: a silent broker is forgotten 45 seconds later, and the figure with it.
    Alert("CometMQBrokerSilent", "warning", 0, "cometmq_namesrv_longest_silence_seconds > 75",
          f"A broker has not registered with {_HERE} for {{{{ $value }}}} seconds", "After 120 seconds its topics lose their routes: see whether it runs and reaches the name server.", "troubleshooting"),
    # Not for what a faulty client sends.
    Alert("CometMQMessagesRefused", "critical", 5, 'sum by (cluster, node_id, cause) (rate(cometmq_refused_messages_total{cause!="message_illegal"}[5m])) > 0',
          f"{_HERE} refuses messages: {{{{ $labels.cause }}}}", "Producers get errors. The cause names the limit or the disk.", "troubleshooting"),
    Alert("CometMQDiskFillingUp", "warning", 10, "cometmq_disk_used_ratio > 0.75",
          f"The disk of {_HERE} is {{{{ $value | humanizePercentage }}}} full", "From diskMaxUsedSpaceRatio on old messages are deleted early: add space, or lower fileReservedTime.", "sizing"),
    Alert("CometMQDiskFull", "critical", 2, "cometmq_disk_used_ratio > 0.88",
          f"The disk of {_HERE} is {{{{ $value | humanizePercentage }}}} full", "Soon the broker refuses messages: free space now.", "sizing"),
    Alert("CometMQFlushBehind", "warning", 5, "sum by (cluster, node_id) (rocketmq_storage_flush_behind_bytes) > 268435456",
          f"{_HERE} has {{{{ $value | humanize1024 }}}}B that are not on disk", "The disk is too slow for the messages that come.", "troubleshooting"),
    Alert("CometMQDispatchBehind", "warning", 5, "sum by (cluster, node_id) (rocketmq_storage_dispatch_behind_bytes) > 67108864",
          f"Consumers of {_HERE} do not see {{{{ $value | humanize1024 }}}}B of messages yet", "The queues are written more slowly than the log: look at the disk and the processor.", "troubleshooting"),
    Alert("CometMQSlaveWithoutMaster", "warning", 2, "cometmq_replication_connected == 0",
          f"A slave of {_HERE} copies nothing: it has no connection to its master", "Its log says why, and cometmq admin haStatus of both.", "troubleshooting"),
    Alert("CometMQSlaveDiverged", "critical", 0, "cometmq_replication_diverged == 1",
          f"The log of a slave of {_HERE} is not that of its master", "It copies nothing until an operator mends its store: its log names the command.", "troubleshooting"),
    Alert("CometMQSlaveBehind", "warning", 5, "max by (cluster, node_id, slave) (cometmq_replication_lag_bytes) > 268435456",
          f"The slave {{{{ $labels.slave }}}} of {_HERE} lacks {{{{ $value | humanize1024 }}}}B of the log", "A SYNC_MASTER does not wait for it any more: look at its disk and at the network.", "troubleshooting"),
    Alert("CometMQLoopLate", "warning", 10, "histogram_quantile(0.99, sum by (cluster, node_id, le) (rate(cometmq_loop_delay_seconds_bucket[5m]))) > 0.25",
          f"Requests to {_HERE} wait {{{{ $value | humanizeDuration }}}}", "The server has more work than one core can do: spread the topics over more brokers.", "troubleshooting"),
    Alert("CometMQSlowSends", "warning", 10, "histogram_quantile(0.99, sum by (cluster, node_id, le) (rate(cometmq_put_latency_seconds_bucket[5m]))) > 0.5",
          f"Sends to {_HERE} take {{{{ $value | humanizeDuration }}}}", "With SYNC_FLUSH look at the disk, else at the loop.", "troubleshooting"),
    Alert("CometMQGroupBehind", "warning", 10, 'max by (cluster, consumer_group, topic) (rocketmq_consumer_lag_latency{is_system="false"}) > 600000',
          f"Group {_GROUP} is more than ten minutes behind in {{{{ $labels.topic }}}}", "The dashboard of groups shows whether listeners are slow or missing."),
    Alert("CometMQGroupWithoutMembers", "warning", 15, 'sum by (cluster, consumer_group) (rocketmq_consumer_lag_messages{is_system="false"}) > 0 unless on (cluster, consumer_group) sum by (cluster, consumer_group) (rocketmq_consumer_connections) > 0',
          f"Messages wait for group {_GROUP}, which has no member", "Start its consumers; if nobody needs the group, delete it."),
    # A group has no such series before its first dead letter, and the first value is no increase.
    Alert("CometMQDeadLetters", "warning", 0, 'sum by (cluster, consumer_group) (increase(rocketmq_send_to_dlq_messages_total{is_system="false"}[15m])) > 0 or sum by (cluster, consumer_group) (rocketmq_send_to_dlq_messages_total{is_system="false"} unless rocketmq_send_to_dlq_messages_total offset 15m) > 0',
          f"Messages of group {_GROUP} became dead letters", "Its listener fails for them. Repair it, then redrive them: cometmq pipeline redrive."),
    Alert("CometMQTransactionsUndecided", "warning", 15, "rocketmq_half_messages > 100000",
          f"{_HERE} has {{{{ $value }}}} half messages without a verdict", "Their producers do not answer checks: look whether they run."),
    Alert("CometMQTimersLate", "warning", 5, "rocketmq_timer_dequeue_latency > 60",
          f"Timed messages of {_HERE} are {{{{ $value }}}} seconds late", "Look at the clock, the disk and the load of the broker.", "troubleshooting"),
    Alert("CometMQMessagesDamaged", "critical", 0, "increase(cometmq_messages_found_lost_total[1h]) > 0",
          f"{_HERE} has damaged messages", "Stop it, and run cometmq store check on its store.", "troubleshooting"),
    # Limits that time something, or that only slow a peer down, are reached in regular service.
    Alert("CometMQLimitHit", "warning", 0, f'sum by (cluster, node_id, limit) (increase(cometmq_limit_hits_total{{limit!~"{_SLOW_LIMITS}"}}[10m])) > 0',
          f"{_HERE} refuses what exceeds {{{{ $labels.limit }}}}", "docs/reference/limits.md says what the limit bounds; the log names the peers. Raise it if they are right.", "troubleshooting"),
    Alert("CometMQQueuesRepaired", "warning", 0, "increase(cometmq_queue_units_repaired_total[1h]) > 0",
          f"{_HERE} repaired its consume queues", "No message is lost, but look at the disk.", "troubleshooting"),
    Alert("CometMQTableBehind", "warning", 5, "cometmq_table_freshness_seconds > 3 * cometmq_table_freshness_target_seconds",
          "The tables are {{ $value | humanizeDuration }} behind topic {{ $labels.topic }}", "Find out whether the driver runs, and whether its batches or proofs take too long. The report of the day shows the delay by hour."),
    Alert("CometMQTableNotRunning", "critical", 5, "cometmq_table_running == 0",
          "The table service at {{ $labels.instance }} has no driver", "The service writes the cause of each restart to standard error."),
    Alert("CometMQTableRestarts", "warning", 0, "sum by (instance) (increase(cometmq_table_restarts_total[15m])) > 3",
          "The table service at {{ $labels.instance }} restarts its driver again and again", "The service writes the cause of each restart to standard error. A driver that the system kills usually needs more memory."),
    Alert("CometMQTableProblems", "critical", 0, "cometmq_table_problems > 0",
          "The tables at {{ $labels.instance }} differ from the log", "Read the report table.html of the service, which names files, queues and offsets."),
    Alert("CometMQTableNotPublished", "warning", 10, "cometmq_table_behind == 1",
          "The {{ $labels.format }} table at {{ $labels.instance }} cannot be published", "The report table.html names the reason; usually the catalog does not answer. The archive goes on, and the table catches up later."),
)  # fmt: skip


def alerts_yaml() -> str:
    """Return the rules as Prometheus reads them."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.query,
            **({"for": f"{alert.minutes}m"} if alert.minutes else {}),
            "labels": {"severity": alert.severity},
            "annotations": {
                "summary": alert.summary,
                "description": alert.remedy,
                "runbook_url": f"{PAGE}#{alert.section}",
            },
        }
        for alert in ALERTS
    ]
    document = {"groups": [{"name": "cometmq", "rules": rules}]}
    return f"# {WRITTEN}\n" + yaml.safe_dump(document, sort_keys=False, width=100)


def files() -> dict[Path, str]:
    """Return the text of each file."""
    dashboards = {
        DIRECTORY / "dashboards" / f"{dashboard.uid}.json": dashboard_json(dashboard)
        for dashboard in DASHBOARDS
    }
    return {DIRECTORY / "alerts.yaml": alerts_yaml(), **dashboards}


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
