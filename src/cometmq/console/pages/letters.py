"""Dead letters: their groups, their contents, and sending them to their topics again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cometmq.admin.messages.letters import Redriven
from cometmq.admin.messages.pages import MessagePage
from cometmq.admin.messages.redriving import LetterOutcome
from cometmq.admin.topics.records import TopicStats
from cometmq.console.limits import LimitMetError
from cometmq.console.pages.groups import is_unknown_group, unknown_group
from cometmq.console.pages.topics import stats_now
from cometmq.console.refusals import Refused
from cometmq.console.routes import Action, Form, Outcome, Routes, console_of
from cometmq.console.schemas.bodies import snippet
from cometmq.console.state import Console
from cometmq.console.views import group_views as views
from cometmq.console.views.names import topic_names
from cometmq.console.views.paging import Slice, page_of
from cometmq.console.views.rendering import render, url, words
from cometmq.console.views.times import time_ms
from cometmq.console.watching.asking import ask_each, gone_masters
from cometmq.console.watching.recent import Known, known_of
from cometmq.errors import (
    CometMQError,
    IllegalArgumentError,
    RouteNotFoundError,
    ServersFailedError,
)
from cometmq.model import properties as p
from cometmq.model.message import MessageExt
from cometmq.model.names import DLQ_PREFIX, check_group, dlq_topic
from cometmq.model.reports.keyed_text import text_of
from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

routes: Final = Routes()
Say = Callable[..., str]
# This many groups are asked for their letters at once, so that the newest letters come first.
MAX_SORTED: Final = 200
# Up to this many letters are sent with an outcome for each; of more the brokers only report counts.
MAX_EACH: Final = 500
_MAX_EACH_BYTES: Final = 32 * 1024 * 1024
# A search by key looks at all letters of its time. With more letters than these there is no dry run.
MAX_DRY_RUN_LETTERS: Final = 20_000
MAX_DRY_RUN_BYTES: Final = 256 * 1024 * 1024
PAGE_LETTERS: Final = 50
_LISTED_BODY_BYTES: Final = 200
_STATS_AGE_S: Final = 10.0
_SHOWN_OUTCOMES: Final = 200
_SHOWN_LETTERS: Final = 20
_FIND_S: Final = 10.0
_END_MS: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Says which letters of a group are meant: those of `ids`, or all that the filter finds."""

    group: str
    ids: tuple[str, ...] = ()
    key: str = ""
    begin_ms: int = 0
    end_ms: int = _END_MS

    def matches(self, letter: MessageExt) -> bool:
        return not self.key or self.key in letter.keys or self.key == letter.unique_id


@dataclass(frozen=True, slots=True)
class Buried:
    """Shows how many dead letters a group has, and when the last one was stored."""

    group: str
    stats: Known[TopicStats]

    @property
    def count(self) -> int | None:
        if self.stats.value is None or self.stats.error is not None:
            return None
        return sum(queue.max_offset - queue.min_offset for queue in self.stats.value.queues)

    @property
    def last_ms(self) -> int:
        if self.stats.value is None:
            return 0
        return max((queue.last_stored_ms for queue in self.stats.value.queues), default=0)


@routes.page("/letters", reads_messages=True)
async def letters(request: Request) -> Response:
    """Show the groups that have dead letters, or the letters of the group in the address."""
    if request.query_params.get("group"):
        return await _of_group(request)
    console = console_of(request)
    names = await topic_names(console)
    groups = [name.removeprefix(DLQ_PREFIX) for name in names if name.startswith(DLQ_PREFIX)]
    query = request.query_params.get("q", "").lower()
    if sum(query in group.lower() for group in groups) <= MAX_SORTED:
        buried = await _buried(console, [group for group in groups if query in group.lower()])
        # Old brokers make the topic when the group is made: most have no letter in it.
        buried.sort(key=lambda each: (each.count == 0, -each.last_ms, each.group))
        order = {each.group: number for number, each in enumerate(buried)}
        rows = page_of(request, buried, text=lambda each: each.group, key=lambda e: order[e.group])
        return _listed(request, rows, rows.rows)
    found = page_of(request, groups, text=str, key=str)
    return _listed(request, found, await _buried(console, found.rows))


def _listed(request: Request, rows: Slice[Any], shown: Sequence[Buried]) -> Response:
    # No name server knows which topics lost brokers had.
    gone = gone_masters(console_of(request))
    return render(request, "letters.html", {"rows": rows, "shown": shown, "gone": gone})


async def _buried(console: Console, groups: Sequence[str]) -> list[Buried]:
    async def ask(group: str) -> TopicStats:
        topic = dlq_topic(group)
        return await console.recent.get(
            ("dead letters", topic), _STATS_AGE_S, lambda: console.admin.topics.stats(topic)
        )

    stats = await ask_each(groups, ask)
    return [Buried(group, stats[group]) for group in groups]


async def _of_group(request: Request) -> Response:
    console, query = console_of(request), request.query_params
    choice = choice_of(request, query["group"], query)
    topic = dlq_topic(choice.group)
    page, stats, configs = await asyncio.gather(
        known_of(
            lambda: console.admin.messages.page(
                topic,
                begin_ms=choice.begin_ms,
                end_ms=choice.end_ms,
                matches=choice.matches if choice.key else None,
                cursor=query.get("cursor") or None,
                count=PAGE_LETTERS,
                body_bytes=_LISTED_BODY_BYTES,
            )
        ),
        stats_now(console, topic),
        views.configs_of(console, choice.group),
    )
    errors = dict(page.value.errors) if page.value is not None else {}
    if isinstance(page.error, RouteNotFoundError):
        # Brokers make the topic with the first letter of the group.
        page = Known(None)
        if await is_unknown_group(console, choice.group, configs):
            return unknown_group(request, choice.group, configs)
    rows = _rows(page.value)
    # No name server knows which topics a lost broker had.
    clusters = console.seen_groups.clusters_of(choice.group)
    errors = {**gone_masters(console, clusters), **errors}
    values = {
        "choice": choice,
        "page": page,
        "count": Buried(choice.group, stats).count,
        "errors": errors,
        "rows": rows,
        "given": {name: query.get(name, "") for name in ("key", "begin", "end")},
        "failed": query.get("failed", ""),
    }
    return render(request, "letters_of_group.html", values)


def _rows(page: MessagePage | None) -> list[dict[str, Any]]:
    return [
        {
            "message": each.message,
            "body_bytes": each.body_bytes,
            "origin": each.message.properties.get(p.RETRY_TOPIC, ""),
            "text": snippet(each.message.body),
        }
        for each in (page.messages if page is not None else ())
    ]


def choice_of(request: Request, group: str, given: Any) -> Choice:
    """Return what an address or a form selects. Raises HTTPException for a text that is no group or
    no time.
    """
    now_ms = console_of(request).clock.now_ms()
    begin, end = given.get("begin", "").strip(), given.get("end", "").strip()
    try:
        check_group(group)
        return Choice(
            group,
            (),
            given.get("key", "").strip(),
            time_ms(begin, now_ms) if begin else 0,
            time_ms(end, now_ms) if end else _END_MS,
        )
    except IllegalArgumentError as error:
        raise HTTPException(400, text_of(error)) from error


@routes.action("/letters/redrive", what="redrive dead letters of group")
async def redrive(request: Request, form: Form) -> Action:
    """Send the chosen letters again, or all that the filter finds, after a dry run."""
    _, console = words(request), console_of(request)
    choice = choice_of(request, form["group"], form)
    if form.get("which") != "all":
        ids = tuple(dict.fromkeys(form.get("id", "").split()))
        if not ids:
            raise HTTPException(
                400, _("No letter is chosen: go back, and tick those to send again.")
            )
        choice = Choice(choice.group, ids)
    only_group = form.get("only_group") == "1"
    # Under one id brokers send no letter twice, even if the form is sent twice. `failed` is the id of
    # a redrive of all that a search finds, which failed in part and is repeated.
    repeated = "" if choice.ids else form.get("failed", "")
    redrive_id = form.get("redrive", "") or repeated or f"console-{SYSTEM_RANDOMNESS.uuid4().hex}"
    found, is_all, errors = await _chosen(console, choice)
    if not found:
        if errors:
            raise errors[0]
        raise HTTPException(409, _("These letters no longer exist."))
    shown = _pinned(console, choice, found, is_all=is_all)

    async def perform() -> Outcome:
        if is_all:
            outcomes = await console.admin.messages.redrive_letters(
                redrive_id, choice.group, found, only_group=only_group
            )
            return _outcome_of(_, outcomes)
        return await _redrive_all(request, redrive_id, shown, only_group=only_group)

    return Action(
        what="redrive dead letters of group",
        target=choice.group,
        perform=perform,
        back=url("/letters", group=choice.group),
        again=None
        if choice.ids
        else url(
            "/letters",
            group=choice.group,
            key=choice.key,
            begin=shown.begin_ms,
            end=shown.end_ms,
            failed=redrive_id,
        ),
        preview=[
            *await _dry_run(request, choice, found, is_all=is_all, only_group=only_group),
            *_missing(_, choice, found, errors),
        ],
        details={
            "redrive_id": redrive_id,
            "ids": list(shown.ids),
            "key": choice.key,
            "begin_ms": shown.begin_ms,
            "end_ms": None if shown.end_ms == _END_MS else shown.end_ms,
            "only_group": only_group,
        },
        # Letters that arrive while somebody reads the preview were not shown in it.
        fields={
            "redrive": redrive_id,
            "id": "\n".join(shown.ids),
            "begin": str(shown.begin_ms),
            "end": str(shown.end_ms),
        },
    )


async def _redrive_all(
    request: Request, redrive_id: str, shown: Choice, *, only_group: bool
) -> Outcome:
    """Have the brokers send all letters again that a search finds, and report what each has
    done.
    """
    _, console = words(request), console_of(request)
    errors: Mapping[str, CometMQError] = {}
    try:
        done = await console.admin.messages.redrive(
            redrive_id,
            shown.group,
            keys=[shown.key] if shown.key else (),
            begin_ms=shown.begin_ms,
            end_ms=shown.end_ms,
            only_group=only_group,
        )
    except ServersFailedError as error:
        errors = error.errors
        done = [
            Redriven(address, report.sent_count, report.skipped_count)
            for address, report in error.results.items()
            if report is not None
        ]
    lines = [f"{address}: {error}" for address, error in errors.items()]
    lines += [
        _(
            "%(broker)s: %(sent)s sent, %(skipped)s left because their topic does not take them",
            broker=each.broker_name,
            sent=each.sent_count,
            skipped=each.skipped_count,
        )
        for each in done
    ]
    sent, skipped = sum(d.sent_count for d in done), sum(d.skipped_count for d in done)
    if errors:
        return Outcome(
            "%(sent)s sent again; %(failed)s brokers failed. Send all that this search finds again; "
            "letters that were sent are left out.",
            lines,
            failed=True,
            values={"sent": sent, "failed": len(errors)},
        )
    return _sent_again(sent, skipped, lines)


def _pinned(
    console: Console, choice: Choice, found: Sequence[MessageExt], *, is_all: bool
) -> Choice:
    """Return a choice of exactly the letters that were found, which stays the same later."""
    if choice.ids:
        return replace(choice, ids=tuple(letter.offset_msg_id for letter in found))
    # The end is the last letter's time, by the brokers' clocks, which may differ from ours.
    last_ms = (
        max(letter.store_timestamp_ms for letter in found) if is_all else console.clock.now_ms()
    )
    return replace(choice, end_ms=min(choice.end_ms, last_ms))


def _missing(
    _: Say, choice: Choice, found: Sequence[MessageExt], errors: Sequence[CometMQError]
) -> list[str]:
    """Say which of the chosen letters are not sent, since they were not found."""
    count = len(choice.ids) - len(found)
    if count <= 0:
        return []
    if not errors:
        return [_("%(count)s of the chosen letters no longer exist.", count=count)]
    return [
        _(
            "%(count)s of the chosen letters were not found, and stay: %(why)s",
            count=count,
            why=str(errors[0]),
        )
    ]


async def _chosen(
    console: Console, choice: Choice
) -> tuple[list[MessageExt], bool, list[CometMQError]]:
    """Return the letters that are meant, at most MAX_EACH, whether these are all that were found,
    and why others could not be looked for.
    """
    topic = dlq_topic(choice.group)
    if choice.ids:
        if len(choice.ids) > MAX_EACH:
            raise LimitMetError(
                400,
                Refused.LETTERS_CHOSEN(count=len(choice.ids)),
                "MAX_EACH",
                MAX_EACH,
                Refused.TAKE_OTHERS(),
            )
        # For ids only `find` is safe: it asks no address but those of the topic's brokers.
        found = await ask_each(
            choice.ids, lambda each: console.admin.messages.find(each, topic), wait_s=_FIND_S
        )
        letters = [letter for each in found.values() for letter in each.value or ()]
        errors = [each.error for each in found.values() if each.error is not None]
        return [letter for letter in letters if letter.offset_msg_id in choice.ids], True, errors
    some: list[MessageExt] = []
    size = looked_at = looked_at_bytes = 0
    async for letter in stored(console, choice):
        looked_at, looked_at_bytes = looked_at + 1, looked_at_bytes + len(letter.body)
        if looked_at > MAX_DRY_RUN_LETTERS or looked_at_bytes > MAX_DRY_RUN_BYTES:
            met = (
                ("MAX_DRY_RUN_LETTERS", MAX_DRY_RUN_LETTERS)
                if looked_at > MAX_DRY_RUN_LETTERS
                else ("MAX_DRY_RUN_BYTES", MAX_DRY_RUN_BYTES)
            )
            raise LimitMetError(
                422,
                Refused.LETTERS_LOOKED_AT(looked=looked_at - 1, count=len(some)),
                *met,
                Refused.SHORTER_TIME(),
            )
        if not choice.matches(letter):
            continue
        size += len(letter.body)
        if len(some) >= MAX_EACH or size > _MAX_EACH_BYTES:
            return some, False, []
        some.append(letter)
    return some, True, []


def stored(console: Console, choice: Choice) -> AsyncIterator[MessageExt]:
    """Return the letters of the time of a choice, whatever their keys."""
    return console.admin.messages.dead_letters(
        choice.group, begin_ms=choice.begin_ms, end_ms=choice.end_ms
    )


async def _dry_run(
    request: Request,
    choice: Choice,
    found: Sequence[MessageExt],
    *,
    is_all: bool,
    only_group: bool,
) -> list[str]:
    """Return the sentences that say what would be sent where."""
    _, console = words(request), console_of(request)
    topics = Counter(letter.properties.get(p.RETRY_TOPIC, "") for letter in found)
    # As they are now: a list that is seconds old may lack a new topic.
    names = set(await console.admin.topics.names())
    if is_all:
        said = [_("%(count)s of the dead letters would be sent again:", count=len(found))]
    else:
        said = [
            _(
                "More than %(count)s of the dead letters would be sent again. Of the first ones:",
                count=len(found),
            )
        ]
    for topic, count in topics.most_common():
        if not topic:
            said.append(_("%(count)s stay: they do not name their topic.", count=count))
        elif topic not in names:
            said.append(
                _("%(count)s stay: topic %(topic)s is no longer there.", count=count, topic=topic)
            )
        else:
            said.append(_("%(count)s to topic %(topic)s.", count=count, topic=topic))
    named = [" ".join((letter.msg_id, *letter.keys)) for letter in found[:_SHOWN_LETTERS]]
    said.append(_("These are: %(letters)s", letters="; ".join(named)))
    if len(found) > _SHOWN_LETTERS:
        said.append(_("and %(count)s more.", count=len(found) - _SHOWN_LETTERS))
    if only_group:
        said.append(_("Only group %(group)s gets them.", group=choice.group))
    else:
        said.append(_("Every group that consumes these topics gets them once more."))
    said.append(_("The dead letters stay where they are until their broker deletes old files."))
    return said


def _outcome_of(_: Say, outcomes: Sequence[LetterOutcome]) -> Outcome:
    lines, sent = [], 0
    for each in outcomes:
        name = " ".join((each.letter.msg_id, *each.letter.keys))
        if each.fault:
            lines.append(
                _("%(letter)s: not sent as far as is known: %(why)s", letter=name, why=each.fault)
            )
            continue
        sent += 1
        if each.broker_name is None:
            text = _("%(letter)s: sent to %(topic)s", letter=name, topic=each.topic)
        else:
            text = _(
                "%(letter)s: sent to %(topic)s, %(broker)s queue %(queue)s, offset %(offset)s",
                letter=name,
                topic=each.topic,
                broker=each.broker_name,
                queue=each.queue_id,
                offset=each.queue_offset,
            )
        lines.append(text)
    left = len(outcomes) - sent
    # Letters that were not sent come first: somebody has to look at them.
    faults = [line for line, each in zip(lines, outcomes, strict=True) if each.fault]
    others = [line for line, each in zip(lines, outcomes, strict=True) if not each.fault]
    return _sent_again(sent, left, [*faults, *others][:_SHOWN_OUTCOMES])


def _sent_again(sent: int, left: int, lines: Sequence[str]) -> Outcome:
    return Outcome(
        "%(sent)s sent again, %(left)s not",
        lines,
        failed=left > 0,
        values={"sent": sent, "left": left},
    )
