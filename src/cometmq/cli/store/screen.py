"""Show results of the store's tools: tables on a terminal, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cometmq.cli.markup import as_markup
from cometmq.errors import ConfigError
from cometmq.logs.plain import plain_json

if TYPE_CHECKING:
    from cometmq.store.offline.check import Report
    from cometmq.store.offline.repair import RepairPlan
    from cometmq.store.offline.slice import Slice
    from cometmq.store.offline.stats import QueueStats, StoreStats, TopicStats
    from cometmq.store.offline.store import OfflineStore
    from cometmq.store.retention.retention import Plan

    ProgressOf = Callable[[str], Callable[[int, int], None] | None]

_MOST_FINDINGS: Final = 50
_MOST_TAGS: Final = 3

# Lines may be longer than the terminal is wide: the terminal wraps them, and a pipe gets them
# whole.
_console: Final = Console(highlight=False, soft_wrap=True)


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[ProgressOf]:
    """Show bars on stderr, if that is a terminal; they disappear when the work is done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:

        def start(what: str) -> Callable[[int, int], None]:
            task = bars.add_task(what, total=None)
            return lambda done, total: bars.update(task, completed=done, total=total)

        yield start


def print_json(value: Any) -> None:
    sys.stdout.write(plain_json(json.dumps(value, indent=2, ensure_ascii=False)) + "\n")


def print_line(value: Any) -> None:
    sys.stdout.write(plain_json(json.dumps(value, ensure_ascii=False)) + "\n")


def time_ms(option: str, text: str) -> int:
    """Read a time as users write it: ms since the epoch, or an ISO date and time.

    Returns ms since the epoch. Raises ConfigError.
    """
    if text.isdecimal():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text} is no time: give milliseconds since 1970 or 2026-03-01T12:00:00"
        ) from error


# -- check --


def report_json(store: OfflineStore, report: Report) -> dict[str, Any]:
    return {
        "directory": str(store.config.store_path_root_dir),
        "sound": report.is_sound,
        "stoppedCleanly": report.clean_stop,
        "commitLog": {
            "files": report.log_file_count,
            "records": report.record_count,
            "bytes": report.record_bytes,
            "minOffset": report.min_offset,
            "maxOffset": report.end_offset,
            "firstStoreTimestamp": report.first_timestamp,
            "lastStoreTimestamp": report.last_timestamp,
        },
        "consumeQueues": {"queues": report.queue_count, "units": report.unit_count},
        "index": {"files": report.index_file_count, "entries": report.index_entry_count},
        "findings": [
            {
                "area": finding.area.value,
                "file": str(finding.path),
                "position": finding.position,
                "text": finding.text,
                "repairedBy": "start" if finding.by_start else "repair",
            }
            for finding in report.findings
        ],
        "notes": report.notes,
    }


def print_report(store: OfflineStore, report: Report) -> None:
    root = store.config.store_path_root_dir
    _console.print(f"[bold]{as_markup(str(root))}[/]")
    rows = [
        (
            "commit log",
            _count(report.log_file_count, "file"),
            _count(report.record_count, "record"),
            _bytes(report.record_bytes),
        ),
        (
            "consume queues",
            _count(report.queue_count, "queue"),
            _count(report.unit_count, "unit"),
        ),
        (
            "index",
            _count(report.index_file_count, "file"),
            _count(report.index_entry_count, "entry", "entries"),
        ),
    ]
    for line in _columns(rows):
        _console.print(f"  {line}")
    if report.record_count:
        span = f"{_time(report.first_timestamp)} to {_time(report.last_timestamp)}"
        _console.print(f"  stored {span}")
    for note in report.notes:
        _console.print(f"  [dim]note: {as_markup(note)}[/]")
    if report.is_sound:
        _console.print("[green]✓ sound[/]")
        return
    _print_findings(root, report)
    _print_remedies(root, report)


def _print_findings(root: Path, report: Report) -> None:
    for finding in report.findings[:_MOST_FINDINGS]:
        path = finding.path.relative_to(root) if finding.path.is_relative_to(root) else finding.path
        _console.print(f"[red]✗[/] {as_markup(str(path))} at {finding.position}")
        _console.print(f"    {as_markup(finding.text)}")
    if len(report.findings) > _MOST_FINDINGS:
        _console.print(f"  … and {len(report.findings) - _MOST_FINDINGS} more, all with -o json")


def _print_remedies(root: Path, report: Report) -> None:
    by_start = sum(finding.by_start for finding in report.findings)
    others = len(report.findings) - by_start
    _console.print(f"[red]{_count(len(report.findings), 'finding')}[/]")
    if by_start:
        what = "This is" if not others else f"{by_start} of them {_are(by_start)}"
        _console.print(f"  {what} what a crash leaves; the next start of the broker repairs it.")
    if others:
        which = "For the rest" if by_start else "Run"
        command = f"cometmq store repair --write {root}"
        _console.print(f"  {which}: [bold]{as_markup(command)}[/]")
        _console.print("  [dim]Without --write it says what it would do.[/]")


# -- stats --


def stats_json(stats: StoreStats) -> dict[str, Any]:
    return {
        "messages": stats.message_count,
        "bytes": stats.byte_count,
        "commitLogFiles": stats.log_file_count,
        "allocatedBytes": stats.allocated_bytes,
        "damagedBytes": stats.damaged_bytes,
        "topics": [
            {
                "topic": topic.topic,
                **_numbers(topic),
                "tags": dict(topic.tags.most_common()),
                "queues": [
                    {
                        "queueId": queue.queue_id,
                        "minOffset": queue.first_offset,
                        "maxOffset": queue.last_offset + 1,
                        **_numbers(queue),
                    }
                    for _, queue in sorted(topic.queues.items())
                ],
            }
            for topic in stats.by_size()
        ],
    }


def _numbers(part: TopicStats | QueueStats) -> dict[str, int]:
    return {
        "messages": part.message_count,
        "bytes": part.byte_count,
        "averageBytes": part.byte_count // part.message_count,
        "largestBytes": part.largest_bytes,
        "firstStoreTimestamp": part.first_timestamp,
        "lastStoreTimestamp": part.last_timestamp,
    }


def print_stats(stats: StoreStats, *, with_queues: bool) -> None:
    head = ("topic", "queue" if with_queues else "queues", "messages", "bytes", "average")
    rows: list[tuple[str, ...]] = [(*head, "largest", "first stored", "last stored")]
    tags = [""]
    for topic in stats.by_size():
        rows.append((topic.topic, "" if with_queues else str(len(topic.queues)), *_cells(topic)))
        tags.append(_tags(topic))
        if with_queues:
            for _, queue in sorted(topic.queues.items()):
                rows.append(("", str(queue.queue_id), *_cells(queue)))
                tags.append("")
    for number, line in enumerate(_columns(rows, right=range(1, 6))):
        style = "bold" if number == 0 or tags[number] else "default"
        _console.print(f"[{style}]{as_markup(line)}[/]")
        if tags[number]:
            _console.print(f"  [dim]tags: {as_markup(tags[number])}[/]")
    _console.print(
        f"{_count(stats.message_count, 'message')} of {_bytes(stats.byte_count)} in "
        f"{_count(stats.log_file_count, 'file')} of {_bytes(stats.allocated_bytes)}"
    )
    if stats.damaged_bytes:
        _console.print(
            f"[red]{_bytes(stats.damaged_bytes)} are damaged[/]: see cometmq store check"
        )


def _cells(part: TopicStats | QueueStats) -> tuple[str, ...]:
    return (
        f"{part.message_count:,}",
        _bytes(part.byte_count),
        _bytes(part.byte_count // part.message_count),
        _bytes(part.largest_bytes),
        _time(part.first_timestamp),
        _time(part.last_timestamp),
    )


def _tags(topic: TopicStats) -> str:
    common = [f"{tag or '(none)'} {count:,}" for tag, count in topic.tags.most_common(_MOST_TAGS)]
    more = len(topic.tags) - len(common)
    return ", ".join([*common, f"{more} more"] if more > 0 else common)


# -- repair --


def repair_json(
    store: OfflineStore, report: Report, plan: RepairPlan, *, done: bool
) -> dict[str, Any]:
    return {"actions": plan.texts, "done": done, "check": report_json(store, report)}


def print_repair(store: OfflineStore, report: Report, plan: RepairPlan, *, done: bool) -> None:
    root = store.config.store_path_root_dir
    if plan.is_empty:
        _console.print(f"[green]✓[/] {as_markup(str(root))} needs no repair")
        for note in report.notes:
            _console.print(f"  [dim]note:[/] {as_markup(note)}")
        return
    _console.print("[bold]Done:[/]" if done else "[bold]A repair would[/]")
    for text in plan.texts:
        _console.print(f"  • {as_markup(text)}")
    if done:
        _console.print()
        print_report(store, report)
    else:
        command = f"cometmq store repair --write {root}"
        _console.print(f"Nothing was changed. To do it: [bold]{as_markup(command)}[/]")


# -- slice --


def slice_json(made: Slice) -> dict[str, Any]:
    return {
        "directory": str(made.config.store_path_root_dir),
        "fromOffset": made.first_offset,
        "toOffset": made.end_offset,
        "records": made.record_count,
        "bytes": made.end_offset - made.first_offset,
        "firstStoreTimestamp": made.first_timestamp,
        "lastStoreTimestamp": made.last_timestamp,
        "queues": [
            {
                "topic": queue.topic,
                "queueId": queue.queue_id,
                "minOffset": queue.first_offset,
                "maxOffset": queue.end_offset,
                "messages": queue.message_count,
            }
            for _, queue in sorted(made.queues.items())
        ],
        "queuesWithoutMessages": [
            {"topic": topic, "queueId": queue_id} for topic, queue_id in made.idle_queues
        ],
        "stateFiles": made.state_files,
        "settings": _settings_of(made),
    }


def _settings_of(made: Slice) -> dict[str, str]:
    """Return the settings that a broker on the slice needs: its files keep their sizes."""
    config = made.config
    return {
        "storePathRootDir": str(config.store_path_root_dir),
        "mappedFileSizeCommitLog": str(config.mapped_file_size_commit_log),
        "mappedFileSizeConsumeQueue": str(config.mapped_file_size_consume_queue),
        "maxHashSlotNum": str(config.max_hash_slot_num),
        "maxIndexNum": str(config.max_index_num),
    }


def print_slice(made: Slice) -> None:
    _console.print(f"[bold]{as_markup(str(made.config.store_path_root_dir))}[/]")
    rows = [
        ("commit log", f"{made.first_offset:,} to {made.end_offset:,}"),
        ("records", f"{made.record_count:,}, {_bytes(made.end_offset - made.first_offset)}"),
        ("stored", f"{_time(made.first_timestamp)} to {_time(made.last_timestamp)}"),
        ("state files", ", ".join(made.state_files) or "none"),
    ]
    for line in _columns(rows):
        _console.print(f"  {as_markup(line)}")
    table: list[tuple[str, ...]] = [("topic", "queue", "messages", "min offset", "max offset")]
    for _, queue in sorted(made.queues.items()):
        numbers = (queue.message_count, queue.first_offset, queue.end_offset)
        table.append((queue.topic, str(queue.queue_id), *(f"{number:,}" for number in numbers)))
    for number, line in enumerate(_columns(table, right=range(1, 5))):
        _console.print(f"[{'default' if number else 'bold'}]{as_markup(line)}[/]")
    if made.idle_queues:
        _console.print(
            f"{_count(len(made.idle_queues), 'queue')} without messages, for its offsets"
        )
    _console.print("[green]✓ sound[/]; a broker on it needs these settings:")
    for key, value in _settings_of(made).items():
        _console.print(f"  {as_markup(key)}={as_markup(value)}")


# -- explain --


def plan_json(plan: Plan, store: OfflineStore) -> dict[str, Any]:
    return {
        "now": plan.now_ms,
        "commitLogDiskUsed": round(plan.disks.log_ratio, 4),
        "consumeQueueDiskUsed": round(plan.disks.queue_ratio, 4),
        "deletesExpiredAbove": plan.policy.max_used_ratio,
        "deletesAnythingAbove": plan.policy.forcibly_ratio if plan.policy.may_force else None,
        "refusesMessagesAbove": plan.policy.warning_ratio,
        "deleteWhen": sorted(plan.policy.hours),
        "fileReservedTime": plan.policy.reserved_hours,
        "waitsForMarksFrom": None if plan.hold is None else plan.hold.offset,
        "waitsForMarksAtMostHours": plan.policy.wait_hours,
        "trigger": plan.trigger,
        "files": [
            {
                "file": str(store.config.commit_log_path / f"{verdict.file.base:020d}"),
                "bytes": verdict.file.size,
                "modified": verdict.file.modified_ms,
                "expires": plan.policy.expires_ms(verdict.file),
                "fate": verdict.fate.value,
                "goesAt": verdict.when_ms,
                "reason": verdict.reason,
            }
            for verdict in plan.verdicts
        ],
    }


def print_plan(plan: Plan, store: OfflineStore, *, limit: int | None) -> None:
    policy = plan.policy
    root = store.config.store_path_root_dir
    hours = ", ".join(f"{hour:02d}" for hour in sorted(policy.hours)) or "no hour"
    _console.print(
        f"[bold]{as_markup(str(root))}[/] is on a disk that is {plan.disks.worst:.0%} full"
    )
    _console.print(
        f"  files not changed for {policy.reserved_hours} h (fileReservedTime) are deleted at {hours} "
        f"o'clock (deleteWhen)"
    )
    younger = "no younger one" if not policy.may_force else "younger ones too"
    _console.print(
        f"  above {policy.max_used_ratio:.0%} at any hour, above {policy.forcibly_ratio:.0%} "
        f"{younger} (cleanFileForciblyEnable), above {policy.warning_ratio:.0%} messages are refused"
    )
    if plan.hold is not None:
        _console.print(
            f"  messages from {plan.hold.offset} on wait, for {policy.wait_hours} h more at most "
            f"(cleanFileWaitMaxHours): {as_markup(plan.hold.reason)}"
        )
    from cometmq.store.retention.retention import surprises

    for text in surprises(store.config):
        _console.print(f"  [yellow]{as_markup(text)}[/]")
    if plan.full:
        _console.print("[red]Messages are refused now.[/]")
    if not plan.verdicts:
        _console.print("The commit log has no file.")
    for verdict in plan.verdicts[:limit]:
        goes = "stays" if verdict.when_ms is None else f"goes {_time(verdict.when_ms)}"
        if verdict.when_ms is not None and verdict.when_ms <= plan.now_ms:
            goes = "[yellow]goes now[/]"
        _console.print(
            f"{verdict.file.base:020d}  {_bytes(verdict.file.size):>8}  "
            f"changed {_time(verdict.file.modified_ms)}  [bold]{goes}[/]"
        )
        _console.print(f"    [dim]{as_markup(verdict.reason)}[/]")
    if limit is not None and len(plan.verdicts) > limit:
        _console.print(f"… and {len(plan.verdicts) - limit} younger files (--all)")


# -- words and numbers --


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _columns(rows: Sequence[Sequence[str]], right: range = range(0)) -> list[str]:
    """Return the rows as lines with aligned columns; align those in `right` to the right."""
    count = max(map(len, rows))
    widths = [max(len(row[n]) for row in rows if n < len(row)) for n in range(count)]
    return [
        "  ".join(
            cell.rjust(widths[n]) if n in right else cell.ljust(widths[n])
            for n, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _time(time_ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(time_ms / 1000).astimezone()
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment.strftime("%Y-%m-%d %H:%M:%S")
