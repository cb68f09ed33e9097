"""Bring the decoded tables of an archive up to what is archived.

The tables are an archive of their own below `_decoded`. Its hours have the names of tables in place of topics,
and its offsets are those of the archived messages that were decoded. One commit brings the rows of a batch,
both those that fit and those that do not. So each message is in one of its topic's tables, once, whichever
process is killed. A batch is committed only if it has as many rows as there are archived messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from cometmq.errors import (
    ConfigError,
    StoreCorruptError,
)
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.payloads.by_topic import ByTopic, is_pattern
from cometmq.pipelines.archive.commits import Archive, Commit, batch_name
from cometmq.pipelines.archive.decoded.decoders import Decoders
from cometmq.pipelines.archive.decoded.definitions import (
    DIRECTORY,
    UNDECODABLE,
    Definitions,
    names_of,
)
from cometmq.pipelines.archive.decoded.lines import DecodedLine
from cometmq.pipelines.archive.decoded.publishing import DecodedPublisher
from cometmq.pipelines.archive.decoded.settings import DecodeRule
from cometmq.pipelines.archive.decoded.work import Ranges, Work
from cometmq.pipelines.archive.layout import (
    DataFile,
    Figures,
    Hour,
    Manifest,
    QueueState,
    in_order,
)
from cometmq.pipelines.archive.proving.inventory import Problem, take_inventory
from cometmq.pipelines.archive.proving.judgement import spans_by_queue
from cometmq.pipelines.archive.proving.spans import length, within
from cometmq.pipelines.archive.schemas import COMPACT, Schema
from cometmq.pipelines.archive.staging import Staged, read_back, staged_files
from cometmq.pipelines.archive.tables.publisher import TableLine
from cometmq.pipelines.archive.tables.settings import TableSettings
from cometmq.pipelines.configuration import Decode
from cometmq.pipelines.locations import Location
from cometmq.runtime.clock import SYSTEM_CLOCK, Clock
from cometmq.spark.decoding.kinds import plain_name
from cometmq.spark.live.admission import shared
from cometmq.spark.live.plan import Range

log = get_logger(__name__)

# The figures of files that were read back, by hour and name.
Read = dict[tuple[Hour, str], list[Figures]]


class Decoding:
    """Decodes topics of an open archive within the context.

    rules: by topic or pattern. settings: those of the published tables, equal to the archive's. is_on: there
    are rules; without rules, nothing is done.
    """

    def __init__(
        self,
        work: Work,
        archive: Archive,
        rules: Mapping[str, Decode],
        settings: TableSettings,
        *,
        max_messages: int,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        for key, rule in rules.items():
            if is_pattern(key) and rule.table is not None:
                raise ConfigError(
                    f"[decode.{key}]: table is {rule.table!r}, but each topic of a pattern has a table of "
                    "its own: leave table out"
                )
        _check_names(rules)
        self._rules = ByTopic({key: DecodeRule(key, rule) for key, rule in rules.items()})
        self.is_on = bool(rules)
        self._work = work
        self._archive = archive
        self._settings = settings
        self._max_messages = max_messages
        self._clock = clock
        self._stack = ExitStack()
        # Files without a message that waits for its decoding.
        self._done: set[tuple[Hour, str]] = set()
        self._problems: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Open the tables, and publish commits that earlier runs did not. Raise ConfigError as an archive does."""
        if self.is_on:
            path = self._archive.layout.path / DIRECTORY
            self._tables = self._stack.enter_context(Archive(path))
            self._definitions = Definitions(self._tables.layout)
            self._decoders = Decoders(self._work, self._archive.layout.data, self._definitions)
            self._publisher = DecodedPublisher(
                self._tables, self._definitions, self._settings, self._clock
            )
            self._publisher.publish()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def catch_up(self) -> None:
        """Decode all that is archived and not decoded."""
        for _ in self.batches(all_of_them=True):
            pass

    def batches(self, *, all_of_them: bool) -> Iterator[int]:
        """Decode a batch of each topic, or all that waits, and yield after each batch how many messages it had.

        Then forget hours that the archive no longer has, and publish. If a topic fails, the
        others go on, and the next call begins where the topic failed; `lines` have the reason. Raise
        ConfigError if another process has taken over, or an extra is missing.
        """
        if not self.is_on:
            return
        topics = sorted({state.topic for state in self._archive.state.queues})
        while topics:
            self._decoders.begin_round()
            left = []
            for topic in topics:
                if count := self._decode(topic):
                    left.append(topic)
                    yield count
            self._follow_removals()
            self._publisher.publish()
            topics = left if all_of_them else []

    def waits(self, *, also_failing: bool) -> bool:
        """Return whether messages wait to be decoded, of topics whose last batch failed only if asked for."""
        return self.is_on and any(
            self._rules.of(topic) is not None
            and (also_failing or topic not in self._problems)
            and bool(self._waiting(topic))
            for topic in {state.topic for state in self._archive.state.queues}
        )

    def compact(self) -> Iterator[None]:
        """Join small files of the tables, and yield after each hour."""
        if self.is_on:
            yield from self._work.compact(self._tables)
            self._publisher.publish()

    def expire(self) -> Iterator[None]:
        """Expire snapshots of the published tables that are older than the history, and yield after each table."""
        if self.is_on:
            yield from self._publisher.expire()

    def problems(self, *, everything: bool) -> list[Problem]:
        """Return the files of the tables that have changed since they were written.

        It compares names and sizes, and with `everything` also the figures of their rows.
        """
        if not self.is_on:
            return []
        inventory = take_inventory(self._tables.layout, self._tables.manifests)
        found = list(inventory.problems)
        for hour, paths in inventory.strange.items():
            found += [Problem("strange file", *hour, path.name) for path in paths]
        if everything:
            found += self._changed({(Hour(one.topic, one.hour or ""), one.file) for one in found})
        said = (
            f"the file is of a decoded table; remove {self._tables.layout.path} to decode all again"
        )
        return [
            replace(one, detail=f"{one.detail}; {said}" if one.detail else said) for one in found
        ]

    def lines(self) -> list[DecodedLine]:
        """Return a line for each topic that is decoded."""
        if not self.is_on:
            return []
        counts: dict[str, int] = {}
        for manifest in self._tables.manifests.values():
            rows = sum(one.count for file in manifest.files for one in file.queues)
            counts[manifest.topic] = counts.get(manifest.topic, 0) + rows
        missing = spans_by_queue(self._archive.layout.load_gaps())
        known = self._tables.state.by_queue()
        lines: dict[str, DecodedLine] = {}
        for state in self._archive.state.queues:
            if self._rules.of(state.topic) is None:
                continue
            line = lines.get(state.topic)
            if line is None:
                line = lines[state.topic] = self._line(state.topic, counts)
            to = known[state.queue].to if state.queue in known else state.first
            gaps = missing.get(state.queue, [])
            line.messages += _count((state.first, to), gaps)
            line.waiting += _count((to, state.to), gaps)
        return list(lines.values())

    @property
    def published(self) -> list[TableLine]:
        """The lines of a report about the published tables."""
        return self._publisher.lines if self.is_on else []

    # Inside: batches

    def _decode(self, topic: str) -> int:
        """Decode the topic's next batch. Return how many messages it had, 0 if none waits or it failed."""
        rule = self._rules.of(topic)
        if rule is None:
            return 0
        try:
            if ranges := self._waiting(topic):
                self._write(topic, rule, ranges)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - Spark raises what its tasks and the disk raise
            said = str(error).strip().partition("\n")[0][:300]
            self._problems[topic] = f"{type(error).__name__}: {said}"
            log.warning(
                "messages wait to be decoded, and the archive goes on",
                topic=topic,
                reason=self._problems[topic],
            )
            return 0
        self._problems.pop(topic, None)
        return sum(end - start for start, end in ranges.values())

    def _waiting(self, topic: str) -> dict[MessageQueue, Range]:
        """Return the range of offsets of each queue in the topic's next batch."""
        known = self._tables.state.by_queue()
        waiting = {}
        for state in self._archive.state.queues:
            start = known[state.queue].to if state.queue in known else state.first
            if state.topic == topic and start < state.to:
                waiting[state.queue] = start, state.to
        counts = shared(
            {queue: end - start for queue, (start, end) in waiting.items()}, self._max_messages
        )
        return {
            queue: (start, start + counts[queue])
            for queue, (start, _) in waiting.items()
            if counts[queue]
        }

    def _write(self, topic: str, rule: DecodeRule, ranges: Ranges) -> None:
        """Decode the topic's messages of these offsets, and commit them."""
        tables = self._tables
        with tables.staging() as staged:
            schemas, forms = self._staged(topic, rule, ranges, staged)
            number = tables.state.next_batch
            found = _with_forms(staged_files(staged, batch_name(number), number, 0), forms)
            read: Read = {}
            for form in set(forms.values()):
                read |= read_back(self._work.figures, staged, found, schemas[form])
            self._check(ranges, read)
            tables.commit(self._commit_of(ranges, schemas, staged, found, read))
        if not self._waiting(topic):
            others = {place for place in self._done if place[0].topic != topic}
            self._done = others | self._all_files(topic).keys()

    def _staged(
        self, topic: str, rule: DecodeRule, ranges: Ranges, staged: Location
    ) -> tuple[dict[int, Schema], dict[str, int]]:
        """Write the files of a batch to `staged`. Return all schemas, and the numbers of those by table."""
        forms: dict[str, int] = {}
        schemas = dict(self._tables.schemas)
        if files := self._files(topic, ranges):
            for table, decoder in self._decoders.of(topic, rule, files, ranges):
                columns = {table.name: table.all_columns, table.name_of_bad: UNDECODABLE}
                forms |= {name: _number_of(one, schemas) for name, one in columns.items()}
                self._work.write(
                    self._archive.layout.data,
                    files,
                    ranges,
                    decoder,
                    staged,
                    (table.name, schemas[forms[table.name]]),
                    (table.name_of_bad, schemas[forms[table.name_of_bad]]),
                )
        return schemas, forms

    def _all_files(self, topic: str) -> dict[tuple[Hour, str], DataFile]:
        return {
            (hour, file.name): file
            for hour, manifest in self._archive.manifests.items()
            if hour.topic == topic
            for file in manifest.files
        }

    def _files(self, topic: str, ranges: Ranges) -> list[Location]:
        """Return the archive's files that may hold messages of these offsets."""
        places = {(queue.broker_name, queue.queue_id): one for queue, one in ranges.items()}

        def may_hold(file: DataFile) -> bool:
            if not file.queues:
                return True
            found = ((places.get((one.broker, one.queue_id)), one) for one in file.queues)
            return any(span and one.first < span[1] and one.last >= span[0] for span, one in found)

        return [
            self._archive.layout.data_of(hour) / name
            for (hour, name), file in self._all_files(topic).items()
            if (hour, name) not in self._done and may_hold(file)
        ]

    def _check(
        self,
        ranges: Ranges,
        read: Read,
    ) -> None:
        """Raise StoreCorruptError unless there are as many rows as archived messages, queue by queue."""
        found: dict[MessageQueue, int] = {}
        for (hour, _), parts in read.items():
            topic = self._definitions.topic_of(hour.topic)
            assert topic is not None, "its table is defined"
            for one in parts:
                queue = MessageQueue(topic, one.broker, one.queue_id)
                found[queue] = found.get(queue, 0) + one.count
        missing = spans_by_queue(self._archive.layout.load_gaps())
        for queue, span in ranges.items():
            wanted = _count(span, missing.get(queue, []))
            if found.get(queue, 0) != wanted:
                raise StoreCorruptError(
                    f"the archive's files have {found.get(queue, 0):,} of the {wanted:,} messages of {queue} "
                    f"from offset {span[0]:,} to below {span[1]:,}, so none of them is decoded: restore "
                    "the files that the archive's proof names"
                )

    def _commit_of(
        self,
        ranges: Ranges,
        schemas: Mapping[int, Schema],
        staged: Location,
        found: Staged,
        read: Read,
    ) -> Commit:
        tables = self._tables
        manifests = []
        for hour, files in found.files.items():
            before = tables.manifests.get(hour, Manifest(*hour))
            new = [replace(one, queues=tuple(sorted(read[hour, one.name]))) for one in files]
            manifests.append(Manifest(*hour, (*before.files, *new)))
        queues = tables.state.by_queue()
        for queue, (start, end) in ranges.items():
            first = queues[queue].first if queue in queues else start
            queues[queue] = QueueState(*queue, first=first, to=end, proved_to=end)
        state = replace(
            tables.state,
            next_batch=tables.state.next_batch + 1,
            queues=in_order(queues),
            schemas=tuple(one for one in schemas.values() if one.number > COMPACT),
        )
        return Commit("files", tuple(manifests), state, staged.name, sources=found.sources)

    # Inside: removals and checks

    def _follow_removals(self) -> None:
        """Remove the rows of hours whose files have left the archive."""
        there = self._archive.manifests
        gone = []
        for hour, manifest in self._tables.manifests.items():
            topic = self._definitions.topic_of(hour.topic)
            original = there.get(Hour(topic or "", hour.hour))
            if manifest.files and original is not None and not original.files:
                gone.append(manifest)
        if gone:
            state = replace(self._tables.state, next_batch=self._tables.state.next_batch + 1)
            staged = self._tables.new_staging()
            removed = tuple(tuple(file.name for file in one.files) for one in gone)
            emptied = tuple(Manifest(*one.key) for one in gone)
            self._tables.commit(Commit("replaced", emptied, state, staged.name, removed=removed))

    def _changed(self, known: set[tuple[Hour, str | None]]) -> Iterator[Problem]:
        """Yield the files with figures other than those of their commit."""
        tables = self._tables
        for form, schema in tables.schemas.items():
            files = {
                (hour, file.name): file
                for hour, manifest in tables.manifests.items()
                for file in manifest.files
                if file.form == form and (hour, file.name) not in known
            }
            if not files:
                continue
            paths = [tables.layout.data_of(hour) / name for hour, name in files]
            found: dict[tuple[Hour, str], list[Figures]] = {}
            for hour, name, one in self._work.figures(tables.layout.data, paths, schema):
                found.setdefault((hour, str(name)), []).append(one)
            for (hour, name), file in files.items():
                if sorted(found.get((hour, name), [])) != sorted(file.queues):
                    yield Problem(
                        "file changed",
                        *hour,
                        name,
                        detail="its rows are not those that were committed",
                    )

    def _line(self, topic: str, counts: Mapping[str, int]) -> DecodedLine:
        tables = self._definitions.of(topic)
        names = [table.name for table in tables]
        bad = counts.get(tables[0].name_of_bad, 0) if tables else 0
        rows = sum(counts.get(name, 0) for name in names)
        return DecodedLine(
            topic, names, rows=rows, undecodable=bad, problem=self._problems.get(topic)
        )


def _check_names(rules: Mapping[str, Decode]) -> None:
    """Raise ConfigError if two topics that the rules name would have one table."""
    owners: dict[str, str] = {}
    for topic, rule in rules.items():
        if is_pattern(topic):
            continue
        table = rule.table or plain_name(topic)
        for name in names_of(table):
            other = owners.setdefault(name.casefold(), topic)
            if other != topic:
                raise ConfigError(
                    f"[decode.{topic}]: its table would be {table}, as the one of [decode.{other}] or of "
                    f"its undecodable bodies: give [decode.{topic}] another name as `table`"
                )


def _count(span: Range, gaps: Iterable[Range]) -> int:
    """Return how many messages a span of offsets has."""
    return span[1] - span[0] - length(within(span, gaps))


def _number_of(columns: Mapping[str, str], schemas: dict[int, Schema]) -> int:
    """Return the number of the schema that has these columns; add a schema if there is none."""
    for schema in schemas.values():
        if list(schema.columns.items()) == list(columns.items()):
            return schema.number
    number = max(schemas) + 1
    schemas[number] = Schema(number, dict(columns))
    return number


def _with_forms(found: Staged, forms: Mapping[str, int]) -> Staged:
    """Give each staged file the schema of its table."""
    files = {
        hour: tuple(replace(one, form=forms[hour.topic]) for one in files)
        for hour, files in found.files.items()
    }
    return Staged(files, found.sources)
