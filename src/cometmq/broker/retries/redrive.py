"""Send dead letters once more, selected by id, by key, or by the time at which they were given up.

Java has no counterpart; its console hands dead letters to a consumer one by one. The caller chooses
the id of a redrive. Under one id no letter is sent twice, whatever happens in between. The plan is on
disk before the first letter is sent. Letters are sent in the order of their queue. Each new record
names the redrive and (in `preparedTransactionOffset`) the letter that it was made from. So the log says
how far an interrupted redrive came, and the same call continues from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.broker.topics.topics import TopicManager
from cometmq.errors import ProtocolError, StoreBusyError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.java.ranges import Int64
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body, pretty_pieces
from cometmq.protocol.messages.fitting import drop_spare
from cometmq.protocol.messages.ids import encode_offset_id, parse_offset_id
from cometmq.protocol.messages.properties import (
    MAX_PROPERTIES_LENGTH,
    decode_properties,
    find_batch_id,
    find_property,
)
from cometmq.protocol.messages.record import StoredRecord, body_is_intact
from cometmq.protocol.redrive import REDRIVE_ID, LetterSelection
from cometmq.runtime.clock import Clock
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.state_files.files import Files
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.runtime.state_files.state_writer import StateWriter
from cometmq.store.log.following import LogFollower
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, ConsumeQueue, Unit
from cometmq.store.store import MessageStore

log = get_logger(__name__)

MAX_REDRIVES: Final = 10_000
MAX_ID_LENGTH: Final = 120
# Limit of all selections that are remembered together: their file is always written as a whole.
MAX_SELECTED_CHARACTERS: Final = 4 * 1024 * 1024
# Units of WorkBudget that a redrive spends between two turns of the loop.
_WORK_PER_TURN: Final = 500_000
# Cost of a letter: it is found, decoded and perhaps appended, and each byte is checked and copied.
_LETTER_COST: Final = 40_000
_LETTER_BYTE_COST: Final = 4
# Cost of a look at the head of a record in the log.
_GLANCE_COST: Final = 600
# Pause while a damaged unit of the dead letters' queue is being repaired.
_MENDING_PAUSE_S: Final = 0.02
# Properties that delays, retries and transactions left in the letter. The new message has none of
# them.
_LEFT_OUT: Final = (
    p.DELAY_TIME_LEVEL,
    p.REAL_TOPIC,
    p.REAL_QUEUE_ID,
    p.RETRY_TOPIC,
    p.TIMER_DELAY_SEC,
    p.TIMER_DELAY_MS,
    p.TIMER_DELIVER_MS,
    p.TIMER_OUT_MS,
    p.TIMER_ENQUEUE_MS,
    p.TIMER_DEQUEUE_MS,
    p.TRANSACTION_PREPARED,
    p.WAIT_STORE_MSG_OK,
    p.RECONSUME_TIME,
    p.MAX_RECONSUME_TIMES,
)


class RedriveState(msgspec.Struct, rename="camel"):
    """Holds the state of one redrive. Letters at queue offsets below `next_offset` are dealt with;
    those from `end_offset` on came too late for it. All records that the redrive has put into the
    log below `commit_log_offset` are counted here. `skipped_count` letters of the last run name a
    topic that does not exist, or one to which the caller may not send.
    """

    redrive_id: str
    group: str
    selection: LetterSelection
    only_group: bool
    started_ms: Int64
    next_offset: Int64
    end_offset: Int64
    commit_log_offset: Int64
    sent_count: Int64 = 0
    skipped_count: Int64 = 0
    finished: bool = False


class Redrives:
    """Keeps all redrives of a broker, in config/redrives.json. For the loop's thread only.

    `flush` writes all of the log to the disk. Call `open` when the store is open.
    """

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        topics: TopicManager,
        flush: Callable[[], Awaitable[object]],
        state: StateWriter,
        randomness: Randomness,
        files: Files | None = None,
    ) -> None:
        self._state = state
        self._randomness = randomness
        self._store = store
        self._clock = clock
        self._topics = topics
        self._flush = flush
        directory = store.config.store_path_root_dir / "config"
        self._file = JsonFile(directory / "redrives.json", files=files)
        self._states: dict[str, RedriveState] = {}
        # Progress of the redrives under way. It is kept apart from `_states`, which get it only
        # when the disk has the letters that it counts.
        self._running: dict[str, RedriveState] = {}

    def open(self) -> None:
        """Read the known redrives. Raises ConfigError for an unreadable file."""
        found = self._file.read(lambda text: decode_body(text.encode(), dict[str, RedriveState]))
        self._states = found or {}

    def get(self, redrive_id: str) -> RedriveState | None:
        """Return how far a redrive is; None for an unknown id."""
        return self._running.get(redrive_id) or self._states.get(redrive_id)

    def check(
        self, redrive_id: str, group: str, selection: LetterSelection, *, only_group: bool
    ) -> None:
        """Raise Refused if the id is in use for something else."""
        state = self._states.get(redrive_id)
        asked = (group, selection, only_group)
        if state is not None and (state.group, state.selection, state.only_group) != asked:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"redrive {redrive_id} has sent other letters (group {state.group}); choose a new id",
            )

    async def redrive(
        self,
        redrive_id: str,
        group: str,
        selection: LetterSelection,
        *,
        only_group: bool = False,
        may_send: Callable[[str], bool] = lambda _topic: True,
    ) -> RedriveState:
        """Send the selected letters of `group` once more; return when they are on disk.

        Each letter goes to the topic that it came from, to its first queue if that is still known.
        With `only_group` it goes to the group's retry topic, where no other group sees it. Letters
        of topics to which no client sends, or to which this client may send nothing (`may_send`),
        are skipped, because the sender of a letter wrote the topic in its properties.

        A call with the same id continues an interrupted redrive, and sends nothing if the redrive
        has finished. Raises Refused for an id that is in use for something else, a group without
        dead letters, or too many redrives; StoreError when the store fails, after which the same
        call continues.
        """
        self.check(redrive_id, group, selection, only_group=only_group)
        state = self._states.get(redrive_id)
        if state is None:
            state = self._new(redrive_id, group, selection, only_group)
        if redrive_id in self._running:
            raise Refused(ResponseCode.SYSTEM_BUSY, f"redrive {redrive_id} is running already")
        if state.finished:
            return state
        working = self._running[redrive_id] = msgspec.structs.replace(state)
        try:
            await self._save()
            await self._catch_up(working)
            await self._run(working, may_send)
            self._states[redrive_id] = working
            await self._save()
        finally:
            del self._running[redrive_id]
        return working

    def _new(
        self, redrive_id: str, group: str, selection: LetterSelection, only_group: bool
    ) -> RedriveState:
        if not 0 < len(redrive_id) <= MAX_ID_LENGTH or not redrive_id.isprintable():
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"a redrive id has 1 to {MAX_ID_LENGTH} printable characters, "
                f"got {redrive_id[:MAX_ID_LENGTH]!r}",
            )
        queue = self._store.queues.find(names.dlq_topic(group), 0)
        if queue is None or queue.next_offset == queue.min_offset:
            raise Refused(ResponseCode.QUERY_NOT_FOUND, f"group {group} has no dead letters here")
        self._forget_the_gone()
        if len(self._states) >= MAX_REDRIVES:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._states)} redrives are remembered, the limit MAX_REDRIVES is "
                f"{MAX_REDRIVES}; the oldest goes when its dead letters have left the log",
                limit="MAX_REDRIVES",
            )
        characters = sum(_size(state.selection) for state in self._states.values())
        if characters + _size(selection) > MAX_SELECTED_CHARACTERS:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"the ids and keys of remembered redrives have {characters} characters and these "
                f"{_size(selection)}, the limit MAX_SELECTED_CHARACTERS is {MAX_SELECTED_CHARACTERS}; "
                "select by a time range, or wait until the dead letters of older ones have left the log",
                limit="MAX_SELECTED_CHARACTERS",
            )
        state = self._states[redrive_id] = RedriveState(
            redrive_id,
            group,
            selection,
            only_group,
            self._clock.now_ms(),
            next_offset=self._store.offset_by_time(queue.topic, 0, selection.begin_ms),
            end_offset=queue.next_offset,
            commit_log_offset=self._store.commit_log.end,
        )
        return state

    def _forget_the_gone(self) -> None:
        """Forget redrives whose letters have all left the log: they can send none again."""
        for redrive_id, state in list(self._states.items()):
            queue = self._store.queues.find(names.dlq_topic(state.group), 0)
            gone = queue is None or queue.min_offset >= state.end_offset
            if gone and redrive_id not in self._running:
                del self._states[redrive_id]

    async def _run(self, state: RedriveState, may_send: Callable[[str], bool]) -> None:
        queue = self._store.queue(names.dlq_topic(state.group), 0)
        if state.only_group:
            self._topics.create_for_group(names.retry_topic(state.group), 1)
            await self._topics.written()
        left = _WORK_PER_TURN
        while state.next_offset < state.end_offset:
            state.next_offset = max(state.next_offset, queue.min_offset)
            unit = await self._unit(queue, state.next_offset)
            record = None
            if unit is not None and unit.size != PLACEHOLDER_SIZE:
                record = self._store.stored_record(unit.physical_offset)
            if record is not None:
                self._deal_with(state, record, may_send)
            state.next_offset += 1
            left -= _LETTER_COST
            if record is not None:
                left -= len(record.body) * _LETTER_BYTE_COST
            if left <= 0:
                await asyncio.sleep(0)
                left = _WORK_PER_TURN
        end = self._store.commit_log.end
        # Only what the disk has counts as done: after a power failure the rest is sent again.
        await self._flush()
        state.commit_log_offset = end
        state.finished = True
        log.info(
            "dead letters sent again",
            redrive_id=state.redrive_id,
            group=state.group,
            sent=state.sent_count,
            skipped=state.skipped_count,
        )

    async def _unit(self, queue: ConsumeQueue, queue_offset: int) -> Unit | None:
        while True:
            try:
                return self._store.mender.unit(queue, queue_offset)
            except StoreBusyError:
                await asyncio.sleep(_MENDING_PAUSE_S)

    def _deal_with(
        self, state: RedriveState, letter: StoredRecord, may_send: Callable[[str], bool]
    ) -> None:
        properties = decode_properties(letter.properties)
        if not _selects(state.selection, letter, properties):
            return
        message = self._message(state, letter, properties, may_send)
        if message is not None and not drop_spare(message.properties):
            log.error(
                "dead letter not sent again: with the redrive's id its properties exceed the limit",
                physical_offset=letter.physical_offset,
                limit=f"MAX_PROPERTIES_LENGTH={MAX_PROPERTIES_LENGTH}",
                remedy="choose a shorter id",
            )
            message = None
        if message is None:
            state.skipped_count += 1
            return
        message.append_to(self._store)
        state.sent_count += 1

    def _message(
        self,
        state: RedriveState,
        letter: StoredRecord,
        properties: dict[str, str],
        may_send: Callable[[str], bool],
    ) -> IncomingMessage | None:
        topic = properties.get(p.RETRY_TOPIC)
        config = self._topics.get(topic) if topic is not None else None
        if topic is None or config is None or config.write_queue_nums < 1:
            return None
        if not state.only_group and (topic in names.CLOSED_TOPICS or not may_send(topic)):
            return None
        if not body_is_intact(letter):  # a copy would seem to be intact
            log.error("damaged dead letter not sent again", physical_offset=letter.physical_offset)
            return None
        first_queue_id = self._first_queue_id(properties, topic)
        for name in _LEFT_OUT:
            properties.pop(name, None)
        properties[REDRIVE_ID] = state.redrive_id
        message = IncomingMessage.again(letter, properties)
        message.reconsume_times = 0
        message.prepared_transaction_offset = letter.physical_offset
        if state.only_group:
            properties[p.RETRY_TOPIC] = topic
            message.topic = names.retry_topic(state.group)
            queues = self._topics.create_for_group(message.topic, 1).write_queue_nums
            message.queue_id = self._randomness.randrange(max(1, queues))
        else:
            message.topic = topic
            message.queue_id = self._randomness.randrange(config.write_queue_nums)
            if first_queue_id is not None and first_queue_id < config.write_queue_nums:
                message.queue_id = first_queue_id
        return message

    def _first_queue_id(self, properties: dict[str, str], topic: str) -> int | None:
        try:
            first = parse_offset_id(properties.get(p.ORIGIN_MESSAGE_ID, ""))
        except ProtocolError:
            return None
        record = self._store.stored_record(first.commit_log_offset)
        unique_id = properties.get(p.UNIQ_CLIENT_MESSAGE_ID)
        if record is None or record.topic != topic:
            return None
        # A letter that a Java broker wrote has the id of the batch, if the message came in one.
        own_id = find_property(record.properties, p.UNIQ_CLIENT_MESSAGE_ID)
        if unique_id != own_id and unique_id != find_batch_id(record.properties):
            return None
        return record.queue_id

    async def _catch_up(self, state: RedriveState) -> None:
        """Find in the log what was sent before the redrive was interrupted."""
        records = LogFollower(self._store.commit_log, state.commit_log_offset)
        left = 0
        for offset, _, origin in records:
            if left <= 0:
                await asyncio.sleep(0)
                left = _WORK_PER_TURN
            left -= _GLANCE_COST
            if origin <= 0:
                continue
            # Anybody may send records that name an origin. Each one then costs the decoding of two
            # records.
            left -= 2 * _LETTER_COST
            letter = self._store.stored_record(origin)
            if letter is None or letter.topic != names.dlq_topic(state.group):
                continue
            record = self._store.stored_record(offset)
            if record is None:
                continue
            if find_property(record.properties, REDRIVE_ID) != state.redrive_id:
                continue
            state.next_offset = max(state.next_offset, letter.queue_offset + 1)
            state.sent_count += 1

    async def _save(self) -> None:
        try:
            await self._state.save(self._file, lambda: pretty_pieces(dict(self._states)))
        except OSError as error:
            raise StoreError(f"{self._file.path} cannot be written: {error}") from error


def _size(selection: LetterSelection) -> int:
    return sum(map(len, selection.ids)) + sum(map(len, selection.keys))


def _selects(selection: LetterSelection, letter: StoredRecord, properties: dict[str, str]) -> bool:
    if not selection.begin_ms <= letter.store_timestamp <= selection.end_ms:
        return False
    if selection.keys and set(properties.get(p.KEYS, "").split()).isdisjoint(selection.keys):
        return False
    own_id = encode_offset_id(letter.store_host, letter.physical_offset)
    return not selection.ids or not {
        own_id,
        properties.get(p.UNIQ_CLIENT_MESSAGE_ID, own_id),
        properties.get(p.ORIGIN_MESSAGE_ID, own_id),
    }.isdisjoint(selection.ids)
