"""Read stored messages from scripted servers that answer as brokers of 4.x, or hold what is malformed."""

from __future__ import annotations

import pytest
from tests.unit.admin.fake_cluster import A, FakeCluster, answer, route

from cometmq.admin.brokers.room import Brokers
from cometmq.admin.messages.room import Messages
from cometmq.admin.name_servers import NameServers
from cometmq.errors import IllegalArgumentError, ProtocolError
from cometmq.model.message import MessageExt
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import RemotingCommand
from cometmq.protocol.headers import SearchOffsetRequestHeader


async def test_messages_of_the_first_ms_are_not_left_out_at_brokers_of_4x() -> None:
    # Of several messages of the time that is asked for, they answer any.
    asked: list[int] = []

    def search(_: str, command: RemotingCommand) -> RemotingCommand:
        asked.append(command.header(SearchOffsetRequestHeader).timestamp)
        return answer(offset=0)

    cluster = FakeCluster(
        {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: lambda *_: route({"broker-a": 1}),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: search,
            RequestCode.GET_MAX_OFFSET: lambda *_: answer(offset=0),
        }
    )
    messages = Messages(cluster.servers)
    for begin_ms in (0, 1_000):
        assert [each async for each in messages.stored("t", begin_ms=begin_ms)] == []
    assert asked == [0, 999]


@pytest.mark.parametrize("offset", ["9" * 19, "1" * 5_000])
async def test_a_cursor_of_an_impossible_offset_is_refused(offset: str) -> None:
    with pytest.raises(IllegalArgumentError, match="is no cursor"):
        await Messages(FakeCluster({}).servers).page("t", cursor=f"broker-a={offset}")


async def test_a_malformed_trace_record_does_not_spoil_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sound = "\x01".join(
        ["Pub", "5", "R", "g", "t", "ID", "", "", "h:1", "1", "7", "0", "O", "true"]
    )
    bodies = [b"Pub\x01soon\x02", f"Pub\x01x\x02{sound}\x02".encode()]

    async def query(*_: object, **__: object) -> list[MessageExt]:
        return [MessageExt("RMQ_SYS_TRACE_TOPIC", body) for body in bodies]

    messages = Messages(FakeCluster({}).servers)
    monkeypatch.setattr(messages, "_query", query)
    assert [event.timestamp_ms for event in await messages.trace("ID")] == [5]


@pytest.mark.parametrize("body", [b"\xff", b"a=\\uZZZZ"])
async def test_settings_that_are_none_are_an_error_of_the_server(body: bytes) -> None:
    """Bytes that are no UTF-8 ended a command by a traceback, and a page of the console by 500."""
    cluster = FakeCluster(
        {
            RequestCode.GET_NAMESRV_CONFIG: lambda *_: answer(body=body),
            RequestCode.GET_BROKER_CONFIG: lambda *_: answer(body=body),
        }
    )
    with pytest.raises(ProtocolError, match=r"the settings of .* cannot be read"):
        await NameServers(cluster.servers).config()
    with pytest.raises(ProtocolError, match=f"the settings of {A} cannot be read"):
        await Brokers(cluster.servers).config(broker=A)
