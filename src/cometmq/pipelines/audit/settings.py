"""Define the settings of an audit."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final, Literal

import msgspec

from cometmq.client.limits import check_client_group
from cometmq.errors import CometMQError, ConfigError
from cometmq.filtering.sql92 import compile_sql
from cometmq.filtering.tags import build_subscription
from cometmq.model.names import check_topic
from cometmq.model.subscription import SUB_ALL
from cometmq.pipelines.configuration import Settings, check_names

# The kinds of difference, as rules and reports name them.
NOT_STORED: Final = "sent, not stored"
NOT_SENT: Final = "stored, not sent"
STORED_TWICE: Final = "stored twice"
GAP: Final = "gap in the offsets"
NOT_ARCHIVED: Final = "stored, not archived"
NOT_IN_LOG: Final = "archived, not in the log"
ARCHIVED_TWICE: Final = "archived twice"
ARCHIVED_OTHERWISE: Final = "archived, but not as stored"
NOT_CONSUMED: Final = "stored, not consumed"
CONSUMED_TWICE: Final = "consumed twice"
CONSUMED_ONLY: Final = "consumed, not stored"
KEY_TWICE: Final = "business key twice"
DIFFERENCES: Final = (
    NOT_STORED,
    NOT_SENT,
    STORED_TWICE,
    GAP,
    NOT_ARCHIVED,
    NOT_IN_LOG,
    ARCHIVED_TWICE,
    ARCHIVED_OTHERWISE,
    NOT_CONSUMED,
    CONSUMED_TWICE,
    CONSUMED_ONLY,
    KEY_TWICE,
)

# The causes that explain a difference, as reports name them. Known faults, such as a missing file
# of the archive, are not among them.
EXPLAINING: Final = (
    "another copy of it was consumed",
    "consumed after the cut",
    "dead-lettered",
    "delayed, not due yet",
    "expired before it was archived",
    "expired before it was consumed",
    "expired during the audit",
    "its sender got an error",
    "not archived yet",
    "not consumed yet",
    "not subscribed",
    "not traced: TRACE_ON is false",
    "recalled by its sender",
    "redriven",
    "replayed",
    "sent after the cut",
    "sent again by its client",
    "sent back, and consumed again",
    "stored before the first record of a send",
    "stored just before the cut",
    "the send failed",
    "transaction committed again",
    "transaction given up",
    "transaction rolled back",
    "transaction undecided",
    "waits to be consumed again",
)

# The causes that time removes: a later round of a stream judges such differences again.
WAITING: Final = frozenset(
    (
        "consumed after the cut",
        "delayed, not due yet",
        "not archived yet",
        "not consumed yet",
        "sent after the cut",
        "stored just before the cut",
        "transaction undecided",
        "waits to be consumed again",
    )
)
# The one of these with a time at which it ends.
DELAYED_SEND: Final = "delayed, not due yet"

FORMATS: Final = ("parquet", "json", "csv")
_SUFFIXES: Final = {".json": "json", ".jsonl": "json", ".csv": "csv"}
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_ELEMENT: Final = re.compile(r"\bkeys\s*\[\s*(\d+)\s*\]")


class Ledger(Settings, frozen=True):
    """A table that senders or consumers keep themselves, with a row per message.

    path: Parquet, JSON lines or CSV with a header, by the path's ending or `format`.
    msg_id, key, topic, group, time, ok: the names of its columns. It needs msg_id, or key if the
        audit has a business key; the others may be missing.
    """

    path: str
    format: str | None = None
    msg_id: str = "msg_id"
    key: str = "key"
    topic: str = "topic"
    group: str = "group"
    time: str = "time"
    ok: str = "ok"

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(
                f"format is {self.format!r} for {self.path}; it is one of {', '.join(FORMATS)}"
            )

    def file_format(self) -> str:
        if self.format is not None:
            return self.format
        name = self.path.removesuffix(".gz")
        return next(
            (kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), "parquet"
        )


class Rule(Settings, frozen=True):
    """Explains a difference that nothing else explains: one of this kind has this cause where the
    Spark SQL condition `when` over the message's columns holds.
    """

    difference: str
    cause: str
    when: str

    def __post_init__(self) -> None:
        if self.difference not in DIFFERENCES:
            raise ConfigError(
                f"a rule is for the difference {self.difference!r}, which there is not; "
                f"differences are {', '.join(DIFFERENCES)}"
            )


class SqlSubscription(Settings, frozen=True):
    """Selects messages by RocketMQ's SQL92.

    sql: an expression over the properties.
    """

    sql: str


class Config(Settings, frozen=True):
    """The table [audit].

    topics: the topics to audit.
    groups: consumer groups; each has to consume all these topics.
    stores: store directories by broker name, in place of the cluster's brokers.
    archive: the directory of the pipeline `archive`, or a directory of Parquet files with the same
        columns.
    sent: the senders' own table of sent messages, see Ledger; a path alone is enough.
    consumed: the consumers' own table of consumed messages, in the same form.
    trace_topic: the topic of clients' traces, which show sends and consumptions where no ledger is
        given.
    business_key: the application's key of a message: a Spark SQL expression over its columns
        ("keys[0]"), or a property's name. No two messages of a topic may have the same.
    subscriptions: the messages that a group selects: tags ("paid || open") or { sql = "…" }; all if
        left out.
    rules: causes that only you know.
    fail_on: causes that explain a difference, but still make the audit fail.
    resend_window_s: the time within which a client may send a message again by itself.
    settle_s: the time before the cut in which events may not be recorded everywhere yet.
    delay_levels: messageDelayLevel of the brokers.
    work_path: a directory that driver and workers see; if left out, a temporary one of this machine.
    mode: `once` audits what is there now, `stream` goes on until it is stopped.
    state: in a stream, the directory of its verdicts and of the messages that wait; driver and
        workers see it.
    interval_s: in a stream, the time from the beginning of one round to that of the next.
    hold_s: in a stream, the time in which no verdict is final and no difference counts as
        unexplained.
    patience_s: in a stream, for how long a message that waits to be archived or consumed is judged
        again.
    max_messages: the most messages of a round of a stream.
    keep_days: in a stream, for how many days numbers are kept by hour; older ones are added up.
    """

    topics: list[str]
    groups: list[str] = msgspec.field(default_factory=list)
    stores: dict[str, str] = msgspec.field(default_factory=dict)
    archive: str | None = None
    sent: str | Ledger | None = None
    consumed: str | Ledger | None = None
    trace_topic: str | None = None
    business_key: str | None = None
    subscriptions: dict[str, str | SqlSubscription] = msgspec.field(default_factory=dict)
    rules: list[Rule] = msgspec.field(default_factory=list)
    fail_on: list[str] = msgspec.field(default_factory=list)
    resend_window_s: float = 60.0
    settle_s: float = 10.0
    delay_levels: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    work_path: str | None = None
    mode: Literal["once", "stream"] = "once"
    state: str | None = None
    interval_s: float = 300.0
    hold_s: float = 300.0
    patience_s: float = 86_400.0
    max_messages: int = 1_000_000
    keep_days: int = 31

    def __post_init__(self) -> None:
        self._check_stream()
        if not self.topics:
            raise ConfigError('topics is empty; name some, for example topics = ["orders"]')
        check_names(self.topics, "topics", check_topic)
        check_names(self.groups, "groups", check_client_group)
        for name in ("resend_window_s", "settle_s"):
            if not 0 <= getattr(self, name) <= 7 * 24 * 3600:
                raise ConfigError(f"{name} is {getattr(self, name)}; it lies in 0..604800")
        for group, subscription in self.subscriptions.items():
            self._check_subscription(group, subscription)
        level_delays_ms(self.delay_levels)
        if self.business_key is not None and not self.business_key.strip():
            raise ConfigError("business_key is empty; leave it out where messages have none")
        causes = {*EXPLAINING, *(rule.cause for rule in self.rules)}
        for cause in self.fail_on:
            if cause not in causes:
                raise ConfigError(
                    f"fail_on has {cause!r}, which explains nothing; causes are "
                    f"{', '.join(sorted(causes))}"
                )

    def _check_stream(self) -> None:
        for key, low in (
            ("interval_s", 0),
            ("hold_s", 0),
            ("patience_s", 0),
            ("max_messages", 1),
            ("keep_days", 1),
        ):
            value = getattr(self, key)
            if not low <= value < math.inf:
                raise ConfigError(f"{key} is {value}, give {low} or more")
        if self.mode == "once":
            if self.state is not None:
                raise ConfigError('state is for a stream; leave it out, or give mode = "stream"')
            return
        if self.stores:
            raise ConfigError(
                'mode is "stream", and stores are only read while no broker writes them: '
                'give mode = "once"'
            )
        if self.state is None or not Path(self.state).is_absolute():
            raise ConfigError(
                f"state is {self.state!r}; a stream needs a directory that driver and workers see, "
                'from the root on, for example state = "/data/audits/orders"'
            )

    def _check_subscription(self, group: str, subscription: str | SqlSubscription) -> None:
        if group not in self.groups:
            raise ConfigError(f"subscriptions has {group!r}, which is not among groups")
        try:
            if isinstance(subscription, SqlSubscription):
                compile_sql(subscription.sql)
            else:
                build_subscription("topic", subscription)
        except CometMQError as error:
            raise ConfigError(f"subscriptions of {group}: {error}") from error

    def sent_ledger(self) -> Ledger | None:
        return Ledger(path=self.sent) if isinstance(self.sent, str) else self.sent

    def consumed_ledger(self) -> Ledger | None:
        return Ledger(path=self.consumed) if isinstance(self.consumed, str) else self.consumed

    def key_expression(self) -> str:
        """Return the business key as Spark SQL; a null expression if there is none."""
        key = self.business_key
        if key is None:
            return "cast(null as string)"
        from cometmq.spark.rows.columns import COLUMNS

        if _IDENTIFIER.fullmatch(key) and key not in COLUMNS:
            return f"properties['{key}']"
        # With ANSI rules, an index outside the array is an error.
        safe = _ELEMENT.sub(r"get(keys, \1)", key)
        return f"cast({safe} as string)"

    def tags(self, group: str) -> list[str] | None:
        """Return the tags that a group selects, None for all."""
        subscription = self.subscriptions.get(group, SUB_ALL)
        if not isinstance(subscription, str):
            return None
        return list(build_subscription("topic", subscription).tags_set) or None

    def sql(self, group: str) -> str | None:
        subscription = self.subscriptions.get(group)
        return subscription.sql if isinstance(subscription, SqlSubscription) else None


_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def level_delays_ms(levels: str) -> list[int]:
    """Return the delay of each level, from the first one on. Raise ConfigError."""
    delays = []
    for text in levels.split():
        number, unit = text[:-1], _UNITS_MS.get(text[-1:])
        if unit is None or not number.isdecimal():
            raise ConfigError(f"delay_levels has {text!r}; a level is written as 30s, 5m, 2h or 1d")
        delays.append(int(number) * unit)
    return delays
