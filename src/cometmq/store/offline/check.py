"""Check whether files are a sound store: each record, each unit of each queue, each index entry.

The log is the truth: queues and index are compared with those that a replay of the log would make.
This works on a store of a Java broker, too. `cometmq store check` uses it, and `repair` before it
changes anything.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.model.names import LMQ_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.store.checkpoint import Checkpoint
from cometmq.store.files.mapped_file import MappedFile
from cometmq.store.layout import missing_in_front
from cometmq.store.log.scan import ScannedRecord
from cometmq.store.offline.store import Damage, OfflineStore, Progress
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, UNIT, UNIT_SIZE
from cometmq.store.queues.dispatch import cannot_be, tags_code_of
from cometmq.store.queues.queue_ledger import QueueLedger
from cometmq.store.queues.queue_table import is_directory_name

# Tags codes below this one are addresses of ConsumeQueueExt units.
_LEAST_TAGS_CODE: Final = -(2**31)
_NEVER: Final = -1
_MISSING: Final = "the unit is missing"


class Area(Enum):
    LOG = "commit log"
    QUEUE = "consume queue"
    INDEX = "index"
    FILES = "files"


class Finding(NamedTuple):
    """Describes one fault of a store. `position` is in the file. `by_start` says that a start of
    the broker repairs it; otherwise only `cometmq store repair` does.
    """

    area: Area
    path: Path
    position: int
    text: str
    by_start: bool = False


@dataclass
class Report:
    """Holds the parts that were looked at and the findings; `notes` are facts that are no fault."""

    clean_stop: bool
    log_file_count: int = 0
    record_count: int = 0
    record_bytes: int = 0
    queue_count: int = 0
    unit_count: int = 0
    index_file_count: int = 0
    index_entry_count: int = 0
    min_offset: int = 0
    end_offset: int = 0
    first_timestamp: int = 0
    last_timestamp: int = 0
    findings: list[Finding] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.findings


class _Queue:
    """Compares one consume queue on disk with the log, unit by unit as the log is read."""

    def __init__(
        self, directory: Path, files: list[MappedFile], *, clean_stop: bool, extended: bool
    ) -> None:
        self.directory = directory
        # Whether tags codes may be addresses of ConsumeQueueExt units.
        self._extended = extended
        self._clean_stop = clean_stop
        self.files = files
        self._first = self.expected = _NEVER
        # Where the queue's last record lies in the log.
        self._last_place: int | None = None
        self.unit_count = 0
        self.findings: list[Finding] = []
        # Units in a row with the same fault: the fault, the first and the last offset.
        self._run: tuple[str, int, int] | None = None

    def unit(self, queue_offset: int) -> tuple[int, int, int] | None:
        place = queue_offset * UNIT_SIZE
        if not self.files:
            return None
        index = (place - self.files[0].base) // self.files[0].size
        if not 0 <= index < len(self.files):
            return None
        # A file may be missing in between.
        file = self.files[index]
        if not file.base <= place < file.end:
            return None
        physical_offset, size, tags_code = UNIT.unpack_from(file.map, place - file.base)
        return (physical_offset, size, tags_code) if size > 0 else None

    def compare(self, record: ScannedRecord, tags_code: int | None) -> bool:
        """Check the unit of the next record of this queue.

        Returns False for a record that gets no place in a queue, because its queue offset is
        impossible.
        """
        queue_offset = record.queue_offset
        if queue_offset > self.expected and cannot_be(record, self.expected, self._last_place):
            return False
        self._last_place = record.offset
        if self.expected == _NEVER:
            self._first = queue_offset
        elif queue_offset != self.expected:
            self._jump(record)
        self.expected = queue_offset + 1
        unit = self.unit(queue_offset)
        fault = ""
        if unit is None:
            fault = _MISSING
        elif unit[0] != record.offset or unit[1] != record.size:
            fault = "the unit points elsewhere than to its record"
        elif tags_code is not None and unit[2] != tags_code and not self._is_address(unit[2]):
            fault = "the unit has another tags code than its record"
        else:
            self.unit_count += 1
        self._add(fault, queue_offset)
        return True

    def _is_address(self, tags_code: int) -> bool:
        return self._extended and tags_code < _LEAST_TAGS_CODE

    def _jump(self, record: ScannedRecord) -> None:
        if record.queue_offset == 0:
            # The topic was deleted and made again. Earlier findings belong to no queue any more.
            self.findings.clear()
            self._run = None
            self._first = 0
            return
        if record.queue_offset < self.expected:
            text = f"queue offset {record.queue_offset} is given twice, again at {record.offset}"
            self._report(text, record.queue_offset)
            return
        for queue_offset in (self.expected, record.queue_offset - 1):
            unit = self.unit(queue_offset)
            # A repair lets the unit of the next message stand there, too.
            if unit is None or unit[:2] != (record.offset, record.size):
                which = _which(self.expected, record.queue_offset - 1)
                self._report(f"the log has no record for queue {which}", self.expected)
                return

    def _add(self, fault: str, queue_offset: int) -> None:
        run = self._run
        if run is not None and run[0] == fault and run[2] + 1 == queue_offset:
            self._run = (fault, run[1], queue_offset)
            return
        self._end_run()
        if fault:
            self._run = (fault, queue_offset, queue_offset)

    def _end_run(self) -> None:
        if self._run is None:
            return
        fault, first, last = self._run
        # Units reach the disk after their records: after a crash the start writes them again.
        self._report(f"{fault} ({_which(first, last)})", first, by_start=fault == _MISSING)
        self._run = None

    def _report(self, text: str, queue_offset: int, *, by_start: bool = False) -> None:
        path, position = self._place(queue_offset)
        by_start = by_start and not self._clean_stop
        self.findings.append(Finding(Area.QUEUE, path, position, text, by_start))

    def _place(self, queue_offset: int) -> tuple[Path, int]:
        place = queue_offset * UNIT_SIZE
        for file in self.files:
            if file.base <= place < file.end:
                return file.path, place - file.base
        return self.directory, place

    def finish(self, log_min_offset: int, log_end: int) -> None:
        """Check what lies before the first and behind the last unit that the log knows."""
        self._end_run()
        if self.expected == _NEVER:
            self._look_at_expired(log_min_offset)
            return
        before = self.unit(self._first - 1)
        if before is not None and before[1] != PLACEHOLDER_SIZE and before[0] >= log_min_offset:
            self._report(f"a unit without a record (offset {self._first - 1})", self._first - 1)
        count = 0
        while self.unit(self.expected + count) is not None:
            count += 1
        if count:
            last = self.expected + count - 1
            self._report(
                f"units without records behind the end of the queue ({_which(self.expected, last)}, "
                f"the log ends at {log_end})",
                self.expected,
                by_start=True,
            )
        for file in self.files:
            file.release()

    def _look_at_expired(self, log_min_offset: int) -> None:
        for file in self.files:
            for index, (physical_offset, size, _) in enumerate(UNIT.iter_unpack(file.view)):
                if size <= 0:
                    break
                if size != PLACEHOLDER_SIZE and physical_offset >= log_min_offset:
                    queue_offset = file.base // UNIT_SIZE + index
                    self._report(f"a unit without a record (offset {queue_offset})", queue_offset)
                    return
            file.release()


def _which(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


class Checker:
    """Checks one store. Call `run` once."""

    def __init__(self, store: OfflineStore) -> None:
        self._store = store
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._delays = store.config.delay_levels_ms
        self._topics = known_topics(store)
        self._extended = bool(store.disk.names(store.config.consume_queue_ext_path))
        ledger = QueueLedger(store.disk, store.config.ledger_path)
        ledger.load()
        self._deleted = ledger.deleted
        self._deleted_count = 0
        self._left_out_count = 0
        self._first_left_out = 0
        self.report = Report(store.is_clean)

    def run(self, progress: Progress | None = None) -> Report:
        """Check the store and return the report. Raises StoreError if a file cannot be read."""
        store, report = self._store, self.report
        for topic, queue_id, files in store.queue_files():
            directory = store.config.consume_queue_path / topic / str(queue_id)
            self._queues[topic, queue_id] = self._queue(directory, files)
        report.log_file_count = len(store.log_files)
        report.min_offset = report.end_offset = store.min_offset
        for bad in store.bad_files:
            area = Area.LOG if bad.path.parent == store.config.commit_log_path else Area.QUEUE
            report.findings.append(Finding(area, bad.path, 0, bad.reason))
        for found in store.records(progress):
            if isinstance(found, Damage):
                self._damage(found)
            else:
                self._record(found)
        self._finish_queues()
        self._check_checkpoint()
        if not report.clean_stop:
            report.notes.append("the broker was not stopped cleanly; its next start recovers")
        return report

    def _damage(self, damage: Damage) -> None:
        report = self.report
        report.damages.append(damage)
        size = damage.end_position - damage.position
        text = f"{damage.reason}; {size} bytes are lost, good records follow"
        if damage.is_tail:
            text = f"{damage.reason}; no record follows: a write that a crash cut short"
        report.findings.append(
            Finding(Area.LOG, damage.path, damage.position, text, by_start=damage.is_tail)
        )

    def _record(self, record: ScannedRecord) -> None:
        report = self.report
        if not report.record_count:
            report.first_timestamp = record.store_timestamp
        report.record_count += 1
        report.record_bytes += record.size
        report.end_offset = record.offset + record.size
        report.last_timestamp = max(report.last_timestamp, record.store_timestamp)
        if record.sys_flag & TRANSACTION_MASK not in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            return
        if record.offset < self._deleted.get(record.topic, 0):
            self._deleted_count += 1
            return
        queue = self._queues.get((record.topic, record.queue_id))
        if queue is None:
            if self._topics is not None and record.topic not in self._topics:
                self._deleted_count += 1
                return
            if not is_directory_name(record.topic):
                return  # a broker makes no queue of it either
            directory = self._store.config.consume_queue_path / record.topic / str(record.queue_id)
            queue = self._queues[record.topic, record.queue_id] = self._queue(directory, [])
        # When a delayed message is due depends on settings of the broker that stored it.
        known = record.topic not in (SCHEDULE_TOPIC, TIMER_TOPIC)
        if not queue.compare(record, tags_code_of(record, self._delays) if known else None):
            if not self._left_out_count:
                self._first_left_out = record.offset
            self._left_out_count += 1

    def _queue(self, directory: Path, files: list[MappedFile]) -> _Queue:
        return _Queue(directory, files, clean_stop=self.report.clean_stop, extended=self._extended)

    def _finish_queues(self) -> None:
        report = self.report
        for (topic, _), queue in sorted(self._queues.items()):
            if not topic.startswith(LMQ_PREFIX):
                queue.finish(report.min_offset, report.end_offset)
                report.findings += queue.findings
            report.queue_count += 1
            report.unit_count += queue.unit_count
        if self._deleted_count:
            report.notes.append(f"{self._deleted_count} records belong to topics that were deleted")
        if self._left_out_count:
            report.notes.append(
                f"{self._left_out_count} records are in no queue, because their queue offsets are "
                f"impossible; the first of them lies at {self._first_left_out}"
            )

    def _check_checkpoint(self) -> None:
        path = self._store.config.checkpoint_path
        if self._store.disk.size(path) is None:
            self.report.notes.append("there is no checkpoint; an unclean start scans the whole log")
            return
        checkpoint = Checkpoint(self._store.disk, path)
        checkpoint.read()
        self._check_begin(checkpoint.log_begins)
        newest = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
        # Retention may have taken all messages that the checkpoint vouches for.
        if newest > self.report.last_timestamp and self.report.record_count:
            text = (
                f"it says that the log has messages up to {newest}, the last is of "
                f"{self.report.last_timestamp}: messages are missing at the end of the log"
            )
            self.report.findings.append(Finding(Area.FILES, path, 0, text))

    def _check_begin(self, begins: int | None) -> None:
        files = self._store.log_files
        if begins is None or (text := missing_in_front(begins, files)) is None:
            return
        size = self._store.config.mapped_file_size_commit_log
        name = f"{begins - begins % size:020d}"
        path = self._store.config.commit_log_path / name
        self.report.findings.append(Finding(Area.FILES, path, 0, text))


def known_topics(store: OfflineStore) -> set[str] | None:
    """Return the topics of config/topics.json, None when they cannot be read.

    The topics of the journal count, too, if a kill has left one.
    """
    config = store.config.store_path_root_dir / "config"
    try:
        topics = set(json.loads(store.disk.read(config / "topics.json"))["topicConfigTable"])
        if store.disk.size(config / "topics.journal") is not None:
            for line in store.disk.read(config / "topics.journal").splitlines():
                # A line is a CRC-32, which a start checks, and the change; the last line may be
                # torn.
                with suppress(ValueError, KeyError):
                    topics.add(json.loads(line[9:])["topic"]["topicName"])
    except Exception:  # noqa: BLE001 - without it only less is known
        return None
    return topics
