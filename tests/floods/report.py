"""Show what floods did, in lines and as the table of docs/reliability.md."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Final

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN: Final = "<!-- floods: written by python -m tests.floods --report -->"
END: Final = "<!-- end of floods -->"
_MEMORY_UNIT: Final = "MiB"
# What a swarm counts besides answers and refusals.
_PLAIN: Final = ("connections", "bytes sent", "bytes read", "requests of the server")

# The aim for the 99th percentiles of a client beside a flood.
_AIM_MS: Final = 100.0
# The table says when a client that connects meanwhile has its first answer later than this.
_JOINED_LATE_S: Final = 0.2

Outcome = dict[str, Any]


def lines(outcome: Outcome) -> str:
    """Return all figures of one flood as text."""
    quiet, flooded, loop = outcome["quiet"], outcome["flooded"], outcome["loop"]
    if "failed" in flooded or "failed" in quiet:
        return f"{outcome['name']}: FAILED {flooded.get('failed')} {quiet.get('failed')}"
    parts = [outcome["name"]]
    for what in ("sent", "delivered", "routed"):
        if quiet[what]["count"]:
            before, during = (
                "/".join(f"{each[what][q]:g}" for q in ("p50", "p99", "max"))
                for each in (quiet, flooded)
            )
            parts.append(f"  {what} p50/p99/max ms: {before} -> {during}")
    parts += [
        (
            f"  the client's own timer p99/max ms: {flooded['own']['p99']:g}/{flooded['own']['max']:g}; "
            f"its first answer came after {flooded['joined_s']:g} s"
        ),
        (
            f"  loop late p99/max ms: {loop['late_p99']:g}/{loop['late_max']:g}, work p99/max ms: "
            f"{loop['work_p99']:g}/{loop['work_max']:g}, share of a core {loop['cpu_share']:g}"
        ),
        (
            f"  anonymous {outcome['anonymous_before_mib']} -> {outcome['anonymous_peak_mib']}, resident "
            f"{outcome['resident_before_mib']} -> {outcome['resident_peak_mib']} {_MEMORY_UNIT}; stopped in "
            f"{outcome['stop_s']:.1f} s{'; DIED' if outcome['died'] else ''}"
        ),
        f"  missing {flooded['missing']}, refused {flooded['refused']}",
        f"  {outcome['counts']}",
        *(f"  said: {remark}" for remark in list(outcome["remarks"].values())[:4]),
        f"  limits: {outcome['limits']}",
        f"  log: {outcome['log']}",
        *(f"  {count} {stack}" for stack, count in list(loop["stacks"].items())[:4]),
    ]
    return "\n".join(parts)


def write(outcomes: list[Outcome]) -> None:
    """Write the table between the markers of the document."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table(outcomes)}\n{END}{after}")


def table(outcomes: list[Outcome]) -> str:
    rows = [
        (
            "| flood | p99 of sends, ms: quiet → flooded | p99 of deliveries, ms | longest work of the loop, ms"
            " | share of a core | own memory, MiB | resident at most, MiB | what it met"
            " | limits that it hit |"
        ),
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for outcome in outcomes:
        quiet, flooded, loop = outcome["quiet"], outcome["flooded"], outcome["loop"]
        if "failed" in flooded or "failed" in quiet:
            rows.append(f"| {outcome['title']} | not measured | | | | | | the client failed | |")
            continue
        sent, delivered = (
            ("sent", "delivered") if not quiet["routed"]["count"] else ("routed", "sent")
        )
        note = " (routes)" if sent == "routed" else ""
        rows.append(
            f"| {outcome['title']}{note} | {_pair(quiet, flooded, sent)}"
            f" | {_pair(quiet, flooded, delivered)}"
            f" | {loop['work_max']:.0f} | {loop['cpu_share']:.0%}"
            f" | {outcome['anonymous_before_mib']} → {outcome['anonymous_peak_mib']}"
            f" | {outcome['resident_peak_mib']} | {_met(outcome)} | {_limits(outcome)} |"
        )
    return "\n".join([*rows, "", _machine()])


def _pair(quiet: Outcome, flooded: Outcome, what: str) -> str:
    """Return both 99th percentiles, with ✗ if the second misses the aim."""
    before, during = quiet[what]["p99"], flooded[what]["p99"]
    return f"{before:.1f} → {during:.1f}{' ✗' if during >= _AIM_MS else ''}"


def _met(outcome: Outcome) -> str:
    counts = {name: count for name, count in outcome["counts"].items() if name not in _PLAIN}
    met = [f"{name}: {count:,}" for name, count in sorted(counts.items())]
    met += [f"log: {event}" for event in outcome["log"] if "closed" in event or "refused" in event]
    if outcome["flooded"]["missing"]:
        met.append(f"of the client's own: {outcome['flooded']['missing']} not answered in 5 s")
    if (joined_s := outcome["flooded"].get("joined_s", 0.0)) > _JOINED_LATE_S:
        met.append(f"the client's first answer, since it connected: {joined_s:.1f} s")
    return "; ".join(met) or "nothing"


def _limits(outcome: Outcome) -> str:
    """Return the limits whose counters moved; figures of older runs have none."""
    hits: dict[str, int] = outcome.get("limits", {})
    return ", ".join(f"`{name}` {count:,}" for name, count in sorted(hits.items())) or "none"


def _machine() -> str:
    load = ", ".join(f"{each:.0f}" for each in os.getloadavg())
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}; the "
        f"machine's load average when the table was written: {load}."
    )
