"""Messages as users make them and as brokers deliver them (Java: Message, MessageExt)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

from cometmq.model import properties as p


class Message:
    """A message to send.

    `body` are the bytes to carry; `tags` one tag by which consumers select; `keys` business keys by
    which the message can be looked up; `properties` further text the consumer will see. Tags, keys
    and all else that travels beside the body live in the one `properties` dict, as on the wire.
    """

    __slots__ = ("body", "flag", "properties", "topic", "transaction_id")

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        flag: int = 0,
        properties: Mapping[str, str] | None = None,
        wait_store_ok: bool = True,
    ) -> None:
        self.topic = topic
        self.body = body
        self.flag = flag
        self.transaction_id: str | None = None
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if tags is not None:
            self.tags = tags
        if keys:
            self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        if not wait_store_ok:
            self.properties[p.WAIT_STORE_MSG_OK] = "false"

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
    def keys(self, keys: Iterable[str]) -> None:
        self.properties[p.KEYS] = p.KEY_SEPARATOR.join(keys)

    @property
    def wait_store_ok(self) -> bool:
        """False: the broker may acknowledge before the message is flushed or replicated."""
        return self.properties.get(p.WAIT_STORE_MSG_OK, "true") != "false"

    @property
    def unique_id(self) -> str | None:
        """The id the producer gave the message when it was sent, else None."""
        return self.properties.get(p.UNIQ_CLIENT_MESSAGE_ID)

    def copy(self) -> Self:
        """A message with its own properties dict; the body is shared."""
        other = object.__new__(type(self))
        for cls in type(self).__mro__:
            for slot in getattr(cls, "__slots__", ()):
                setattr(other, slot, getattr(self, slot))
        other.properties = dict(self.properties)
        return other

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(topic={self.topic!r}, body=<{len(self.body)} bytes>, "
            f"flag={self.flag}, properties={self.properties!r})"
        )


class MessageExt(Message):
    """A message as a broker delivered it.

    `msg_id` is the producer's unique id (else the offset id), `offset_msg_id` names the broker and
    commit-log offset where it lies. Timestamps are milliseconds since the epoch; hosts `ip:port`.
    """

    __slots__ = (
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

    def __repr__(self) -> str:
        return (
            f"MessageExt(topic={self.topic!r}, msg_id={self.msg_id!r}, "
            f"broker_name={self.broker_name!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, body=<{len(self.body)} bytes>, "
            f"reconsume_times={self.reconsume_times}, properties={self.properties!r})"
        )
