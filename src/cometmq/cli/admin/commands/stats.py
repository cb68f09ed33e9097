"""Define mqadmin's commands that show rates of topics and groups, and how far groups are."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, NamedTuple

import typer

from cometmq.admin.brokers.reports import Statistics
from cometmq.cli.admin.command import TRUTH, Run, command, truth
from cometmq.cli.admin.commands.members import progress_of
from cometmq.cli.admin.many import ask_each
from cometmq.cli.admin.output import Column, as_text, as_time
from cometmq.errors import CometMQError, RemoteError, RequestTimeoutError, ServersFailedError
from cometmq.model.names import DLQ_PREFIX, RETRY_PREFIX
from cometmq.protocol.codes import ResponseCode

app = typer.Typer()

_TOPIC_PUT: Final = "TOPIC_PUT_NUMS"
_GROUP_GET: Final = "GROUP_GET_NUMS"


class Rate(NamedTuple):
    """How many messages a second in the last minute, and how many in 24 hours, None if unknown."""

    per_s: float | None
    a_day: int | None


_UNKNOWN: Final = Rate(None, None)


def _no_consumer(value: object) -> str:
    return "NO_CONSUMER" if value is None else as_text(value)


_STATS: Final = (
    Column("topic", "Topic"),
    Column("consumerGroup", "Consumer Group", _no_consumer),
    Column("accumulation", "Accumulation"),
    Column("inTps", "InTPS"),
    Column("outTps", "OutTPS"),
    Column("inMsg24Hour", "InMsg24Hour"),
    Column("outMsg24Hour", "OutMsg24Hour"),
)


@command(app, "statsAll")
async def stats_all(
    run: Run,
    active: Annotated[
        bool,
        typer.Option("-a", "--activeTopic", help="Only topics with messages in the last 24 hours."),
    ] = False,
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", metavar="NAME", help="One topic."),
    ] = None,
) -> None:
    """Show how many messages come into each topic, and how many each group gets."""
    if topic is not None:
        topics = [topic]
        await run.admin.topics.route(topic)  # raises an error if there is no such topic
    else:
        topics = [
            name
            for name in await run.admin.topics.names()
            if not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
        ]

    async def rows(name: str) -> list[tuple[object, ...]]:
        try:
            return await _rows(run, name, active=active)
        except CometMQError as error:  # the other topics can be shown
            run.failed(f"topic {name}", error)
            return []

    found = await ask_each(run, "topics", topics, rows)
    run.out.table(_STATS, [row for of_topic in found for row in of_topic])


async def _rows(run: Run, topic: str, *, active: bool) -> list[tuple[object, ...]]:
    route = await run.admin.topics.route(topic)
    missing = await run.admin.brokers.missing(topic=topic)
    run.lacks(missing)
    found = [data.master() for data in route.broker_datas]
    masters = [address for address in found if address is not None]
    groups, came_in = await asyncio.gather(
        _groups(run, topic), _rate(run, masters, _TOPIC_PUT, topic)
    )
    if missing:
        came_in = _UNKNOWN
    rows: list[tuple[object, ...]] = []
    for group in groups or ():
        went_out = await _rate(run, masters, _GROUP_GET, f"{topic}@{group}")
        if missing:
            went_out = _UNKNOWN
        if active and came_in.a_day == went_out.a_day == 0:
            continue
        lag = await _lag(run, group, topic)
        rows.append(
            (topic, group, lag, came_in.per_s, went_out.per_s, came_in.a_day, went_out.a_day)
        )
    if not groups and (came_in.a_day != 0 or not active):
        nobody = (None, 0) if groups is not None else ("UNKNOWN", None)
        rows.append((topic, *nobody, came_in.per_s, None, came_in.a_day, None))
    return rows


async def _groups(run: Run, topic: str) -> list[str] | None:
    """Return the groups of a topic at the brokers that answer; None if no such group is known and
    some broker does not answer.
    """
    try:
        return await run.admin.groups.of_topic(topic)
    except ServersFailedError as error:
        run.lacks(error.errors)
        return sorted({group for each in error.results.values() for group in each}) or None


async def _rate(run: Run, masters: list[str], counter: str, key: str) -> Rate:
    """Return the sum of the masters' counters, _UNKNOWN if one of them does not answer."""
    counted: list[Statistics] = []
    for address in masters:
        try:
            found = await run.admin.brokers.statistics(counter, key, broker=address)
        except CometMQError as error:
            run.lacks({address: error})
            return _UNKNOWN
        counted += [each for each in found.values() if each is not None]
    return Rate(
        sum((each.minute.per_s for each in counted), 0.0),
        # The day's sum stays 0 until an hour has passed, and the hour's until a minute has.
        sum(each.day.total or each.hour.total or each.minute.total for each in counted),
    )


async def _lag(run: Run, group: str, topic: str) -> int | None:
    """Return a group's lag in a topic, None if it is unknown."""
    try:
        return (await progress_of(run, group, topic)).lag
    except RemoteError as error:
        if error.code in (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.TOPIC_NOT_EXIST):
            return None
        raise


_PROGRESS: Final = (
    Column("topic", "Topic"),
    Column("group", "Group"),
    Column("brokerName", "Broker Name"),
    Column("queueId", "QID"),
    Column("brokerOffset", "Broker Offset"),
    Column("consumerOffset", "Consumer Offset"),
    Column("diff", "Diff"),
    Column("lastTime", "LastTime", as_time),
)


@command(app, "brokerConsumeStats")
async def broker_consume_stats(
    run: Run,
    *,
    broker: Annotated[
        str, typer.Option("-b", "--brokerAddr", metavar="HOST:PORT", help="The broker.")
    ],
    timeout_ms: Annotated[
        int,
        typer.Option(
            "-t", "--timeoutMillis", metavar="MS", min=1, help="How long the broker may take."
        ),
    ] = 50_000,
    level: Annotated[
        int,
        typer.Option(
            "-l", "--level", help="Show only queues with at least this many messages to consume."
        ),
    ] = 0,
    order: Annotated[
        Any,
        typer.Option(
            "-o",
            "--order",
            metavar=TRUTH,
            parser=truth,
            help="Whether to list ordered topics only.",
        ),
    ] = "false",
) -> None:
    """Show how far all groups are in the queues of one broker."""
    del timeout_ms  # the connection has this option
    wait_ms = run.connection.timeout_ms
    try:
        async with asyncio.timeout(wait_ms / 1000):
            found = await run.admin.brokers.progress(ordered_only=order, broker=broker)
    except RequestTimeoutError:
        raise
    except TimeoutError as error:
        raise RequestTimeoutError(
            f"{broker} did not report the progress of all groups within {wait_ms} ms; give it longer by "
            "--timeoutMillis, or ask for one group by consumerProgress"
        ) from error
    rows = [
        (
            at.queue.topic,
            of.group,
            at.queue.broker_name,
            at.queue.queue_id,
            at.broker_offset,
            at.consumer_offset,
            at.lag,
            at.last_consumed_ms,
        )
        for progress in found.values()
        for of in progress.groups
        for at in of.queues
        if at.lag is None or at.lag >= level
    ]
    run.out.table(_PROGRESS, rows, section="queues")
    lags = [each.lag for each in found.values()]
    total = None if None in lags else sum(lag for lag in lags if lag is not None)
    run.out.record({"diffTotal": total}, section="total")
