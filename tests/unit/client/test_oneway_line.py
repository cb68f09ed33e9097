"""Test the line of one-way messages of other threads: nothing that stands in it is lost or sent twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.unit.client.fakes import FakeInstance, route

from cometmq.client.limits import MessageChecks
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.oneway_line import OnewayLine
from cometmq.client.producing.oneways import Oneways
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.errors import ClientStateError
from cometmq.model.message import Message
from cometmq.remoting.hooks import RpcHook
from cometmq.runtime.tasks import TaskOwner

SHORT_S = 0.05


class Lines:
    """Holds a line, and what it sends with and to."""

    def __init__(self, fake: FakeInstance) -> None:
        self.sender = Sender(fake.instance, SendLimits())
        self.oneways = Oneways()
        self.tasks = TaskOwner("test")
        self.line = OnewayLine(
            self.sender,
            MessageEncoder("g", fake.instance.unique_ids),
            MessageChecks(),
            self.oneways,
            self.tasks,
            SHORT_S,
        )


@pytest.fixture
async def lines(fake: FakeInstance, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lines]:
    fake.remoting.routes["t"] = route("a")
    await fake.instance.routes.refresh("t")
    made = Lines(fake)
    await made.sender.route("t", asyncio.get_running_loop().time() + 1)
    monkeypatch.setattr(made.sender, "is_open", lambda _topic: True)
    yield made
    await made.tasks.close()


async def test_the_interrupt_of_a_thread_whose_message_was_taken_reaches_the_thread(
    lines: Lines,
) -> None:
    def interrupted(send_all: Callable[[], object]) -> None:
        send_all()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lines.line.put(Message("t", b"x"), interrupted)


async def test_a_message_is_not_sent_after_an_error_says_that_it_is_not(
    lines: Lines, fake: FakeInstance
) -> None:
    def stopped(_send_all: Callable[[], object]) -> None:
        raise ClientStateError("the loop was stopped")

    with pytest.raises(ClientStateError, match="was stopped"):
        lines.line.put(Message("t", b"x"), stopped)
    await lines.line.close()
    assert fake.remoting.oneways == []
    assert await lines.oneways.drain(0) == []


async def test_a_message_that_is_late_at_the_close_is_listed_once(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stuck(*_: Any) -> Any:
        await asyncio.sleep(SHORT_S)
        raise ClientStateError("refused by the test")

    monkeypatch.setattr(lines.sender, "send_oneway_now", lambda _outgoing: None)
    monkeypatch.setattr(lines.sender, "send_oneway", stuck)
    assert lines.line.put(Message("t", b"x"), lambda _send_all: None)
    await lines.line.close()
    await asyncio.sleep(2 * SHORT_S)
    assert [message.body for message in await lines.oneways.drain(0)] == [b"x"]


async def test_a_hook_that_sees_requests_makes_the_caller_wait(fake: FakeInstance) -> None:
    """An error of the hook is the caller's, so the message does not go into the line."""
    fake.remoting.routes["t"] = route("a")
    sender = Sender(fake.instance, SendLimits())
    await sender.route("t", asyncio.get_running_loop().time() + 1)
    connection: Any = fake.remoting.connected("a:1")
    connection.congested = False
    assert sender.is_open("t")
    fake.remoting.rpc_hooks.add(RpcHook())
    assert not sender.is_open("t")
