"""Dashboards and alert rules name what servers and clients have, and are as their script makes them.

Prometheus itself judges the queries in `tests/interop/test_prometheus.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.test_reference import generator

from cometmq.metrics.catalogue import Kind

ROOT = Path(__file__).parents[2]
MADE = generator("monitoring")
DASHBOARDS = {dashboard.uid: dashboard for dashboard in MADE.DASHBOARDS}
QUERIES = sorted(
    {text for dashboard in MADE.DASHBOARDS for text in dashboard.queries()}
    | {alert.query for alert in MADE.ALERTS}
)
# A metric, the labels that select its series, and whether its growth is asked for.
SERIES = re.compile(r"(rate\(|increase\()?\b([a-z]\w+)\{([^}]*)\}")
BY = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def faults(query: str) -> list[str]:
    """Return what is wrong with a query: unknown metrics, labels that they lack, wrong functions."""
    names = MADE.metric_names(query)
    if unknown := [name for name in names if name not in MADE.KNOWN]:
        return [f"nobody has a metric {name}" for name in unknown]
    if not names:
        return ["it names no metric"]
    found = []
    for labels in BY.findall(query):
        for label in re.split(r",\s*", labels):
            if label != "le" and not all(label in MADE.KNOWN[name][2] for name in names):
                found.append(f"{names} have no label {label}")
    for growth, series, selector in SERIES.findall(query):
        (name,) = MADE.metric_names(series)
        kind, _, labels = MADE.KNOWN[name]
        found += [
            f"{name} has no label {label}"
            for label in re.findall(r"(\w+)=", selector)
            if label not in labels
        ]
        if growth and kind is Kind.GAUGE:
            found.append(f"{name} is no counter")
        if kind is Kind.HISTOGRAM and series == name:
            found.append(f"{name} has no series of this name, only _bucket, _count and _sum")
    return found


def panels(uid: str) -> Iterator[dict[str, Any]]:
    text = (MADE.DIRECTORY / "dashboards" / f"{uid}.json").read_text()
    yield from json.loads(text)["panels"]


def test_the_files_are_up_to_date() -> None:
    files = MADE.files()
    remedy = "run .venv/bin/python scripts/monitoring.py"
    assert {path for path in files if path.read_text() != files[path]} == set(), remedy
    assert set((MADE.DIRECTORY / "dashboards").iterdir()) <= files.keys(), remedy


def test_queries_name_metrics_and_labels_that_exist() -> None:
    assert len(QUERIES) > 100
    assert {query: said for query in QUERIES if (said := faults(query))} == {}


@pytest.mark.parametrize(
    ("query", "reported"),
    [
        ("cometmq_messages_in{}", "nobody has a metric cometmq_messages_in"),
        ("rate(rocketmq_messages_in{}[5m])", "nobody has a metric rocketmq_messages_in"),
        ('cometmq_ready{topic="t"}', "cometmq_ready has no label topic"),
        ("sum by (topic) (cometmq_ready)", "['cometmq_ready'] have no label topic"),
        ("rate(cometmq_connections{}[5m])", "cometmq_connections is no counter"),
        ("cometmq_put_latency_seconds{}", "cometmq_put_latency_seconds has no series of this name"),
        ("vector(0)", "it names no metric"),
    ],
)
def test_a_query_that_could_bring_nothing_is_found(query: str, reported: str) -> None:
    (fault,) = faults(query)
    assert fault.startswith(reported)


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_a_dashboard_asks_by_variables_that_it_has(uid: str) -> None:
    dashboard = DASHBOARDS[uid]
    used = set(re.findall(r"\$(\w+)", " ".join(dashboard.queries()))) - {"__rate_interval"}
    assert used == dashboard.variables.keys()


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_panels_have_a_place_of_their_own_and_a_unit(uid: str) -> None:
    found = list(panels(uid))
    assert len({panel["id"] for panel in found}) == len(found)
    places = [panel["gridPos"] for panel in found]
    for one, two in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= two["x"]
            or two["x"] + two["w"] <= one["x"]
            or one["y"] + one["h"] <= two["y"]
            or two["y"] + two["h"] <= one["y"]
        )
        assert apart, (one, two)
    assert all(place["x"] + place["w"] <= 24 for place in places)
    graphs = [panel for panel in found if panel["type"] not in ("row", "table")]
    assert "none" not in [panel["fieldConfig"]["defaults"]["unit"] for panel in graphs]


@pytest.mark.parametrize("uid", DASHBOARDS)
def test_the_lines_of_a_panel_share_a_unit_and_have_legends_that_tell_them_apart(uid: str) -> None:
    for panel in panels(uid):
        if panel["type"] == "table":
            continue
        for target in panel.get("targets", ()):
            query = target["expr"]
            assert MADE.unit_of(query) == panel["fieldConfig"]["defaults"]["unit"], query
            grouped = set(re.split(r",\s*", ",".join(BY.findall(query)))) - {"le", ""}
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            if grouped:
                assert named == grouped, query
            else:
                labels = MADE.KNOWN[MADE.metric_names(query)[0]][2]
                assert named <= labels, query


def test_traces_are_asked_for_by_variables_that_the_dashboard_has() -> None:
    (tables,) = [
        (uid, panel) for uid in DASHBOARDS for panel in panels(uid) if panel["type"] == "table"
    ]
    uid, table = tables
    text = (MADE.DIRECTORY / "dashboards" / f"{uid}.json").read_text()
    variables = {each["name"]: each for each in json.loads(text)["templating"]["list"]}
    (target,) = table["targets"]
    assert (target["service"], target["datasource"]["uid"]) == ("$service", "$traces")
    assert {"service", "traces"} <= variables.keys()
    sources = yaml.safe_load((MADE.DIRECTORY / "grafana" / "datasource.yaml").read_text())
    kinds = {each["type"] for each in sources["datasources"]}
    assert {target["datasource"]["type"], variables["traces"]["query"]} == {"jaeger"} <= kinds


def test_alerts_have_names_of_their_own_and_lead_to_a_section_of_the_page() -> None:
    names = [alert.name for alert in MADE.ALERTS]
    assert len(set(names)) == len(names)
    page = (ROOT / "docs" / "operations.md").read_text()
    sections = {
        re.sub(r"[^\w-]", "", title.lower().replace(" ", "-"))
        for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    }
    assert {alert.section for alert in MADE.ALERTS} <= sections


@pytest.mark.parametrize("alert", MADE.ALERTS, ids=lambda alert: alert.name)
def test_an_alert_tells_by_labels_that_its_query_keeps(alert: Any) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    grouped = set(re.split(r",\s*", ",".join(BY.findall(alert.query)))) - {"le", ""}
    kept = grouped or MADE.KNOWN[MADE.metric_names(alert.query)[0]][2]
    assert named <= kept
