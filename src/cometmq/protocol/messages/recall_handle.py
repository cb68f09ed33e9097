"""Encode and decode the handle by which a timed message is recalled (Java: RecallMessageHandle).

URL-safe Base64 of the UTF-8 text

    v1 <topic> <broker name> <time of delivery, ms> <unique id>

with one blank between its items. A broker returns it to the sender of a message. Only that broker,
and the client that looks for the broker, decode it again.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final, NamedTuple

from cometmq.errors import ProtocolError

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """The content of a recall handle. `time_ms` lies in the slot in which the message waits."""

    topic: str
    broker_name: str
    time_ms: int
    unique_id: str

    def encode(self) -> str:
        text = " ".join((_VERSION, *map(str, self)))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """Decode a handle. Raise ProtocolError for a text that is no handle."""
        try:
            items = base64.b64decode(handle, altchars=b"-_", validate=True).decode().split(" ")
            version, topic, broker_name, time_text, unique_id = items[:5]
            time_ms = int(time_text)
        except (binascii.Error, ValueError) as error:
            raise _invalid(handle) from error
        if version != _VERSION:
            raise _invalid(handle)
        return cls(topic, broker_name, time_ms, unique_id)


def _invalid(handle: str) -> ProtocolError:
    return ProtocolError(
        f"recall handle is invalid: {handle[:80]!r}; pass on the one of the send's answer"
    )
