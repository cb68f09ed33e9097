"""Take messages in: codes 10, 310 and 320 (Java: SendMessageProcessor).

This is the broker's hot path. Everything that depends on the topic alone is computed once and kept
until the topic changes. The common message costs no dict and no await.

Longer than 500 lines: all that one send may meet is compiled together, and is read in one go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Final, NoReturn

import msgspec

from cometmq.broker.delays.put import MessagePut, delay_level
from cometmq.broker.delays.recall import recall_handle
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.broker.retries.retry import RetryHandler
from cometmq.broker.sends.first_sends import FirstSends, SendRequest
from cometmq.broker.sends.large_batches import LargeBatches
from cometmq.broker.storage.group_commit import GroupCommit
from cometmq.errors import LimitError, ProtocolError
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.java.hashing import java_hash
from cometmq.model.sysflag import MULTI_TAGS, PERM_WRITE, TRANSACTION_MASK
from cometmq.model.topic import TopicConfig
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import answer_template, encode_answer
from cometmq.protocol.frame import frame_prefix
from cometmq.protocol.headers import SendMessageHeader
from cometmq.protocol.messages.batch import BatchEntry, decode_some
from cometmq.protocol.messages.ids import UniqueIdGenerator
from cometmq.protocol.messages.properties import (
    MANY_PROPERTIES_LENGTH,
    MAX_PROPERTIES,
    MAX_PROPERTIES_LENGTH,
    PROPERTY_SEPARATOR,
    decode_properties,
    encode_properties,
    property_finder,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.randomness import Randomness
from cometmq.runtime.slices import run_slices
from cometmq.runtime.surroundings import current
from cometmq.store.queues.consume_queue import ConsumeQueue, PutTotals

_find_unique_id: Final = property_finder(p.UNIQ_CLIENT_MESSAGE_ID)
_find_tags: Final = property_finder(p.TAGS)
_WAIT_NOT: Final = f"{p.WAIT_STORE_MSG_OK}\x01false"
# The messages of a larger batch are taken in in steps.
_MOST_AT_ONCE: Final = 256
# Of so many messages of a topic one is timed: a power of two, less one.
_UNTIMED: Final = 63
# Bytes of the largest batch that is looked at as a whole.
_LOOKED_THROUGH: Final = 128 * 1024
_LONGEST_INT32: Final = 10
_DELAY_PROPERTIES: Final = (p.TIMER_DELIVER_MS, p.TIMER_DELAY_MS, p.TIMER_DELAY_SEC)


class _Target:
    """Holds a topic that messages may be sent to, and its queues, opened when first used."""

    __slots__ = (
        "is_retry",
        "name",
        "queue_limit",
        "queues",
        "randomness",
        "sys_flag",
        "write_queue_nums",
    )

    def __init__(self, topic: TopicConfig, randomness: Randomness) -> None:
        self.name = topic.topic_name
        self.randomness = randomness
        self.is_retry = names.is_retry_topic(topic.topic_name)
        self.write_queue_nums = topic.write_queue_nums
        self.queue_limit = max(topic.write_queue_nums, topic.read_queue_nums)
        self.sys_flag = MULTI_TAGS if topic.topic_filter_type == "MULTI_TAG" else 0
        self.queues: list[ConsumeQueue | None] = [None] * self.queue_limit

    def queue_for(self, queue_id: int) -> int:
        """Return the queue id to use; for a negative id, that of a random queue that is written to.

        Raises Refused for a queue that the topic does not have.
        """
        if 0 <= queue_id < self.queue_limit:
            return queue_id
        if queue_id >= self.queue_limit:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, topic [{self.name}] has "
                f"{self.queue_limit} queues (0..{self.queue_limit - 1})",
            )
        if self.write_queue_nums < 1:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"topic[{self.name}] has no queues to write to"
            )
        return self.randomness.randrange(self.write_queue_nums)


class SendHandler:
    """Serves the sends of one broker. For the loop's thread only.

    `put_half` stores the half message of a transaction, as `MessagePut.put` stores others. With
    `group_commit` the answer waits until the message is safe, unless its sender does not wait;
    `check` then raises Refused while messages cannot become safe.
    A message whose topic is new waits until the disk has the topic and `announced` has returned:
    see `FirstSends`.
    """

    def __init__(
        self,
        parts: Parts,
        put: MessagePut,
        put_half: Callable[[IncomingMessage], tuple[int, int]],
        retry: RetryHandler,
        announced: Callable[[], Awaitable[None]],
        group_commit: GroupCommit | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        config = parts.config
        self._config = config
        self._store = parts.store
        self._randomness = parts.randomness
        self._monotonic = parts.clock.monotonic
        self._topics = parts.topics
        self._groups = parts.groups
        self._put = put
        self._retry = retry
        self._put_half = put_half
        self._group_commit = group_commit
        self._check = check
        serve = self.send if check is None else self._check_and_send
        self._serve: Callable[[Connection, SendRequest], None] = serve
        self._targets: dict[str, _Target] = {}
        self._announced = announced
        self.large_batches = LargeBatches(parts.store, parts.workers)
        self._first_sends = FirstSends(
            self._open_target, self._ready, self._serve, self._is_there, parts.tasks
        )
        self._unique_ids = UniqueIdGenerator(
            parts.packed_host[:-4],
            current().process_id(),
            now_ms=parts.clock.now_ms,
            randbytes=self._randomness.randbytes,
        )
        self._packed_host = parts.packed_host
        self._host_hex = parts.packed_host.hex().upper().encode()
        parts.store.on_settings_changed.append(self._configure)
        self._configure()

    def _configure(self) -> None:
        """Obey maxMessageSize and traceOn as they are now."""
        config = self._config
        self._max_message_size = self._store.config.max_message_size
        self._own_properties = {
            p.CLUSTER: config.broker_cluster_name,
            p.MSG_REGION: config.region_id,
            p.TRACE_SWITCH: "true" if config.trace_on else "false",
        }
        self._own_properties_text = encode_properties(self._own_properties)
        self._own_ext = b'"MSG_REGION":%b,"TRACE_ON":"%b",' % (
            msgspec.json.encode(config.region_id),
            self._own_properties[p.TRACE_SWITCH].encode(),
        )
        # Template of the answer to one message. It is filled with the commit-log offset, queue,
        # queue offset and unique id.
        self._ext_json = b'%b"msgId":"%b%%016X","queueId":"%%d","queueOffset":"%%d",' % (
            self._own_ext.replace(b"%", b"%%"),
            self._host_hex,
        )
        self._ext_json += b'"transactionId":"%b"'
        self._answer = answer_template(self._ext_json)

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.SEND_MESSAGE, self._serve)
        handlers.register(requests.SEND_MESSAGE_V2, self._serve)
        handlers.register(requests.SEND_BATCH_MESSAGE, self._serve)

    def topic_changed(self, topic: str) -> None:
        """Forget what was computed for `topic`."""
        self._targets.pop(topic, None)

    async def queue_for(self, header: SendMessageHeader) -> int:
        """Return the queue that a message goes to, after the checks of a send. Raises Refused."""
        target = self._targets.get(header.topic)
        if target is None:
            target = self._open_target(header)
            await self._topics.written()
        return target.queue_for(header.queue_id)

    def _check_and_send(self, connection: Connection, request: SendRequest) -> None:
        if self._check is not None and _WAIT_NOT not in (request.header.properties or ""):
            self._check()
        self.send(connection, request)

    def send(self, connection: Connection, request: SendRequest) -> None:
        """Store one message, or a batch of them, and answer where it lies.

        The answer may wait for the disk and for slaves, and the message for its topic.
        """
        header = request.header
        target = self._targets.get(header.topic)
        if target is None:
            if self._must_wait(header):
                self._first_sends.hold(header.topic, connection, request)
                return
            target = self._open_target(header)
        queue_id = header.queue_id
        if not 0 <= queue_id < target.queue_limit:
            queue_id = target.queue_for(queue_id)
        queue = target.queues[queue_id]
        if queue is None:
            queue = target.queues[queue_id] = self._store.queue(target.name, queue_id)
        if header.batch:  # this field counts, not the code (Java: SendMessageProcessor)
            self._send_batch(connection, request, header, queue, target.sys_flag)
            return

        totals = queue.totals
        began_s = 0.0 if totals.message_count & _UNTIMED else self._monotonic()
        body = request.frame.body
        if not 0 < len(body) <= self._max_message_size:
            self._refuse_body(len(body))
        text = header.properties or ""
        if len(text) > MANY_PROPERTIES_LENGTH:
            self._check_properties(text)
        # Substrings first: only a message that may be special pays for a closer look.
        if (
            "DELAY" in text
            or "TIMER_D" in text
            or "_MSG" in text  # in those of half messages and of priorities
            or "CLUSTER\x01" in text
            or "POP_CK\x01" in text
            or target.is_retry
        ):
            self._send_special(connection, request, header, target, queue_id)
            return
        properties, unique_id, tags_code = self._stored_properties(text)
        queue_offset, physical_offset = self._store.append(
            queue,
            body,
            properties,
            tags_code,
            header.born_timestamp,
            connection.packed_peer,
            flag=header.flag,
            sys_flag=header.sys_flag | target.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )
        # A client's id may contain any character, so it may have to be escaped.
        quotable = unique_id.encode() if unique_id.isalnum() else _quoted(unique_id)[1:-1]
        if self._group_commit is None:
            answer = self._answer % (
                physical_offset,
                queue_id,
                queue_offset,
                quotable,
                request.opaque,
            )
            connection.reply_encoded(request, frame_prefix(len(answer), 0) + answer)
            if began_s:
                totals.sample(len(body), self._monotonic() - began_s)
            return
        ext_json = self._ext_json % (physical_offset, queue_id, queue_offset, quotable)
        timed = partial(self._answered, totals, len(body), began_s) if began_s else None
        self._acknowledge(connection, request, header, ext_json, timed)

    def _answered(self, totals: PutTotals, size: int, began_s: float) -> None:
        """Count a send of a topic that is answered now."""
        totals.sample(size, self._monotonic() - began_s)

    def _acknowledge(
        self,
        connection: Connection,
        request: SendRequest,
        header: SendMessageHeader,
        ext_json: bytes,
        answered: Callable[[], None] | None = None,
    ) -> None:
        """Answer a send whose messages are the last in the log, and call `answered` then."""
        if self._group_commit is None or _WAIT_NOT in (header.properties or ""):
            connection.reply_encoded(request, encode_answer(request.opaque, ext_json))
            if answered is not None:
                answered()
            return
        self._group_commit.answer_when_safe(
            self._store.commit_log.end, connection, request, ext_json, answered
        )

    def _stored_properties(self, text: str) -> tuple[bytes, str, int]:
        """Return the properties as they are stored, the unique id and the tags code."""
        unique_id = _find_unique_id(text)
        tags = _find_tags(text)
        if text and not text.endswith(PROPERTY_SEPARATOR):
            text += PROPERTY_SEPARATOR
        if unique_id is None:
            unique_id = self._unique_ids.next()
            text += encode_properties({p.UNIQ_CLIENT_MESSAGE_ID: unique_id})
        stored = (text + self._own_properties_text).encode()
        if len(stored) > MAX_PROPERTIES_LENGTH:
            self._refuse_properties(len(stored))
        return stored, unique_id, java_hash(tags) if tags else 0

    def _send_special(
        self,
        connection: Connection,
        request: SendRequest,
        header: SendMessageHeader,
        target: _Target,
        queue_id: int,
    ) -> None:
        """Serve, as `send` does, a message that is delayed, retried, half of a transaction or has a priority."""
        properties = decode_properties(header.properties or "")
        # A message that was popped from one topic and is sent to another is not popped there.
        properties.pop(p.POP_CK, None)
        if p.PRIORITY in properties:
            queue_id = _queue_of_priority(properties, target, queue_id)
        unique_id = properties.get(p.UNIQ_CLIENT_MESSAGE_ID)
        if unique_id is None:
            unique_id = properties[p.UNIQ_CLIENT_MESSAGE_ID] = self._unique_ids.next()
        properties.update(self._own_properties)
        message = IncomingMessage(
            target.name,
            queue_id,
            request.frame.body,
            properties,
            header.born_timestamp,
            connection.packed_peer,
            flag=header.flag,
            sys_flag=header.sys_flag | target.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )
        if target.is_retry:
            unwritten = self._retry.redirect(message, header.max_reconsume_times, request.version)
            if unwritten is not None:
                self._first_sends.hold(unwritten, connection, request)
                return
        if self._is_half(message):
            queue_offset, physical_offset = self._put_half(message)
        else:
            queue_offset, physical_offset = self._put.put(message)
        handle = recall_handle(message, self._config.broker_name)
        self._acknowledge(
            connection,
            request,
            header,
            b'%b"msgId":"%b%016X","queueId":"%d","queueOffset":"%d",%b"transactionId":%b'
            % (
                self._own_ext,
                self._host_hex,
                physical_offset,
                queue_id,
                queue_offset,
                b'"recallHandle":"%b",' % handle.encode() if handle else b"",
                _quoted(unique_id),
            ),
        )

    def _is_half(self, message: IncomingMessage) -> bool:
        if message.properties.get(p.TRANSACTION_PREPARED, "").lower() != "true":
            return False
        # A client before 4.6.1 leaves the property in the message when it sends it for a retry.
        return not (message.reconsume_times > 0 and delay_level(message.properties) > 0)

    def _send_batch(
        self,
        connection: Connection,
        request: SendRequest,
        header: SendMessageHeader,
        queue: ConsumeQueue,
        topic_sys_flag: int,
    ) -> None:
        began_s = self._monotonic()
        body = request.frame.body
        if not 0 < len(body) <= self._max_message_size:
            self._refuse_body(len(body))
        text = header.properties or ""
        self._check_properties(text)
        if header.sys_flag & TRANSACTION_MASK:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"sysFlag {header.sys_flag} says that a batch belongs to a transaction; send its "
                "messages one by one",
            )
        if names.is_retry_topic(header.topic):
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"batch request does not support retry group [{header.topic}]",
            )
        if "DELAY" in text or "TIMER_D" in text:
            delays = _batch_delays(text)
            if delays:
                checked = self._checked(body)
                connection.reply_when(
                    request,
                    self._send_timed(connection, request, queue, topic_sys_flag, checked, delays),
                )
                return
        entries, tags_codes, end = self._decode_some(body, 0, 0, _MOST_AT_ONCE)
        if end < len(body):
            messages = chain(
                zip(entries, tags_codes, strict=True), self._checked(body, end, len(entries))
            )
            connection.reply_when(
                request,
                self._send_large(connection, request, queue, topic_sys_flag, messages, began_s),
            )
            return
        first_queue_offset, physical_offsets = self._store.append_batch(
            queue,
            entries,
            tags_codes,
            header.born_timestamp,
            connection.packed_peer,
            sys_flag=header.sys_flag | topic_sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )
        self._acknowledge_batch(
            connection, request, queue, physical_offsets, first_queue_offset, began_s
        )

    async def _send_timed(
        self,
        connection: Connection,
        request: SendRequest,
        queue: ConsumeQueue,
        topic_sys_flag: int,
        checked: Iterable[tuple[BatchEntry, int]],
        delays: dict[str, str],
    ) -> None:
        """Let each message of a batch wait, as its own header says, in steps.

        Java's broker adds the properties of a batch to those of its messages.
        """
        began_s = self._monotonic()
        # All are checked before the first one is stored.
        entries: list[BatchEntry] = []
        await run_slices(map(entries.append, (entry for entry, _ in checked)))
        places: list[tuple[int, int]] = []
        put = partial(self._put_timed, connection, request, queue, topic_sys_flag, delays, places)
        await run_slices(map(put, entries))
        offsets = [place for _, place in places]
        self._acknowledge_batch(connection, request, queue, offsets, places[0][0], began_s)

    def _put_timed(
        self,
        connection: Connection,
        request: SendRequest,
        queue: ConsumeQueue,
        topic_sys_flag: int,
        delays: dict[str, str],
        places: list[tuple[int, int]],
        entry: BatchEntry,
    ) -> None:
        """Store one message of a batch, and add its place.

        A method: a function in a compiled coroutine leaves an exception behind as the handled one of
        its thread, and later errors name it as their context.
        """
        header = request.header
        message = IncomingMessage(
            queue.topic,
            queue.queue_id,
            entry.body,
            decode_properties(entry.properties.decode("utf-8", "replace")) | delays,
            header.born_timestamp,
            connection.packed_peer,
            flag=entry.flag,
            sys_flag=header.sys_flag | topic_sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )
        places.append(self._put.put(message))

    async def _send_large(
        self,
        connection: Connection,
        request: SendRequest,
        queue: ConsumeQueue,
        topic_sys_flag: int,
        messages: Iterable[tuple[BatchEntry, int]],
        began_s: float,
    ) -> None:
        """Store a batch of many messages, all at once, and do the rest in steps."""
        header = request.header
        batch = self._store.batch_records(
            queue,
            header.born_timestamp,
            connection.packed_peer,
            sys_flag=header.sys_flag | topic_sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )
        first_queue_offset, begin = await self.large_batches.store(batch, messages)
        offsets = [begin + start for start in batch.starts]
        self._acknowledge_batch(connection, request, queue, offsets, first_queue_offset, began_s)

    def _checked(
        self, body: bytes, position: int = 0, count: int = 0
    ) -> Iterator[tuple[BatchEntry, int]]:
        """Yield the messages of a batch from `position` on, behind `count` others, and their tags codes.
        Raises Refused.
        """
        while position < len(body):
            entries, tags_codes, position = self._decode_some(body, position, count, 1)
            count += 1
            yield entries[0], tags_codes[0]

    def _decode_some(
        self, body: bytes, position: int, count: int, most: int
    ) -> tuple[list[BatchEntry], list[int], int]:
        """Decode and check messages of a batch, as `decode_some` does; return them, their tags codes and
        the position of the next one. Raises Refused.
        """
        try:
            entries, end = decode_some(body, position, count, most)
        except ProtocolError as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, str(error), limit=error.limit) from error
        tags_codes: list[int] = []
        # A look at the whole body, which takes microseconds, saves one at the properties of each message.
        plain = most > 1 and len(body) <= _LOOKED_THROUGH and not _may_be_special(body)
        for entry in entries:
            tagged = b"TAGS" in entry.properties
            properties = ""
            if tagged or not plain:
                properties = entry.properties.decode("utf-8", "replace")
            if not plain:
                self._refuse_special(properties)
            if not entry.body:
                self._refuse_body(0)
            if len(entry.properties) > MAX_PROPERTIES_LENGTH:
                self._refuse_properties(len(entry.properties))
            tags = _find_tags(properties) if tagged else None
            tags_codes.append(java_hash(tags) if tags else 0)
        return entries, tags_codes, end

    def _acknowledge_batch(
        self,
        connection: Connection,
        request: SendRequest,
        queue: ConsumeQueue,
        offsets: list[int],
        first_queue_offset: int,
        began_s: float,
    ) -> None:
        host = self._packed_host
        # The id of a message is its place in hexadecimal digits: host, port and commit-log offset.
        places = b"".join([host + offset.to_bytes(8, "big") for offset in offsets])
        message_ids = places.hex(",", len(host) + 8).upper().encode()
        unique_id = _find_unique_id(request.header.properties or "")
        self._acknowledge(
            connection,
            request,
            request.header,
            # No batchUniqId: it would mean to a Java client that the batch lies in one record.
            b'%b"msgId":"%b","queueId":"%d","queueOffset":"%d"%b'
            % (
                self._own_ext,
                message_ids,
                queue.queue_id,
                first_queue_offset,
                b"" if unique_id is None else b',"transactionId":%b' % _quoted(unique_id),
            ),
            partial(
                self._answered,
                queue.totals,
                len(request.frame.body) // len(offsets),
                began_s,
            ),
        )

    def _refuse_special(self, text: str) -> None:
        """Refuse delays and transactions in a message of a batch (Java: MessageBatch)."""
        if "DELAY" in text or "TIMER_D" in text or "TRAN_MSG" in text:
            for name, value in decode_properties(text).items():
                delayed = name in _DELAY_PROPERTIES or (name == p.DELAY_TIME_LEVEL and value != "0")
                if delayed or (name == p.TRANSACTION_PREPARED and value == "true"):
                    raise Refused(
                        ResponseCode.MESSAGE_ILLEGAL,
                        f"property {name}={value}: a batch carries no delayed or transactional "
                        "messages; send them one by one",
                    )

    def _open_target(self, header: SendMessageHeader) -> _Target:
        """Check all that depends on the topic, in Java's order; make the topic if allowed."""
        name = header.topic
        if fault := names.topic_fault(name):
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        if name in names.CLOSED_TOPICS:
            raise Refused(
                ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden."
            )
        topic = self._topics.create_on_send(
            name, header.default_topic, header.default_topic_queue_nums
        )
        if names.is_retry_topic(name):
            group = name.removeprefix(names.RETRY_PREFIX)
            if self._groups.find(group) is None:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._groups.unknown(group)
                )
            topic = topic or self._topics.create_for_group(name, 1)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! It is made on the first send only "
                f"when autoCreateTopicEnable is true and {header.default_topic or 'the topic that the send names'} may be inherited",
            )
        # A topic's own permission only steers routes: senders that have an old route are still
        # served.
        if topic.order and not self._config.broker_permission & PERM_WRITE:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._config.broker_ip1}] sending message is forbidden: "
                f"brokerPermission is {self._config.broker_permission}",
            )
        target = _Target(topic, self._randomness)
        if name not in self._first_sends:
            self._targets[name] = target
        return target

    def _check_properties(self, text: str) -> None:
        if len(text) > MAX_PROPERTIES_LENGTH:
            self._refuse_properties(len(text))
        if (count := text.count(PROPERTY_SEPARATOR)) > MAX_PROPERTIES:
            raise LimitError(
                "properties of the message",
                count,
                "MAX_PROPERTIES",
                MAX_PROPERTIES,
                "put them into the body",
                code=ResponseCode.MESSAGE_ILLEGAL,
            )

    def _refuse_properties(self, length: int) -> NoReturn:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message's properties take {length} bytes, the limit MAX_PROPERTIES_LENGTH is "
            f"{MAX_PROPERTIES_LENGTH}, those of the broker included; move large values into the body",
            limit="MAX_PROPERTIES_LENGTH",
        )

    def _must_wait(self, header: SendMessageHeader) -> bool:
        """Say whether the send must wait for its topic, or behind other sends that do."""
        name = header.topic
        if name in self._first_sends:
            return self._first_sends.serving != name
        if self._is_there(name):
            return False
        if fault := names.topic_fault(name):
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        return True

    def _is_there(self, topic: str) -> bool:
        return self._topics.get(topic) is not None and self._topics.is_written(topic)

    async def _ready(self) -> None:
        await self._topics.written()
        await self._announced()

    def _refuse_body(self, length: int) -> NoReturn:
        if length == 0:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL, "the message body is empty; send at least one byte"
            )
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message body has {length} bytes, the limit maxMessageSize is "
            f"{self._max_message_size}; send a smaller message, or raise it",
            limit="maxMessageSize",
        )


def _may_be_special(text: bytes) -> bool:
    """Say whether the names of properties that a message of a batch may not have stand anywhere in it."""
    return b"DELAY" in text or b"TIMER_D" in text or b"TRAN_MSG" in text


def _batch_delays(text: str) -> dict[str, str]:
    """Return the timer's properties in those of a batch. Raises Refused for a delay level, as in Java."""
    properties = decode_properties(text)
    level = delay_level(properties)
    if level > 0:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"property {p.DELAY_TIME_LEVEL}={level}: a batch has no delay level; send its messages one "
            "by one, or delay the batch by a time",
        )
    return {name: properties[name] for name in _DELAY_PROPERTIES if name in properties}


def _quoted(text: str) -> bytes:
    """Return `text` as a JSON string."""
    # Unique ids are hex digits; a client may have put anything else there.
    return b'"%b"' % text.encode() if text.isalnum() else msgspec.json.encode(text)


def _queue_of_priority(properties: dict[str, str], target: _Target, queue_id: int) -> int:
    """Return the queue whose number is the message's priority: they are popped from the highest one down. A
    message that is delayed, half of a transaction or one of an order has none (Java: TopicMessageType).
    """
    if (
        properties.get(p.TRANSACTION_PREPARED) == "true"
        or p.DELAY_TIME_LEVEL in properties
        or p.SHARDING_KEY in properties
        or not properties.keys().isdisjoint(_DELAY_PROPERTIES)
    ):
        del properties[p.PRIORITY]
        return queue_id
    priority = properties[p.PRIORITY]
    if target.write_queue_nums < 1 or not (priority.isascii() and priority.isdigit()):
        return queue_id
    highest = target.write_queue_nums - 1
    return min(int(priority), highest) if len(priority) <= _LONGEST_INT32 else highest
