"""Hooks around calls: what they see, what they may do, and what their exceptions cause."""

from __future__ import annotations

import asyncio

import pytest
from tests.unit.remoting.test_client import call, far_and_client
from tests.unit.remoting.waiting import TIMEOUT_S, until

from cometmq.errors import ConnectError, RpcHookError
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.hooks import RpcHook


class Notes(RpcHook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def before_request(self, address: str, command: RemotingCommand) -> None:
        command.ext["signed"] = "by a hook"
        self.seen.append(("before", address))

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        assert command.ext["signed"] == "by a hook"
        self.seen.append((f"after {answer.remark}", address))


class Raises(RpcHook):
    def __init__(self, error: Exception, when: str) -> None:
        self._error = error
        self._when = when

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if self._when == "before":
            raise self._error

    def after_response(
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        if self._when == "after":
            raise self._error


async def test_a_hook_sees_requests_and_answers() -> None:
    async with far_and_client() as (far, client):
        hook = Notes()
        client.rpc_hooks.add(hook)
        await client.call(far.address, call(7), TIMEOUT_S)
        await client.send_oneway(far.address, call(8))
        _, size = await client.send_oneway_bounded(far.address, call(9), TIMEOUT_S)
        assert size > 0
        await until(lambda: far.asked == [7, 8, 9])
        assert [what for what, _ in hook.seen] == ["before", "after 7", "before", "before"]
        assert {address for _, address in hook.seen} == {far.address}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_what_a_hook_raises_fails_the_call(when: str) -> None:
    async with far_and_client() as (far, client):
        client.rpc_hooks.add(Raises(KeyError("no secret"), when))
        with pytest.raises(RpcHookError, match=r"Raises failed in a call to .*no secret") as error:
            await client.call(far.address, call(1), TIMEOUT_S)
        assert isinstance(error.value.__cause__, KeyError)
        assert far.asked == ([] if when == "before" else [1])


async def test_an_error_that_calls_may_raise_comes_through_as_it_is() -> None:
    async with far_and_client() as (far, client):
        client.rpc_hooks.add(Raises(ConnectError("not to there"), "before"))
        with pytest.raises(ConnectError, match="not to there"):
            await client.call(far.address, call(1), TIMEOUT_S)


async def test_a_hook_of_several_runs_once_and_leaves_with_the_last() -> None:
    async with far_and_client() as (far, client):
        hook = Notes()
        client.rpc_hooks.add(hook)
        client.rpc_hooks.add(hook)
        await client.call(far.address, call(1), TIMEOUT_S)
        client.rpc_hooks.remove(hook)
        await client.call(far.address, call(2), TIMEOUT_S)
        client.rpc_hooks.remove(hook)
        await client.call(far.address, call(3), TIMEOUT_S)
        assert [what for what, _ in hook.seen] == ["before", "after 1", "before", "after 2"]


async def test_bytes_that_a_peer_does_not_take_are_counted() -> None:
    async with far_and_client() as (far, client):
        connection = await client.connection(far.address)
        assert connection.unsent_bytes == 0
        _, size = await client.send_oneway_bounded(far.address, call(1), TIMEOUT_S)
        assert connection.unsent_bytes == size  # it leaves at the end of this turn
        async with asyncio.timeout(TIMEOUT_S):
            await until(lambda: connection.unsent_bytes == 0)
