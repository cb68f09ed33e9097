"""Our senders' delays and recalls against the Java broker, by both faces of the client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.integration.test_delay import (
    LEVELS,
    test_a_sender_takes_a_timed_message_back,
    test_levels_and_times_are_kept,
    test_tags_select_among_delayed_messages,
)
from tests.interop.conftest import need
from tests.interop.on_java import MARKS, name
from tests.interop.peers import JavaBroker, JavaNamesrv

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "name",
    "test_a_sender_takes_a_timed_message_back",
    "test_levels_and_times_are_kept",
    "test_tags_select_among_delayed_messages",
]
pytestmark = MARKS

CONF = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    "messageDelayLevel": LEVELS,
    # New groups begin where they say also in young queues.
    "accessMessageInMemoryMaxRatio": "0",
}


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    need("java", "mvn")
    with JavaNamesrv() as namesrv, JavaBroker(namesrv.address, conf=CONF):
        yield namesrv.address
