"""Operators' actions on the offsets of consumer groups, after a preview of what is skipped or
repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

from cometmq.admin.groups.offsets import END, QueueOffsets
from cometmq.console.pages.group_actions import checked_group, need_group
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.state import Console
from cometmq.console.views import group_views as views
from cometmq.console.views.rendering import Say, moment, number, url, words
from cometmq.console.views.times import time_ms
from cometmq.errors import IllegalArgumentError
from cometmq.model.names import topic_fault
from cometmq.model.queue import MessageQueue
from cometmq.model.reports.keyed_text import text_of

routes: Final = Routes()
_SHOWN_QUEUES: Final = 20
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class Move:
    """Shows where a group is in a queue and where it goes on, in offsets."""

    at: QueueOffsets
    target: int

    @property
    def begin(self) -> int | None:
        """Where the group goes on without the move; its members decide where it has no offset."""
        committed = self.at.committed_offset
        return None if committed is None else max(committed, self.at.min_offset)

    @property
    def skipped(self) -> int:
        return 0 if self.begin is None else max(0, self.target - self.begin)

    @property
    def repeated(self) -> int:
        """How many messages come again. Messages that have left the log do not."""
        if self.begin is None:
            return 0
        return max(0, self.begin - max(self.target, self.at.min_offset))


@routes.action("/groups/reset", what="reset offsets of group")
async def reset(request: Request, form: Form) -> Action:
    """Have a group go on with what a topic has stored since a time."""
    console, group, topic = console_of(request), checked_group(form), _topic(form)
    now_ms = console.clock.now_ms()
    try:
        at_ms = time_ms(form.get("time", ""), now_ms)
    except IllegalArgumentError as error:
        raise HTTPException(400, text_of(error)) from error
    _ = words(request)
    if at_ms == 0:
        first = _(
            "Group %(group)s goes on in topic %(topic)s with the oldest message that is stored.",
            group=group,
            topic=topic,
        )
    else:
        # A time in the future is the end of every queue, whatever comes until then.
        first = _(
            "Group %(group)s goes on in topic %(topic)s with the messages stored from %(time)s on.",
            group=group,
            topic=topic,
            time=moment(at_ms),
        )
    return await _by_time(request, (group, topic, at_ms), first, what="reset offsets of group")


@routes.action("/groups/skip", what="skip waiting messages of group")
async def skip(request: Request, form: Form) -> Action:
    """Have a group go on at the end of every queue of a topic."""
    group, topic = checked_group(form), _topic(form)
    _ = words(request)
    first = _(
        "Group %(group)s goes on at the end of every queue of topic %(topic)s.",
        group=group,
        topic=topic,
    )
    return await _by_time(
        request, (group, topic, END), first, what="skip waiting messages of group"
    )


async def _by_time(
    request: Request, meant: tuple[str, str, int], first: str, *, what: str
) -> Action:
    console, _ = console_of(request), words(request)
    group, topic, at_ms = meant
    await need_group(console, group)
    queues = await console.admin.offsets.of_topic(topic, group)
    turns = asyncio.Semaphore(_AT_ONCE)

    async def target(at: QueueOffsets) -> int:
        if at_ms == END:
            return at.max_offset
        async with turns:
            return await console.admin.offsets.at_time(at.queue, at_ms)

    moves = [
        Move(at, to)
        for at, to in zip(queues, await asyncio.gather(*map(target, queues)), strict=True)
    ]

    async def perform() -> Outcome:
        return _moved(_, topic, await console.admin.offsets.reset_to_time(group, topic, at_ms))

    effects = _effects(_, moves)
    if at_ms == END or at_ms > console.clock.now_ms():
        effects.append(_("Messages that are sent until you confirm are skipped, too."))
    return Action(
        what=what,
        target=group,
        perform=perform,
        back=_back(group, topic),
        preview=[first, *effects, *await _cautions(console, _, group)],
        details={"topic": topic, "time_ms": at_ms, **_plan(moves)},
        # The time of "2h" is fixed before the preview is read, and does not move on meanwhile.
        fields={} if at_ms == END else {"time": str(at_ms)},
    )


@routes.action("/groups/reset-queue", what="reset queue of group")
async def reset_queue(request: Request, form: Form) -> Action:
    """Have a group go on at an offset of one queue."""
    console, group, topic = console_of(request), checked_group(form), _topic(form)
    _ = words(request)
    broker, _colon, queue_id = form.get("queue", "").rpartition(":")
    if not broker or not _is_whole(queue_id):
        raise HTTPException(400, "name the queue as broker:number")
    if not _is_whole(text := form.get("offset", "").strip()):
        raise HTTPException(400, Refused.NO_OFFSET(text=text))
    queue, offset = MessageQueue(topic, broker, int(queue_id)), int(text)
    await need_group(console, group)
    queues = await console.admin.offsets.of_topic(topic, group)
    at = next((at for at in queues if at.queue == queue), None)
    if at is None:
        raise HTTPException(404, Refused.NO_QUEUE_AT(topic=topic, queue=queue_id, broker=broker))
    if not at.min_offset <= offset <= at.max_offset:
        raise HTTPException(
            400, Refused.OFFSET_OUTSIDE(low=at.min_offset, high=at.max_offset, offset=offset)
        )
    moves = [Move(at, offset)]

    async def perform() -> Outcome:
        await console.admin.offsets.reset_queue(group, queue, offset)
        return _moved(_, topic, {queue: offset})

    first = _(
        "Group %(group)s goes on at offset %(offset)s of %(queue)s.",
        group=group,
        offset=offset,
        queue=str(queue),
    )
    return Action(
        what="reset queue of group",
        target=group,
        perform=perform,
        back=_back(group, topic),
        preview=[first, *_effects(_, moves), *await _cautions(console, _, group)],
        details={"queue": str(queue), "offset": offset, **_plan(moves)},
    )


@routes.action("/groups/clone", what="copy offsets to group")
async def clone(request: Request, form: Form) -> Action:
    """Give a group the offsets that another group has in a topic."""
    console, group, topic = console_of(request), checked_group(form), _topic(form)
    source, _ = checked_group({"name": form.get("source", "")}), words(request)
    await need_group(console, source)
    theirs, ours = await asyncio.gather(
        console.admin.offsets.of_topic(topic, source), console.admin.offsets.of_topic(topic, group)
    )
    targets = {at.queue: at.committed_offset for at in theirs}
    moves = [Move(at, to) for at in ours if (to := targets.get(at.queue)) is not None]
    if not moves:
        raise HTTPException(400, Refused.NOTHING_TO_COPY(group=source, topic=topic))

    async def perform() -> Outcome:
        return _moved(_, topic, await console.admin.offsets.clone(source, group, topic))

    first = _(
        "Group %(group)s gets the offsets that group %(source)s has in topic %(topic)s.",
        group=group,
        source=source,
        topic=topic,
    )
    preview = [first, *_effects(_, moves), *await _cautions(console, _, group)]
    state = await views.connections_of(console, group)
    if state.value is not None:
        preview.append(
            _(
                "Members are online and would replace the copied offsets by their own: stop them first."
            )
        )
    return Action(
        what="copy offsets to group",
        target=group,
        perform=perform,
        back=_back(group, topic),
        preview=preview,
        details={"topic": topic, "source": source, **_plan(moves)},
    )


@routes.action("/groups/readable", what="pause or resume topic for group")
async def readable(request: Request, form: Form) -> Action:
    """Let a group read a topic, or no longer."""
    console, group, topic = console_of(request), checked_group(form), _topic(form)
    may, _ = form.get("readable") == "1", words(request)

    async def perform() -> Outcome:
        now = await console.admin.groups.set_may_read(group, topic, may)
        lines = [
            f"{address}: {_('may read') if each else _('may not read')}"
            for address, each in now.items()
        ]
        return Outcome(
            "it gets topic %(topic)s again" if may else "it no longer gets topic %(topic)s",
            lines,
            values={"topic": topic},
        )

    preview = _(
        "Brokers give group %(group)s no more messages of topic %(topic)s until you resume it; other "
        "topics go on.",
        group=group,
        topic=topic,
    )
    return Action(
        what="resume topic for group" if may else "pause topic for group",
        target=group,
        perform=perform,
        back=_back(group, topic),
        preview=None if may else [preview],
        details={"topic": topic},
    )


# Inside


def _topic(form: Form) -> str:
    topic = form.get("topic", "").strip()
    if (fault := topic_fault(topic)) is not None:
        raise HTTPException(400, fault)
    return topic


def _is_whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def _back(group: str, topic: str) -> str:
    return url("/group", name=group, view="offsets", topic=topic)


def _effects(_: Say, moves: Sequence[Move]) -> list[str]:
    """Return sentences on how many messages a move skips and repeats, in all and by queue."""
    skipped, repeated = sum(at.skipped for at in moves), sum(at.repeated for at in moves)
    said = []
    if skipped:
        said.append(
            _(
                "%(count)s messages are skipped: the group never gets them.",
                count=number(skipped),
            )
        )
    if repeated:
        said.append(_("%(count)s messages are delivered again.", count=number(repeated)))
    unknown = [at for at in moves if at.begin is None]
    if unknown:
        said.append(
            _(
                "In %(count)s queues the group has committed no offset, so it is not known what the "
                "group skips or gets again there; %(below)s messages lie before the place where it goes on.",
                count=number(len(unknown)),
                below=number(sum(max(0, at.target - at.at.min_offset) for at in unknown)),
            )
        )
    if not said:
        said.append(_("No message is skipped or repeated."))
    moving = [at for at in moves if at.skipped or at.repeated]
    for move in moving[:_SHOWN_QUEUES]:
        values = {
            "queue": f"{move.at.queue.broker_name} {move.at.queue.queue_id}",
            "begin": number(move.begin or 0),
            "target": number(move.target),
            "count": number(move.skipped or move.repeated),
        }
        if move.skipped:
            said.append(_("%(queue)s: from %(begin)s to %(target)s, %(count)s skipped", **values))
        else:
            said.append(_("%(queue)s: from %(begin)s to %(target)s, %(count)s again", **values))
    if len(moving) > _SHOWN_QUEUES:
        said.append(_("… and %(count)s further queues", count=len(moving) - _SHOWN_QUEUES))
    return said


async def _cautions(console: Console, _: Say, group: str) -> list[str]:
    """Return sentences on members for whom moving offsets at brokers has no effect."""
    online = await views.connections_of(console, group)
    if online.value is not None and online.value.message_model == "BROADCASTING":
        return [_("Its members broadcast: each keeps its own offsets, so this does not move them.")]
    return []


def _plan(moves: Sequence[Move]) -> Mapping[str, int]:
    return {
        "skipped": sum(at.skipped for at in moves),
        "repeated": sum(at.repeated for at in moves),
        "queues_without_offset": sum(at.begin is None for at in moves),
    }


def _moved(_: Say, topic: str, offsets: Mapping[MessageQueue, int]) -> Outcome:
    lines = [f"{queue.broker_name} {queue.queue_id}: {to}" for queue, to in offsets.items()]
    more = len(lines) - _SHOWN_QUEUES
    if more > 0:
        lines = [*lines[:_SHOWN_QUEUES], _("… and %(count)s further queues", count=more)]
    return Outcome(
        "%(count)s queues of topic %(topic)s go on at these offsets",
        lines,
        values={"count": len(offsets), "topic": topic},
    )
