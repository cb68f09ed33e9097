"""Define mqadmin's commands for clusters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.command import DONE, TRUTH, Cluster, Run, command, truth
from cometmq.cli.admin.output import Column, Form, as_text, as_time
from cometmq.errors import CometMQError

if TYPE_CHECKING:
    from cometmq.admin.servers import BrokerAddress
    from cometmq.client.producing.producer import Producer

app = typer.Typer()

_HOUR_MS: Final = 3_600_000
_MAX_BYTES: Final = 4 * 1024 * 1024
_STATE: Final[tuple[Column, ...]] = (
    Column("cluster", "Cluster"),
    Column("broker", "Broker"),
    Column("id", "BID"),
    Column("address", "Address"),
    Column("version", "Version"),
    Column("inTps", "In/s"),
    Column("sendQueue", "Send Queue"),
    Column("sendWaitMs", "Wait ms"),
    Column("outTps", "Out/s"),
    Column("pullQueue", "Pull Queue"),
    Column("pullWaitMs", "Wait ms"),
    Column("ackQueue", "Ack Queue"),
    Column("ackWaitMs", "Wait ms"),
    Column("timerReadBehindSeconds", "Timer Behind s"),
    Column("timerOffsetBehind", "Timer Offset Behind"),
    Column("pageCacheLockMs", "PCWait ms"),
    Column("hours", "Hours"),
    Column("space", "Space"),
    Column("active", "Active"),
)
# For people, as narrow as mqadmin's: the messages that wait, and for how long, stand behind the rate.
_STATE_IN_SHORT: Final[tuple[Column, ...]] = (
    *_STATE[:5],
    Column("in", "InTPS(LOAD)"),
    Column("out", "OutTPS(LOAD)"),
    Column("timer", "Timer"),
    *_STATE[-4:],
)
_TOTALS: Final[tuple[Column, ...]] = (
    Column("cluster", "Cluster"),
    Column("broker", "Broker"),
    Column("id", "BID"),
    Column("address", "Address"),
    Column("inYesterday", "In Yesterday"),
    Column("outYesterday", "Out Yesterday"),
    Column("inToday", "In Today"),
    Column("outToday", "Out Today"),
)
_RT: Final = (
    Column("cluster", "Cluster"),
    Column("broker", "Broker"),
    Column("rt", "RT ms"),
    Column("success", "Success"),
    Column("failed", "Failed"),
)


@command(app, "clusterList")
async def cluster_list(
    run: Run,
    more: Annotated[
        bool, typer.Option("-m", "--moreStats", help="How many messages went in and out by day.")
    ] = False,
    interval_s: Annotated[
        int | None,
        typer.Option(
            "-i",
            "--interval",
            metavar="SECONDS",
            min=1,
            help="Print it again at this interval, until Ctrl-C.",
        ),
    ] = None,
    cluster: Cluster = None,
) -> None:
    """List brokers with their state: messages per second, what waits, disk, oldest message."""
    while True:
        brokers = await run.admin.brokers.addresses(cluster=cluster)
        run.lacks(await run.admin.brokers.missing(cluster=cluster))
        infos = await asyncio.gather(*(_info(run, at) for at in brokers))
        columns, row = (_TOTALS, _totals) if more else (_STATE, _state)
        if row is _state and run.out.form is Form.TABLE:
            columns, row = _STATE_IN_SHORT, _state_in_short
        run.out.table(columns, [row(at, info) for at, info in zip(brokers, infos, strict=True)])
        if interval_s is None:
            return
        run.out.finish()
        await asyncio.sleep(interval_s)


@command(app, "clusterRT", changes=True)
async def cluster_rt(
    run: Run,
    amount: Annotated[
        int, typer.Option("-a", "--amount", min=2, help="How many messages to send.")
    ] = 100,
    size: Annotated[
        int, typer.Option("-s", "--size", min=0, max=_MAX_BYTES, help="Bytes of each message.")
    ] = 128,
    cluster: Annotated[
        str | None,
        typer.Option("-c", "--cluster", help="Default: all clusters."),
    ] = None,
    as_log: Annotated[
        bool,
        typer.Option(
            "-p",
            "--printLog",
            metavar=TRUTH,
            parser=truth,
            help="Lines time|room|cluster|broker|rt instead of a table.",
        ),
    ] = False,
    room: Annotated[
        str, typer.Option("-m", "--machineRoom", help="The room that the lines name.")
    ] = "noname",
    interval_s: Annotated[
        int | None,
        typer.Option(
            "-i",
            "--interval",
            metavar="SECONDS",
            min=1,
            help="Measure again at this interval, until Ctrl-C. mqadmin does so every 10 s.",
        ),
    ] = None,
) -> None:
    """Measure how long sends to each broker take, without the first one."""
    from cometmq.runtime.clock import SYSTEM_CLOCK

    while True:
        masters = await run.admin.brokers.addresses(cluster=cluster, slaves=False)
        if run.dry_run:
            would = (
                f"would send {amount} messages of {size} bytes to the topic of the broker's name"
            )
            run.out.table(DONE, [(at.address, would) for at in masters])
            return
        run.lacks(await run.admin.brokers.missing(cluster=cluster))
        async with run.producer("PID_CLUSTER_RT") as producer:
            rows = [
                (at.cluster, *await _measured(run, producer, at, amount, size)) for at in masters
            ]
        if as_log:
            now = as_time(SYSTEM_CLOCK.now_ms()).partition(",")[0]
            for name, broker, rt, *_ in rows:
                if rt is not None:
                    typer.echo(as_text(f"{now}|{room}|{name}|{broker}|{round(rt)}"))
        else:
            run.out.table(_RT, rows)
        if interval_s is None:
            return
        run.out.finish()
        await asyncio.sleep(interval_s)


async def _measured(
    run: Run, producer: Producer, at: BrokerAddress, amount: int, size: int
) -> tuple[str, float | None, int, int]:
    """Return a broker's name, the mean time of its sends in ms, how many succeeded and failed."""
    from cometmq.model.message import Message
    from cometmq.runtime.clock import SYSTEM_CLOCK

    took: list[float] = []
    failed = 0
    with run.progress(f"messages to {at.broker_name}") as show:
        for number in range(amount):
            show(number, amount)
            begin = SYSTEM_CLOCK.monotonic()
            try:
                await producer.send(Message(at.broker_name, b"a" * size))
            except CometMQError as error:
                failed += 1
                if failed == 1:
                    run.failed(at.address, error)
            else:
                took.append(1000 * (SYSTEM_CLOCK.monotonic() - begin))
    rest = took[1:] if len(took) == amount else took
    mean = round(sum(rest) / len(rest), 2) if rest else None
    return at.broker_name, mean, len(took), failed


async def _info(run: Run, at: BrokerAddress) -> Mapping[str, str]:
    """Return the state that a broker reports; print a failure and return nothing."""
    try:
        return (await run.admin.brokers.runtime_info(broker=at.address))[at.address]
    except CometMQError as error:
        run.failed(at.address, error)
        return {}


def _state(at: BrokerAddress, info: Mapping[str, str]) -> tuple[object, ...]:
    from cometmq.runtime.clock import SYSTEM_CLOCK

    oldest = _number(info, "earliestMessageTimeStamp")
    hours = None
    if oldest is not None and oldest > 0:
        hours = round((SYSTEM_CLOCK.now_ms() - oldest) / _HOUR_MS, 2)
    return (
        at.cluster,
        at.broker_name,
        at.broker_id,
        at.address,
        info.get("brokerVersionDesc"),
        _first(info, "putTps"),
        _number(info, "sendThreadPoolQueueSize"),
        _number(info, "sendThreadPoolQueueHeadWaitTimeMills"),
        _first(info, "getTransferredTps"),
        _number(info, "pullThreadPoolQueueSize"),
        _number(info, "pullThreadPoolQueueHeadWaitTimeMills"),
        _number(info, "ackThreadPoolQueueSize"),
        _number(info, "ackThreadPoolQueueHeadWaitTimeMills"),
        _number(info, "timerReadBehind"),
        _number(info, "timerOffsetBehind"),
        _number(info, "pageCacheLockTimeMills"),
        hours,
        _first(info, "commitLogDiskRatio"),
        None if not info else info.get("brokerActive") == "true",
    )


def _state_in_short(at: BrokerAddress, info: Mapping[str, str]) -> tuple[object, ...]:
    state = {column.key: as_text(of) for column, of in zip(_STATE, _state(at, info), strict=True)}
    short = {
        "in": "{inTps}({sendQueue},{sendWaitMs}ms)",
        "out": "{outTps}({pullQueue},{pullWaitMs}ms|{ackQueue},{ackWaitMs}ms)",
        "timer": "{timerReadBehindSeconds}-{timerOffsetBehind}",
    }
    return tuple(
        state[column.key]
        if column.key not in short
        else short[column.key].format_map(state)
        if info
        else None
        for column in _STATE_IN_SHORT
    )


def _totals(at: BrokerAddress, info: Mapping[str, str]) -> tuple[object, ...]:
    def grown(kind: str, begin: str, end: str) -> int | None:
        first, last = _number(info, f"msg{kind}{begin}"), _number(info, f"msg{kind}{end}")
        return None if first is None or last is None else last - first

    yesterday, today, now = "TotalYesterdayMorning", "TotalTodayMorning", "TotalTodayNow"
    return (
        at.cluster,
        at.broker_name,
        at.broker_id,
        at.address,
        grown("Put", yesterday, today),
        grown("Get", yesterday, today),
        grown("Put", today, now),
        grown("Get", today, now),
    )


def _number(info: Mapping[str, str], key: str) -> int | None:
    try:
        return int(info[key])
    except (KeyError, ValueError):
        return None


def _first(info: Mapping[str, str], key: str) -> float | None:
    """Return the first of the numbers of a value."""
    try:
        return float(info[key].split()[0])
    except (KeyError, ValueError, IndexError):
        return None
