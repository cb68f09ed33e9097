"""Define commands for messages that nobody consumes. mqadmin has none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cometmq.cli.admin.command import Run, command
from cometmq.cli.admin.commands import message_view as view
from cometmq.cli.admin.commands.message_view import BodyFormat
from cometmq.cli.admin.output import Column, Form
from cometmq.cli.admin.time_range import Begin, End
from cometmq.errors import CometMQError, ConfigError, RouteNotFoundError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping

    from cometmq.admin.messages.letters import Redriven
    from cometmq.model.message import MessageExt

app = typer.Typer()

_Group = Annotated[str, typer.Option("-g", "--group", help="The group that gave them up.")]
_REDRIVEN: Final = (
    Column("brokerName", "Broker Name"),
    Column("sentCount", "Sent"),
    Column("skippedCount", "Skipped"),
)
_RESUMED: Final = (Column("offsetMsgId", "OffsetID"), Column("result", "Result"))
# The columns of a message that nobody consumes: where it is, and what it was before.
_Origin = dict[str, tuple[str, tuple[str, ...]]]
_ORIGIN: Final[_Origin] = {
    "originTopic": ("Origin Topic", ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")),
    "originMsgId": ("Origin Message ID", ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID")),
}
_HALF: Final[_Origin] = {
    "originTopic": ("Real Topic", ("REAL_TOPIC",)),
    "producerGroup": ("Producer Group", ("PGROUP",)),
    "checkTimes": ("Checks", ("TRANSACTION_CHECK_TIMES",)),
}


@command(app, "deadLetters")
async def dead_letters(
    run: Run,
    group: _Group,
    begin: Begin = None,
    end: End = None,
    encoding: BodyFormat = "utf-8",
) -> None:
    """List the dead letters of a group. (CometMQ's own, not mqadmin's.)"""
    from cometmq.protocol.redrive import NO_END_MS

    letters = run.admin.messages.dead_letters(
        group, begin_ms=begin or 0, end_ms=NO_END_MS if end is None else end
    )
    if not await _has_letters(run, group):
        letters = _nothing()
    await _list(run, letters, _ORIGIN, encoding)


_Ids = Annotated[
    str | None,
    typer.Option(
        "-i",
        "--msgId",
        help="Only letters with these ids, separated by commas.",
    ),
]
_Keys = Annotated[
    str | None,
    typer.Option(
        "-k",
        "--msgKey",
        help="Only letters with one of these keys, separated by commas.",
    ),
]
_OnlyGroup = Annotated[
    bool,
    typer.Option("--onlyGroup", help="Send them to this group alone, not to all of the topic."),
]
_RedriveId = Annotated[
    str | None,
    typer.Option(
        "--redriveId",
        help="The id of an earlier redrive that failed, to repeat it without duplicates.",
    ),
]


@command(app, "redriveDeadLetters", changes=True)
async def redrive(
    run: Run,
    group: _Group,
    ids: _Ids = None,
    keys: _Keys = None,
    begin: Begin = None,
    end: End = None,
    only_group: _OnlyGroup = False,
    redrive_id: _RedriveId = None,
) -> None:
    """Send dead letters to their topics again. (CometMQ's own, not mqadmin's.)"""
    from cometmq.protocol.redrive import NO_END_MS
    from cometmq.runtime.randomness import SYSTEM_RANDOMNESS

    there = await _has_letters(run, group)
    end_ms = NO_END_MS if end is None else end
    wanted_ids, wanted_keys = _parts(ids, "--msgId"), _parts(keys, "--msgKey")
    if not there:
        _name_missing(run, group, wanted_ids)
        return
    letters = run.admin.messages.dead_letters(group, begin_ms=begin or 0, end_ms=end_ms)
    missing: dict[str, None] = dict.fromkeys(wanted_ids)
    selected = _selected(letters, wanted_ids, wanted_keys, missing)
    if run.dry_run:
        await _list(run, selected, _ORIGIN, "utf-8")
        run.out.note("these letters would be sent again")
        _name_missing(run, group, missing)
        return
    to = f"group {group} alone" if only_group else "their topics"
    some = "the selected" if ids or keys or begin is not None or end is not None else "all"
    run.confirm(f"send {some} dead letters of group {group} to {to} again", (), for_good=False)
    name = redrive_id or f"admin-{SYSTEM_RANDOMNESS.uuid4().hex}"
    if redrive_id is None:
        run.out.note(f"redrive {name}: if this fails, repeat it with --redriveId {name}")
    found = await run.reached(
        run.admin.messages.redrive(
            name,
            group,
            ids=wanted_ids,
            keys=wanted_keys,
            begin_ms=begin or 0,
            end_ms=end_ms,
            only_group=only_group,
        ),
        _redriven,
    )
    run.out.table(_REDRIVEN, [(at.broker_name, at.sent_count, at.skipped_count) for at in found])
    for at in found:
        if at.skipped_count:
            run.failed(
                at.broker_name, f"{at.skipped_count} letters stay: their topic no longer exists"
            )
    if sum(at.sent_count + at.skipped_count for at in found) < len(wanted_ids):
        # Letters stay in their topic when they are sent again, so an id that the topic lacks was never
        # there.
        async for _ in selected:
            pass
        _name_missing(run, group, missing)


@command(app, "givenUpHalves")
async def given_up_halves(
    run: Run, begin: Begin = None, end: End = None, encoding: BodyFormat = "utf-8"
) -> None:
    """List the half messages of transactions that nobody decided. (CometMQ's own, not mqadmin's.)"""
    from cometmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
    from cometmq.protocol.redrive import NO_END_MS

    halves = run.admin.messages.given_up_halves(
        begin_ms=begin or 0, end_ms=NO_END_MS if end is None else end
    )
    try:
        await run.admin.topics.route(TRANS_CHECK_MAX_TIME_TOPIC)
    except RouteNotFoundError:
        run.lacks(await run.admin.brokers.missing())
        halves = _nothing()  # brokers make the topic with the first one that they give up
    await _list(run, halves, _HALF, encoding)


@command(app, "resumeHalf", changes=True)
async def resume_half(
    run: Run,
    ids: Annotated[
        str,
        typer.Option(
            "-i", "--msgId", help="Offset ids that givenUpHalves shows, separated by commas."
        ),
    ],
) -> None:
    """Have brokers ask producers again about half messages. (CometMQ's own, not mqadmin's.)"""
    wanted = _parts(ids, "--msgId")
    if run.dry_run:
        run.out.table(_RESUMED, [(one, "would be resumed") for one in wanted])
        return
    run.confirm(
        f"resume half messages ({len(wanted)}), about which producers are asked again",
        (),
        for_good=False,
    )
    with run.out.stream(_RESUMED) as put:
        for one in wanted:
            try:
                await run.admin.messages.resume_half(one)
            except CometMQError as error:
                run.failed(one, error)
            else:
                put((one, "resumed"))


def _redriven(reports: Mapping[str, Any]) -> list[Redriven]:
    """Return the result of each broker that answered; None stands for one without letters."""
    from cometmq.admin.messages.letters import Redriven

    return [
        Redriven(address, report.sent_count, report.skipped_count)
        for address, report in reports.items()
        if report is not None
    ]


async def _has_letters(run: Run, group: str) -> bool:
    """Say whether the group ever had a dead letter, and note if not.

    Raises RemoteError (SUBSCRIPTION_GROUP_NOT_EXIST) for a group that no broker has.
    """
    from cometmq.model.names import check_group, dlq_topic

    check_group(group)
    try:
        await run.admin.topics.route(dlq_topic(group))
    except RouteNotFoundError:
        await run.admin.groups.need(group)
        missing = await run.admin.brokers.missing()
        run.lacks(missing)
        run.out.note(
            f"group {group} has no dead letter at the other brokers"
            if missing
            else f"group {group} never had a dead letter: there is no topic {dlq_topic(group)}"
        )
        return False
    return True


async def _nothing() -> AsyncIterator[MessageExt]:
    """Yield nothing."""
    none: tuple[MessageExt, ...] = ()
    for message in none:
        yield message


def _parts(text: str | None, option: str) -> list[str]:
    """Return the parts of an option's value between commas. Raises ConfigError if there are none."""
    if text is None:
        return []
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ConfigError(
            f"{option} is empty; give one or more, separated by commas, or leave it out"
        )
    return parts


async def _selected(
    letters: AsyncIterator[MessageExt],
    ids: list[str],
    keys: list[str],
    missing: dict[str, None],
) -> AsyncIterator[MessageExt]:
    """Yield the letters with one of the ids and keys, and take the ids of each out of `missing`."""
    async for letter in letters:
        own = (letter.msg_id, letter.offset_msg_id)
        if ids and not {*own} & {*ids}:
            continue
        if keys and not {*letter.keys} & {*keys}:
            continue
        for each in own:
            missing.pop(each, None)
        yield letter


def _name_missing(run: Run, group: str, ids: Iterable[str]) -> None:
    for one in ids:
        run.failed(one, f"no dead letter of group {group} that was selected has this id")


async def _list(
    run: Run,
    messages: AsyncIterator[MessageExt],
    origin: _Origin,
    encoding: str,
) -> None:
    """Print messages as they come, with the topic and id that they had before."""
    columns = list(view.list_columns(run.out.form, with_body=True))
    if run.out.form is Form.TABLE:
        columns.insert(5, view.FIELDS[1])
    own = [Column(key, title) for key, (title, _) in origin.items()]
    with run.out.stream([*own, *columns]) as put:
        async for message in messages:
            before = [
                next((value for name in names if (value := message.properties.get(name))), None)
                for _, names in origin.values()
            ]
            put([*before, *view.list_row(message, columns, encoding)])
