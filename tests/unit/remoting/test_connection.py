"""One connection fed with bytes: what it answers, what it survives, and how it ends."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from inspect import CORO_CLOSED, getcoroutinestate
from typing import Any

import pytest
import structlog
from tests.simulated import in_simulated_time
from tests.unit.remoting.line import ECHO, ECHO_REQUEST, EchoHeader, Line, answer_to, echo
from tests.waits import WAIT_S, until

from cometmq.errors import (
    CometMQError,
    ConnectionLostError,
    IllegalArgumentError,
    ProtocolError,
    RemoteError,
    RequestTimeoutError,
    StoreError,
    TooManyRequestsError,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    Request,
    encode_answer,
    encode_command,
    request,
    response,
)
from cometmq.protocol.frame import encode_frame
from cometmq.protocol.request_type import NO_BODY, RequestType, Resource, ResourceKind, Right
from cometmq.remoting.calls import UNASKED
from cometmq.remoting.connection import Connection, ConnectionLimits
from cometmq.remoting.dispatch import UNSERVED, AsyncHandler, Handler, Handlers

EchoRequest = Request[EchoHeader]
Handle = Handler[EchoHeader] | AsyncHandler[EchoHeader]


def say_number(_connection: Connection, call: EchoRequest) -> RemotingCommand:
    return response(0, ext={"number": str(call.header.number)}, body=call.body)


def handlers_with(handle: Handle = say_number) -> Handlers:
    handlers = Handlers()
    handlers.register(ECHO_REQUEST, handle)
    return handlers


def serving(handle: Handle = say_number, **settings: Any) -> Line:
    return Line(handlers_with(handle), server_side=True, **settings)


def raising(error: Exception) -> Handle:
    def handle(_connection: Connection, _call: EchoRequest) -> RemotingCommand:
        raise error

    return handle


# Requests of the peer


async def test_the_answers_of_one_read_leave_in_one_write() -> None:
    line = serving()
    line.feed(echo(1, opaque=5) + echo(2, opaque=6) + echo(3, opaque=7))
    answers = await line.flushed()
    assert len(line.transport.writes) == 1
    assert [(answer.opaque, answer.ext["number"]) for answer in answers] == [
        (5, "1"),
        (6, "2"),
        (7, "3"),
    ]
    assert all(answer.is_response for answer in await line.flushed())


async def test_frames_may_come_byte_by_byte() -> None:
    line = serving()
    data = echo(1, body=b"first") + echo(2, opaque=1, body=b"second")
    line.feed(*(data[at : at + 1] for at in range(len(data))))
    assert [bytes(answer.body) for answer in await line.flushed()] == [b"first", b"second"]


async def test_a_frame_may_end_in_the_read_that_begins_the_next() -> None:
    line = serving()
    data = echo(1) + echo(2, opaque=1)
    line.feed(data[:-7], data[-7:])
    assert [answer.ext["number"] for answer in await line.flushed()] == ["1", "2"]


async def test_a_handler_may_answer_with_an_encoded_frame() -> None:
    def handle(connection: Connection, call: EchoRequest) -> None:
        head = encode_answer(call.opaque, b'"a":"1"', body_length=6)
        connection.reply_encoded(call, head, [b"sli", memoryview(b"ces")])

    line = serving(handle)
    line.feed(echo(opaque=9))
    (answer,) = await line.flushed()
    assert (answer.opaque, answer.code, answer.ext) == (9, 0, {"a": "1"})
    assert answer.body == b"slices"


async def test_an_encoded_answer_to_a_one_way_request_is_not_sent() -> None:
    def handle(connection: Connection, call: EchoRequest) -> None:
        connection.reply_encoded(call, encode_answer(call.opaque, b'"a":"1"'))

    line = serving(handle)
    line.feed(echo(1, flag=FLAG_ONEWAY) + echo(2, opaque=5))
    assert [answer.opaque for answer in await line.flushed()] == [5]


async def test_an_encoded_answer_may_leave_later_in_the_turn_after() -> None:
    asked: list[EchoRequest] = []
    line = serving(lambda _, call: asked.append(call))
    line.feed(echo(opaque=3))
    line.connection.reply_encoded(asked[0], encode_answer(3, b'"a":"1"'))
    assert line.received() == []
    assert [answer.opaque for answer in await line.flushed()] == [3]


async def test_a_handler_may_answer_with_what_it_waits_for() -> None:
    gate: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
    line = serving(lambda connection, call: connection.reply_when(call, gate))
    line.feed(echo(opaque=4))
    assert await line.flushed() == []
    gate.set_result(response(0, "done"))
    await until(line.received)
    assert [(answer.opaque, answer.remark) for answer in await line.flushed()] == [(4, "done")]


async def test_the_coroutine_of_an_answer_is_closed_whose_task_ends_before_it_begins() -> None:
    async def begun() -> None:
        raise AssertionError("the task of the answer has begun")

    answer = begun()
    line = serving(lambda connection, call: connection.reply_when(call, answer))
    line.feed(echo())
    await line.owner.close()
    # Python warns of a coroutine that is neither awaited nor closed.
    assert getcoroutinestate(answer) == CORO_CLOSED


async def test_a_handler_may_answer_later() -> None:
    asked: list[EchoRequest] = []
    line = serving(lambda _, call: asked.append(call))
    line.feed(echo(opaque=3))
    assert await line.flushed() == []
    line.connection.reply(asked[0], response(0, "at last"))
    (answer,) = await line.flushed()
    assert (answer.opaque, answer.remark) == (3, "at last")


async def test_an_asynchronous_handler_answers_when_it_is_done() -> None:
    gate = asyncio.Event()

    async def handle(_connection: Connection, _call: EchoRequest) -> RemotingCommand:
        await gate.wait()
        return response(0, "done")

    line = serving(handle)
    line.feed(echo(opaque=1) + echo(opaque=2))
    assert await line.flushed() == []
    gate.set()
    await until(lambda: len(line.received()) == 2)
    assert [(a.opaque, a.remark) for a in await line.flushed()] == [(1, "done"), (2, "done")]
    await line.owner.close()


async def test_an_asynchronous_handler_that_fails_is_answered() -> None:
    async def handle(_connection: Connection, _call: EchoRequest) -> RemotingCommand:
        raise RemoteError("not today", code=14)

    line = serving(handle)
    line.feed(echo())
    await until(line.received)
    (answer,) = await line.flushed()
    assert (answer.code, answer.remark) == (14, "not today")


async def test_an_unknown_code_gets_javas_answer() -> None:
    line = serving()
    line.feed(encode_command(request(4242)) + echo())
    unknown, known = await line.flushed()
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert unknown.remark == " request type 4242 not supported"
    assert known.code == 0
    assert not line.connection.closed


@pytest.mark.parametrize(
    ("ext", "named"),
    [
        ({"number": "many"}, "number"),
        ({"number": str(2**31)}, "2147483647"),
        ({}, "number"),
        ({"word": "w"}, "number"),
    ],
)
async def test_a_header_that_does_not_fit_is_refused_by_name(
    ext: dict[str, str], named: str
) -> None:
    line = serving()
    wrong = RemotingCommand(ECHO, ext=ext, opaque=8)
    with structlog.testing.capture_logs() as lines:
        line.feed(encode_command(wrong) + echo(opaque=9))
    refused, served = await line.flushed()
    assert (refused.opaque, refused.code) == (8, ResponseCode.SYSTEM_ERROR)
    assert named in str(refused.remark)
    assert len(lines) == 1
    assert served.code == 0
    assert not line.connection.closed


async def test_a_second_code_was_passed_on_though_the_first_was_judged() -> None:
    """A client that may ask for a member's running info could have the broker send any request to
    that member.
    """
    seen: list[int] = []

    def relay(_connection: Connection, call: EchoRequest) -> RemotingCommand:
        seen.append(call.code)
        return response(0)

    line = serving(relay)
    header = b'{"code":%d,"opaque":8,"extFields":{"number":"1"},"code":%d}'
    line.feed(encode_frame(header % (ECHO, 220)) + encode_frame(header % (ECHO, ECHO)))
    refused, served = await line.flushed()
    assert (refused.opaque, refused.code) == (8, ResponseCode.SYSTEM_ERROR)
    assert refused.remark == "a header names two codes, 901 and 220"
    assert (served.code, seen) == (0, [ECHO])


async def test_clients_cannot_choose_by_what_codes_refused_requests_are_counted() -> None:
    """A header may have a second code. The counts are labels of metrics and are never dropped."""
    handlers = handlers_with(raising(RemoteError("not today", code=14)))
    line = Line(handlers, server_side=True)
    twice = b'{"code":%d,"code":%d,"opaque":1,"extFields":{"number":"%b"}}'
    for code in range(5_000, 5_010):
        line.feed(
            encode_frame(twice % (ECHO, code, b"1")), encode_frame(twice % (ECHO, code, b"x"))
        )
        line.feed(encode_command(request(code)))
    assert len(await line.flushed()) == 30
    assert sum(handlers.refused.values()) == 30
    assert {code for code, _ in handlers.refused} <= {ECHO, UNSERVED}


@pytest.mark.parametrize(
    "data",
    [
        encode_frame(b"{nonsense"),
        encode_frame(b"[1, 2]"),
        encode_frame(b"\xff\xfe"),
        encode_frame(b'{"code":901,"opaque":"x"}'),
        encode_frame(b'{"code":901,"extFields":[]}'),
        encode_frame(b"{}", serialize_type=9),
        encode_frame(b"\0\x0a", serialize_type=1),
        struct.pack(">II", 3, 0),
        struct.pack(">II", 8, 200),
    ],
)
async def test_what_is_no_command_ends_the_connection(data: bytes) -> None:
    line = serving()
    with structlog.testing.capture_logs() as lines:
        line.feed(data)
    assert line.transport.ended == "closed"
    assert [entry["log_level"] for entry in lines] == ["warning"]
    assert lines[0]["peer"] == "10.0.0.9:4711"
    # What declares too large a frame is told so; no request is answered.
    assert all(answer.opaque == UNASKED for answer in await line.flushed())


async def test_another_protocol_looks_like_too_long_a_frame_and_gets_none() -> None:
    line = serving()
    with structlog.testing.capture_logs() as lines:
        line.feed(b"GET / HTTP/1.1\r\n\r\n")
    assert line.transport.ended == "closed"
    assert [entry["log_level"] for entry in lines] == ["warning"]
    assert await line.flushed() == []


@pytest.mark.parametrize(
    ("right", "error", "level"),
    [
        (Right.INSPECT, RemoteError("no numbers", code=1), "debug"),
        (Right.INSPECT, StoreError("the disk is gone"), "warning"),
        (Right.INSPECT, CometMQError("too many", code=2, limit="maxTopics"), "warning"),
        (Right.ADMIN, RemoteError("no such topic", code=17), "warning"),
    ],
)
async def test_a_refused_question_is_no_warning(
    right: Right, error: CometMQError, level: str
) -> None:
    """An exporter left 318 warnings an hour for numbers that do not exist, a dashboard 681."""
    row = RequestType(
        ECHO, EchoHeader, NO_BODY, EchoHeader, NO_BODY, right, Resource(ResourceKind.CLUSTER)
    )
    handlers = Handlers()
    handlers.register(row, raising(error))
    line = Line(handlers, server_side=True)
    with structlog.testing.capture_logs() as lines:
        line.feed(echo(1))
        assert len(await line.flushed()) == 1
    assert [entry["log_level"] for entry in lines] == [level]


async def test_a_grpc_client_is_named_and_sent_where_it_is_served() -> None:
    """The log said "a frame declares a header of type 42"."""
    line = serving()
    with structlog.testing.capture_logs() as lines:
        line.feed(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert line.transport.ended == "closed"
    (entry,) = lines
    assert entry["log_level"] == "warning"
    assert "gRPC client of RocketMQ 5" in entry["reason"]
    assert "proxy" in entry["reason"]


async def test_what_came_before_the_nonsense_is_still_answered() -> None:
    line = serving()
    line.feed(echo(opaque=1), encode_frame(b"{nonsense"))
    assert [answer.opaque for answer in await line.flushed()] == [1]
    assert line.transport.ended == "closed"


async def test_a_frame_above_the_limit_ends_its_connection_before_it_is_read() -> None:
    limits = ConnectionLimits(max_frame_length=2000)
    guilty, innocent = serving(limits=limits), serving(limits=limits)
    with structlog.testing.capture_logs() as lines:
        guilty.feed(struct.pack(">I", 2001))
    assert guilty.transport.ended == "closed"
    assert "2001" in lines[0]["reason"]
    assert "2000" in lines[0]["reason"]
    innocent.feed(echo(body=b"x" * 1000))
    assert len(await innocent.flushed()) == 1


@pytest.mark.parametrize(
    "handle",
    [
        say_number,
        raising(ValueError("broken")),
        raising(RemoteError("no", code=17)),
        lambda _, call: encode_answer(call.opaque, b""),
    ],
)
async def test_a_oneway_request_is_never_answered(handle: Handle) -> None:
    line = serving(handle)
    line.feed(echo(flag=FLAG_ONEWAY))
    assert await line.flushed() == []


async def test_a_oneway_request_that_is_refused_is_not_answered() -> None:
    line = serving()
    wrong = RemotingCommand(ECHO, flag=FLAG_ONEWAY, ext={"number": "x"})
    line.feed(encode_command(wrong), encode_command(RemotingCommand(4242, flag=FLAG_ONEWAY)))
    assert await line.flushed() == []
    assert not line.connection.closed


async def test_an_asynchronous_oneway_request_is_not_answered() -> None:
    served: list[int] = []

    async def handle(_connection: Connection, call: EchoRequest) -> RemotingCommand:
        served.append(call.opaque)
        return response(0)

    line = serving(handle)
    line.feed(echo(opaque=1, flag=FLAG_ONEWAY), echo(opaque=2))
    await until(line.received)
    assert served == [1, 2]
    assert [answer.opaque for answer in await line.flushed()] == [2]


@pytest.mark.parametrize(
    ("error", "code", "remark"),
    [
        (RemoteError("text", code=17, remark="the remark"), 17, "the remark"),
        (RemoteError("no code"), 1, "no code"),
        (IllegalArgumentError("bad"), 1, "bad"),
        (ValueError("a slip"), 1, "ValueError: a slip"),
    ],
)
async def test_a_handler_that_raises_is_answered_and_logged_once(
    error: Exception, code: int, remark: str
) -> None:
    line = serving(raising(error))
    with structlog.testing.capture_logs() as lines:
        line.feed(echo(opaque=4) + echo(opaque=5))
    assert [(a.opaque, a.code, a.remark) for a in await line.flushed()] == [
        (4, code, remark),
        (5, code, remark),
    ]
    assert len(lines) == 2
    assert not line.connection.closed


# Our requests


async def test_a_call_gets_the_answer_to_its_opaque() -> None:
    line = Line()
    first = line.connection.call_nowait(request(1), 5)
    second = line.connection.call_nowait(request(2), 5)
    one, two = await line.flushed()
    assert len(line.transport.writes) == 1
    line.feed(answer_to(two, code=22), answer_to(one))
    assert (await first).code == 0
    assert (await second).code == 22


async def test_an_answer_may_have_the_code_of_a_request_that_is_served() -> None:
    line = Line(handlers_with())
    call = line.connection.call_nowait(request(1), 5)
    (sent,) = await line.flushed()
    line.feed(answer_to(sent, code=ECHO))
    assert (await call).code == ECHO
    fitting = response(ECHO, ext={"number": "1"})
    call = line.connection.call_nowait(request(1), 5)
    fitting.opaque = (await line.flushed())[1].opaque
    line.feed(encode_command(fitting))
    assert (await call).ext == {"number": "1"}
    assert len(await line.flushed()) == 2


async def test_a_call_that_is_not_answered_times_out() -> None:
    line = Line()
    with pytest.raises(RequestTimeoutError, match="within 10 ms") as raised:
        await line.connection.call(request(1), 0.01)
    assert raised.value.address == "10.0.0.9:4711"


@in_simulated_time
async def test_each_call_ends_at_its_own_timeout() -> None:
    line = Line()
    long, short = (line.connection.call_nowait(request(1), timeout_s) for timeout_s in (0.3, 0.01))
    with pytest.raises(RequestTimeoutError, match="within 10 ms"):
        await short
    assert not long.done()
    with pytest.raises(RequestTimeoutError, match="within 300 ms"):
        await long


async def test_calls_of_one_connection_share_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, timers = asyncio.get_running_loop(), []
    made = loop.call_at

    def call_at(*args: Any) -> asyncio.TimerHandle:
        timers.append(made(*args))
        return timers[-1]

    monkeypatch.setattr(loop, "call_at", call_at)
    line = Line()
    calls = [line.connection.call_nowait(request(1), 5) for _ in range(100)]
    assert len(timers) == 1
    line.feed(*map(answer_to, await line.flushed()))
    await asyncio.gather(*calls)


async def test_a_cancelled_call_gives_its_room_back_when_its_time_is_over() -> None:
    line = Line(limits=ConnectionLimits(max_outstanding_calls=1))
    line.connection.call_nowait(request(1), 0.01).cancel()
    with pytest.raises(TooManyRequestsError):
        line.connection.call_nowait(request(1), 5)
    async with asyncio.timeout(WAIT_S):
        while True:
            await asyncio.sleep(0.01)
            with suppress(TooManyRequestsError):
                line.connection.call_nowait(request(1), 5).cancel()
                break


async def test_an_answer_that_comes_late_is_ignored() -> None:
    line = Line()
    with pytest.raises(RequestTimeoutError):
        await line.connection.call(request(1), 0.001)
    (sent,) = await line.flushed()
    line.feed(answer_to(sent), answer_to(sent))
    assert not line.connection.closed


async def test_a_call_that_was_cancelled_leaves_nothing_behind() -> None:
    line = Line(limits=ConnectionLimits(max_outstanding_calls=1))
    call = asyncio.ensure_future(line.connection.call(request(1), 5))
    await asyncio.sleep(0)  # the call begins
    (sent,) = await line.flushed()
    call.cancel()
    await asyncio.wait([call])
    line.feed(answer_to(sent))
    line.connection.call_nowait(request(1), 5).cancel()


async def test_calls_fail_when_the_connection_is_lost() -> None:
    line = Line()
    calls = [line.connection.call_nowait(request(1), 5) for _ in range(2)]
    reset = ConnectionResetError("reset by peer")
    line.connection.connection_lost(reset)
    for call in calls:
        with pytest.raises(ConnectionLostError) as raised:
            await call
        assert raised.value.__cause__ is reset
    # Also when nothing was sent yet: a busy client may see the end before it says anything.
    why = "closed before the request was sent; the peer has never answered: it may require TLS"
    with pytest.raises(ConnectionLostError, match=why):
        await line.connection.call(request(1), 5)
    with pytest.raises(ConnectionLostError, match=why):
        line.connection.send_oneway(request(1))


async def test_the_number_of_outstanding_calls_is_bounded() -> None:
    line = Line(limits=ConnectionLimits(max_outstanding_calls=2))
    calls = [line.connection.call_nowait(request(1), 5) for _ in range(2)]
    with pytest.raises(TooManyRequestsError, match="max_outstanding_calls is 2"):
        await line.connection.call(request(1), 5)
    line.feed(answer_to((await line.flushed())[0]))
    await calls[0]
    line.connection.call_nowait(request(1), 5)
    line.connection.connection_lost(None)


async def test_a_call_that_cannot_be_encoded_is_not_outstanding() -> None:
    line = Line(limits=ConnectionLimits(max_outstanding_calls=1))
    too_wide = RemotingCommand(1, remark="\ud800")
    with pytest.raises((ProtocolError, UnicodeEncodeError)):
        await line.connection.call(too_wide, 5)
    line.connection.call_nowait(request(1), 5).cancel()


async def test_a_oneway_request_says_so() -> None:
    line = Line()
    line.connection.send_oneway(request(40))
    (sent,) = await line.flushed()
    assert sent.is_oneway
    assert not sent.is_response


async def test_requests_may_come_over_a_connection_that_we_made() -> None:
    line = Line(handlers_with())
    line.feed(echo(7))
    (answer,) = await line.flushed()
    assert answer.flag & FLAG_RESPONSE
    assert answer.ext == {"number": "7"}


# Flow control


async def test_a_server_stops_reading_while_its_answers_cannot_leave() -> None:
    line = serving(limits=ConnectionLimits(write_buffer_high=1000))
    assert line.transport.high == 1000
    line.connection.pause_writing()
    assert not line.transport.reading
    line.connection.resume_writing()
    assert line.transport.reading


def write_much(connection: Connection, call: EchoRequest) -> None:
    """Answer with at least 500 bytes, as a pull does."""
    connection.reply(call, response(0, ext={"number": str(call.header.number)}, body=b"x" * 500))


def numbers(line: Line) -> list[int]:
    return [int(command.ext["number"]) for command in line.received()]


async def test_the_requests_of_one_read_wait_while_their_answers_cannot_leave() -> None:
    line = serving(write_much, limits=ConnectionLimits(write_buffer_high=1000))
    line.transport.room = 0
    line.feed(b"".join(echo(i) for i in range(7)), echo(7))
    await line.flushed()
    assert (numbers(line), line.transport.reading) == ([0, 1], False)
    # The peer reads a little: a part of the rest is served, and the reading stays paused.
    line.connection.resume_writing()
    await line.flushed()
    assert (numbers(line), line.transport.reading) == ([0, 1, 2, 3], False)
    line.transport.room = None
    line.connection.resume_writing()
    await line.flushed()
    assert (numbers(line), line.transport.reading) == (list(range(8)), True)


async def test_requests_that_wait_go_with_their_connection() -> None:
    served = []

    def count(connection: Connection, call: EchoRequest) -> None:
        served.append(call)
        write_much(connection, call)

    line = serving(count, limits=ConnectionLimits(write_buffer_high=100))
    line.transport.room = 0
    line.feed(echo(0) + echo(1))
    line.connection.abort()
    line.connection.connection_lost(None)
    line.connection.resume_writing()
    await line.flushed()
    assert len(served) == 1


async def test_much_is_written_before_the_turn_ends() -> None:
    line = serving(limits=ConnectionLimits(write_buffer_high=1000))
    line.connection.write(b"x" * 900)
    assert line.transport.writes == []
    line.connection.write(b"y" * 101)
    assert line.transport.writes == [b"x" * 900 + b"y" * 101]
    await asyncio.sleep(0)
    assert len(line.transport.writes) == 1


async def test_a_client_goes_on_reading_while_its_requests_cannot_leave() -> None:
    line = Line()
    line.connection.pause_writing()
    assert line.transport.reading


async def test_a_call_waits_until_there_is_room_to_write() -> None:
    line = Line()
    line.connection.pause_writing()
    call = asyncio.ensure_future(line.connection.call(request(1), 5))
    assert await line.flushed() == []
    line.connection.resume_writing()
    while not (sent := await line.flushed()):
        pass
    line.feed(answer_to(sent[0]))
    assert (await call).code == 0


async def test_a_call_gives_up_on_a_peer_that_does_not_read() -> None:
    line = Line()
    line.connection.pause_writing()
    with pytest.raises(RequestTimeoutError, match="did not read"):
        await line.connection.call(request(1), 0.01)
    assert await line.flushed() == []


async def test_a_call_that_waits_for_room_fails_when_the_connection_is_lost() -> None:
    line = Line()
    line.connection.pause_writing()
    call = asyncio.ensure_future(line.connection.call(request(1), 5))
    await asyncio.sleep(0)
    line.connection.connection_lost(None)
    with pytest.raises(ConnectionLostError):
        await call


# Begin and end


async def test_the_peer_is_known_by_address() -> None:
    connection = Line().connection
    assert (connection.peer, connection.peer_ip, connection.peer_port) == (
        "10.0.0.9:4711",
        "10.0.0.9",
        4711,
    )
    assert connection.packed_peer == bytes([10, 0, 0, 9]) + (4711).to_bytes(4, "big")
    assert connection.local_ip == "10.0.0.1"


@pytest.mark.parametrize(
    ("address", "packed"),
    [
        ("::ffff:10.0.0.9", bytes([10, 0, 0, 9])),
        ("fe80::1%eth0", bytes([0xFE, 0x80, *[0] * 13, 1])),
    ],
)
async def test_the_peers_address_is_packed_as_records_hold_it(address: str, packed: bytes) -> None:
    connection = Line(peer=(address, 1)).connection
    assert connection.packed_peer == packed + b"\0\0\0\1"


async def test_a_peer_that_is_gone_before_it_was_accepted_is_forgotten() -> None:
    met: list[Connection] = []
    line = Line(peer=None, on_connect=met.append)
    assert line.transport.ended == "aborted"
    await line.connection.lost
    assert met == []


async def test_close_sends_what_waits_first() -> None:
    line = Line()
    line.connection.send_oneway(request(1))
    line.connection.close()
    line.connection.close()
    assert len(await line.flushed()) == 1
    assert line.transport.ended == "closed"
    await line.connection.lost


async def test_nothing_is_sent_after_the_close() -> None:
    asked: list[EchoRequest] = []
    line = serving(lambda _, call: asked.append(call))
    line.feed(echo())
    line.connection.close()
    line.connection.reply(asked[0], response(0))
    assert await line.flushed() == []


async def test_abort_drops_what_waits() -> None:
    line = Line()
    line.connection.send_oneway(request(1))
    line.connection.abort()
    assert await line.flushed() == []
    assert line.transport.ended == "aborted"


async def test_everybody_learns_once_that_the_connection_is_gone() -> None:
    line = Line()
    reported: list[str] = []
    line.connection.on_close += [
        lambda _: reported.append("first"),
        lambda _: 1 / 0,  # type: ignore[list-item]  # it never returns
        lambda connection: reported.append(f"second {connection.closed}"),
    ]
    with structlog.testing.capture_logs() as lines:
        line.connection.close()
        await line.connection.lost
    assert reported == ["first", "second True"]
    assert [entry["log_level"] for entry in lines] == ["error"]


async def test_a_code_is_served_by_one_handler_only() -> None:
    handlers = handlers_with()
    with pytest.raises(AssertionError, match="twice"):
        handlers.register(ECHO_REQUEST, lambda *_: None)
