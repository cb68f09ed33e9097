"""Encode and decode the handle of a popped message, and the texts from which clients make handles (Java:
ExtraInfoUtil, KeyBuilder).

A handle, the property POP_CK, has these fields, with one blank between them:

| field | meaning |
| --- | --- |
| start offset | the lowest offset that one pop took of the queue |
| pop time | in ms; a message is acknowledged by the offset and this time |
| invisible time | for how many ms it is hidden |
| revive queue | 999 for a pop in order |
| mark | from which topic: 0 the one that was asked for, 1 and 2 its retry topics of version 1 and 2 |
| broker name, queue id | |
| offset | missing in handles of old clients, which say it beside the handle |
| commit-log offset | in handles of gRPC clients only |

The answer to a pop describes the messages in its body by entries with `;` between them:

| text | entry | example |
| --- | --- | --- |
| startOffsetInfo | mark, queue id, start offset | `0 3 100;1 0 7` |
| msgOffsetInfo | mark, queue id, offsets | `0 3 100,101,104;1 0 7` |
| orderCountInfo | mark, `qo<queue id>%<offset>`, how often it was delivered before; then for each queue: mark, queue id, the lowest of them | `0 qo3%100 1;0 3 0` |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from cometmq.errors import ProtocolError
from cometmq.model.names import RETRY_PREFIX

NORMAL: Final = "0"
RETRY_V1: Final = "1"
RETRY_V2: Final = "2"
_MARKS: Final = (NORMAL, RETRY_V1, RETRY_V2)
# The revive queue of pops in order.
ORDER_QUEUE: Final = 999
_FEWEST_FIELDS: Final = 7
_MOST_FIELDS: Final = 9


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the topic in which messages of `topic` wait that a group popped in vain (version 1)."""
    return f"{RETRY_PREFIX}{group}_{topic}"


def pop_retry_topic_v2(group: str, topic: str) -> str:
    """Return the topic that Java's brokers use for this if enableRetryTopicV2 is set."""
    return f"{RETRY_PREFIX}{group}+{topic}"


def mark_of(topic: str) -> str:
    """Return the mark of a topic from which a message was popped (Java: ExtraInfoUtil.getRetry)."""
    if not topic.startswith(RETRY_PREFIX):
        return NORMAL
    return RETRY_V2 if "+" in topic else RETRY_V1


def real_topic(topic: str, group: str, mark: str) -> str:
    """Return the topic from which a message was popped, by its mark. Raise ProtocolError for another mark."""
    if mark == NORMAL:
        return topic
    if mark == RETRY_V1:
        return pop_retry_topic(group, topic)
    if mark == RETRY_V2:
        return pop_retry_topic_v2(group, topic)
    raise ProtocolError(f"the mark of a retry topic is {mark[:20]!r}; it is one of 0, 1 and 2")


def asked_topic(topic: str, group: str) -> str:
    """Return the topic for which a group asked when it got a message of `topic`: another one for its retry topics."""
    for retry in (pop_retry_topic(group, ""), pop_retry_topic_v2(group, "")):
        if topic.startswith(retry):
            return topic[len(retry) :]
    return topic


class PopHandle(NamedTuple):
    """The content of a handle; `offset` and `commit_log_offset` are -1 where it has none."""

    start_offset: int
    pop_time: int
    invisible_time: int
    revive_qid: int
    mark: str
    broker_name: str
    queue_id: int
    offset: int = -1
    commit_log_offset: int = -1

    @property
    def is_ordered(self) -> bool:
        """Whether the message was popped in order."""
        return self.revive_qid == ORDER_QUEUE

    def encode(self) -> str:
        fields = _MOST_FIELDS
        if self.commit_log_offset < 0:
            fields = _FEWEST_FIELDS if self.offset < 0 else _FEWEST_FIELDS + 1
        return " ".join(map(str, self[:fields]))

    @classmethod
    def decode(cls, handle: str) -> PopHandle:
        """Decode a handle. Raise ProtocolError for a text that is none."""
        # Split no further than needed to see that there are too many: a header may have a million blanks.
        fields = handle.split(" ", _MOST_FIELDS)
        try:
            if not _FEWEST_FIELDS <= len(fields) <= _MOST_FIELDS or fields[4] not in _MARKS:
                raise _invalid(handle)
            start, popped, invisible, revive = map(_number, fields[:4])
            rest = [_number(each) for each in fields[6:]]
        except ValueError as error:
            raise _invalid(handle) from error
        return cls(start, popped, invisible, revive, fields[4], fields[5], *rest)


def _number(text: str) -> int:
    if len(text) > 20 or not text.removeprefix("-").isascii():
        raise ValueError(text)
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError(text)
    return value


def _invalid(handle: str) -> ProtocolError:
    return ProtocolError(
        f"the handle is invalid: {handle[:120]!r}; pass on the property POP_CK of the message"
    )


def start_offset_entry(mark: str, queue_id: int, start_offset: int) -> str:
    return f"{mark} {queue_id} {start_offset}"


def msg_offset_entry(mark: str, queue_id: int, offsets: Iterable[int]) -> str:
    return f"{mark} {queue_id} {','.join(map(str, offsets))}"


def order_count_entries(
    mark: str, queue_id: int, offsets: Sequence[int], counts: Sequence[int]
) -> list[str]:
    """Return the entries of a queue for messages that were delivered so often before."""
    entries = [
        f"{mark} qo{queue_id}%{offset} {count}"
        for offset, count in zip(offsets, counts, strict=True)
        if count > 0
    ]
    return [*entries, f"{mark} {queue_id} {min(counts, default=0)}"]


def decode_start_offsets(info: str) -> dict[tuple[str, int], int]:
    """Return the start offset by mark and queue id. Raise ProtocolError."""
    return {
        (mark, _integer(queue_id)): _integer(offset) for mark, queue_id, offset in _entries(info)
    }


def decode_order_counts(info: str) -> dict[tuple[str, str], int]:
    """Return how often messages were delivered before, by mark and `qo<queue id>%<offset>`, or by mark and
    queue id for all of a queue. Raise ProtocolError.
    """
    return {(mark, place): _integer(count) for mark, place, count in _entries(info)}


def _entries(info: str) -> list[tuple[str, str, str]]:
    entries: list[tuple[str, str, str]] = []
    seen: set[tuple[str, str]] = set()
    for text in info.split(";") if info else ():
        fields = text.split(" ")
        if len(fields) != 3:
            raise ProtocolError(
                f"an entry about popped messages is {text[:80]!r}; it has three parts"
            )
        mark, place, value = fields
        if (mark, place) in seen:
            raise ProtocolError(f"{mark} {place} stands twice among entries about popped messages")
        seen.add((mark, place))
        entries.append((mark, place, value))
    return entries


def _integer(text: str) -> int:
    try:
        return _number(text)
    except ValueError as error:
        raise ProtocolError(f"{text[:40]!r} is no number of 64 bits") from error
