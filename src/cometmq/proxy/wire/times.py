"""Read the times that calls carry."""

from __future__ import annotations

from google.protobuf.timestamp_pb2 import Timestamp

from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.statuses import RefusedError


def milliseconds_of(given: Timestamp, what: str, code: wire.Code) -> int:
    """Return a time in ms since the epoch. Raise RefusedError with `code` for one outside of protobuf's range."""
    try:
        milliseconds: int = given.ToMilliseconds()
    except ValueError as error:
        raise RefusedError(
            code,
            f"the {what} is {given.seconds} s and {given.nanos} ns after 1970, which is not within the years 1 to "
            "9999; give a time within them",
        ) from error
    return milliseconds
