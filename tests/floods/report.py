"""Tell what floods did, in a line each and as the table of docs/reliability.md."""

from __future__ import annotations

from typing import Any


def line(outcome: Any) -> str:
    if "failed" in outcome.flooded or "failed" in outcome.quiet:
        return f"{outcome.name:16} FAILED {outcome.flooded.get('failed')} {outcome.quiet.get('failed')}"
    parts = [f"{outcome.name:16}"]
    for what in ("sent", "delivered", "routed"):
        quiet, flooded = outcome.quiet[what], outcome.flooded[what]
        if quiet["count"]:
            parts.append(
                f"{what} p50/p99/max {quiet['p50']}/{quiet['p99']}/{quiet['max']}"
                f" -> {flooded['p50']}/{flooded['p99']}/{flooded['max']} ms;"
            )
    parts.append(f"own {outcome.flooded['own']['p99']}/{outcome.flooded['own']['max']};")
    loop = outcome.loop
    parts.append(
        f"\n    loop late p99/max {loop.late_p99}/{loop.late_max}, work {loop.work_p99}/{loop.work_max}"
        f" ms, cpu {loop.cpu_share}; resident {outcome.resident_before_mib} -> "
        f"{outcome.resident_peak_mib} MiB, anonymous {outcome.anonymous_before_mib} -> "
        f"{outcome.anonymous_peak_mib}; stopped in {outcome.stop_s:.1f} s"
        f"\n    missing {outcome.flooded['missing']} refused {outcome.flooded['refused']}"
        f"\n    {outcome.counts}\n    {list(outcome.remarks.values())[:3]}\n    log {outcome.log}"
    )
    for stack, count in list(loop.stacks.items())[:4]:
        parts.append(f"\n    {count:4} {stack}")
    if outcome.died:
        parts.append("\n    DIED")
    return " ".join(parts)


def write(outcomes: list[Any]) -> None:
    raise NotImplementedError
