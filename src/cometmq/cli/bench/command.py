"""Define `cometmq bench producer` and `consumer`, with the options of Java's benchmark programs.

An option of Java's that the benchmark cannot honour is refused by name, never ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cometmq.cli import connection
from cometmq.cli.forms import Form, Output
from cometmq.cli.help import Command, Group
from cometmq.cli.spread import spread
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.cli.bench.run import BenchResult, RunLimits
    from cometmq.cli.bench.screen import BenchScreen
    from cometmq.protocol.messages.compression import CompressionType
    from cometmq.remoting.credentials import Credentials

app = typer.Typer(
    cls=Group,
    help="Measure sending and consuming, and prove that nothing was lost.",
    no_args_is_help=True,
)

_TRUTH: Final = "true|false"

Topic = Annotated[str, typer.Option("-t", "--topic", help="Topic.")]
Quantity = Annotated[
    int, typer.Option("-q", "--messageQuantity", help="Messages, 0: without end.", min=0)
]
Duration = Annotated[
    float, typer.Option("--duration", metavar="SECONDS", help="Time, 0: without end.", min=0)
]
ReportInterval = Annotated[
    int, typer.Option("-ri", "--reportInterval", help="Milliseconds between reports.", min=100)
]
AsJson = Annotated[bool, typer.Option("--json", hidden=True)]  # as before there was `-o json`
Save = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Also write the result as JSON to FILE."),
]
MsgTraceEnable = Annotated[
    str, typer.Option("-m", "--msgTraceEnable", metavar=_TRUTH, help="Write message traces.")
]
AclEnable = Annotated[
    str, typer.Option("-a", "--aclEnable", metavar=_TRUTH, help="Sign requests; needs -ak and -sk.")
]
AccessKey = Annotated[
    str | None,
    typer.Option("-ak", "--accessKey", help="The account that signs, with -a true."),
]
SecretKey = Annotated[
    str | None,
    typer.Option("-sk", "--secretKey", help="Its secret key, with -a true."),
]


@dataclass(frozen=True, repr=False)
class Common:
    """Holds the options that both benchmarks have."""

    namesrv_addr: connection.NamesrvAddr = None
    topic: Topic = "BenchmarkTest"
    quantity: Quantity = 0
    duration: Duration = 0
    report_interval: ReportInterval = 10_000
    output: Output = Form.TABLE
    as_json: AsJson = False
    save: Save = None
    trace: MsgTraceEnable = "false"
    acl: AclEnable = "false"
    access_key: AccessKey = None
    secret_key: SecretKey = None

    def namesrv(self) -> str:
        namesrv = self.namesrv_addr or os.environ.get("NAMESRV_ADDR")
        if not namesrv:
            raise ConfigError("no name server given: use -n HOST:PORT or set NAMESRV_ADDR")
        return namesrv

    def credentials(self) -> Credentials | None:
        """Return the keys to sign requests with, or None. Java uses built-in keys for -a alone."""
        if not truth("-a", self.acl):
            if self.access_key is None and self.secret_key is None:
                return None
            raise ConfigError("-ak/-sk without -a true sign nothing; add -a true or leave them out")
        if self.access_key is None or self.secret_key is None:
            raise ConfigError("-a true needs both keys; add -ak ACCESSKEY and -sk SECRETKEY")

        from cometmq.remoting.credentials import Credentials

        return Credentials(self.access_key, self.secret_key)

    def limits(self) -> RunLimits:
        from cometmq.cli.bench.run import RunLimits

        return RunLimits(self.quantity, self.duration, self.report_interval)

    def screen(self) -> BenchScreen:
        from cometmq.cli.bench.screen import BenchScreen

        return BenchScreen(as_json=self.as_json or self.output is Form.JSON, save=self.save)


_ThreadCount = Annotated[
    int | None,
    typer.Option(
        "-w",
        "--threadCount",
        help="Sends under way at once (default: 64; with -y 1024).",
        min=1,
        max=65535,
    ),
]
_MessageSize = Annotated[int, typer.Option("-s", "--messageSize", help="Bytes of a body.", min=1)]
_KeyEnable = Annotated[
    str, typer.Option("-k", "--keyEnable", metavar=_TRUTH, help="Give messages a key.")
]
_PropertySize = Annotated[
    int,
    typer.Option("-p", "--propertySize", help="Bytes of user properties.", min=0, max=30000),
]
_TagCount = Annotated[int, typer.Option("-l", "--tagCount", help="Different tags, 0: none.", min=0)]
_AsyncEnable = Annotated[
    str,
    typer.Option(
        "-y",
        "--asyncEnable",
        metavar=_TRUTH,
        help="One sender that gets outcomes by callback.",
    ),
]
_CompressEnable = Annotated[
    str, typer.Option("-c", "--compressEnable", metavar=_TRUTH, help="Compress large bodies.")
]
_CompressType = Annotated[
    str, typer.Option("-ct", "--compressType", metavar="ZLIB|LZ4|ZSTD", help="The compression.")
]
_CompressLevel = Annotated[
    int, typer.Option("-cl", "--compressLevel", help="The level; only 5 is supported.")
]
_CompressOver = Annotated[
    int,
    typer.Option(
        "-ch",
        "--compressOverHowMuch",
        help="Compress bodies of this many bytes or more.",
        min=0,
    ),
]
_DelayEnable = Annotated[str, typer.Option("-d", "--delayEnable", metavar=_TRUTH, hidden=True)]
_DelayLevel = Annotated[
    int | None,
    typer.Option("-e", "--delayLevel", hidden=True),
]


@app.command("producer", cls=Command)
@spread
def producer(
    *,
    common: Common,
    thread_count: _ThreadCount = None,
    message_size: _MessageSize = 128,
    key_enable: _KeyEnable = "false",
    property_size: _PropertySize = 0,
    tag_count: _TagCount = 0,
    async_enable: _AsyncEnable = "false",
    compress_enable: _CompressEnable = "false",
    compress_type: _CompressType = "ZLIB",
    compress_level: _CompressLevel = 5,
    compress_over: _CompressOver = 4096,
    delay_enable: _DelayEnable = "false",
    delay_level: _DelayLevel = None,
    encryption: connection.Encryption,
) -> None:
    """Send, time every send, and compare the acknowledged messages with those that the brokers
    stored.
    """
    credentials = common.credentials()
    _refuse_delays(delay_enable, delay_level)
    compression = _compression(compress_enable, compress_type, compress_level)

    from cometmq.cli.bench.producer import ProducerBench, ProducerSettings

    asynchronous = truth("-y", async_enable)
    concurrency = thread_count or (1024 if asynchronous else 64)
    settings = ProducerSettings(
        namesrv=common.namesrv(),
        topic=common.topic.strip(),
        concurrency=concurrency,
        message_size_bytes=message_size,
        key_enable=truth("-k", key_enable),
        property_size_bytes=property_size,
        tag_count=tag_count,
        asynchronous=asynchronous,
        compression=compression,
        compress_over_bytes=compress_over,
        trace=truth("-m", common.trace),
        credentials=credentials,
        tls=encryption.tls(),
        limits=common.limits(),
    )
    screen = common.screen()
    screen.say(
        f"topic: {settings.topic}, threadCount: {concurrency}, messageSize: {message_size}, "
        f"keyEnable: {key_enable}, propertySize: {property_size}, tagCount: {tag_count}, "
        f"messageQuantity: {common.quantity}, asyncEnable: {async_enable}, "
        f"compressEnable: {compress_enable}, reportInterval: {common.report_interval}"
    )
    _run(lambda: ProducerBench(settings).run(screen), screen)


def _refuse_delays(enabled: str, level: int | None) -> None:
    if truth("-d", enabled) or level is not None:
        raise ConfigError(
            "-d/-e: the benchmark sends no delayed messages, for they reach their topic only when due "
            "and its closing count would not hold; leave out --delayEnable and --delayLevel"
        )


def _compression(enabled: str, kind: str, level: int) -> CompressionType | None:
    """Return the compression that the options ask for. Raises ConfigError for one that there is not."""
    if level != 5:
        raise ConfigError(f"-cl {level}: the producer compresses at level 5 only")

    from cometmq.protocol.messages.compression import CompressionType

    if kind.upper() not in CompressionType.__members__:
        raise ConfigError(f"-ct {kind}: the compression is none of ZLIB, LZ4, ZSTD")
    return CompressionType[kind.upper()] if truth("-c", enabled) else None


_ThreadCountOfConsumer = Annotated[
    int, typer.Option("-w", "--threadCount", help="Listeners at once.", min=1, max=1000)
]
_GroupPrefix = Annotated[str, typer.Option("-g", "--group", help="Consumer group.")]
_SuffixEnable = Annotated[
    str,
    typer.Option(
        "-p", "--isSuffixEnable", metavar=_TRUTH, help="Append _ and a number to the group."
    ),
]
_FilterType = Annotated[
    str | None,
    typer.Option("-f", "--filterType", metavar="TAG", help="With -e."),
]
_Expression = Annotated[
    Path | None,
    typer.Option(
        "-e",
        "--expression",
        metavar="FILE",
        help="A file with the filter's expression.",
    ),
]
_ConsumeFrom = Annotated[
    str,
    typer.Option(
        "--from", metavar="first|last", help="Where a group that is new to the topic begins."
    ),
]


@app.command("consumer", cls=Command)
@spread
def consumer(
    *,
    common: Common,
    thread_count: _ThreadCountOfConsumer = 20,
    group_prefix: _GroupPrefix = "benchmark_consumer",
    suffix_enable: _SuffixEnable = "false",
    filter_type: _FilterType = None,
    expression: _Expression = None,
    consume_from: _ConsumeFrom = "last",
    fail_rate: Annotated[float, typer.Option("-r", "--failRate", hidden=True)] = 0.0,
    encryption: connection.Encryption,
) -> None:
    """Consume, time every delivery, and compare the deliveries with the offsets that the group
    committed.
    """
    credentials = common.credentials()
    if fail_rate:
        raise ConfigError(
            f"-r {fail_rate}: the benchmark's consumer refuses no messages, for they would come "
            "again later and its closing count would not hold; leave out --failRate"
        )
    tags = _tag_expression(filter_type, expression)

    from cometmq.cli.bench.consumer import ConsumerBench, ConsumerSettings
    from cometmq.model.results import ConsumeFromWhere
    from cometmq.runtime.clock import SYSTEM_CLOCK

    places = {"first": ConsumeFromWhere.FIRST_OFFSET, "last": ConsumeFromWhere.LAST_OFFSET}
    if consume_from not in places:
        raise ConfigError(f"--from {consume_from} is neither first nor last")
    group = group_prefix.strip()
    if truth("-p", suffix_enable):
        group = f"{group}_{SYSTEM_CLOCK.now_ms() % 100}"
    settings = ConsumerSettings(
        namesrv=common.namesrv(),
        topic=common.topic.strip(),
        group=group,
        concurrency=thread_count,
        tags=tags,
        consume_from=places[consume_from],
        trace=truth("-m", common.trace),
        credentials=credentials,
        tls=encryption.tls(),
        limits=common.limits(),
    )
    screen = common.screen()
    screen.say(
        f"topic: {settings.topic}, threadCount {thread_count}, group: {group}, "
        f"suffix: {suffix_enable}, expression: {tags}, from: {consume_from}, "
        f"messageQuantity: {common.quantity}, reportInterval: {common.report_interval}"
    )
    _run(lambda: ConsumerBench(settings).run(screen), screen)


def truth(option: str, text: str) -> bool:
    """Return the value of one of Java's boolean options.

    Raises ConfigError for a text other than true or false; Java takes all but true for false.
    """
    value = text.strip().lower()
    if value not in ("true", "false"):
        raise ConfigError(f"{option} {text}: it takes true or false")
    return value == "true"


def _run(bench: Callable[[], Coroutine[Any, Any, BenchResult]], screen: BenchScreen) -> None:
    """Run a benchmark, show and write its result, and end the command with its status."""
    from cometmq.logs.setup import configure_logging
    from cometmq.runtime.loop import run

    configure_logging("warning", json=False)
    result = run(bench())
    screen.show_verdict(result.holds, result.text, result.notes)
    screen.finish(result.facts)
    if not result.holds:
        raise typer.Exit(1)


def _tag_expression(filter_type: str | None, expression: Path | None) -> str:
    if filter_type is None and expression is None:
        return "*"
    if filter_type is None or expression is None:
        raise ConfigError("-f and -e belong together: the filter's type and its expression's file")
    if filter_type.upper() == "SQL92":
        raise ConfigError("-f SQL92: this version filters by tags only, use -f TAG")
    if filter_type.upper() != "TAG":
        raise ConfigError(f"-f {filter_type}: the filter type is none of TAG")
    try:
        return expression.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"-e {expression} cannot be read: {error}") from error
