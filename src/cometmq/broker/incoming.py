"""Keep a message on its way to the store, except on the hot path (Java: MessageExtBrokerInner)."""

from __future__ import annotations

from dataclasses import dataclass

from cometmq.model import properties as p
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.properties import encode_properties
from cometmq.protocol.messages.record import StoredRecord
from cometmq.store.store import MessageStore


@dataclass(slots=True)
class IncomingMessage:
    """Holds a message that is to be stored. `born_host` is packed, `born_timestamp` in ms;
    `properties` are encoded when the message is stored.

    Rules on delays and retries change topic, queue and properties in place, so that the caller can
    see afterwards where the message was stored.
    """

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: dict[str, str]
    born_timestamp: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def again(cls, record: StoredRecord, properties: dict[str, str]) -> IncomingMessage:
        """Make a message of `record`, to be stored once more with other properties."""
        return cls(
            record.topic,
            record.queue_id,
            record.body,
            properties,
            record.born_timestamp,
            record.born_host,
            flag=record.flag,
            sys_flag=record.sys_flag,
            reconsume_times=record.reconsume_times,
        )

    def move_to(self, topic: str, queue_id: int) -> None:
        """Let the message wait in another topic; its properties keep its real topic and queue."""
        self.properties[p.REAL_TOPIC] = self.topic
        self.properties[p.REAL_QUEUE_ID] = str(self.queue_id)
        self.topic = topic
        self.queue_id = queue_id

    def append_to(
        self, store: MessageStore, *, tags_code: int | None = None, now_ms: int = 0
    ) -> tuple[int, int]:
        """Store the message as it is; return its queue offset and commit-log offset.

        `tags_code` replaces the hash of its tags. Raises as `Appender.append` does.
        """
        if tags_code is None:
            tags = self.properties.get(p.TAGS)
            tags_code = java_hash(tags) if tags else 0
        return store.append(
            store.queue(self.topic, self.queue_id),
            self.body,
            encode_properties(self.properties).encode(),
            tags_code,
            self.born_timestamp,
            self.born_host,
            flag=self.flag,
            sys_flag=self.sys_flag,
            reconsume_times=self.reconsume_times,
            prepared_transaction_offset=self.prepared_transaction_offset,
            now_ms=now_ms,
        )
