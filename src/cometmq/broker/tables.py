"""Read and write a broker's tables of topics, groups and offsets: JSON files in `config/`.

Java: ConfigManager, TopicConfigManager, SubscriptionGroupManager, ConsumerOffsetManager.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.groups import GroupManager
from cometmq.broker.groups.offsets import ConsumerOffsetManager, describe
from cometmq.broker.refusal import Refused
from cometmq.broker.table_marks import FILE_NAME, TableMarks, read_marks
from cometmq.broker.topics.journal import TopicJournal
from cometmq.broker.topics.topics import TopicManager
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.model.topic import DataVersion
from cometmq.protocol.bodies.cluster import (
    ConsumerOffsetSerializeWrapper,
    SubscriptionGroupWrapper,
    TopicConfigSerializeWrapper,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body, pretty_pieces
from cometmq.runtime.clock import Clock
from cometmq.runtime.state_files.files import SYSTEM_FILES, Files
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import Capture, StateWriter
from cometmq.runtime.workers import THREADS, Workers

log = get_logger(__name__)

T = TypeVar("T")

# A table of at most this many topics, 100 KB, is written at once, without a pause after the last
# time.
_SMALL_TABLE: Final = 500
_COPIED_AT_ONCE: Final = 256


class BrokerTables:
    """Reads the three tables from `directory`, and writes each after it changed; offsets on
    request.

    For the loop's thread only. `has_messages` says that the store has messages already: then a table
    that is missing was lost.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        state: StateWriter,
        directory: Path,
        workers: Workers = THREADS,
        files: Files = SYSTEM_FILES,
        *,
        has_messages: bool = False,
    ) -> None:
        self._state = state
        self._files = files
        self._topics_file = JsonFile(directory / "topics.json", files=files)
        self._journal = TopicJournal(directory / "topics.journal", workers, files)
        self._groups_file = JsonFile(directory / "subscriptionGroup.json", files=files)
        self._offsets_file = JsonFile(directory / "consumerOffset.json", files=files)
        self._marks_file = JsonFile(directory / FILE_NAME, files=files)
        self._has_messages = has_messages
        table = self._load(self._topics_file, TopicConfigSerializeWrapper, "topics")
        is_missing = table is None
        table = self._topic_table = table or TopicConfigSerializeWrapper()
        if self._recover(table, clock.now_ms()):
            # At once, because Java does not know the journal.
            self._save_topics()
        self._journal.on_add = self._save_topics
        self.topics = TopicManager(
            config,
            clock,
            table,
            journal=self._journal,
        )
        self.groups = GroupManager(
            config,
            clock,
            self._save_groups,
            self._load(self._groups_file, SubscriptionGroupWrapper, "settings of groups"),
        )
        # The files of tables that are missing or older than they were.
        self.lost: list[str] = []
        self._written_marks = read_marks(self._marks_file)
        self.marks = self._judge(self._written_marks, is_missing)
        self._groups_counter = self.groups.table.data_version.counter
        self._is_closing = False
        self.offsets = ConsumerOffsetManager(
            self._load(self._offsets_file, ConsumerOffsetSerializeWrapper, "offsets of groups"),
            config.max_consumer_offsets,
        )
        self._ignored_count = 0

    def keep_files(self) -> None:
        """Have missing files written, now or later: so a file that is missing at a start was lost."""
        self._state.keep(self._topics_file, self._topics_text)
        self._state.keep(self._groups_file, self._groups_text)
        self._state.keep(self._offsets_file, self._offsets_text)

    def _judge(self, marks: TableMarks | None, is_missing: bool) -> TableMarks:
        """Find the tables that are not the ones that this broker wrote last."""
        if marks is None:
            # A store of Java's, of a former release, a new one, or one with removed files.
            self.lost = [self._topics_file.path.name] if is_missing else []
            return TableMarks()
        counters = self.topics.data_version.counter, self.groups.table.data_version.counter
        self.lost = marks.is_older(*counters)
        if self.lost:
            return TableMarks(topics=counters[0], groups=counters[1])
        return marks

    async def keep_marks(self, **changed: object) -> None:
        """Note something about the tables; return when it is on disk. Raises Refused."""
        self.marks = msgspec.structs.replace(self.marks, **changed)
        await self._written(self._marks_file, self._marks_text)

    def note_marks(self, **changed: object) -> None:
        """Note something about the tables, and have it written soon."""
        marks = msgspec.structs.replace(self.marks, **changed)
        if marks != self.marks:
            self.marks = marks
            if not self._is_closing:
                self._state.soon(self._marks_file, self._marks_text)

    def _marks_text(self) -> str:
        self._written_marks = self.marks
        return msgspec.json.encode(self.marks).decode()

    def correct_offsets(self, queue_end: Callable[[str, int], int | None]) -> None:
        """Correct offsets from the file that cannot be right; keep a copy of the former ones.

        Blocks while the copy is written; without the copy nothing is changed. `queue_end` returns
        the end of a queue that holds, or has held, messages, else None. A crash that took messages
        from the end of a queue leaves offsets beyond that end. A group that goes on from there
        skips the next messages.
        """

        def end_of(topic: str, queue_id: int) -> int | None:
            end = queue_end(topic, queue_id)
            if end is None and self.topics.has_queue(topic, queue_id):
                return 0
            return end

        found = self.offsets.find_impossible(end_of)
        if not found:
            return
        kept = JsonFile(
            self._offsets_file.path.with_name("consumerOffset.uncorrected.json"), files=self._files
        )
        try:
            kept.write(self._offsets_text())
        except OSError as error:
            log.error(  # noqa: TRY400 - the reason says it all
                "impossible consumer offsets stay as they are, because no copy of them can be written",
                path=str(kept.path),
                reason=str(error),
                **describe(found),
            )
            return
        self.offsets.correct(found)
        log.warning("consumer offsets corrected", former=str(kept.path), **describe(found))

    def save_offsets(self) -> None:
        """Write the offsets if any changed since the last time."""
        ignored = self.offsets.ignored_count - self._ignored_count
        if ignored:
            self._ignored_count += ignored
            log.warning(
                "offsets that pulls brought are not stored: they are negative, beyond the end of "
                "their queue, or too many",
                count=ignored,
                stored=self.offsets.count,
                max_consumer_offsets=self.offsets.max_count,
            )
        if self.offsets.changed:
            self.offsets.changed = False
            self._state.soon(self._offsets_file, self._offsets_text)

    async def groups_written(self) -> None:
        """Return when the disk has the groups as they are now. Raises Refused if writing fails."""
        await self._written(self._groups_file, self._groups_text)
        self._groups_saved()

    async def offsets_written(self) -> None:
        """Return when the disk has the offsets as they are now. Raises Refused if writing fails."""
        self.offsets.changed = False
        await self._written(self._offsets_file, self._offsets_text)

    async def _written(self, file: JsonFile, text: Capture) -> None:
        try:
            await self._state.save(file, text)
        except OSError as error:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the change is made, but cannot be written to {file.path}: "
                f"{error.strerror or error}; see that the disk has room and works. The broker tries "
                "again by itself until it can",
            ) from error

    def save(self) -> None:
        """Have all tables written; call `close` when the state writer has done that."""
        self._is_closing = True
        self._save_topics()
        self._save_groups()
        self.save_offsets()

    def close(self) -> None:
        """Write to the journal what could not be written to `topics.json`, and the last marks."""
        self._journal.close()
        if self._written_marks != self.marks:
            try:
                self._marks_file.write(self._marks_text())
            except OSError as error:
                # The marks that were written before remain true; they only cover less.
                log.warning("the marks of the tables could not be written", reason=str(error))

    def _load(self, file: JsonFile, type_: type[T], what: str) -> T | None:
        decode: Callable[[str], T] = lambda text: decode_body(text.encode(), type_)  # noqa: E731 - a field with a default; a def would be a method
        table = file.read(decode)
        if table is None and self._has_messages:
            log.error(
                "a state file is missing although the store has messages; its table starts empty",
                table=what,
                path=str(file.path),
                remedy="if there is a copy of the file, stop the broker and put it in its place",
            )
        return table

    def _recover(self, table: TopicConfigSerializeWrapper, now_ms: int) -> bool:
        try:
            return self._journal.recover(table, now_ms)
        except OSError as error:
            raise ConfigError(f"{self._journal.path} cannot be read: {error}") from error

    def _save_topics(self) -> bool:
        """Have `topics.json` written.

        Returns whether that happens at once, as it does for a small table.
        """
        at_once = len(self._topic_table.topic_config_table) <= _SMALL_TABLE
        place: list[tuple[int, DataVersion]] = []

        def text() -> Iterator[str]:
            version = msgspec.structs.replace(self._topic_table.data_version)
            place[:] = [(self._journal.position, version)]
            return self._topics_text()

        def written() -> None:
            self._journal.folded(*place[0])
            self.note_marks(topics=place[0][1].counter)

        self._state.soon(self._topics_file, text, written, at_once=at_once)
        return at_once

    def _topics_text(self) -> Iterator[str]:
        table = self._topic_table
        topics = dict(table.topic_config_table)
        version = msgspec.structs.replace(table.data_version)
        return pretty_pieces(
            msgspec.structs.replace(table, topic_config_table=topics, data_version=version)
        )

    def _save_groups(self) -> None:
        self._state.soon(self._groups_file, self._groups_text, self._groups_saved)

    def _groups_saved(self) -> None:
        self.note_marks(groups=self._groups_counter)

    def _groups_text(self) -> Iterator[str]:
        table = self.groups.table
        self._groups_counter = table.data_version.counter
        return pretty_pieces(
            SubscriptionGroupWrapper(
                msgspec.structs.replace(table.data_version),
                {group: dict(topics) for group, topics in table.forbidden_table.items()},
                dict(table.subscription_group_table),
            )
        )

    def _offsets_text(self) -> Iterator[str]:
        table, resets = self.offsets.table, self.offsets.resets
        return _offset_pieces(
            msgspec.structs.replace(
                table,
                offset_table=dict(table.offset_table),
                reset_offset_table={key: dict(queues) for key, queues in resets.items()} or None,
            )
        )


def _offset_pieces(table: ConsumerOffsetSerializeWrapper) -> Iterator[str]:
    """Yield the text of a table of the same queues' offsets that the loop goes on changing.

    The writer's thread copies the offsets of a group and topic at a time, in one step of the interpreter:
    copying 25,000 of them on the loop held it for 12 ms. An offset that is committed meanwhile may be among
    those that are written, and is written again later.
    """
    offsets: dict[str, dict[int, int]] = {}
    for key, queues in table.offset_table.items():
        offsets[key] = dict(queues)
        if len(offsets) % _COPIED_AT_ONCE == 0:
            yield ""
    yield from pretty_pieces(msgspec.structs.replace(table, offset_table=offsets))
