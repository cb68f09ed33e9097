"""A caller with a short deadline gives up a silent server, and does not ask it again at once."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest
from tests.simulated import MemoryNetwork, in_simulated_time

from cometmq.admin.silence import KEPT_S, Silences, in_haste
from cometmq.aio import AdminClient
from cometmq.errors import RequestTimeoutError, SilentServerError
from cometmq.protocol.command import decode_command
from cometmq.protocol.frame import FrameDecoder
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.surroundings import current
from cometmq.testing import virtual

AT = "10.0.0.1:10911"


async def never() -> None:
    await asyncio.Event().wait()


@pytest.fixture
def silences() -> Silences:
    return Silences(SYSTEM_CLOCK)


def test_a_silent_server_is_given_up_in_haste_and_spared_then() -> None:
    """In virtual time: real clocks of whole milliseconds disagreed about the first one, and a busy
    machine took longer than the text said.
    """

    async def run() -> None:
        clock = current().clock
        silences, began_ms = Silences(clock), clock.now_ms()
        with in_haste(0.5):
            with pytest.raises(
                SilentServerError, match=f"{AT} has answered nothing for 0.5 s"
            ) as failed:
                await silences.listen(AT, "the route", never())
            assert clock.now_ms() == began_ms + 500
            await asyncio.sleep(1)
            with pytest.raises(SilentServerError, match=r"nothing for 1\.5 s") as spared:
                silences.check(AT, "the route")
            silences.check("10.0.0.2:10911", "the route")
        assert failed.value.since_ms == spared.value.since_ms == began_ms
        assert failed.value.address == AT
        silences.check(AT, "a change, which waits as ever")
        await asyncio.sleep(KEPT_S)
        with in_haste(0.5):
            silences.check(AT, "the route")

    virtual.run(run())


async def test_a_server_that_speaks_again_is_asked_again(silences: Silences) -> None:
    with in_haste(0.02), pytest.raises(SilentServerError):
        await silences.listen(AT, "it", never())
    await silences.listen(AT, "it", asyncio.sleep(0))
    with in_haste(0.02):
        silences.check(AT, "it")


async def test_a_server_that_answers_others_meanwhile_is_not_silent(silences: Silences) -> None:
    """Much work for one answer, or for a disk, is no silence."""
    answered = asyncio.Event()

    async def slow() -> str:
        await answered.wait()
        return "much"

    async def others() -> None:
        for _ in range(12):
            await asyncio.sleep(0.1)
            await silences.listen(AT, "it", asyncio.sleep(0))
        answered.set()

    with in_haste(1.0):
        reported, _ = await asyncio.gather(silences.listen(AT, "it", slow()), others())
    assert reported == "much"


@pytest.mark.real_time
async def test_a_server_is_not_silent_because_this_process_stood_still(silences: Silences) -> None:
    loop = asyncio.get_running_loop()
    ours, servers = socket.socketpair()
    ours.setblocking(False)

    def stand_still() -> None:
        servers.send(b"answer")
        time.sleep(0.2)

    async def call() -> bytes:
        answer = await loop.sock_recv(ours, 9)
        for _ in range(9):  # as many turns of the loop as an answer may take to its caller
            await asyncio.sleep(0)
        return answer

    with ours, servers, in_haste(0.05):
        loop.call_later(0.01, stand_still)
        assert await silences.listen(AT, "it", call()) == b"answer"


async def test_a_hanging_client_does_not_make_its_broker_silent(silences: Silences) -> None:
    with in_haste(0.02):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await silences.listen(AT, "the state of a member", never(), passed_on=True)
        silences.check(AT, "the route")


async def test_who_waits_without_haste_notices_for_those_in_haste(
    silences: Silences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.admin.silence.LEAST_S", 0.05)

    async def timed_out() -> None:
        await asyncio.sleep(0.06)
        raise RequestTimeoutError("no answer in time")

    with pytest.raises(RequestTimeoutError):
        await silences.listen(AT, "it", timed_out())
    with in_haste(9.0), pytest.raises(SilentServerError):
        silences.check(AT, "it")
    assert KEPT_S > 9, "the console asks without haste more often than silences are forgotten"


class Silent(asyncio.Protocol):
    """Takes requests and answers none; adds the code of each to `codes`."""

    def __init__(self, codes: list[int]) -> None:
        self._codes = codes
        self._frames = FrameDecoder()

    def data_received(self, data: bytes) -> None:
        self._codes += [decode_command(frame).code for frame in self._frames.feed(data)]


# In simulated time: on a busy machine the client did not connect within 0.1 s, and asked nothing.
@in_simulated_time
async def test_a_client_asks_a_silent_broker_once_for_all_in_haste() -> None:
    network, codes = MemoryNetwork(), list[int]()
    server = await network.listen(lambda: Silent(codes), "127.0.0.1", 0, backlog=1)
    await server.start()
    address = f"127.0.0.1:{server.port}"
    options: dict[str, Any] = {"network": network, "timeout_ms": 60_000}
    async with AdminClient([], **options) as admin:
        with in_haste(0.1):
            for _ in range(3):
                with pytest.raises(
                    SilentServerError, match="not asked for the runtime information"
                ):
                    await admin.brokers.runtime_info(broker=address)
                with pytest.raises(SilentServerError, match="not asked for the configuration"):
                    await admin.brokers.config(broker=address)
    assert len(codes) == 1
