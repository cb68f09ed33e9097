"""Mark a message that is sent again with properties that say what it was made from.

| property | |
| --- | --- |
| REPLAY_ID or REDRIVE_ID | the id of the replay or redrive |
| ORIGIN_TOPIC, ORIGIN_BROKER, ORIGIN_QUEUE_ID, ORIGIN_QUEUE_OFFSET | where the first message lies, or lay |
| ORIGIN_MSG_ID | its id |
| ORIGIN_BORN_TIME, ORIGIN_STORE_TIME | its times, ms since the epoch |

The names are those of the sink's option `keepOrigin`. In a redrive, the first message is the dead
letter. (ORIGIN_MESSAGE_ID is RocketMQ's own: brokers write it, and clients may not.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from cometmq.errors import ConfigError
from cometmq.model import properties as p
from cometmq.protocol.messages.properties import decode_properties
from cometmq.spark.sink.columns import ORIGIN

REPLAY: Final = "REPLAY"
REDRIVE: Final = "REDRIVE"
MAX_ID_LENGTH: Final = 80
_ID: Final = re.compile(r"[a-zA-Z0-9_-]+")

# Properties that brokers and clients gave the first message. The new message drops them, and with
# them all delays, retries, transactions and requests: it is delivered at once and starts afresh.
LEFT_OUT: Final = frozenset(
    {
        *(p.RESERVED - {p.UNIQ_CLIENT_MESSAGE_ID}),
        *p.OF_ONE_SENDING,
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        # Marks of an earlier replay or redrive.
        "REPLAY_ID",
        "REDRIVE_ID",
        *ORIGIN.values(),
        "TIMER_DELAY_LEVEL",
        "INNER_NUM",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "__CRC32#",
    }
)


class Place(NamedTuple):
    """Where a message lies: topic, broker, queue id and queue offset."""

    topic: str
    broker: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True)
class Marks:
    """The marks of one replay or redrive: `kind` is REPLAY or REDRIVE, and the user chooses
    `id`.
    """

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind.lower()} {self.id}"

    @property
    def lock_group(self) -> str:
        """Return the group name under which brokers keep the locks of this job."""
        return f"{self.kind}-{self.id}"

    @property
    def id_name(self) -> str:
        """Return the name of the property that holds the id."""
        return f"{self.kind}_ID"

    def of(
        self, place: Place, msg_id: str, born_time_ms: int, store_time_ms: int
    ) -> dict[str, str]:
        """Return the properties of the message that is made from the one at `place`."""
        marks = {
            self.id_name: self.id,
            ORIGIN["topic"]: place.topic,
            ORIGIN["broker"]: place.broker,
            ORIGIN["queue_id"]: str(place.queue_id),
            ORIGIN["queue_offset"]: str(place.queue_offset),
            ORIGIN["msg_id"]: msg_id,
            ORIGIN["born_time"]: str(born_time_ms),
            ORIGIN["store_time"]: str(store_time_ms),
        }
        if not place.broker:  # unknown if only the store's files are there
            del marks[ORIGIN["broker"]]
        return marks

    def place_of(self, properties: str) -> Place | None:
        """Return the place of the message from which a stored message with these properties was
        made; None for a foreign message.
        """
        if self.id not in properties:
            return None
        found = decode_properties(properties)
        if found.get(self.id_name) != self.id:
            return None
        try:
            return Place(
                found[ORIGIN["topic"]],
                found.get(ORIGIN["broker"], ""),
                int(found[ORIGIN["queue_id"]]),
                int(found[ORIGIN["queue_offset"]]),
            )
        except (KeyError, ValueError):
            return None  # written by somebody else


def check_id(name: str, value: str) -> None:
    """Raise ConfigError unless `value` may be the id of a replay or redrive."""
    if len(value) > MAX_ID_LENGTH or not _ID.fullmatch(value):
        raise ConfigError(
            f"{name} is {value[:MAX_ID_LENGTH]!r}; it needs 1 to {MAX_ID_LENGTH} letters, digits, "
            "underscores and hyphens"
        )
