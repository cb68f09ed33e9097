"""A heartbeat decoded in steps says what the whole one says, by which access control judges it."""

from __future__ import annotations

import pytest

from cometmq.protocol import requests
from cometmq.protocol.heartbeats import Heartbeat, decode_heartbeat

LONG = b" " * 70_000
MINE = b'{"groupName":"mine"}'
# With the escape it is a reference, which no search for its letters finds.
HIDDEN = rb'{"groupName":{"\u0024ref":"$.a.groupName"},"a":{"groupName":"secret"},"x":null}'


def decoded(data: bytes) -> Heartbeat:
    steps = decode_heartbeat(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            heartbeat: Heartbeat = end.value
            return heartbeat


@pytest.mark.parametrize("rest", [b"", LONG], ids=["short", "long"])
@pytest.mark.parametrize("table", ["consumerDataSet", "producerDataSet"])
def test_a_group_that_nobody_had_judged_was_joined_by_an_escaped_reference(
    table: str, rest: bytes
) -> None:
    groups = b'"%b":[%b,%b]' % (table.encode(), MINE, HIDDEN)
    data = b'{"clientID":"c",%b,"a":%b%b}' % (groups, MINE, rest)
    judged = requests.HEART_BEAT.body.decode(data)
    served = decoded(data)
    assert list(served.consumers) == judged.consumer_data_set
    assert list(served.producers) == judged.producer_data_set
    names = [group.group_name for group in judged.consumer_data_set]
    names += [group.group_name for group in judged.producer_data_set]
    assert names == ["mine", "mine"]
