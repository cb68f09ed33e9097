"""Find differences and their causes, as expressions over a row of the audit and the evidence of its
message.

Each cause follows from a condition on what was read. A difference for which no condition holds has
no cause. Some causes are known faults, such as a missing file of the archive: they do not explain a
difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

from cometmq.pipelines.audit import settings as a
from cometmq.pipelines.audit.evidence import (
    CONSUMED,
    DEAD,
    RETRY,
    RETRY_DELAYED,
    RETRY_REDRIVEN,
    RETRY_WAITS,
)
from cometmq.pipelines.audit.settings import Config
from cometmq.spark.gaps import RETENTION

UNKNOWN: Final = "unexplained"
# Sources of the numbers.
OFFSETS: Final = "offsets"
TRACE: Final = "trace"
LEDGER: Final = "ledger"

# The type of a difference.
STRUCT: Final = "struct<difference:string,grp:string,cause:string,explained:boolean,count:bigint>"

# (condition, cause, whether the cause explains the difference); the first condition that holds
# counts.
Case = tuple[Any, Any, bool]


def offsets_source(stored: Iterable[int | None]) -> str:
    """Name a group's offsets as the source of what it has consumed."""
    if all(offset is None for offset in stored):
        return "the group's offsets, of which it has none"
    # An offset of a group that pops is that of its first message that is not done.
    return (
        "the group's offsets; if it pops, messages that it acknowledged behind its first unfinished "
        "one count as consumed once that one is done"
    )


@dataclass(frozen=True)
class Basis:
    """Holds what the expressions need besides the row.

    sent_by, consumed_by: OFFSETS, TRACE or LEDGER; the second by group.
    placed: the groups for which the log gives offsets, or says that there are none.
    cut_ms: the time of the cut.
    first_sent_ms: by topic, the time of the first record of a send.
    expired_ms: by topic, the time before which sent messages may be gone from log and archive
        without a trace.
    """

    config: Config
    sent_by: str
    consumed_by: Mapping[str, str]
    placed: frozenset[str]
    cut_ms: int
    first_sent_ms: Mapping[str, int]
    expired_ms: Mapping[str, int]

    @property
    def settled_ms(self) -> int:
        return self.cut_ms - round(self.config.settle_s * 1000)


class Numbers:
    """Computes how often a row counts as sent, stored, archived and consumed."""

    def __init__(self, basis: Basis) -> None:
        from pyspark.sql import functions as f

        self._basis = basis
        # A message that is known only from evidence has no offset.
        self.only_evidence = f.col("queue_offset").isNull()
        self.stored = (
            f.when(f.col("log_count") > 0, f.col("log_count"))
            .when((f.col("archive_count") > 0) & (f.col("queue_offset") < f.col("low")), 1)
            .otherwise(0)
        )
        self.archived = f.coalesce("archive_count", f.lit(0))
        first_copy = self.only_evidence | (f.col("copy") == 1)
        if basis.sent_by == OFFSETS:
            self.sent = f.when(self.only_evidence, 0).otherwise(f.greatest(f.lit(1), self.stored))
        else:
            self.sent = f.when(first_copy & (f.col("sent") > 0), 1).otherwise(0)
        self.consumed = [self._consumed(at, group) for at, group in enumerate(basis.config.groups)]

    def _consumed(self, at: int, group: str) -> Any:
        from pyspark.sql import functions as f

        if self._basis.consumed_by[group] != OFFSETS:
            known = (self.stored > 0) & (f.col("copy") <= f.col(f"{CONSUMED}_{at}"))
            return f.when(known, self.stored).otherwise(0)
        done = (
            (self.stored > 0)
            & f.col(f"wanted_{at}")
            & (f.col("queue_offset") < f.col(f"committed_{at}"))
            & ~is_dead(at)
            & ~waits_again(at)
        )
        return f.when(done, self.stored).otherwise(0)


def is_dead(at: int) -> Any:
    """Return whether the group gave up the message and no redrive has sent it to the group
    again.
    """
    from pyspark.sql import functions as f

    return f.col(f"{DEAD}_{at}") > f.col(f"{_column(RETRY_REDRIVEN)}_{at}")


def waits_again(at: int) -> Any:
    """Return whether the group sent the message back and has not taken it from the retry topic
    yet.
    """
    from pyspark.sql import functions as f

    in_retry = f.col(f"{RETRY}_{at}") - f.col(f"{_column(RETRY_REDRIVEN)}_{at}")
    under_way = f.col(f"{_column(RETRY_DELAYED)}_{at}") > in_retry
    return (f.col(f"{_column(RETRY_WAITS)}_{at}") > 0) | under_way


def _column(what: str) -> str:
    return what.replace(" ", "_")


class Differences:
    """Computes all differences of a row, as an array of structs
    `difference, grp, cause, explained, count`.
    """

    def __init__(self, basis: Basis) -> None:
        self._basis = basis
        self._numbers = Numbers(basis)
        # Whether each of the differences holds.
        self._holds: list[Any] = []

    def column(self) -> Any:
        from pyspark.sql import functions as f

        self._holds = []
        structs = [
            self._gap(),
            self._not_stored(),
            self._not_sent(),
            self._stored_twice(),
            *self._of_archive(),
            self._key_twice(),
        ]
        for at, group in enumerate(self._basis.config.groups):
            structs += [
                self._not_consumed(at, group),
                self._consumed_twice(at, group),
                self._consumed_only(at, group),
            ]
        # Most rows differ nowhere, and making an array of nulls costs more than all else of a row.
        nothing = f.array().cast(f"array<{STRUCT}>")
        return f.when(reduce(or_, self._holds), f.array_compact(f.array(*structs))).otherwise(
            nothing
        )

    def _struct(
        self, difference: str, holds: Any, cases: Sequence[Case], count: Any = 1, group: str = ""
    ) -> Any:
        """Return the difference with its cause where `holds` is true, else null."""
        from pyspark.sql import functions as f

        cause = f.lit(None).cast("string")
        explained = f.lit(False)
        for condition, said, explains in reversed(cases):
            cause = f.when(condition, said).otherwise(cause)
            explained = f.when(condition, explains).otherwise(explained)
        for at, rule in reversed(list(enumerate(self._basis.config.rules))):
            if rule.difference == difference:
                applies = ~explained & f.coalesce(f.col(f"rule_{at}"), f.lit(False))
                cause = f.when(applies, rule.cause).otherwise(cause)
                explained = explained | applies
        if self._basis.config.fail_on:
            refused = f.coalesce(cause.isin(self._basis.config.fail_on), f.lit(False))
            explained = explained & ~refused
        entry = f.struct(
            f.lit(difference).alias("difference"),
            f.lit(group or None).cast("string").alias("grp"),
            f.coalesce(cause, f.lit(UNKNOWN)).alias("cause"),
            explained.alias("explained"),
            (count if not isinstance(count, int) else f.lit(count)).cast("bigint").alias("count"),
        )
        is_there = f.coalesce(holds, f.lit(False))
        self._holds.append(is_there)
        return f.when(is_there, entry)

    # Sent and stored

    def _gap(self) -> Any:
        from pyspark.sql import functions as f

        n = self._numbers
        below = f.col("queue_offset") < f.col("low")
        lost = f.col("lost_file").isNotNull()
        was_archived = f.col("queue_offset") < f.col("archived_to")
        noted = f.col("archive_gap").isNotNull()
        holds = ~n.only_evidence & (f.col("log_count") == 0) & (f.col("archive_count") == 0)
        return self._struct(
            a.GAP,
            holds,
            [
                (lost, "the archive's file is gone", False),
                (below & noted, "expired before it was archived", True),
                (below & ~was_archived, "expired before it was archived", True),
                (below, UNKNOWN, False),
                *self._of_log_gap(),
            ],
        )

    def _of_log_gap(self) -> list[Case]:
        from pyspark.sql import functions as f

        gap = f.col("log_gap")
        return [
            (gap == RETENTION, "expired during the audit", True),
            (gap.isNotNull(), f.concat(f.lit("the log says: "), gap), False),
        ]

    def _not_stored(self) -> Any:
        from pyspark.sql import functions as f

        basis = self._basis
        sent_ms = f.col("sent_ms")
        known = (f.col("sent") > 0) | (f.col("send_failed") > 0)
        is_due = f.col("due_ms") < basis.settled_ms
        expired = sent_ms <= _by_topic(basis.expired_ms)
        return self._struct(
            a.NOT_STORED,
            self._numbers.only_evidence & known,
            [
                (f.col("sent") == 0, "the send failed", True),
                (f.col("given_up") > 0, "transaction given up", True),
                (
                    (f.col("half_ended") > 0) & (f.col("committed") == 0),
                    "transaction rolled back",
                    True,
                ),
                ((f.col("half") > 0) & (f.col("half_ended") == 0), "transaction undecided", True),
                (f.col("recalled") > 0, "recalled by its sender", True),
                ((f.col("delayed_send") > 0) & ~is_due, "delayed, not due yet", True),
                (f.col("delayed_send") > 0, "delayed, and overdue", False),
                (sent_ms > basis.cut_ms, "sent after the cut", True),
                (expired, "expired before it was archived", True),
            ],
        )

    def _not_sent(self) -> Any:
        from pyspark.sql import functions as f

        basis, n = self._basis, self._numbers
        if basis.sent_by == OFFSETS:
            return f.lit(None).cast(STRUCT)
        stored_ms = f.unix_millis("store_time")
        holds = (n.stored > 0) & (f.col("copy") == 1) & (f.coalesce("sent", f.lit(0)) == 0)
        return self._struct(
            a.NOT_SENT,
            holds,
            [
                (f.col("send_failed") > 0, "its sender got an error", True),
                (f.col("origin").isNotNull(), f.col("origin"), True),
                (
                    f.col("untraced") & f.lit(basis.sent_by == TRACE),
                    "not traced: TRACE_ON is false",
                    True,
                ),
                (stored_ms > basis.settled_ms, "stored just before the cut", True),
                (
                    stored_ms < _by_topic(basis.first_sent_ms),
                    "stored before the first record of a send",
                    True,
                ),
            ],
        )

    def _stored_twice(self) -> Any:
        from pyspark.sql import functions as f

        n = self._numbers
        return self._struct(
            a.STORED_TWICE,
            (n.stored > 0) & ((f.col("copy") > 1) | (n.stored > 1)),
            [
                (n.stored > 1, "one place, several logs", False),
                (f.col("origin").isNotNull(), f.col("origin"), True),
                (f.col("is_resend"), "sent again by its client", True),
                (f.col("is_commit_again"), "transaction committed again", True),
            ],
            n.stored - f.when(f.col("copy") > 1, 0).otherwise(1),
        )

    def _key_twice(self) -> Any:
        from pyspark.sql import functions as f

        return self._struct(
            a.KEY_TWICE,
            (self._numbers.stored > 0) & (f.col("key_copy") > 1),
            [(f.col("origin").isNotNull(), f.col("origin"), True)],
        )

    # The archive

    def _of_archive(self) -> list[Any]:
        from pyspark.sql import functions as f

        if self._basis.config.archive is None:
            return []
        log, archive = f.col("log_count"), f.col("archive_count")
        behind = f.col("archived_to").isNull() | (f.col("queue_offset") >= f.col("archived_to"))
        retained = f.col("queue_offset") >= f.col("low")
        lost, stray = f.col("lost_file").isNotNull(), f.col("stray")
        return [
            self._struct(
                a.NOT_ARCHIVED,
                (log > 0) & (archive == 0),
                [
                    (lost, "the archive's file is gone", False),
                    (behind, "not archived yet", True),
                    (f.col("archive_gap").isNotNull(), "the archive found it gone", False),
                ],
            ),
            self._struct(a.NOT_IN_LOG, (archive > 0) & (log == 0) & retained, self._of_log_gap()),
            self._struct(
                a.ARCHIVED_TWICE,
                archive > 1,
                [(stray, "in a file that the archive does not know", False)],
                archive - 1,
            ),
            self._struct(a.ARCHIVED_OTHERWISE, f.col("differs") & (log > 0) & (archive > 0), []),
        ]

    # Consumers

    def _not_consumed(self, at: int, group: str) -> Any:
        from pyspark.sql import functions as f

        basis, n = self._basis, self._numbers
        committed = f.col(f"committed_{at}")
        behind = f.col("queue_offset") >= committed
        by_offsets = basis.consumed_by[group] == OFFSETS
        if by_offsets or group in basis.placed:
            # A group without an offset of a queue has consumed nothing of it so far, so everything
            # counts from the beginning.
            behind = behind | committed.isNull()
        fresh = f.unix_millis("store_time") > basis.settled_ms
        cases: list[Case] = [
            (~f.col(f"wanted_{at}"), "not subscribed", True),
            (
                behind & (f.col("queue_offset") < f.col("low")),
                "expired before it was consumed",
                True,
            ),
            (behind, "not consumed yet", True),
            (is_dead(at), "dead-lettered", True),
            (waits_again(at), "waits to be consumed again", True),
        ]
        if not by_offsets:
            copied = (f.col("copy") > 1) & (f.col(f"{CONSUMED}_{at}") > 0)
            cases.append((copied, "another copy of it was consumed", True))
            cases.append((fresh, "stored just before the cut", True))
        return self._struct(
            a.NOT_CONSUMED, (n.stored > 0) & (n.consumed[at] == 0), cases, n.stored, group
        )

    def _consumed_twice(self, at: int, group: str) -> Any:
        from pyspark.sql import functions as f

        surplus = f.col(f"{CONSUMED}_{at}") - f.col("copies")
        retried = (f.col(f"{RETRY}_{at}") > 0) | (f.col(f"{_column(RETRY_DELAYED)}_{at}") > 0)
        return self._struct(
            a.CONSUMED_TWICE,
            (f.col("copy") == 1) & (surplus > 0),
            [(retried, "sent back, and consumed again", True)],
            surplus,
            group,
        )

    def _consumed_only(self, at: int, group: str) -> Any:
        from pyspark.sql import functions as f

        basis = self._basis
        count = f.col(f"{CONSUMED}_{at}")
        return self._struct(
            a.CONSUMED_ONLY,
            self._numbers.only_evidence & (count > 0),
            [
                (f.col("done_ms") > basis.cut_ms, "consumed after the cut", True),
                (
                    f.col("done_ms") < _by_topic(basis.expired_ms),
                    "expired before it was archived",
                    True,
                ),
            ],
            count,
            group,
        )


def _by_topic(times_ms: Mapping[str, int]) -> Any:
    """Return the time of a row's topic, null for a topic without one."""
    from pyspark.sql import functions as f

    found = f.lit(None).cast("bigint")
    for topic, time_ms in times_ms.items():
        found = f.when(f.col("topic") == topic, time_ms).otherwise(found)
    return found
