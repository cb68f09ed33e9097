"""Turn rows into messages: the columns that the sink takes, and what each becomes.

| column | type | |
| body | binary or string | needed |
| topic | string | unless the option `topic` names one for all |
| tags | string | |
| keys | string, array<string> | |
| properties | map<string,string> | without those that brokers and clients write themselves |
| sharding_key | string | rows of the same key go to the same queue; kept as the property __SHARDINGKEY |
| delay_level, deliver_time | int, timestamp | |
| flag | int | |

A DataFrame may have all other columns of the sources. The sink ignores them, except those of ORIGIN
when `keepOrigin` is true.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES
from cometmq.errors import IllegalArgumentError
from cometmq.model import properties as p
from cometmq.model.names import FORBIDDEN_SEND_TOPICS, check_topic
from cometmq.protocol.messages.properties import MAX_PROPERTIES_LENGTH
from cometmq.spark.decoding.columns import REASON
from cometmq.spark.rows.columns import COLUMNS

TAKEN: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("array<string>", "string"),
    "properties": ("map<string,string>",),
    "sharding_key": ("string",),
    "delay_level": ("int", "bigint"),
    "deliver_time": ("timestamp",),
    "flag": ("int", "bigint"),
    # The reason why `decode` could not decode the row's body. A row with a reason is no message.
    REASON: ("string",),
}
# The properties that `keepOrigin` makes of a source's columns. Times are milliseconds since the
# epoch.
ORIGIN: Final = {
    "topic": "ORIGIN_TOPIC",
    "broker": "ORIGIN_BROKER",
    "queue_id": "ORIGIN_QUEUE_ID",
    "queue_offset": "ORIGIN_QUEUE_OFFSET",
    "msg_id": "ORIGIN_MSG_ID",
    "born_time": "ORIGIN_BORN_TIME",
    "store_time": "ORIGIN_STORE_TIME",
}
# A message between the steps of the sink. `text` is its properties string, which includes `id`, its
# unique id. `key` is null if any queue will do. `delayed` messages cannot be in batches.
OUTBOUND: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.string()),
        ("id", pa.string()),
        ("flag", pa.int32()),
        ("delayed", pa.bool_()),
        ("body", pa.binary()),
        ("text", pa.binary()),
    ]
)
MAX_DELAY_LEVEL: Final = 18
_FLAGS: Final = 2**31

# Properties that brokers and clients wrote into a received message, and that make no sense in a new
# one.
_LEFT_OUT: Final = p.RESERVED | p.OF_ONE_SENDING
_SEPARATORS: Final = "[\x01\x02]"


def check_columns(schema: Any, topic: str | None, *, keep_origin: bool, once: bool) -> None:
    """Raise IllegalArgumentError unless a DataFrame of this schema can be sent."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if len(kinds) != len(schema.fields):
        raise IllegalArgumentError("a column of the DataFrame is there twice: leave one out")
    for name, kind in kinds.items():
        if name in TAKEN and kind not in TAKEN[name]:
            raise IllegalArgumentError(
                f"the column {name} is {kind}, the sink rocketmq takes {' or '.join(TAKEN[name])}: "
                f'cast it, as in .withColumn("{name}", col("{name}").cast("{TAKEN[name][0]}"))'
            )
        if name not in TAKEN and name not in COLUMNS:
            raise IllegalArgumentError(
                f"the sink rocketmq does not know the column {name}; it takes {', '.join(TAKEN)}: "
                "rename it, put it into properties, or leave it out with .drop"
            )
    if "body" not in kinds:
        raise IllegalArgumentError(
            "the DataFrame has no column body (binary or string), which the sink rocketmq sends"
        )
    if topic is None and "topic" not in kinds:
        raise IllegalArgumentError(
            "the sink rocketmq needs a topic: a column topic, or one for all rows by "
            '.option("topic", "orders")'
        )
    if keep_origin and not ORIGIN.keys() & kinds.keys():
        raise IllegalArgumentError(
            f"keepOrigin is true, but the DataFrame has none of the columns {', '.join(ORIGIN)}"
        )
    if once and {"delay_level", "deliver_time"} & kinds.keys():
        raise IllegalArgumentError(
            "delivery=exactly-once does not go with the columns delay_level and deliver_time: a "
            "message that waits is not in its topic yet, so nobody can know whether it was sent. "
            "Leave them out with .drop, or use delivery=at-least-once"
        )


def undecodable(batch: Any) -> list[str] | None:
    """Return the reasons why bodies of a batch do not decode, None if the batch has no reasons."""
    if REASON not in batch.schema.names:
        return None
    column = batch.column(REASON)
    if column.null_count == len(column):
        return None
    reasons: list[str] = column.drop_null().to_pylist()
    return reasons


def reason_of(reason: str) -> str:
    """Return the text of the error for a row whose body did not decode."""
    return (
        f"a row has a body that does not decode: {reason}. Leave such rows out with "
        f".where('{REASON} IS NULL'), or send them to a dead-letter topic with badRows=deadLetter"
    )


class Outbound:
    """Makes messages of rows.

    `topic` takes precedence over the column. `common` are properties that every message gets.
    """

    def __init__(self, topic: str | None, common: dict[str, str], *, keep_origin: bool) -> None:
        self._topic = topic
        self._keep_origin = keep_origin
        self._common = _binary("".join(f"{n}\x01{v}\x02" for n, v in common.items()))
        self._legal_topics: set[str] = set()

    def messages(self, batch: Any, ids: list[str]) -> Any:
        """Return the rows as a batch of OUTBOUND with these unique ids.

        Raise IllegalArgumentError for a row that cannot be sent.
        """
        rows = {name: batch.column(name) for name in batch.schema.names}
        count = batch.num_rows
        if (reasons := undecodable(batch)) is not None:
            raise IllegalArgumentError(reason_of(reasons[0]))
        topics = self._topics(rows, count)
        body = self._body(rows, topics)
        unique = pa.array(ids, pa.string())
        properties = _Properties(rows.get("properties"), count, self._names_left_out(rows))
        key = rows.get("sharding_key")
        key = properties.sharding_key() if key is None else key.cast(pa.string())
        key = _filled(key)
        delayed, delays = _delays(rows, count)
        pieces = [
            _entry(p.UNIQ_CLIENT_MESSAGE_ID, unique),
            _entry(p.TAGS, _tags(rows.get("tags"))),
            _entry(p.KEYS, _keys(rows.get("keys"))),
            _entry(p.SHARDING_KEY, _clean("sharding_key", key)),
            *delays,
            *self._origin(rows),
            properties.text(),
        ]
        text = pc.binary_join_element_wise(
            *(piece for piece in pieces if piece is not None),
            self._common,
            _binary(""),
            null_handling="replace",
            null_replacement=b"",
        )
        _check_lengths("the properties", pc.binary_length(text), MAX_PROPERTIES_LENGTH, topics)
        columns = [topics, key, unique, _flags(rows.get("flag"), count), delayed, body, text]
        return pa.RecordBatch.from_arrays(columns, schema=OUTBOUND)

    # Inside

    def _topics(self, rows: dict[str, Any], count: int) -> Any:
        if self._topic is not None:
            return pa.repeat(pa.scalar(self._topic, pa.string()), count)
        topics = rows["topic"].cast(pa.string())
        for topic in pc.unique(topics).to_pylist():
            if topic is None:
                raise IllegalArgumentError(
                    'a row has no topic: fill the column, or name one for all by .option("topic", …)'
                )
            if topic not in self._legal_topics:
                check_sink_topic(topic)
                self._legal_topics.add(topic)
        return topics

    def _body(self, rows: dict[str, Any], topics: Any) -> Any:
        body = rows["body"].cast(pa.binary())
        lengths = pc.fill_null(pc.binary_length(body), 0)
        empty = pc.index(lengths, pa.scalar(0, pa.int32())).as_py()
        if empty >= 0:
            raise IllegalArgumentError(
                f"a row for topic {topics[empty]} has no body; it needs at least one byte: leave "
                "such rows out with .where"
            )
        _check_lengths("the body", lengths, MAX_MESSAGE_SIZE_BYTES, topics)
        return body

    def _names_left_out(self, rows: dict[str, Any]) -> set[str]:
        left_out = set(_LEFT_OUT) | {p.SHARDING_KEY}
        left_out |= {n for n, column in ((p.TAGS, "tags"), (p.KEYS, "keys")) if column in rows}
        return left_out | set(ORIGIN.values()) if self._keep_origin else left_out

    def _origin(self, rows: dict[str, Any]) -> list[Any]:
        if not self._keep_origin:
            return []
        found = {name: rows[column] for column, name in ORIGIN.items() if column in rows}
        return [_entry(name, _clean(name, _text_of(column))) for name, column in found.items()]


def check_sink_topic(topic: str) -> None:
    """Raise IllegalArgumentError for a name that is no topic, or a topic of the broker's own."""
    check_topic(topic)
    if topic in FORBIDDEN_SEND_TOPICS:
        raise IllegalArgumentError(
            f"topic {topic} is the broker's own, nothing may be sent to it: choose one of your own"
        )


class _Properties:
    """The entries of the column `properties`, without the names in `left_out`."""

    def __init__(self, column: Any, count: int, left_out: set[str]) -> None:
        self._count = count
        self._column = column
        if column is None:
            return
        offsets = np.asarray(column.offsets).astype(np.int64)
        # For a slice, Arrow gives the entries of all rows of the batch that it was cut from.
        first, entries = int(offsets[0]), int(offsets[-1] - offsets[0])
        self._names = column.keys.slice(first, entries).cast(pa.string())
        self._values = column.items.slice(first, entries).cast(pa.string())
        self._offsets = offsets - first
        named = pc.is_in(self._names, pa.array(sorted(left_out), pa.string()))
        self._mask = pc.and_(pc.invert(named), pc.is_valid(self._values))

    def text(self) -> Any:
        """Return the entries of each row, joined; None without the column."""
        if self._column is None:
            return None
        names = _clean("properties", self._names.filter(self._mask))
        values = _clean("properties", self._values.filter(self._mask))
        for texts in (names, values):
            if pc.any(pc.equal(pc.binary_length(texts), 0)).as_py():
                raise IllegalArgumentError(
                    "a row has a property without a name or with an empty value, which consumers "
                    "would not see: leave it out of the map"
                )
        entries = _join(names, _binary("\x01"), values, _binary("\x02"))
        kept = np.concatenate(([0], np.cumsum(np.asarray(self._mask, bool))))
        offsets = pa.array(kept[self._offsets].astype(np.int32))
        return pc.binary_join(pa.ListArray.from_arrays(offsets, entries), _binary(""))

    def sharding_key(self) -> Any:
        """Return the property that a message sent with a sharding key has."""
        if self._column is None:
            return pa.nulls(self._count, pa.string())
        found = np.flatnonzero(pc.fill_null(pc.equal(self._names, p.SHARDING_KEY), False))
        owners = np.searchsorted(self._offsets, found, side="right") - 1
        inside = (owners >= 0) & (owners < self._count)
        places = np.full(self._count, -1, np.int64)
        places[owners[inside]] = found[inside]
        return self._values.take(pa.array(places, mask=places < 0))


def _binary(text: str) -> Any:
    return pa.scalar(text.encode(), pa.binary())


def _join(*pieces: Any) -> Any:
    """Join the pieces of each row; null if one of them is null."""
    pieces = tuple(p.cast(pa.binary()) if isinstance(p, pa.Array) else p for p in pieces)
    return pc.binary_join_element_wise(*pieces, _binary(""))


def _entry(name: str, values: Any) -> Any:
    """Return an entry of the properties for each row that has a value; None if no row has one."""
    if values is None or values.null_count == len(values):
        return None
    return _join(_binary(f"{name}\x01"), values, _binary("\x02"))


def _filled(texts: Any) -> Any:
    """Replace empty texts by null."""
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, texts.type), texts)


def _clean(what: str, texts: Any) -> Any:
    """Return the texts. Raise IllegalArgumentError for a character that separates properties."""
    if pc.any(pc.match_substring_regex(texts, _SEPARATORS)).as_py():
        raise IllegalArgumentError(
            f"a row has the character 0x01 or 0x02 in {what}, where it separates properties: "
            "replace it, or put the text into the body"
        )
    return texts


def _tags(column: Any) -> Any:
    return None if column is None else _filled(_clean("tags", column.cast(pa.string())))


def _keys(column: Any) -> Any:
    """Join the keys of each row with blanks."""
    if column is None:
        return None
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        each = column.flatten().cast(pa.string())
        if each.null_count or pc.any(pc.match_substring_regex(each, r"\s|^$")).as_py():
            raise IllegalArgumentError(
                "a row has a key that is null, empty or has a blank in it; brokers take what stands "
                "between blanks for one key: replace the blanks, for example by translate(key, ' ', '_')"
            )
        column = pc.binary_join(column.cast(pa.list_(pa.string())), " ")
    return _filled(_clean("keys", column.cast(pa.string())))


def _delays(rows: dict[str, Any], count: int) -> tuple[Any, list[Any]]:
    """Return which messages are delayed, and the properties that say so."""
    level, at = rows.get("delay_level"), rows.get("deliver_time")
    delayed = pa.repeat(pa.scalar(False), count)
    pieces = []
    if level is not None:
        level = pc.if_else(pc.equal(level, 0), pa.scalar(None, level.type), level)
        bounds = pc.min_max(level).as_py()
        if bounds["min"] is not None and not 0 < bounds["min"] <= bounds["max"] <= MAX_DELAY_LEVEL:
            wrong = bounds["min"] if bounds["min"] < 0 else bounds["max"]
            raise IllegalArgumentError(
                f"a row has delay_level {wrong}, it must lie in 0..{MAX_DELAY_LEVEL}; for other "
                "times use deliver_time"
            )
        delayed = pc.or_(delayed, pc.is_valid(level))
        pieces.append(_entry(p.DELAY_TIME_LEVEL, level.cast(pa.string())))
    if at is not None:
        if pc.any(pc.and_(delayed, pc.is_valid(at))).as_py():
            raise IllegalArgumentError(
                "a row has delay_level and deliver_time; a message takes one of them: set the other "
                "to null"
            )
        delayed = pc.or_(delayed, pc.is_valid(at))
        pieces.append(_entry(p.TIMER_DELIVER_MS, _text_of(at)))
    return delayed, pieces


def _flags(column: Any, count: int) -> Any:
    """Return the flag of each message, 0 if none is given."""
    if column is None:
        return pa.repeat(pa.scalar(0, pa.int32()), count)
    bounds = pc.min_max(column).as_py()
    for value in (bounds["min"], bounds["max"]):
        if value is not None and not -_FLAGS <= value < _FLAGS:
            raise IllegalArgumentError(
                f"a row has flag {value}, it must lie in {-_FLAGS}..{_FLAGS - 1}: keep larger numbers "
                "in properties"
            )
    return pc.fill_null(column.cast(pa.int32()), 0)


def _text_of(column: Any) -> Any:
    """Return numbers as digits, times as milliseconds since the epoch."""
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
    return column.cast(pa.string())


def _check_lengths(what: str, lengths: Any, limit: int, topics: Any) -> None:
    longest = pc.max(lengths).as_py()
    if longest is not None and longest > limit:
        row = pc.index(lengths, pa.scalar(longest, lengths.type)).as_py()
        raise IllegalArgumentError(
            f"{what} of a row for topic {topics[row]} take{'s' if what == 'the body' else ''} "
            f"{longest} bytes, the limit is {limit}: send less, or keep it elsewhere and send where "
            "it lies"
        )
