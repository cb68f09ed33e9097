"""Define messages as users make them and as brokers deliver them (Java: Message, MessageExt)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Never, Self

from cometmq.errors import CometMQError, IllegalArgumentError, UndecodableError, UnknownOptionError
from cometmq.model import properties as p
from cometmq.model.durations import Duration, Moment, epoch_ms, milliseconds
from cometmq.model.failure import Failure, noted_failure

_DELAYS: Final = (p.DELAY_TIME_LEVEL, p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


_OPTIONS: Final = (
    "tags", "keys", "flag", "properties", "wait_store_ok", "delay_level", "delay_ms", "deliver_at_ms",
    "value",
)  # fmt: skip
# The names that other clients, and other languages, have for them.
_ELSEWHERE: Final = {
    "tag": "tags",
    "key": "keys",
    "headers": "properties",
    "header": "properties",
    "attributes": "properties",
    "delay": "delay_ms",
    "delay_s": "delay_ms",
    "deliver_at": "deliver_at_ms",
    "delivery_timestamp": "deliver_at_ms",
}


class _Absent:
    """Stands for the value of a message that has none."""

    def __repr__(self) -> str:
        return "…"

    def __reduce__(self) -> str:
        return "_ABSENT"  # by its name: there is one


class _Undecoded:
    """Stands in a message for the value that it will have, or for the error that decoding raised."""

    __slots__ = ("decode", "error")

    def __init__(self, decode: Callable[[Message], Any]) -> None:
        self.decode = decode
        self.error: CometMQError | None = None


_ABSENT: Final = _Absent()


class Message:
    """Holds a message to send.

    `body` has the bytes to carry. In its place `value` may be any object for which the producer has a
    codec (`cometmq.payloads`); the send encodes it. `tags` is one tag, by which consumers select. `keys`
    is one business key, or several, by which the message can be looked up. `properties` are further texts
    that the consumer will see. Tags, keys and everything else that travels beside the body live in
    the one `properties` dict, as on the wire.

    A key with white space in it raises IllegalArgumentError, because brokers would take it for
    several keys. (Java's setKeys(String) takes several keys in one text; here they are a list.)

    Give at most one of `delay_level`, `delay_ms` and `deliver_at_ms` to have the broker deliver the
    message later; see the properties of these names. `delay_ms` is ms or a timedelta, `deliver_at_ms`
    ms since the epoch or a datetime with a time zone. Two of them, or a number that is out of range,
    raise IllegalArgumentError.

    The first send gives the message its unique id. An object that is sent again keeps its id, so
    everyone who tells messages apart by their ids sees the same message once more, as in Java. To
    send another message, make a new one, or a `copy` without the property UNIQ_KEY.
    """

    __slots__ = ("_is_unencoded", "_value", "body", "flag", "properties", "topic", "transaction_id")

    def __init__(
        self,
        topic: str,
        body: bytes | None = None,
        *,
        value: Any = _ABSENT,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        flag: int = 0,
        properties: Mapping[str, str] | None = None,
        wait_store_ok: bool = True,
        delay_level: int = 0,
        delay_ms: Duration | None = None,
        deliver_at_ms: Moment | None = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            raise _unknown(next(iter(unknown)))
        self.topic = topic
        self._value = value
        self._is_unencoded = value is not _ABSENT
        if body is None:
            if value is _ABSENT:
                raise IllegalArgumentError(
                    f"the message to {topic!r:.100} has neither body nor value; pass "
                    "Message(topic, b'…'), or value=… where the producer has codecs"
                )
            body = b""
        elif value is not _ABSENT:
            raise IllegalArgumentError(
                f"the message to {topic!r:.100} has a body and a value; pass one of them"
            )
        self.body = body
        self.flag = flag
        self.transaction_id: str | None = None
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if tags is not None:
            self.tags = tags
        if keys:
            self.keys = keys
        if not wait_store_ok:
            self.properties[p.WAIT_STORE_MSG_OK] = "false"
        if delay_level or delay_ms is not None or deliver_at_ms is not None:
            self._delay(delay_level, delay_ms, deliver_at_ms)

    @property
    def tags(self) -> str | None:
        return self.properties.get(p.TAGS)

    @tags.setter
    def tags(self, tags: str) -> None:
        self.properties[p.TAGS] = tags

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(p.KEYS, "").split())

    @keys.setter
    def keys(self, keys: str | Iterable[str]) -> None:
        each = (keys,) if isinstance(keys, str) else keys
        try:
            each = tuple(each)
            joined = p.KEY_SEPARATOR.join(each)
        except TypeError:
            raise IllegalArgumentError(
                f"keys are {keys!r:.80}; pass text or a list of it"
            ) from None
        for key in each:
            if key and key.split() != [key]:
                raise IllegalArgumentError(
                    f"the key {key!r:.80} has white space in it, which separates keys; "
                    "pass several keys as a list, or replace it, for example by '_'"
                )
        self.properties[p.KEYS] = joined

    @property
    def wait_store_ok(self) -> bool:
        """If False, the broker may acknowledge the message before it is flushed or replicated."""
        return self.properties.get(p.WAIT_STORE_MSG_OK, "true") != "false"

    @property
    def delay_level(self) -> int:
        """The delay level of the message, 1 for the first; 0 has the broker deliver it at once.

        The broker's messageDelayLevel says how long each level is (by default 18 levels from 1 s to
        2 h); a level above the highest counts as the highest. Setting a level clears `delay_ms` and
        `deliver_at_ms`. Java: setDelayTimeLevel.
        """
        return _number(self.properties.get(p.DELAY_TIME_LEVEL)) or 0

    @delay_level.setter
    def delay_level(self, level: int) -> None:
        _check("delay_level", level, _INT32_MAX)
        self._undelayed()
        if level:
            self.properties[p.DELAY_TIME_LEVEL] = str(level)

    @property
    def delay_ms(self) -> int | None:
        """The ms after which the broker delivers the message, or None if there is no such delay.

        The delay counts from the message's arrival at the broker, which keeps it to the second. By
        default a broker allows 3 days at most (timerMaxDelaySec). Brokers before 5.0 do not know
        the delay and deliver at once. Setting it clears `delay_level` and `deliver_at_ms`. Java:
        setDelayTimeMs, setDelayTimeSec.
        """
        seconds = _number(self.properties.get(p.TIMER_DELAY_SEC))
        if seconds is not None:
            return seconds * 1000
        return _number(self.properties.get(p.TIMER_DELAY_MS))

    @delay_ms.setter
    def delay_ms(self, delay_ms: Duration) -> None:
        delay_ms = milliseconds(delay_ms)
        _check("delay_ms", delay_ms, _INT64_MAX)
        self._undelayed()
        self.properties[p.TIMER_DELAY_MS] = str(delay_ms)

    @property
    def deliver_at_ms(self) -> int | None:
        """The time at which the broker delivers the message, in ms since the epoch, or None.

        The broker delivers at once if the time is past; its precision and limit are those of
        `delay_ms`. Setting the time clears `delay_level` and `delay_ms`. Java: setDeliverTimeMs.
        """
        return _number(self.properties.get(p.TIMER_DELIVER_MS))

    @deliver_at_ms.setter
    def deliver_at_ms(self, deliver_at_ms: Moment) -> None:
        deliver_at_ms = epoch_ms("deliver_at_ms", deliver_at_ms)
        _check("deliver_at_ms", deliver_at_ms, _INT64_MAX)
        self._undelayed()
        self.properties[p.TIMER_DELIVER_MS] = str(deliver_at_ms)

    @property
    def value(self) -> Any:
        """The object in place of the body: the value to send, or the decoded body of a received message.

        A consumer with codecs decodes a body once, at the latest when its value is asked for. Raises
        UndecodableError for a body that does not fit, and for a topic without a codec.
        """
        value = self._value
        if isinstance(value, _Undecoded):
            if value.error is not None:
                raise value.error
            try:
                self._value = decoded = value.decode(self)
            except UndecodableError as error:
                value.error = error
                raise
            return decoded
        if value is _ABSENT:
            raise UndecodableError(
                f"the message of topic {self.topic} has a body and no value, because its topic has "
                f"no codec; give the client codecs={{{self.topic!r}: …}}",
                topic=self.topic,
            )
        return value

    @property
    def is_unencoded(self) -> bool:
        """True if the message was made with a value: a send encodes it into the body."""
        return self._is_unencoded

    def decode_by(self, decode: Callable[[Message], Any]) -> None:
        """Have `value` return the result of `decode` for this message. Consumers with codecs call it."""
        self._value = _Undecoded(decode)

    @property
    def unique_id(self) -> str | None:
        """The id that the producer gave the message when it was sent, or None."""
        return self.properties.get(p.UNIQ_CLIENT_MESSAGE_ID)

    def _delay(self, level: int, delay_ms: Duration | None, deliver_at_ms: Moment | None) -> None:
        if bool(level) + (delay_ms is not None) + (deliver_at_ms is not None) > 1:
            raise IllegalArgumentError(
                f"delay_level={level}, delay_ms={delay_ms}, deliver_at_ms={deliver_at_ms}: a message "
                "is delayed in one way; give one of them"
            )
        if level:
            self.delay_level = level
        elif delay_ms is not None:
            self.delay_ms = delay_ms
        elif deliver_at_ms is not None:
            self.deliver_at_ms = deliver_at_ms

    def _undelayed(self) -> None:
        for name in _DELAYS:
            self.properties.pop(name, None)

    def copy(self) -> Self:
        """Return a copy with a properties dict of its own; the body is shared."""
        other = object.__new__(type(self))
        for cls in type(self).__mro__:
            for slot in getattr(cls, "__slots__", ()):
                if hasattr(self, slot):
                    setattr(other, slot, getattr(self, slot))
        other.properties = dict(self.properties)
        return other

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, body=<{len(self.body)} bytes>, "
            f"flag={self.flag}, properties={self.properties!r})"
        )


class MessageExt(Message):
    """Holds a message as a broker delivered it.

    `msg_id` is the producer's unique id (else the offset id). `offset_msg_id` names the broker and
    the commit-log offset where the message lies. `batch_msg_id` is the unique id of the batch that
    brought the message, if a Java broker of 4.8 to 5.3.3 noted it, else None: such brokers store it
    behind the message's own, and Java's consumers take it for the message's id. Timestamps are
    milliseconds since the epoch; hosts are `ip:port`.
    """

    __slots__ = (
        "batch_msg_id",
        "body_crc",
        "born_host",
        "born_timestamp_ms",
        "broker_name",
        "commit_log_offset",
        "msg_id",
        "offset_msg_id",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "store_host",
        "store_size",
        "store_timestamp_ms",
        "sys_flag",
    )

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        msg_id: str = "",
        offset_msg_id: str = "",
        batch_msg_id: str | None = None,
        broker_name: str = "",
        queue_id: int = 0,
        queue_offset: int = 0,
        commit_log_offset: int = 0,
        store_size: int = 0,
        sys_flag: int = 0,
        body_crc: int = 0,
        born_timestamp_ms: int = 0,
        born_host: str = "",
        store_timestamp_ms: int = 0,
        store_host: str = "",
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        super().__init__(topic, body, properties=properties, flag=flag)
        self.msg_id = msg_id
        self.offset_msg_id = offset_msg_id
        self.batch_msg_id = batch_msg_id
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.store_size = store_size
        self.sys_flag = sys_flag
        self.body_crc = body_crc
        self.born_timestamp_ms = born_timestamp_ms
        self.born_host = born_host
        self.store_timestamp_ms = store_timestamp_ms
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset

    @classmethod
    def of_record(  # noqa: PLR0917 - names would cost a tenth of the time
        cls,
        topic: str,
        body: bytes,
        properties: dict[str, str],
        flag: int,
        msg_id: str,
        offset_msg_id: str,
        broker_name: str,
        queue_id: int,
        queue_offset: int,
        commit_log_offset: int,
        store_size: int,
        sys_flag: int,
        body_crc: int,
        born_timestamp_ms: int,
        born_host: str,
        store_timestamp_ms: int,
        store_host: str,
        reconsume_times: int,
        prepared_transaction_offset: int,
    ) -> Self:
        """Return a message with these values, in a third of the constructor's time. Takes `properties` over."""
        self = object.__new__(cls)
        self.topic = topic
        self.body = body
        self.properties = properties
        self.flag = flag
        self.transaction_id = None
        self._value = _ABSENT
        self._is_unencoded = False
        self.msg_id = msg_id
        self.offset_msg_id = offset_msg_id
        self.batch_msg_id = None
        self.broker_name = broker_name
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        self.commit_log_offset = commit_log_offset
        self.store_size = store_size
        self.sys_flag = sys_flag
        self.body_crc = body_crc
        self.born_timestamp_ms = born_timestamp_ms
        self.born_host = born_host
        self.store_timestamp_ms = store_timestamp_ms
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        return self

    @property
    def origin_topic(self) -> str:
        """The topic that the message was first sent to, also if it was read from a retry topic or from
        the dead letters.
        """
        if not self.topic.startswith(("%RETRY%", "%DLQ%")):
            return self.topic
        properties = self.properties
        return properties.get(p.RETRY_TOPIC) or properties.get(p.DLQ_ORIGIN_TOPIC) or self.topic

    @property
    def failure(self) -> Failure | None:
        """Why the last delivery failed: exception type, text, and the member that failed; None if nobody
        noted it. `reconsume_times` is the number of deliveries that failed.

        CometMQ's consumers note it on messages that they give back, and CometMQ's brokers keep it;
        see the option `note_failures`.
        """
        return noted_failure(self.properties)

    def copy_to(self, other: MessageExt) -> None:
        """Give `other`, of a class derived from this one, the content of this message; they share it."""
        # One by one, because a loop over the names would cost a consumer's iteration the most of its time.
        other.topic = self.topic
        other.body = self.body
        other.properties = self.properties
        other.flag = self.flag
        other.transaction_id = self.transaction_id
        other._value = self._value
        other._is_unencoded = self._is_unencoded
        other.msg_id = self.msg_id
        other.offset_msg_id = self.offset_msg_id
        other.batch_msg_id = self.batch_msg_id
        other.broker_name = self.broker_name
        other.queue_id = self.queue_id
        other.queue_offset = self.queue_offset
        other.commit_log_offset = self.commit_log_offset
        other.store_size = self.store_size
        other.sys_flag = self.sys_flag
        other.body_crc = self.body_crc
        other.born_timestamp_ms = self.born_timestamp_ms
        other.born_host = self.born_host
        other.store_timestamp_ms = self.store_timestamp_ms
        other.store_host = self.store_host
        other.reconsume_times = self.reconsume_times
        other.prepared_transaction_offset = self.prepared_transaction_offset

    def __repr__(self) -> str:
        return (
            f"MessageExt(topic={self.topic!r}, msg_id={self.msg_id!r}, "
            f"broker_name={self.broker_name!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, body=<{len(self.body)} bytes>, "
            f"reconsume_times={self.reconsume_times}, properties={self.properties!r})"
        )


def _unknown(name: str) -> UnknownOptionError:
    import difflib  # needed for mistakes only, and every program that sends would load it

    near = _ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, _OPTIONS, 1)), None)
    return UnknownOptionError(
        f"Message has no {name!r}{'' if near is None else f'; did you mean {near}'}. Beside topic and "
        f"body it has {', '.join(_OPTIONS)}"
    )


def _number(text: str | None) -> int | None:
    """Return the number in a received property, or None if it is missing or no number."""
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _check(name: str, value: int, limit: int) -> None:
    if not isinstance(value, int) or not 0 <= value <= limit:
        raise IllegalArgumentError(f"{name} is {value!r}, it must be a whole number in 0..{limit}")
