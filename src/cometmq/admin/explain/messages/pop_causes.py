"""Judge the state of a message in a group that pops, by the facts alone. Nothing here asks a server."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.admin.explain.disk import local_time
from cometmq.admin.explain.inquiry import Reported
from cometmq.admin.explain.records import Cause, Evidence
from cometmq.admin.explain.texts import Remedy, Said, Shown
from cometmq.model.message import MessageExt
from cometmq.model.reports.finding import Severity
from cometmq.protocol.pop.bodies import PoppedMessage


@dataclass(frozen=True, slots=True)
class Verdict:
    """Holds the meaning of a message's place in a queue. `next_ms` is when it becomes visible, None if it is visible."""

    cause: Cause
    severity: Severity
    said: str
    remedy: str
    owner: str = ""
    next_ms: int | None = None


def judge_popped(
    group: str,
    message: MessageExt,
    reported: Reported[PoppedMessage],
    now_ms: int,
    *,
    is_retry: bool,
) -> Verdict:
    """Judge a message of a topic, or its copy in a retry topic (`is_retry`)."""
    found = reported.value
    if found.state == "HIDDEN":
        return _hidden(group, message, found, now_ms)
    if found.state == "ACKNOWLEDGED":
        return Verdict(
            Cause.ACKNOWLEDGED,
            Severity.OK,
            Said.ACKNOWLEDGED(group=group, offset=found.first_offset),
            "",
        )
    if found.state == "DONE":
        times = message.reconsume_times
        said = (
            Said.POP_DONE_AT(group=group, number=times + 1) if times else Said.POP_DONE(group=group)
        )
        return Verdict(Cause.CONSUMED, Severity.OK, said, "")
    if is_retry:
        return Verdict(
            Cause.RETRIED,
            Severity.WARNING,
            Said.WAITS_IN_RETRY(
                group=group,
                topic=message.topic,
                number=message.reconsume_times + 1,
                count=found.before,
            ),
            Remedy.NOT_POPPED(group=group),
        )
    return Verdict(
        Cause.NOT_POPPED,
        Severity.ERROR,
        Said.NOT_POPPED(
            group=group, broker=message.broker_name, queue=message.queue_id, count=found.before
        ),
        Remedy.NOT_POPPED(group=group),
    )


def _hidden(group: str, message: MessageExt, found: PoppedMessage, now_ms: int) -> Verdict:
    number = found.delivered if found.delivered >= 0 else message.reconsume_times + 1
    client = found.client_id or found.address
    facts = {"group": group, "time": local_time(found.until_ms), "number": number}
    if found.until_ms < now_ms:
        said = Said.VISIBLE_SINCE(**facts)
    elif client:
        said = Said.INVISIBLE_AT(client=client, **facts)
    else:
        said = Said.INVISIBLE(**facts)
    return Verdict(
        Cause.INVISIBLE,
        Severity.WARNING,
        said,
        Remedy.INVISIBLE(),
        found.client_id,
        found.until_ms,
    )


def popped_evidence(reported: Reported[PoppedMessage]) -> list[Evidence]:
    """Return a broker's report of a message's place as evidence."""
    found = reported.value
    shown = [reported.shows(Shown.FIRST_NOT_DONE(), found.first_offset)]
    if found.state == "HIDDEN":
        shown = [
            reported.shows(Shown.POPPED_AT(), local_time(found.popped_ms)),
            reported.shows(Shown.HIDDEN_UNTIL(), local_time(found.until_ms)),
            reported.shows(
                Shown.HANDED_TO(), found.client_id or found.address or Shown.NOT_KNOWN_ANY_MORE()
            ),
            *shown,
        ]
    elif found.state == "UNPOPPED":
        shown.append(reported.shows(Shown.POPPED_BEFORE(), found.before))
    return shown
