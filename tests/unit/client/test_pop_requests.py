"""Pops of one broker: the clock that they name, and the pause after an empty answer."""

from __future__ import annotations

import asyncio

from tests.unit.client.fakes import FakeInstance, route

from cometmq.client.popping.requests import PAUSE_S, PopRequests
from cometmq.model.queue import MessageQueue
from cometmq.model.subscription import SubscriptionData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import response


async def test_a_client_whose_clock_was_behind_its_brokers_popped_without_a_pause_and_got_nothing(
    fake: FakeInstance,
) -> None:
    """The broker answers a pop at once if it was born too long ago."""
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    fake.remoting.answers[RequestCode.POP_MESSAGE] = lambda *_: response(
        ResponseCode.POLLING_TIMEOUT
    )
    requests = PopRequests(instance=fake.instance, group="g", ordered=False, from_newest=False)
    begun_s = asyncio.get_running_loop().time()
    popped = await requests.pop(MessageQueue("t", "a", -1), SubscriptionData("t", "*"), 1, 9, 15.0)
    assert popped == []
    assert asyncio.get_running_loop().time() - begun_s >= PAUSE_S
    (sent,) = fake.remoting.sent(RequestCode.POP_MESSAGE)
    assert sent.ext.get("bornTime", "0") == "0"  # the broker takes its own clock
