"""Carries commands over one connection, both ways.

Either side may send requests. The connection holds a sans-IO frame decoder, the calls that wait for
an answer, and the bytes to send in this turn of the loop: all answers that handlers give while one
read is served leave in one write.

For the loop's thread only.

Longer than 500 lines: reading, answering and closing share the state of one protocol object, which
mypyc compiles as a whole.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import math
import sys
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from cometmq.errors import (
    AccessRefusedError,
    CometMQError,
    ConnectionLostError,
    LimitError,
    ProtocolError,
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
    decode_command,
    encode_command,
    encode_parts,
    peek_code,
    response,
)
from cometmq.protocol.frame import MAX_FRAME_LENGTH, Frame, FrameDecoder, SerializeType
from cometmq.protocol.ids import pack_host
from cometmq.protocol.refused_requests import unsupported
from cometmq.remoting.dispatch import UNSERVED, Handlers
from cometmq.remoting.holdings import (
    SLOW_BYTES_PER_S,
    WORTH_COUNTING_BYTES,
    Holding,
    Holdings,
)
from cometmq.remoting.turns import (
    AT_ONCE_S,
    BYTE_S,
    FIRST_REQUEST_S,
    LEARNED_PART,
    READ_COST,
    SHORT_S,
    SLICE_BYTES,
    SLICE_COST,
    SLICE_S,
    TASK_COST,
    ServingTurns,
    Standing,
)
from cometmq.runtime.address_list import plain_ip
from cometmq.runtime.addresses import join_address
from cometmq.runtime.loggers import get_logger
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

Buffer = bytes | memoryview
AnyRequest = Request[Any]
_MAX_OPAQUE: Final = 0x7FFF_FFFF
# A request with so long a body takes milliseconds, so it waits for its turn even if it comes alone.
_LARGE_BYTES: Final = 65536
# A read of small requests is cut into frames in parts of so many bytes, which takes as long as a slice:
# the hundreds of requests in 256 KiB would take others a millisecond before the first is served.
_PART_BYTES: Final = 32768
# The number of an answer that no request asked for: why the server closes the connection. No client
# counts its requests so.
UNASKED: Final = -1
# How long a request is expected to be before any was measured: with FIRST_REQUEST_S, a part takes a slice.
_FIRST_REQUEST_BYTES: Final = 1280.0
# A timer that comes later than this was held up by the process itself.
_LATE_S: Final = 0.05
_NO_BYTES: Final = bytes(4)  # where the kernel writes an int
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


class WriteTurn:
    """Lets connections that are read in one turn of the loop write together, at the end of the turn.

    A write to a peer that sleeps has to wake it, which on a virtual machine costs more than anything
    else that a broker does for a message. If many peers ask at once, the first write wakes the core
    that runs them, and the other writes find it awake. A connection that is read alone writes at
    once, because there is no other to wait for.
    """

    def __init__(self) -> None:
        self._reader: Connection | None = None
        self._due: list[Connection] = []

    def take(self, connection: Connection) -> bool:
        """Return whether a connection that was just read is flushed at the end of this turn."""
        if self._reader is connection:
            return False
        self._reader = connection
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush)
        self._due.append(connection)
        return True

    def _flush(self) -> None:
        due, self._due = self._due, []
        for connection in due:
            try:
                connection.flush()
            except Exception:  # noqa: BLE001 - the answers of the others must leave
                connection.fail()


# In these versions `writelines` of asyncio's own transports takes any amount, and never says that
# the peer does not read (CVE-2024-12254). `write` does; uvloop is not concerned.
_WRITELINES_PASSES_LIMIT: Final = (3, 12) <= sys.version_info < (3, 12, 9) or (
    3,
    13,
) <= sys.version_info < (3, 13, 2)


class Connection(asyncio.Protocol):
    """The protocol object of one connection; see the module.

    A `server_side` connection stops reading while its answers cannot leave, and while requests that
    it has read wait for their turn. Connections that share a `turn` write together, those that
    share `turns` are served in rotation, and `holdings` bounds what all that share it hold.
    """

    def __init__(
        self,
        handlers: Handlers,
        owner: TaskOwner,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
        serialize_type: SerializeType = SerializeType.JSON,
        server_side: bool = False,
        turn: WriteTurn | None = None,
        turns: ServingTurns | None = None,
        holdings: Holdings | None = None,
        on_connect: Callable[[Connection], None] | None = None,
    ) -> None:
        self.on_close: list[Callable[[Connection], None]] = []
        # Why the peer's bytes after the waiting requests are not requests, if that is so.
        self._fault: ProtocolError | None = None
        # Why the server closes the connection, if it has said so.
        self._last_words = ""
        self.peer = ""
        self.peer_ip = ""
        self.peer_port = 0
        self.packed_peer = b""
        self.local_ip = ""
        self.closed = False
        self.last_active = 0.0
        self.made_at = 0.0
        # Whether the peer has sent anything yet.
        self.heard = False
        self.holding = Holding(holdings)
        self._last_read = 0.0
        self.serialize_type = serialize_type
        self._handler_of, self._administration = handlers.get, handlers.administration
        self._decode_request = handlers.decoder.decode
        self._refused, self._questions = handlers.refused, handlers.questions
        self.limit_hits = handlers.limit_hits
        self._owner = owner
        self._limits = limits
        self._server_side = server_side
        self._turn = turn
        self._turns = turns
        self._on_connect = on_connect
        self._frames = FrameDecoder(limits.max_frame_length)
        self._calls: dict[int, asyncio.Future[RemotingCommand]] = {}
        self._next_opaque = 0
        # What answers all requests of a peer that is not served; see `shut_out`.
        self._shut_out: Callable[[Connection, RemotingCommand], None] | None = None
        self._out: list[Buffer] = []
        # Bytes in `_out`, bytes written that `holding` has not been told of yet, and what is left of
        # SLICE_COST in the slice that is served.
        self._out_bytes = self._written = self._slice_left = 0
        # Requests of one read, with their codes, that wait for their turn, or until the peer reads
        # its answers.
        self._deferred: deque[tuple[Frame, int]] = deque()
        # What was read behind them and is not cut into frames yet; that begins at `_uncut_at`.
        self._uncut = b""
        self._deferred_bytes = self._uncut_at = 0
        self._is_reading = True
        self._paused_at = 0.0
        # Whether the transport is gone though not all that came is served.
        self._is_lost = self._in_rotation = False
        # Whether it reads no more of a large frame until it is its turn.
        self._rests = False
        self.standing = Standing()
        # What one of its requests is expected to take and how long it is, from those before it.
        self._request_s = self._last_request_s = FIRST_REQUEST_S
        self._request_bytes = _FIRST_REQUEST_BYTES
        self._descriptor = -1  # of the socket, where there is one and turns are taken
        # Whether no more is served until requests that are held have been answered.
        self._is_full = False
        # Requests that tasks are about to answer.
        self._waiting = 0
        # Pulls that wait for messages; the broker counts them.
        self.held_pulls = 0
        self._writable: asyncio.Event | None = None
        self._transport: asyncio.Transport | None = None
        self._flush_due = self._joins = False
        self._loop = asyncio.get_running_loop()
        self._lost: asyncio.Future[None] = self._loop.create_future()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._joins = _WRITELINES_PASSES_LIMIT and type(transport).__module__.startswith("asyncio")
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_high)
        self.peer_ip, self.peer_port = _endpoint(transport.get_extra_info("peername"))
        if not self.peer_ip:  # the peer reset the connection before it was accepted
            self.abort()
            return
        self.peer = join_address(self.peer_ip, self.peer_port)
        # A scope (`fe80::1%eth0`) has a meaning on this host only, so records do not store it.
        self.packed_peer = pack_host(self.peer_ip.partition("%")[0], self.peer_port)
        self.local_ip, _ = _endpoint(transport.get_extra_info("sockname"))
        if self._turns is not None:
            self._descriptor = self.descriptor
        self.last_active = self._last_read = self.made_at = self._loop.time()
        if self._on_connect is not None:
            self._on_connect(self)

    def data_received(self, data: bytes) -> None:
        # TLS brings what came before the end of its own farewell.
        if self.closed:
            return
        self.last_active = self._last_read = self._loop.time()
        self.heard = True
        self._flush_due = True  # the answers given below wait for the flush at the end
        frames: list[Frame] = []
        try:
            if self._uncut or (len(data) > _PART_BYTES and self._turns is not None):
                data = self._first_part(data)
            frames = self._frames.feed(data)
            if not self._server_side:
                for frame in frames:
                    self._on_frame(frame, peek_code(frame))
            elif (
                len(frames) == 1
                and len(frames[0].body) < _LARGE_BYTES
                and self._writable is None
                and not self._deferred
                and not self._uncut
                and not self._is_full
                and self._request_s <= SLICE_S
            ):
                self._serve_alone(frames[0])
            elif frames or self._uncut:
                self._serve_in_turn(frames)
            if self._frames.buffered > _LARGE_BYTES and self._turns is not None:
                self._rests = self._turns.is_spent()
                self._take_turns()
            self._check_bytes()
        except ProtocolError as error:
            self._end(error)
        if self._turn is None or not self._turn.take(self):
            self.flush()
        if self._frames.buffered or self.holding.received or self._deferred or self._uncut:
            self._count_received(new_frame=bool(frames))

    def pause_writing(self) -> None:
        self._writable = asyncio.Event()
        if self._server_side and self._transport is not None:
            self.limit_hits.hit("MAX_UNSENT_BYTES")
        self._mind_reading()

    def resume_writing(self) -> None:
        if self._writable is not None:
            self._writable.set()
            self._writable = None
        if self._deferred and self._turns is None:
            self.serve_slice()
        self._take_turns()

    def eof_received(self) -> None:
        """Serve what waits, before the connection counts as lost.

        Over TLS the end of the stream is read with the last requests, however much of them waits, and
        the transport closes when this returns: what is answered later is answered in vain.
        """
        if self._turns is None:
            self._is_full = False
            while self.has_work:
                self.serve_slice()
                self._is_full = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail_calls(exc)
        if (self._deferred or self._uncut) and self._turns is not None and not self.closed:
            # What its peer has sent is served, even if it reset the connection then: a consumer commits
            # offsets by one-way requests before it ends. That may take seconds, so it waits for its turns
            # like everybody else's requests, and counts as held as long.
            self._transport = None
            self._is_lost = True
            if self._writable is not None:
                self._writable.set()
                self._writable = None
            self._out.clear()
            self._take_turns()
            return
        self._end_of_connection()

    def _fail_calls(self, reason: Exception | None) -> None:
        calls, self._calls = self._calls, {}
        for future in calls.values():
            if not future.done():
                error = self._lost_before("the answer came")
                error.__cause__ = self._fault or reason
                future.set_exception(error)

    def _end_of_connection(self) -> None:
        """Tell everybody that the connection is gone."""
        self._is_lost = False
        self.closed = True
        self._drop_deferred()
        self._frames.drop()
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

    def _lost_before(self, what: str) -> ConnectionLostError:
        hint = ""
        if not self.heard and not self._server_side:
            hint = "; it has never answered, as a server does that wants tls, or no tls"
        if self._fault is not None:
            hint = f": it does not speak RocketMQ's protocol ({self._fault})"
        if self._last_words:
            hint = f": {self._last_words}"
        return ConnectionLostError(
            f"the connection to {self.peer} closed before {what}{hint}", address=self.peer
        )

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
        """Return whether more than `write_buffer_high` bytes wait for the peer to read; False once the
        connection is closed, or who waits for its peer would wait for ever.
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
            raise self._lost_before("the request was sent")
        if len(self._calls) >= self._limits.max_outstanding_calls:
            raise TooManyRequestsError(
                f"{len(self._calls)} calls to {self.peer} wait for an answer, the limit "
                f"max_outstanding_calls is {self._limits.max_outstanding_calls}; wait for some before "
                "sending more",
                address=self.peer,
            )
        opaque = self._take_opaque()
        command.opaque = opaque
        parts = encode_parts(command, self.serialize_type)
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._calls[opaque] = future
        timer = self._loop.call_later(timeout_s, self._expire, opaque, timeout_s, self._loop.time())
        future.add_done_callback(functools.partial(self._call_done, opaque, timer))
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
            raise self._lost_before("the request was sent")
        command.opaque = self._take_opaque()
        command.flag |= FLAG_ONEWAY
        parts = encode_parts(command, self.serialize_type)
        self.write(*parts)
        return sum(map(len, parts))

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
        self._out_bytes += len(head)
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def reply_when(self, request: AnyRequest, answer: Awaitable[RemotingCommand | None]) -> None:
        """Answer a request in a task, with the result or error of `answer`; hold it until then.

        Raises LimitError if too many requests of this connection wait already.
        """
        try:
            self._check_waiting()
        except LimitError:
            if asyncio.iscoroutine(answer):
                answer.close()
            raise
        self._waiting += 1
        self.keep(request)
        self._slice_left -= TASK_COST
        self._owner.spawn(self._answer_later(request, answer), f"request-{request.code}")

    def reply_failure(self, request: AnyRequest, error: Exception) -> None:
        """Answer a request that failed, and log one line.

        The answer has the code of a CometMQError, or SYSTEM_ERROR if the error has no code. Any
        other error is a fault of the handler, is logged as such and gives SYSTEM_ERROR, too.
        """
        self.reply(request, self._failure(request, error))

    def write(self, *buffers: Buffer) -> None:
        """Send encoded bytes at the end of this turn of the loop; drop them when closed.

        Send at once if more than `write_buffer_high` bytes are waiting, which shows whether the
        peer reads.
        """
        if self.closed:
            return
        self._out.extend(buffers)
        for buffer in buffers:
            self._out_bytes += len(buffer)
        if self._out_bytes > self._limits.write_buffer_high:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def close(self) -> None:
        """Send the bytes that are waiting, then close. Idempotent."""
        if self._is_lost:
            self._end_of_connection()
        if self._transport is not None and not self.closed:
            self.flush()
            self.closed = True
            self._transport.close()

    def abort(self) -> None:
        """Close at once and drop the bytes that are waiting."""
        if self._is_lost:
            self._end_of_connection()
        if self._transport is not None:
            self.closed = True
            self._transport.abort()

    def fail(self) -> None:
        """Log the error that is being handled and close at once: this connection met a fault of
        ours, and no other connection may suffer from it.
        """
        log.exception("connection closed: it cannot be served", peer=self.peer)
        self.abort()

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

    def _check_waiting(self) -> None:
        if self._waiting >= self._limits.max_waiting_requests:
            raise LimitError(
                "requests of this connection wait for their answers already",
                self._waiting,
                "maxWaitingRequestsPerConnection",
                self._limits.max_waiting_requests,
                "wait for answers before you ask for more, or raise the limit",
                code=ResponseCode.SYSTEM_BUSY,
            )

    def turn_away(self, reason: str, *, limit: str) -> None:
        """Tell a peer that just connected that there is no place for it, and close.

        The reason goes in an answer that no request asked for. Java's clients log it, ours name it
        in the error of the calls that fail.
        """
        self.limit_hits.hit(limit)
        self.refuse(UNASKED, ResponseCode.SYSTEM_BUSY, reason)
        self.close()

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
        if (
            self._server_side
            and not self._is_full
            and self.holding.kept >= self._limits.max_kept_bytes
        ):
            self._is_full = True
            self.limit_hits.hit("maxBytesInFlightPerConnection")
            self._mind_reading()

    def let_go(self, request: AnyRequest, more: int = 0) -> None:
        """Stop counting a request as held, because it has been served; `more` is as for `keep`."""
        size = len(request.frame.header) + len(request.frame.body) + more
        if size < WORTH_COUNTING_BYTES:
            return
        self.holding.keeps(self, -size)
        if self._is_full and self.holding.kept < self._limits.max_kept_bytes:
            self._is_full = False
            if self._turns is not None:
                self._take_turns()
            else:
                self._loop.call_soon(self.serve_slice)

    def is_overdue(self, now: float) -> bool:
        """Return whether the unfinished frame should have arrived by now."""
        began = self.holding.frame_began
        # A frame cannot arrive while this side does not read.
        if not began or self.closed or not self._is_reading:
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
        self._frames.drop()
        self._drop_deferred()
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

    # Inside

    def _count_received(self, *, new_frame: bool) -> None:
        if not self.closed:
            self.holding.receives(
                self,
                self._frames.buffered,
                self._deferred_bytes + len(self._uncut) - self._uncut_at,
                self._last_read,
                new_frame=new_frame,
            )

    def flush(self) -> None:
        """Write the bytes that wait for the end of the turn."""
        self._flush_due = False
        size, self._out_bytes = self._out_bytes, 0
        out = self._out
        if not out or self._transport is None or self.closed:
            out.clear()
            return
        self._out = []
        if self._joins:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        self.last_active = self._loop.time()
        self._written += size
        if self._written >= WORTH_COUNTING_BYTES:
            self.holding.writes(self, self._written)
            self._written = 0

    def _on_frame(self, frame: Frame, code: int) -> None:
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
            self._on_response(decode_command(frame))
            return
        try:
            answer = handler(self, request)
            if answer is not None:
                self.reply(request, answer)
        except Exception as error:  # noqa: BLE001 - one request must not end the connection
            self.reply_failure(request, error)

    # Requests that wait

    @property
    def has_work(self) -> bool:
        """Whether requests wait, and not because of what the peer does not read, or has asked before."""
        return (
            bool(self._deferred or self._uncut)
            and self._writable is None
            and not self._is_full
            and not self.closed
        )

    @property
    def is_of_administration(self) -> bool:
        """Whether what waits first is a request that runs or inspects the cluster."""
        return bool(self._deferred) and self._deferred[0][1] in self._administration

    @property
    def expected_s(self) -> float:
        """How long it is expected to take to serve what waits: without end within a large frame.

        What the kernel has for this connection waits, too. Of a client that is a little late that is
        little. One with hundreds of requests on the way may have read a few of them only. To ask takes
        two microseconds, so the kernel is asked only where its answer may count.
        """
        expected_s = self._expect(0)
        if AT_ONCE_S < expected_s <= SHORT_S:
            return self._expect(self._unread_bytes())
        return expected_s

    def _expect(self, unread_bytes: int) -> float:
        """Return how long it is expected to take to serve what was read, and so many bytes more."""
        if self._rests:
            return math.inf
        uncut_bytes = len(self._uncut) - self._uncut_at + unread_bytes
        requests = len(self._deferred) + uncut_bytes / self._request_bytes
        return requests * self._request_s + (self._deferred_bytes + uncut_bytes) * BYTE_S

    def _unread_bytes(self) -> int:
        """Return how many bytes of this connection the kernel has; 0 where there is no socket."""
        if self._descriptor < 0 or self.closed or self._is_lost:
            return 0
        try:
            answer = fcntl.ioctl(self._descriptor, termios.FIONREAD, _NO_BYTES)
        except OSError:
            return 0
        return int.from_bytes(answer, sys.byteorder)

    def serve_slice(self) -> int:
        """Serve requests that wait for one slice; return their cost."""
        self._in_rotation = self._rests = False
        if not self._deferred and not self._uncut:
            self._slice_left = SLICE_COST
            self._mind_reading()
            return READ_COST
        new_frame = False
        self._flush_due = True  # below
        try:
            if not self._deferred:
                new_frame = self._cut_part()
            self._serve_deferred()
            self._check_bytes()
        except ProtocolError as error:
            self._end(error)
        except Exception:  # noqa: BLE001 - as a loop does for `data_received`; the rotation must go on
            self.fail()
        self.flush()
        self._count_received(new_frame=new_frame)
        self._in_rotation = self.has_work
        self._mind_reading()
        if self._is_lost and not self._deferred and not self._uncut:
            self._end_of_connection()
        return SLICE_COST - self._slice_left

    def _first_part(self, data: bytes) -> bytes:
        """Return the part of a long read that is cut into frames at once, and keep what is behind it.

        That is none if parts wait already, or if other reads have spent this turn of the loop. What
        belongs to a large frame is passed on whole: that costs little.
        """
        if self._uncut:  # TLS brings more of what the kernel has given it
            self._uncut = self._uncut[self._uncut_at :] + data
            self._uncut_at = 0
            return b""
        part = max(_PART_BYTES, self._frames.missing(data))
        if part >= len(data):
            return data
        if self._turns is not None and self._turns.is_spent():
            part = 0
        self._uncut, self._uncut_at = data, part
        return data[:part]

    def _cut_part(self) -> bool:
        """Cut the next part of what was read into frames; return whether there is any.

        Raises ProtocolError for bytes that are no frames.
        """
        wanted = self._frames.missing(self._uncut, self._uncut_at)
        end = self._uncut_at + max(_PART_BYTES, wanted)
        part = self._uncut[self._uncut_at : end]
        self._uncut_at = end
        if end >= len(self._uncut):
            self._uncut, self._uncut_at = b"", 0
        frames = self._frames.feed(part)
        self._defer(frames)
        return bool(frames)

    def _serve_alone(self, frame: Frame) -> None:
        """Serve the only request of a read at once, or in its turn if it can wait and others do.

        The clock tells what a short one took, because to ask for the thread's time costs too much for
        each request. What held up the loop meanwhile counts, too, so what one request teaches is
        bounded; and once that makes requests look long, the thread's time is asked for.
        """
        turns, code = self._turns, peek_code(frame)
        if turns is None:
            self._on_frame(frame, code)
            return
        if code in self._administration and turns.administration_waits():
            self._defer([frame])
            self._take_turns()
            return
        size = len(frame.header) + len(frame.body)
        if self._request_s > AT_ONCE_S:
            began_s = turns.work_s()
            self._on_frame(frame, code)
            self._learn(turns.work_s() - began_s, size)
            return
        began_s = turns.monotonic()
        self._on_frame(frame, code)
        self._learn(min(turns.monotonic() - began_s, SLICE_S), size)

    def _learn(self, request_s: float, request_bytes: float) -> None:
        """Expect the next requests to take as long, and to be as long, as one of these."""
        self._request_bytes += (request_bytes - self._request_bytes) * LEARNED_PART
        # One that takes long alone teaches nothing: it met a page that was not there, or a full file.
        usual_s = min(request_s, self._last_request_s)
        self._last_request_s = request_s
        self._request_s += (usual_s - self._request_s) * LEARNED_PART

    def _serve_in_turn(self, frames: list[Frame]) -> None:
        """Serve the requests of a read if they are short and this turn of the loop has room for it.

        Raises ProtocolError for a header that is none.
        """
        waits = bool(self._deferred)
        self._defer(frames)
        if self._turns is None or (
            not waits and self._expect(0) <= AT_ONCE_S and not self._turns.is_spent()
        ):
            self._serve_deferred()
        self._take_turns()

    def _defer(self, frames: list[Frame]) -> None:
        """Have requests wait. A frame without a code in its header ends the connection once the
        requests before it are served; later ones are not examined.
        """
        if self._fault is not None:
            return
        for frame in frames:
            try:
                code = peek_code(frame)
            except ProtocolError as error:
                self._fault = error
                return
            self._deferred.append((frame, code))
            self._deferred_bytes += len(frame.header) + len(frame.body)

    def _check_bytes(self) -> None:
        """Raise the ProtocolError for bytes that are not a request, once all requests before them
        are served.
        """
        if self._deferred:
            return
        if self._fault is not None:
            raise self._fault
        self._frames.check()

    def _drop_deferred(self) -> None:
        self._deferred.clear()
        self._deferred_bytes = 0
        self._uncut, self._uncut_at = b"", 0

    def _serve_deferred(self) -> None:
        """Serve requests for a slice, and for as long as the peer takes their answers.

        Raises ProtocolError for a header that is none.
        """
        deferred, turns = self._deferred, self._turns
        count, size = len(deferred), self._deferred_bytes
        self._slice_left = SLICE_COST
        began_s = until_s = 0.0
        if turns is not None:
            began_s, until_s = turns.work_s(), turns.monotonic() + SLICE_S
        while deferred and self._writable is None and not self._is_full and not self.closed:
            frame, code = deferred.popleft()
            self._deferred_bytes -= len(frame.header) + len(frame.body)
            self._on_frame(frame, code)
            if turns is not None and deferred:
                self._slice_left -= 1
                if (
                    self._slice_left <= 0
                    or self._out_bytes >= SLICE_BYTES
                    or turns.monotonic() >= until_s
                ):
                    break
        count -= len(deferred)
        if turns is not None and count:
            size -= self._deferred_bytes
            self._learn((turns.work_s() - began_s) / count, size / count)

    def _take_turns(self) -> None:
        """Wait in the rotation for as long as requests wait that can be served."""
        waits = self._rests or self.has_work
        if waits and self._turns is not None and not self._in_rotation and not self.closed:
            self._in_rotation = True
            self._turns.join(self)
        self._mind_reading()

    def _mind_reading(self) -> None:
        """Read if nothing waits that has been read, and the peer takes its answers."""
        if not self._server_side or self._transport is None or self.closed:
            return
        waits = self._deferred or self._uncut or self._rests
        reads = self._writable is None and not waits and not self._is_full
        if reads == self._is_reading:
            return
        self._is_reading = reads
        if reads:
            if self.holding.frame_began:  # the rest of the frame could not arrive meanwhile
                self.holding.frame_began += self._loop.time() - self._paused_at
            self._transport.resume_reading()
        else:
            self._paused_at = self._loop.time()
            self._transport.pause_reading()

    def _end(self, error: ProtocolError) -> None:
        """Close the connection because of bytes that are no request, or are beyond a limit."""
        self._fault = error
        if self._shut_out is None:
            log.warning("connection closed: not our protocol", peer=self.peer, reason=str(error))
        self.limit_hits.note(error)
        if error.limit and self._server_side and self._shut_out is None:
            # The number of the request is not known, or stands in what must not be read.
            self.refuse(UNASKED, ResponseCode.SYSTEM_ERROR, str(error))
        self.close()

    def _on_unregistered(self, command: RemotingCommand) -> None:
        if command.is_response:
            self._on_response(command)
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
            self._on_response(command)
            return
        self.limit_hits.note(error)
        log.warning("request refused", peer=self.peer, code=command.code, reason=str(error))
        self._count_refused(command.code, ResponseCode.SYSTEM_ERROR)
        if not command.is_oneway:
            self.refuse(command.opaque, ResponseCode.SYSTEM_ERROR, str(error))

    def refuse(self, opaque: int, code: int, remark: str) -> None:
        """Answer the request with the number `opaque` by a code and a reason."""
        answer = response(code, remark)
        answer.opaque = opaque
        self.write(encode_command(answer, self.serialize_type))

    def _on_response(self, command: RemotingCommand) -> None:
        future = self._calls.pop(command.opaque, None)
        if future is not None and not future.done():
            future.set_result(command)
        else:
            if command.opaque == UNASKED and not self._server_side:
                self._last_words = command.remark or ""
            log.debug("answer came too late", peer=self.peer, opaque=command.opaque)

    async def _answer_later(
        self, request: AnyRequest, answer: Awaitable[RemotingCommand | None]
    ) -> None:
        try:
            result = await answer
        except Exception as error:  # noqa: BLE001 - the outermost edge of a request's task
            result = self._failure(request, error)
        finally:
            self._waiting -= 1
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
            # Access control tells its refusals itself, once for many.
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

    def _take_opaque(self) -> int:
        opaque = self._next_opaque
        self._next_opaque = opaque + 1 & _MAX_OPAQUE
        return opaque

    def _expire(self, opaque: int, timeout_s: float, sent_at: float, late: bool = False) -> None:
        future = self._calls.get(opaque)
        if future is None or future.done():
            return
        now = self._loop.time()
        # The peer sent no byte in all that time, so it is frozen or gone. The next call must not
        # wait until the kernel notices (Java: clientCloseSocketIfTimeout).
        silent_s = now - self._last_read
        silent = self._last_read <= sent_at and silent_s >= self._limits.silence_s
        if not late and (silent or now > sent_at + timeout_s + _LATE_S):
            # The loop of this process may have been blocked. Bytes that the peer sent meanwhile are
            # read before it counts as silent: uvloop serves timers before it reads.
            timer = self._loop.call_later(0.001, self._expire, opaque, timeout_s, sent_at, True)
            future.add_done_callback(lambda _: timer.cancel())
            return
        future.set_exception(
            RequestTimeoutError(
                f"{self.peer} did not answer within {timeout_s * 1000:.0f} ms", address=self.peer
            )
        )
        if silent and not self._server_side:
            log.warning("connection dropped: the peer is silent", peer=self.peer)
            self.abort()

    def _call_done(
        self, opaque: int, timer: asyncio.TimerHandle, _future: asyncio.Future[RemotingCommand]
    ) -> None:
        timer.cancel()
        self._calls.pop(opaque, None)


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
