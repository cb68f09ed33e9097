"""Carry commands over one connection, both ways.

Either side may send requests. The connection is the protocol object of a transport: it cuts the
bytes that come into frames, gives each frame to its handler, and writes once in a turn of the loop.
All answers that handlers give while one read is served leave in one write. `Calls` has this side's
requests that wait for their answers, and `Serving`, on a server's side, the other side's that wait
to be served.

For the loop's thread only.

Longer than 500 lines: reading, answering and closing share the state of one protocol object.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from cometmq.errors import (
    AccessRefusedError,
    CometMQError,
    LimitError,
    ProtocolError,
    RequestTimeoutError,
    StoreError,
)
from cometmq.logs.loggers import get_logger
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    Request,
    decode_command,
    encode_command,
    encode_parts,
    peek_code,
    response,
)
from cometmq.protocol.frame import MAX_FRAME_LENGTH, Frame, FrameDecoder, SerializeType
from cometmq.protocol.messages.ids import pack_host
from cometmq.protocol.refused_requests import unsupported
from cometmq.remoting.calls import UNASKED, Calls
from cometmq.remoting.dispatch import UNSERVED, Handlers
from cometmq.remoting.holdings import (
    SLOW_BYTES_PER_S,
    WORTH_COUNTING_BYTES,
    Holding,
    Holdings,
)
from cometmq.remoting.serving import CONGESTED, FULL, Serving
from cometmq.remoting.turns import ServingTurns
from cometmq.runtime.sockets.address_list import plain_ip
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.write_lines import write_lines
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

Buffer = bytes | memoryview
AnyRequest = Request[Any]
MAX_UNSENT_BYTES: Final = 4 * 1024 * 1024
DEFAULT_KEPT_BYTES: Final = 64 * 1024 * 1024
DEFAULT_WAITING_REQUESTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of one connection.

    max_frame_length: in bytes.
    max_outstanding_calls: how many own requests may wait for an answer.
    write_buffer_high: above this number of unsent bytes the connection stops serving requests
        (server), also those that it has read already, or making them (client), until the peer reads.
    silence_s: a peer that let a call time out and has sent nothing for this many seconds counts as
        dead (client).
    unfinished_frame_s: a frame has this many seconds to arrive, and one more for each
        SLOW_BYTES_PER_S bytes of it that are there (server).
    max_kept_bytes: once the requests that wait for their answers have so many bytes, no more are
        served, or read, until some are answered (server; the setting maxBytesInFlightPerConnection).
    max_waiting_requests: how many requests tasks may be about to answer (server; the setting
        maxWaitingRequestsPerConnection).
    """

    max_frame_length: int = MAX_FRAME_LENGTH
    max_outstanding_calls: int = 65535
    write_buffer_high: int = MAX_UNSENT_BYTES
    silence_s: float = 1.0
    unfinished_frame_s: float = 30.0
    max_kept_bytes: int = DEFAULT_KEPT_BYTES
    max_waiting_requests: int = DEFAULT_WAITING_REQUESTS


DEFAULT_LIMITS: Final = ConnectionLimits()


class Connection(asyncio.Protocol):
    """The protocol object of one connection; see the module.

    With `turns`, which the connections of a server share, it serves requests as `Serving` describes, and
    `holdings` bounds what all that share it hold.
    """

    def __init__(
        self,
        handlers: Handlers,
        owner: TaskOwner,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        serialize_type: SerializeType = SerializeType.JSON,
        turns: ServingTurns | None = None,
        holdings: Holdings | None = None,
        on_connect: Callable[[Connection], None] | None = None,
    ) -> None:
        self.on_close: list[Callable[[Connection], None]] = []
        # Why the peer's bytes after the requests that wait are not requests, if that is so.
        self.fault: ProtocolError | None = None
        self.peer = ""
        self.peer_ip = ""
        self.peer_port = 0
        self.packed_peer = b""
        self.local_ip = ""
        self.closed = False
        # Whether the transport is gone though not all requests that came are served.
        self._is_lost = False
        self.last_active = 0.0
        self.made_at = 0.0
        # Whether the peer has sent anything yet.
        self.heard = False
        self.holding = Holding(holdings)
        self._last_read = 0.0
        self.serialize_type = serialize_type
        self._handler_of = handlers.get
        self._decode_request = handlers.decoder.decode
        self._refused, self._questions = handlers.refused, handlers.questions
        self.limit_hits = handlers.limit_hits
        self._owner = owner
        self._limits = limits
        self._on_connect = on_connect
        self._frames = FrameDecoder(limits.max_frame_length)
        self._calls = Calls(limits.max_outstanding_calls)
        self._serving = None if turns is None else Serving(turns, handlers)
        # Seconds for which the connection was served beyond its slices; see `ServingTurns`.
        self.debt_s = 0.0
        # The function that answers all requests of a peer that is not served; see `shut_out`.
        self._shut_out: Callable[[Connection, RemotingCommand], None] | None = None
        self._out: list[Buffer] = []
        # Bytes in `_out`, and bytes written that `holding` does not count yet.
        self.out_bytes = self._written = 0
        # Requests that tasks are about to answer.
        self._task_count = 0
        self._writable: asyncio.Event | None = None
        self._transport: asyncio.Transport | None = None
        self._flush_due = False
        self._paused_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_high)
        self.peer_ip, self.peer_port = _endpoint(transport.get_extra_info("peername"))
        if not self.peer_ip:  # the peer reset the connection before it was accepted
            self.abort()
            return
        self.peer = join_address(self.peer_ip, self.peer_port)
        # A scope (`fe80::1%eth0`) has a meaning on this host only, so records do not store it.
        self.packed_peer = pack_host(self.peer_ip.partition("%")[0], self.peer_port)
        self.local_ip, _ = _endpoint(transport.get_extra_info("sockname"))
        self.last_active = self._last_read = self.made_at = self._loop.time()
        if self._on_connect is not None:
            self._on_connect(self)

    def data_received(self, data: bytes) -> None:
        # After a close TLS still delivers bytes that came before the end of its close-notify.
        if self.closed:
            return
        self.last_active = self._last_read = self._loop.time()
        self.heard = True
        self._flush_due = True  # the answers given below wait for the flush at the end
        frames: list[Frame] = []
        serving = self._serving
        writes_later = False
        try:
            frames = self._frames.feed(data)
            if serving is None:
                for frame in frames:
                    self.serve(frame, peek_code(frame))
            else:
                now_s = serving.turns.monotonic()
                writes_later = serving.turns.begin_read(self, now_s)
                serving.read(self, frames, now_s)
                if self._frames.buffered:
                    serving.rest(self, self._frames.buffered)
            self._check_bytes()
        except ProtocolError as error:
            self._end(error)
        if not writes_later:
            self.flush()
        if self._frames.buffered or self.holding.received or (serving and serving.waits):
            self._count_received(new_frame=bool(frames))

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()
        if self._serving is not None and self._transport is not None:
            self.limit_hits.hit("MAX_UNSENT_BYTES")
            self._serving.block(self, CONGESTED)

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._serving is not None:
            self._serving.unblock(self, CONGESTED)

    def eof_received(self) -> None:
        """Write what is due. The transport closes when this returns, and `connection_lost` has the
        requests served that wait: answers made then reach nobody.
        """
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calls.lost(self, exc)
        serving = self._serving
        if serving is not None and serving.waits and not self.closed:
            # The rest may take seconds, so it waits for its turns like the requests of everybody else,
            # and counts as held as long.
            self._transport = None
            self._is_lost = True
            self._out.clear()
            self.out_bytes = 0
            self.resume_writing()
            return
        self._end_of_connection()

    def _end_of_connection(self) -> None:
        """Call everybody who wants to know that the connection is gone."""
        self._is_lost = False
        self.closed = True
        self._drop_requests()
        self.holding.forget(self)
        if self._writable is not None:
            self._writable.set()
        callbacks, self.on_close = self.on_close, []
        for callback in callbacks:
            try:
                callback(self)
            except Exception:
                # The other callbacks, and tasks that wait for `lost`, must not suffer from it.
                log.exception("clean-up after a connection failed", peer=self.peer)
        self._lost.set_result(None)

    @property
    def is_of_server(self) -> bool:
        """Return whether this side accepted the connection."""
        return self._serving is not None

    @property
    def lost(self) -> asyncio.Future[None]:
        """Return a future that is done once the connection is gone and `on_close` was called."""
        return self._lost

    @property
    def descriptor(self) -> int:
        """Return the file descriptor of the socket, -1 if there is no socket."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def congested(self) -> bool:
        """Return whether more than `write_buffer_high` bytes wait for the peer to read; False once
        the connection is closed, because a task that waits for its peer would then wait for ever.
        """
        return self._writable is not None and not self.closed

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes the kernel has not taken yet."""
        waiting = 0
        for buffer in self._out:
            waiting += len(buffer)
        if self._transport is not None:
            waiting += self._transport.get_write_buffer_size()
        return waiting

    # Our requests

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Send a request and wait for its answer, whatever its code.

        Raises RequestTimeoutError, ConnectionLostError or TooManyRequestsError.
        """
        if self._writable is not None:
            await self.wait_writable(timeout_s)
        return await self.call_nowait(command, timeout_s)

    def call_nowait(
        self, command: RemotingCommand, timeout_s: float
    ) -> asyncio.Future[RemotingCommand]:
        """Send a request at once, even while congested, and return a future of its answer.

        The future may fail with RequestTimeoutError or ConnectionLostError. Raises
        ConnectionLostError or TooManyRequestsError if the request cannot be sent.
        """
        if self.closed or self._transport is None:
            raise self._calls.lost_before(self, "the request was sent")
        self._calls.check_room(self)
        command.opaque = self._calls.take_opaque()
        parts = encode_parts(command, self.serialize_type)
        future = self._calls.begin(self, command.opaque, timeout_s)
        self.write(*parts)
        return future

    async def wait_writable(self, timeout_s: float) -> None:
        """Wait while the connection is congested. Raises RequestTimeoutError."""
        if self._writable is None:
            return
        try:
            async with asyncio.timeout(timeout_s):
                while self._writable is not None and not self.closed:
                    await self._writable.wait()
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"{self.peer} did not read for {timeout_s:.1f} s while more than "
                f"write_buffer_high = {self._limits.write_buffer_high} bytes wait for it",
                address=self.peer,
            ) from error

    def send_oneway(self, command: RemotingCommand) -> int:
        """Send a request that is never answered, and return the number of its bytes.

        Raises ConnectionLostError if the connection is closed.
        """
        if self.closed or self._transport is None:
            raise self._calls.lost_before(self, "the request was sent")
        command.opaque = self._calls.take_opaque()
        command.flag |= FLAG_ONEWAY
        parts = encode_parts(command, self.serialize_type)
        self.write(*parts)
        return sum(map(len, parts))

    def is_silent(self, since: float, now: float) -> bool:
        """Return whether the server has sent no byte since then, for as long as `silence_s` says; times
        are those of the loop.
        """
        if self.is_of_server or self._last_read > since:
            return False
        return now - self._last_read >= self._limits.silence_s

    def drop_silent(self) -> None:
        """Drop a connection whose server is frozen or gone. The next call must not wait until the kernel
        notices (Java: clientCloseSocketIfTimeout).
        """
        if self.closed:
            return  # by another of the calls that are over in this turn of the loop
        log.warning(
            "connection dropped: the server is silent; the next call connects again",
            peer=self.peer,
            silent_s=round(self._loop.time() - self._last_read, 1),
            calls=self._calls.count,
            remedy="look whether the server's process runs and has enough CPU, and whether the "
            "network loses packets; a server that is only slow takes a longer timeout of the calls",
        )
        self.abort()

    # Answers

    def reply(self, request: AnyRequest, answer: RemotingCommand) -> None:
        """Answer a request, now or later. Send nothing if the request is one-way."""
        if request.flag & FLAG_ONEWAY:
            return
        answer.opaque = request.opaque
        answer.flag |= FLAG_RESPONSE
        self.write(*encode_parts(answer, self.serialize_type))

    def reply_encoded(
        self, request: AnyRequest, head: bytes, slices: Sequence[Buffer] = ()
    ) -> None:
        """Answer a request by an encoded frame: `head`, then `slices` with the rest of its body.

        Send nothing if the request is one-way. This saves the command object for the most frequent
        answers.
        """
        if request.flag & FLAG_ONEWAY:
            return
        if slices:
            self.write(head, *slices)
            return
        # A short answer may always wait for the end of the turn; `flush` drops it when closed.
        self._out.append(head)
        self.out_bytes += len(head)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def reply_when(self, request: AnyRequest, answer: Awaitable[RemotingCommand | None]) -> None:
        """Answer a request in a task, with the result or error of `answer`; hold it until then.

        Raises LimitError if too many requests of this connection wait already.
        """
        coroutine = answer if asyncio.iscoroutine(answer) else None
        try:
            self._check_tasks()
        except LimitError:
            if coroutine is not None:
                coroutine.close()
            raise
        self._task_count += 1
        self.keep(request)
        if self._serving is not None:
            self._serving.begins_task()
        self._owner.spawn(
            self._answer_later(request, answer), f"request-{request.code}", awaits=coroutine
        )

    def reply_failure(self, request: AnyRequest, error: Exception) -> None:
        """Answer a request that failed, and log one line.

        The answer has the code of a CometMQError, or SYSTEM_ERROR if the error has no code. Any
        other error is a fault of the handler, is logged as such and gives SYSTEM_ERROR, too.
        """
        self.reply(request, self._failure(request, error))

    def refuse(self, opaque: int, code: int, remark: str) -> None:
        """Answer the request with the number `opaque` by a code and a reason."""
        answer = response(code, remark)
        answer.opaque = opaque
        self.write(encode_command(answer, self.serialize_type))

    def write(self, *buffers: Buffer) -> None:
        """Send encoded bytes at the end of this turn of the loop; drop them when closed.

        Send at once if more than `write_buffer_high` bytes are waiting, which shows whether the
        peer reads.
        """
        if self.closed:
            return
        self._out.extend(buffers)
        for buffer in buffers:
            self.out_bytes += len(buffer)
        if self.out_bytes > self._limits.write_buffer_high:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the bytes that wait for the end of the turn."""
        self._flush_due = False
        size, self.out_bytes = self.out_bytes, 0
        out = self._out
        if not out or self._transport is None or self.closed:
            out.clear()
            return
        self._out = []
        write_lines(self._transport, out)
        self.last_active = self._loop.time()
        self._written += size
        if self._written >= WORTH_COUNTING_BYTES:
            self.holding.writes(self, self._written)
            self._written = 0

    # The end

    def close(self) -> None:
        """Send the bytes that are waiting, then close. Idempotent."""
        if self._is_lost:
            self._end_of_connection()
        if self._transport is not None and not self.closed:
            self.flush()
            self.closed = True
            self._drop_waiting()
            self._transport.close()

    def abort(self) -> None:
        """Close at once and drop the bytes that are waiting."""
        if self._is_lost:
            self._end_of_connection()
        if self._transport is not None:
            self.closed = True
            self._drop_waiting()
            self._transport.abort()

    def fail(self) -> None:
        """Log the error that is being handled and close at once: this connection met a fault of
        ours, and no other connection may suffer from it.
        """
        log.exception("connection closed: it cannot be served", peer=self.peer)
        self.abort()

    def turn_away(self, reason: str, *, limit: str) -> None:
        """Answer a peer that just connected that there is no place for it, and close.

        The reason goes in an answer that no request asked for. Java's clients log it, ours name it
        in the error of the calls that fail.
        """
        self.limit_hits.hit(limit)
        self.refuse(UNASKED, ResponseCode.SYSTEM_BUSY, reason)
        self.close()

    def is_overdue(self, now: float) -> bool:
        """Return whether the unfinished frame should have arrived by now."""
        began = self.holding.frame_began
        # A frame cannot arrive while this side does not read.
        if not began or self.closed or self._serving is None or not self._serving.is_reading:
            return False
        allowed_s = self._limits.unfinished_frame_s + self._frames.buffered / SLOW_BYTES_PER_S
        return now - began > allowed_s

    def cut(self, reason: str, *, limit: str) -> None:
        """Close without waiting for the peer to send or to read the rest, because of a limit.

        Answer an unfinished request with SYSTEM_BUSY, so that its sender knows the reason and
        tries again.
        """
        self.limit_hits.hit(limit)
        unfinished = self._frames.unfinished_header()
        self._drop_requests()
        self.holding.forget(self)
        if unfinished is None or self.closed or self.unsent_bytes:
            self.abort()
            return
        try:
            command = decode_command(unfinished)
        except ProtocolError:
            self.abort()
            return
        if not command.is_response and not command.is_oneway:
            self.refuse(command.opaque, ResponseCode.SYSTEM_BUSY, reason)
        self.close()

    def shut_out(
        self, refuse: Callable[[Connection, RemotingCommand], None], max_frame_length: int
    ) -> None:
        """Serve nothing from now on: `refuse` is called with each request instead.

        Call this before anything has been read.
        """
        self._shut_out = refuse
        self._handler_of = _nothing
        self._frames = FrameDecoder(max_frame_length)

    # Held memory

    def check_room(self, request: AnyRequest, more: int = 0) -> None:
        """Raise LimitError if the connection may not hold another request of this size for long.

        For pulls, which may wait for a message for as long as they like. Other requests are
        answered soon; `keep` holds back those that follow. `more` counts bytes held besides those
        of the request.
        """
        size = len(request.frame.header) + len(request.frame.body) + more
        if size >= WORTH_COUNTING_BYTES and self.holding.kept + size > self._limits.max_kept_bytes:
            raise LimitError(
                "bytes of this connection's requests would wait for their answers",
                self.holding.kept + size,
                "maxBytesInFlightPerConnection",
                self._limits.max_kept_bytes,
                "wait for answers before you send more, or raise the limit",
                code=ResponseCode.SYSTEM_BUSY,
            )

    def keep(self, request: AnyRequest, more: int = 0) -> None:
        """Count a request as held until `let_go`, for handlers that answer it later; `more` counts
        bytes that they hold besides those of the request.

        When too many bytes are held, serve and read nothing until some are answered. A client that
        sends much at once, as a Java producer does with `send` and a callback, is slowed down that
        way, and loses nothing.
        """
        size = len(request.frame.header) + len(request.frame.body) + more
        if size < WORTH_COUNTING_BYTES:
            return
        self.holding.keeps(self, size)
        serving = self._serving
        if (
            serving is not None
            and not serving.blocked & FULL
            and self.holding.kept >= self._limits.max_kept_bytes
        ):
            self.limit_hits.hit("maxBytesInFlightPerConnection")
            serving.block(self, FULL)

    def let_go(self, request: AnyRequest, more: int = 0) -> None:
        """Stop counting a request as held, because it has been served; `more` is as for `keep`."""
        size = len(request.frame.header) + len(request.frame.body) + more
        if size < WORTH_COUNTING_BYTES:
            return
        self.holding.keeps(self, -size)
        serving = self._serving
        if (
            serving is not None
            and serving.blocked & FULL
            and self.holding.kept < self._limits.max_kept_bytes
        ):
            serving.unblock(self, FULL)

    def _check_tasks(self) -> None:
        if self._task_count >= self._limits.max_waiting_requests:
            raise LimitError(
                "requests of this connection wait for their answers already",
                self._task_count,
                "maxWaitingRequestsPerConnection",
                self._limits.max_waiting_requests,
                "wait for answers before you ask for more, or raise the limit",
                code=ResponseCode.SYSTEM_BUSY,
            )

    def _count_received(self, *, new_frame: bool) -> None:
        if not self.closed:
            serving = self._serving
            self.holding.receives(
                self,
                self._frames.buffered,
                0 if serving is None else serving.waiting_bytes,
                self._last_read,
                new_frame=new_frame,
            )

    # Their requests

    def serve(self, frame: Frame, code: int) -> None:
        """Hand a frame to the handler of its code, which `peek_code` has found.

        Raises ProtocolError for a header that is none.
        """
        handler = self._handler_of(code)
        if handler is None:
            self._on_unregistered(decode_command(frame))
            return
        try:
            request = self._decode_request(frame, code)
            if request.code != code:
                # One would be judged by access control, and the other one passed on.
                raise ProtocolError(f"a header names two codes, {code} and {request.code}")
        except ProtocolError as error:
            # `decode_command` raises if the header is no command; that ends the connection.
            self._on_refused(decode_command(frame), error)
            return
        if request.flag & FLAG_RESPONSE:
            self._calls.answered(self, decode_command(frame))
            return
        try:
            answer = handler(self, request)
            if answer is not None:
                self.reply(request, answer)
        except Exception as error:  # noqa: BLE001 - one request must not end the connection
            self.reply_failure(request, error)

    def serve_slice(self) -> bool:
        """Serve requests that wait for one slice; return whether any did. `ServingTurns` calls this."""
        serving = self._serving
        assert serving is not None, "only connections of a server wait in line"
        self._flush_due = True  # below
        served = False
        try:
            served = serving.serve_slice(self)
            if not self.closed:
                self._check_bytes()
        except ProtocolError as error:
            self._end(error)
        except Exception:  # noqa: BLE001 - as a loop does for `data_received`
            self.fail()
        self.flush()
        self._count_received(new_frame=False)
        serving.settle(self)
        if self._is_lost and not serving.waits:
            self._end_of_connection()
        return served

    def set_reading(self, reads: bool) -> None:
        """Have the transport read, or not; `Serving` calls this."""
        if self._transport is None:
            return
        if not reads:
            self._paused_at = self._loop.time()
            self._transport.pause_reading()
            return
        if self.holding.frame_began:  # the rest of the frame could not arrive meanwhile
            # TLS may have brought its beginning after that.
            began = max(self._paused_at, self.holding.frame_began)
            self.holding.frame_began += self._loop.time() - began
        self._transport.resume_reading()

    def _check_bytes(self) -> None:
        """Raise the ProtocolError for bytes that are not a request, once all requests before them
        are served.
        """
        if self._serving is None or not self._serving.waits:
            self._frames.check()

    def _drop_requests(self) -> None:
        self._frames.drop()
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        if self._serving is not None:
            self._serving.drop()

    def _end(self, error: ProtocolError) -> None:
        """Close the connection because of bytes that are no request, or are beyond a limit."""
        self.fault = error
        if self._shut_out is None:
            log.warning("connection closed: not our protocol", peer=self.peer, reason=str(error))
        self.limit_hits.note(error)
        if error.limit and self._serving is not None and self._shut_out is None:
            # The number of the request is not known, or stands in bytes that must not be read.
            self.refuse(UNASKED, ResponseCode.SYSTEM_ERROR, str(error))
        self.close()

    def _on_unregistered(self, command: RemotingCommand) -> None:
        if command.is_response:
            self._calls.answered(self, command)
        elif self._shut_out is not None:
            self._count_refused(UNSERVED, ResponseCode.NO_PERMISSION)
            self._shut_out(self, command)
        elif not command.is_oneway:
            log.warning("request code not supported", peer=self.peer, code=command.code)
            self._count_refused(UNSERVED, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
            self.refuse(
                command.opaque,
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                unsupported(command.code),
            )

    def _on_refused(self, command: RemotingCommand, error: ProtocolError) -> None:
        if command.is_response:
            self._calls.answered(self, command)
            return
        self.limit_hits.note(error)
        log.warning("request refused", peer=self.peer, code=command.code, reason=str(error))
        self._count_refused(command.code, ResponseCode.SYSTEM_ERROR)
        if not command.is_oneway:
            self.refuse(command.opaque, ResponseCode.SYSTEM_ERROR, str(error))

    async def _answer_later(
        self, request: AnyRequest, answer: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            result = await answer
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request's task
            result = self._failure(request, error)
        finally:
            self._task_count -= 1
            self.let_go(request)
        if result is not None:
            self.reply(request, result)

    def _failure(self, request: AnyRequest, error: Exception) -> RemotingCommand:
        """Log the error of a handler in one line, and return the answer."""
        if isinstance(error, CometMQError):
            self.limit_hits.note(error)
            code = ResponseCode.SYSTEM_ERROR if error.code is None else error.code
            remark = error.remark or str(error)
            self._count_refused(request.code, code)
            # Access control logs its refusals itself, once for many.
            if not isinstance(error, AccessRefusedError):
                # Tools ask for things that may not exist, such as members of a group or numbers of
                # a topic without traffic, hundreds of times an hour.
                quiet = request.code in self._questions and not (
                    error.limit or isinstance(error, StoreError)
                )
                (log.debug if quiet else log.warning)(
                    "request refused",
                    peer=self.peer,
                    code=request.code,
                    answer=int(code),
                    why=remark,
                )
            return response(code, remark, ext=getattr(error, "ext", None))
        log.error("handler failed", peer=self.peer, code=request.code, exc_info=error)
        self._count_refused(request.code, ResponseCode.SYSTEM_ERROR)
        return response(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _count_refused(self, code: int, answer: int) -> None:
        # A header may have a second code, which its sender chooses freely.
        pair = (UNSERVED if self._handler_of(code) is None else code, int(answer))
        self._refused[pair] = self._refused.get(pair, 0) + 1


async def close_all(connections: Iterable[Connection], grace_s: float = 0.5) -> None:
    """Close connections and wait until they are gone; after `grace_s` drop the unsent bytes."""
    closing = list(connections)
    for connection in closing:
        connection.close()
    lost = [connection.lost for connection in closing]
    if not lost:
        return
    _, pending = await asyncio.wait(lost, timeout=grace_s)
    if pending:
        for connection in closing:
            connection.abort()
        await asyncio.wait(pending)


def _endpoint(name: Any) -> tuple[str, int]:
    return (plain_ip(str(name[0])), int(name[1])) if name else ("", 0)


def _nothing(_code: int) -> None:
    """Find no handler for any code."""
