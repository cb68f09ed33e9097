"""Put a long answer together without holding up the loop."""

from __future__ import annotations

import asyncio
from typing import Final

from cometmq.broker.refusal import Refused
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.json_dialect import encode_body
from cometmq.runtime.clock import Clock

_SLICE_S: Final = 0.005
# Of a frame, for what is not the body.
_HEADER_ROOM: Final = 64 * 1024


class LongAnswer:
    """Collects the entries of a JSON object, in slices of a few milliseconds with the loop's other
    work between them.

    Raises Refused as soon as the body would not fit into a frame of `max_frame_length` bytes;
    `remedy` says what to ask for instead.
    """

    def __init__(self, clock: Clock, max_frame_length: int, remedy: str) -> None:
        self._clock = clock
        self._limit = max_frame_length - _HEADER_ROOM
        self._remedy = remedy
        self._entries: list[bytes] = []
        self._length = 0
        self._until_s = clock.monotonic() + _SLICE_S

    async def add(self, key: str, value: object) -> None:
        """Add one entry, and let others have the loop if this slice is over."""
        entry = encode_body(key) + b":" + encode_body(value)
        self._length += len(entry) + 1
        if self._length > self._limit:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the answer would be longer than {self._limit} bytes, the limit that "
                f"com.rocketmq.remoting.frameMaxLength leaves; {self._remedy}",
            )
        self._entries.append(entry)
        await self.breathe()

    async def breathe(self) -> None:
        """Let others have the loop if this slice is over."""
        if self._clock.monotonic() >= self._until_s:
            await asyncio.sleep(0)
            self._until_s = self._clock.monotonic() + _SLICE_S

    def entries(self) -> bytes:
        """Return the object."""
        return b"{%b}" % b",".join(self._entries)
