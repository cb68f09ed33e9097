"""Read options that give offsets or times of storing: one for all queues, or a table.

    earliest                                           all queues
    {"orders": "latest"}                               all queues of a topic
    {"orders": {"broker-a": -2}}                       all queues of a topic at a broker
    {"orders": {"broker-a": {"0": 17, "1": -1}}}       single queues

The forms may be mixed, and the most exact one counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from cometmq.model.queue import MessageQueue
from cometmq.spark.options import Options

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# Numbers that stand for offsets, as in Spark's Kafka source.
_WORDS: Final = {-2: EARLIEST, -1: LATEST}
_INT64_MAX: Final = 2**63 - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NUMBER: Final = re.compile(r"-?\d+", re.ASCII)

Value = int | str
_Table = dict[str, Value | dict[str, Value | dict[str, Value]]]
# A topic, a broker's name and a queue id, or the first of these: () stands for all queues.
_Key = tuple[str, ...]
_MOST: Final = 3


class ByQueue:
    """Holds the values of an option by queue: offsets, `earliest` and `latest`, or times in ms."""

    def __init__(self, values: dict[_Key, Value]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"ByQueue({self._values!r})"

    def of(self, queue: MessageQueue) -> Value | None:
        """Return the most exact value for a queue, None if there is none."""
        key: _Key = (queue.topic, queue.broker_name, str(queue.queue_id))
        for length in range(_MOST, -1, -1):
            if key[:length] in self._values:
                return self._values[key[:length]]
        return None

    def time_of(self, queue: MessageQueue) -> int | None:
        """Return the time for a queue in ms, None if there is none."""
        value = self.of(queue)
        return None if value is None else int(value)

    @property
    def of_all(self) -> Value | None:
        """Return the value that stands for all queues."""
        return self._values.get(())

    def unknown(self, queues: Iterable[MessageQueue]) -> list[str]:
        """Return the entries that fit none of the queues."""
        known: set[_Key] = {()}
        for queue in queues:
            key = (queue.topic, queue.broker_name, str(queue.queue_id))
            known.update(key[:length] for length in range(1, _MOST + 1))
        return sorted(_shown(key) for key in self._values.keys() - known)


def offsets_option(options: Options, name: str, default: str) -> ByQueue:
    """Return the values of `startingOffsets` or `endingOffsets`. Raise IllegalArgumentError."""
    text = options.text(name) or default
    if text.lower() in (EARLIEST, LATEST):
        return ByQueue({(): text.lower()})
    example = f'{EARLIEST}, {LATEST} or {{"orders": {{"broker-a": {{"0": 17}}}}}}'

    def offset(key: _Key, value: Value) -> Value:
        if isinstance(value, str):
            if value.lower() in (EARLIEST, LATEST):
                return value.lower()
            raise options.error(
                name, f"gives {_shown(key)} {value!r}; words are {EARLIEST} and {LATEST}"
            )
        if value in _WORDS:
            return _WORDS[value]
        if value < 0:
            raise options.error(
                name,
                f"gives {_shown(key)} the offset {value}; below zero only -2 ({EARLIEST}) and -1 "
                f"({LATEST})",
            )
        if len(key) < _MOST:
            raise options.error(
                name,
                f"gives all queues of {_shown(key)} the offset {value}; that is for single queues, "
                f"as {{broker: {{queue: offset}}}}, and for all there are {EARLIEST} and {LATEST}",
            )
        return value

    return _table(options, name, example, offset)


def times_option(options: Options, one: str, by_queue: str) -> ByQueue | None:
    """Return the values of `startingTimestamp` or `startingOffsetsByTimestamp`, in ms since the
    epoch; likewise for the end. None if neither is given. Raise IllegalArgumentError.
    """
    text = options.text(one)
    if text is not None:
        return ByQueue({(): _time_ms(options, one, "", text)})
    if options.text(by_queue) is None:
        return None
    example = '{"orders": "2026-11-23T12:00:00Z"}'

    def time_ms(key: _Key, value: Value) -> Value:
        return _time_ms(options, by_queue, f"gives {_shown(key)} ", str(value))

    return _table(options, by_queue, example, time_ms)


# Inside


def _shown(key: _Key) -> str:
    """Name the queue as MessageQueue does, or the topic or broker."""
    return "@".join(key[:2]) + "".join(f":{queue_id}" for queue_id in key[2:])


def _table(
    options: Options, name: str, example: str, read: Callable[[_Key, Value], Value]
) -> ByQueue:
    text = options.need(name, example)
    try:
        table: Any = msgspec.json.decode(text.encode(), type=_Table)
    except msgspec.DecodeError as error:
        raise options.error(name, f"does not fit: {error}; for example {example}") from error
    values: dict[_Key, Value] = {}

    def add(key: _Key, found: Any) -> None:
        if not isinstance(found, dict):
            values[key] = read(key, found)
            return
        for part, below in found.items():
            if len(key) == _MOST - 1:
                if not (part.isascii() and part.isdigit()):
                    raise options.error(name, f"has a queue id that is no number: {part!r}")
                part = str(int(part))  # noqa: PLW2901 - "00" is queue 0
            add((*key, part), below)

    add((), table)
    return ByQueue(values)


def _time_ms(options: Options, name: str, place: str, text: str) -> int:
    if _NUMBER.fullmatch(text):
        time_ms = int(text)
        if not 0 <= time_ms <= _INT64_MAX:
            raise options.error(name, f"{place}is {text}, it must lie in 0..{_INT64_MAX}")
        return time_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise options.error(
            name,
            f"{place}is {text!r}, it must be ms since the epoch or a time such as "
            "2026-11-23T12:00:00Z",
        ) from None
    if moment.tzinfo is None:
        whole = moment.isoformat()
        raise options.error(
            name, f"{place}is {text!r}, which needs a zone: for example {whole}Z or {whole}+02:00"
        )
    if moment < _EPOCH:
        raise options.error(name, f"{place}is {text}, it must not be before 1970")
    return (moment - _EPOCH) // _MILLISECOND
