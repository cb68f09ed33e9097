"""Explain which commit-log file brokers delete next, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from cometmq.admin.brokers.room import Brokers, NextDeletion, next_deletion
from cometmq.admin.explain.inquiry import Inquiry, Place, Reported, plural
from cometmq.admin.explain.records import Cause, DiskExplanation, Evidence, Reason, Unasked
from cometmq.admin.explain.texts import Remedy, Said
from cometmq.model.reports.finding import Severity
from cometmq.protocol import requests

_SETTINGS: Final = (
    "fileReservedTime",
    "deleteWhen",
    "diskMaxUsedSpaceRatio",
    "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
    "cleanFileForciblyEnable",
    "cleanFileWaitsForGroups",
    "cleanFileWaitMaxHours",
)
_FIGURES: Final = (
    "commitLogDiskRatio",
    "consumeQueueDiskRatio",
    "commitLogDirCapacity",
    "commitLogMinOffset",
    "commitLogMaxOffset",
)


async def explain_disk(
    inquiry: Inquiry, *, cluster: str | None, broker: str | None
) -> DiskExplanation:
    """Ask brokers, and judge. See Explanations.disk."""
    inquiry.step("asking the name servers for the brokers")
    places = await inquiry.masters(cluster=cluster, broker=broker)
    inquiry.step(f"asking {plural(len(places), 'broker')}")
    reported = await asyncio.gather(*(_of_broker(inquiry, place) for place in places))
    reasons = [
        judge(place, info, settings, inquiry.unasked)
        for place, (info, settings) in zip(places, reported, strict=True)
    ]
    return DiskExplanation(
        question=Said.WHICH_FILE_NEXT(),
        reasons=tuple(sorted(reasons, key=lambda reason: -reason.severity))
        or (nothing_registered(),),
        unasked=inquiry.unasked,
        at_ms=inquiry.now_ms(),
        deletions={
            place.address: None if info is None else next_deletion(info.value)
            for place, (info, _) in zip(places, reported, strict=True)
        },
    )


def nothing_registered() -> Reason:
    return Reason(
        Cause.BROKER_AWAY,
        Severity.ERROR,
        Said.NO_MASTER(),
        remedy=Remedy.NO_MASTER(),
    )


def away(place: Place, unasked: tuple[Unasked, ...]) -> Reason:
    errors = [each.error for each in unasked if each.address == place.address]
    return Reason(
        Cause.BROKER_AWAY,
        Severity.ERROR,
        Said.BROKER_AWAY(
            broker=place.name,
            address=place.address,
            error=errors[0] if errors else Said.NO_ANSWER(),
        ),
        remedy=Remedy.BROKER_AWAY(),
    )


async def _of_broker(
    inquiry: Inquiry, place: Place
) -> tuple[Reported[Mapping[str, str]] | None, Reported[Mapping[str, str]] | None]:
    address = place.address
    brokers = Brokers(inquiry.servers)

    async def info() -> Mapping[str, str]:
        return (await brokers.runtime_info(broker=address))[address]

    async def settings() -> Mapping[str, str]:
        return (await brokers.config(broker=address))[address]

    return await asyncio.gather(
        inquiry.ask(requests.GET_BROKER_RUNTIME_INFO, address, info),
        inquiry.ask(requests.GET_BROKER_CONFIG, address, settings),
    )


def judge(
    place: Place,
    info: Reported[Mapping[str, str]] | None,
    settings: Reported[Mapping[str, str]] | None,
    unasked: tuple[Unasked, ...] = (),
) -> Reason:
    """Say what one broker deletes next, by its report."""
    if info is None:
        return away(place, unasked)
    evidence = [
        *(info.shows(key, info.value[key]) for key in _FIGURES if key in info.value),
        *_shown(settings),
    ]
    deletion = next_deletion(info.value)
    refusing = info.value.get("refusing", "")
    if "full" in refusing:
        refused = {"broker": place.name, "refusal": refusing}
        return Reason(
            Cause.DISK_FULL,
            Severity.ERROR,
            Said.DISK_FULL(**refused)
            if deletion is None
            else Said.DISK_FULL_NEXT(**refused, deletion=_deletion_text(deletion)),
            (info.shows("refusing", refusing), *evidence),
            Remedy.DISK_FULL(),
        )
    if deletion is not None and deletion.when_ms is None:
        return Reason(
            Cause.NO_DELETION,
            Severity.OK,
            Said.NO_DELETION_TIME(broker=place.name, file=deletion.file, reason=deletion.reason),
            tuple(evidence),
        )
    if deletion is not None:
        evidence.insert(0, info.shows("nextDeletionReason", deletion.reason))
        return Reason(
            Cause.NEXT_DELETION,
            Severity.OK,
            Said.NEXT_DELETION(broker=place.name, deletion=_deletion_text(deletion)),
            tuple(evidence),
        )
    if "nextDeletedFile" in info.value:
        return Reason(
            Cause.NO_DELETION,
            Severity.OK,
            Said.NO_DELETION(
                broker=place.name,
                reason=info.value.get("nextDeletionReason", Said.NO_FILE()),
            ),
            tuple(evidence),
        )
    return Reason(
        Cause.NOT_REPORTED,
        Severity.WARNING,
        Said.DELETION_UNKNOWN(broker=place.name),
        tuple(evidence),
        Remedy.DELETION_UNKNOWN(),
    )


def _shown(settings: Reported[Mapping[str, str]] | None) -> list[Evidence]:
    if settings is None:
        return []
    return [settings.shows(key, settings.value[key]) for key in _SETTINGS if key in settings.value]


def _deletion_text(deletion: NextDeletion) -> str:
    if deletion.when_ms is None:
        return Said.DELETION_SOME_TIME(file=deletion.file, reason=deletion.reason)
    return Said.DELETION(
        file=deletion.file, time=local_time(deletion.when_ms), reason=deletion.reason
    )


def local_time(ms: int) -> str:
    """Format a time in the zone of this machine; one that no calendar has stays as it is."""
    try:
        return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):
        return Said.MS_SINCE_EPOCH(ms=ms)
