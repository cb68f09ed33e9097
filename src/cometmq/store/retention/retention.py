"""Decide which files of the commit log are deleted, when and why (Java: CleanCommitLogService).

`plan` decides only by its arguments, so the broker's timer and `cometmq store explain` cannot
disagree. Nothing here touches a file.

Files are deleted oldest first, and the newest never. A file is deleted when its last change is
`fileReservedTime` ago and one of these holds: the hour is one of `deleteWhen`, an operator asked
for it, or the disk is fuller than `diskMaxUsedSpaceRatio`. Above `diskSpaceCleanForciblyRatio` the
age of a file does not matter, unless `cleanFileForciblyEnable` is false. Above
`diskSpaceWarningLevelRatio` the store refuses messages, until the disk is no fuller than
`diskSpaceCleanForciblyRatio`.

An expired file stays while it has messages that a group of `cleanFileWaitsForGroups` has not marked
(`cometmq.store.retention.marks`), for `cleanFileWaitMaxHours` at most. Above `diskSpaceCleanForciblyRatio`
files wait for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final, NamedTuple

from cometmq.store.config import StoreConfig

_HOUR_MS: Final = 3_600_000
# Java's bounds of the ratios: a disk may never run full, and is never kept emptier than this.
_MAX_USED_BOUNDS: Final = (0.10, 0.95)
_FORCIBLY_BOUNDS: Final = (0.30, 0.85)
_WARNING_BOUNDS: Final = (0.35, 0.90)


class LogFile(NamedTuple):
    """A file of the commit log: offset of its first byte, size in bytes, time of last change."""

    base: int
    size: int
    modified_ms: int


class Hold(NamedTuple):
    """Records that the log from `offset` on waits for a mark. `reason` names the group."""

    offset: int
    reason: str


@dataclass(frozen=True)
class Policy:
    """The settings by which files are deleted; ratios are fractions."""

    hours: frozenset[int]
    reserved_hours: int
    batch_max: int
    max_used_ratio: float
    forcibly_ratio: float
    warning_ratio: float
    may_force: bool
    wait_hours: int

    @classmethod
    def of(cls, config: StoreConfig) -> Policy:
        return cls(
            hours=config.delete_hours,
            reserved_hours=config.file_reserved_time,
            batch_max=config.delete_file_batch_max,
            max_used_ratio=_clamped(config.disk_max_used_space_ratio, _MAX_USED_BOUNDS),
            forcibly_ratio=_clamped(config.disk_space_clean_forcibly_ratio, _FORCIBLY_BOUNDS),
            warning_ratio=_clamped(config.disk_space_warning_level_ratio, _WARNING_BOUNDS),
            may_force=config.clean_file_forcibly_enable,
            wait_hours=config.clean_file_wait_max_hours,
        )

    @property
    def forced_rule(self) -> str:
        """The settings by which a file is deleted before its time, as text."""
        return (
            f"diskSpaceCleanForciblyRatio={self.forcibly_ratio * 100:.0f} and "
            f"cleanFileForciblyEnable={str(self.may_force).lower()}"
        )

    def expires_ms(self, file: LogFile) -> int:
        return file.modified_ms + self.reserved_hours * _HOUR_MS

    def lapses_ms(self, file: LogFile) -> int:
        """The time at which a file is deleted even without the mark for which it waits."""
        return self.expires_ms(file) + self.wait_hours * _HOUR_MS


def _clamped(per_cent: int, bounds: tuple[float, float]) -> float:
    return min(max(per_cent / 100, bounds[0]), bounds[1])


def surprises(config: StoreConfig) -> list[str]:
    """Describe ratios that do not do what their values say; for the log, at the start."""
    policy = Policy.of(config)
    found = []
    for key, given, used in (
        ("diskMaxUsedSpaceRatio", config.disk_max_used_space_ratio, policy.max_used_ratio),
        (
            "diskSpaceCleanForciblyRatio",
            config.disk_space_clean_forcibly_ratio,
            policy.forcibly_ratio,
        ),
        ("diskSpaceWarningLevelRatio", config.disk_space_warning_level_ratio, policy.warning_ratio),
    ):
        if given != round(used * 100):
            found.append(f"{key}={given} counts as {used * 100:.0f}, as in RocketMQ")
    if policy.max_used_ratio > policy.forcibly_ratio and policy.may_force:
        found.append(
            f"diskMaxUsedSpaceRatio={config.disk_max_used_space_ratio} keeps no file for longer: "
            f"above {policy.forcibly_ratio:.0%} the oldest goes before fileReservedTime="
            f"{policy.reserved_hours} hours are over ({policy.forced_rule}); set "
            "cleanFileForciblyEnable=false to refuse messages instead, above "
            f"{policy.warning_ratio:.0%}"
        )
    return found


class Disks(NamedTuple):
    """How full the file systems of commit log and consume queues are, from 0 to 1."""

    log_ratio: float
    queue_ratio: float

    @property
    def worst(self) -> float:
        return max(self)


class Fate(Enum):
    """Names what a run does with a file."""

    DELETED = "deleted"
    KEPT = "kept"


class Verdict(NamedTuple):
    """The decision on one file. `when_ms` is when it can be deleted; None for never or unknown."""

    file: LogFile
    fate: Fate
    reason: str
    when_ms: int | None


@dataclass(frozen=True)
class Plan:
    """The decisions of one run. `full` sets the flag that refuses messages; None leaves it.

    `trigger` says why files may be deleted now; it is "" when they may not. `hold` says which
    messages wait for a mark.
    """

    now_ms: int
    disks: Disks
    policy: Policy
    trigger: str
    forced: bool
    full: bool | None
    verdicts: tuple[Verdict, ...]
    hold: Hold | None = None

    @property
    def removals(self) -> list[LogFile]:
        return [verdict.file for verdict in self.verdicts if verdict.fate is Fate.DELETED]

    def goes_early(self, file: LogFile) -> bool:
        """Say whether a file is deleted although its fileReservedTime is not over."""
        return self.policy.expires_ms(file) > self.now_ms

    def is_unmarked(self, file: LogFile) -> bool:
        """Say whether a file has messages that wait for a mark."""
        return _is_unmarked(file, self.hold)

    @property
    def waited_ms(self) -> int:
        """How long the oldest file has been kept for the sake of a mark."""
        if len(self.verdicts) < 2 or self.disks.worst > self.policy.forcibly_ratio:
            return 0
        first = self.verdicts[0]
        kept = first.fate is Fate.KEPT and self.is_unmarked(first.file)
        return max(0, self.now_ms - self.policy.expires_ms(first.file)) if kept else 0


def plan(
    now_ms: int,
    files: Sequence[LogFile],
    disks: Disks,
    policy: Policy,
    *,
    manual: bool = False,
    hold: Hold | None = None,
) -> Plan:
    """Decide what a run at `now_ms` does. `manual`: an operator asked for the run. `hold` says which
    messages wait for a mark.

    `files` are the files of the commit log, oldest first: all of them, or the oldest, one more than
    a run may delete.
    """
    trigger, forced = _trigger(now_ms, disks, policy, manual)
    # On a disk that gets full, no file waits.
    obeyed = hold if disks.worst <= policy.forcibly_ratio else None
    verdicts: list[Verdict] = []
    stopped = ""
    for position, file in enumerate(files):
        reason, stopped = _judge(
            now_ms, file, position, len(files), policy, trigger, stopped, obeyed, forced=forced
        )
        fate = Fate.KEPT if stopped else Fate.DELETED
        when = None
        if position < len(files) - 1:
            when = now_ms
            if fate is Fate.KEPT:
                when = next_run_ms(now_ms, file, disks, policy, obeyed)
        verdicts.append(Verdict(file, fate, reason, when))
    full = None
    if disks.worst > policy.warning_ratio:
        full = True
    elif disks.worst <= policy.forcibly_ratio:
        full = False
    return Plan(now_ms, disks, policy, trigger, forced, full, tuple(verdicts), hold)


def _trigger(now_ms: int, disks: Disks, policy: Policy, manual: bool) -> tuple[str, bool]:
    """Return why files may be deleted ("" if they may not), and whether at any age."""
    used = f"the disk is {disks.worst:.0%} full"
    if disks.worst > policy.forcibly_ratio:
        above = f"{used}, above {policy.forcibly_ratio:.0%} (diskSpaceCleanForciblyRatio)"
        return above, policy.may_force
    if disks.worst > policy.max_used_ratio:
        return f"{used}, above {policy.max_used_ratio:.0%} (diskMaxUsedSpaceRatio)", False
    if manual:
        return "an operator asked for it", False
    hour = _local(now_ms).hour
    if hour in policy.hours:
        return f"it is {hour:02d} o'clock (deleteWhen)", False
    return "", False


def _judge(
    now_ms: int,
    file: LogFile,
    position: int,
    count: int,
    policy: Policy,
    trigger: str,
    stopped: str,
    hold: Hold | None,
    *,
    forced: bool,
) -> tuple[str, str]:
    """Return why a file is deleted or kept; and if kept, why those behind it are, else ""."""
    expired = policy.expires_ms(file) <= now_ms
    if position == count - 1:
        return "the newest file always stays", "last"
    if stopped:
        return f"files go oldest first, and {stopped}", stopped
    if not expired and not forced:
        left = timedelta(milliseconds=policy.expires_ms(file) - now_ms)
        reason = (
            f"changed less than {policy.reserved_hours} h ago (fileReservedTime), "
            f"it expires in {_rounded(left)}"
        )
        return reason, "an older one has not expired"
    age = f"not changed for {policy.reserved_hours} h (fileReservedTime)"
    if hold and _is_unmarked(file, hold) and now_ms < policy.lapses_ms(file):
        left = timedelta(milliseconds=policy.lapses_ms(file) - now_ms)
        reason = (
            f"{age}, but {hold.reason} (cleanFileWaitsForGroups); it goes without that in "
            f"{_rounded(left)} (cleanFileWaitMaxHours), or when the disk is fuller than "
            f"{policy.forcibly_ratio:.0%} (diskSpaceCleanForciblyRatio)"
        )
        return reason, "an older one waits for a mark"
    if not trigger:
        return f"{age}, but it is not the time to delete (deleteWhen)", "an older one must wait"
    if position >= policy.batch_max:
        reason = f"a run deletes at most {policy.batch_max} files (deleteFileBatchMax)"
        return reason, "a run ends here"
    return (f"{age} and {trigger}" if expired else f"{trigger}, whatever its age"), ""


def _is_unmarked(file: LogFile, hold: Hold | None) -> bool:
    return hold is not None and file.base + file.size > hold.offset


def next_run_ms(
    now_ms: int, file: LogFile, disks: Disks, policy: Policy, hold: Hold | None = None
) -> int | None:
    """Return when a file that is kept now can be deleted, if the disk stays as full as it is and
    nothing more is marked.

    None for never.
    """
    if disks.worst > policy.forcibly_ratio and policy.may_force:
        return now_ms
    due = max(
        now_ms,
        policy.lapses_ms(file) if _is_unmarked(file, hold) else policy.expires_ms(file),
    )
    if disks.worst > policy.max_used_ratio:
        return due
    moment = _local(due)
    if moment.hour in policy.hours:
        return due
    for _ in range(48):
        # Go by local hours, so that the start or end of summer time does not matter.
        moment = _local(
            int(moment.replace(minute=0, second=0, microsecond=0).timestamp() * 1000) + _HOUR_MS
        )
        if moment.hour in policy.hours:
            return int(moment.timestamp() * 1000)
    return None


def _local(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000).astimezone()


def _rounded(span: timedelta) -> str:
    minutes = max(1, round(span.total_seconds() / 60))
    return f"{minutes} min" if minutes < 120 else f"{round(minutes / 60)} h"
