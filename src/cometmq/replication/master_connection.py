"""Read what a master sends, append it, and report how far the own log reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, cast

from cometmq.errors import (
    ProtocolError,
    StoreBusyError,
    StoreError,
    StoreFullError,
)
from cometmq.logs.loggers import get_logger
from cometmq.protocol.replication import FrameReader, Piece, encode_report, encode_token

if TYPE_CHECKING:
    from cometmq.replication.slave import ReplicationSlave

log = get_logger(__name__)

# Bytes that are appended, and records that are put into queues, before others get their turn.
_STEP_BYTES: Final = 256 * 1024
_RECORDS_AT_ONCE: Final = 1_000
# A piece takes as long as so many bytes: a master may send heartbeats, or single bytes, only.
_PIECE_COST: Final = 256
# How long appending rests when the disk is full, or the store busy.
_PAUSE_S: Final = 1.0
_BUSY_PAUSE_S: Final = 0.1
# Timers that come this much too late show that this process stood still, not its peer.
_LATE_S: Final = 1.0


class MasterConnection(asyncio.Protocol):
    """Copies over one connection, from `begin` on. `ended` gives the reason when that is over."""

    def __init__(self, slave: ReplicationSlave) -> None:
        self._slave = slave
        self._store = slave.store
        self._config = slave.config
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        # Why the store takes nothing now; what has come waits.
        self.held_up: str | None = None
        self._transport: asyncio.Transport | None = None
        self._frames = FrameReader()
        # Bytes that were read and are not appended yet.
        self._pieces: Iterator[Piece] = iter(())
        self._unread: list[bytes] = []
        self._piece: Piece | None = None
        self._step_due = False
        self._congested = False
        self._reported = -1
        self._last_read_s = self._last_write_s = self._look_due_s = self._loop.time()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def closed(self) -> bool:
        return self.ended.done()

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self.closed:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._last_read_s = now_s = self._loop.time()
        self._slave.last_read_ms = self._slave.clock.now_ms()
        self._slave.speed.add(len(data), now_s)
        self._unread.append(data)
        if not self._step_due:
            self._step()

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        if self._store.commit_log.end > self._reported:
            self._report()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the master closed the connection; its log says why" if exc is None else str(exc))

    # -- for the slave --

    def begin(self, token: bytes | None = None) -> None:
        """Report where the own log ends: the master sends nothing before.

        A `token` goes in front, for a master that wants one.
        """
        if self.closed:
            return
        log.info(
            "connected to the master",
            master=self._slave.master_address,
            own_end=self._store.commit_log.end,
        )
        self._last_read_s = self._loop.time()
        if token is not None and self._transport is not None:
            self._transport.write(encode_token(token))
        self._report()
        self._keep_alive()
        self._look_for_silence()

    def close(self, reason: str) -> None:
        """Close the connection; what was read and not appended is forgotten."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    # -- inside --

    def _step(self) -> None:
        """Append as much as one turn of the loop may take, report it, and put it into queues."""
        self._step_due = False
        if self.closed:
            return
        try:
            # Records that were appended before go first, so that queues do not fall behind the log.
            if not self._store.queues_lack_records:
                self._append_some()
            more = self._store.publish(_RECORDS_AT_ONCE)
        except (StoreFullError, StoreBusyError) as error:
            self._rest(error)
            return
        except ProtocolError as error:
            self.close(f"the master sent bytes that are no frame of the HA protocol: {error}")
            return
        except StoreError as error:
            self.close(str(error))
            return
        except Exception as error:
            # This is called by the loop: reading would stay paused for ever.
            log.exception("copying failed", own_end=self._store.commit_log.end)
            self.close(f"an error of this broker: {error!r}")
            return
        self._store_works()
        if more or self.has_unread:
            self._pause_reading()
            self._step_due = True
            self._loop.call_soon(self._step)
        else:
            self._read_on()

    def _append_some(self) -> None:
        left = _STEP_BYTES
        try:
            # The next piece is taken even when it has to wait: it shows that there is one.
            while (piece := self._next_piece()) is not None and left > 0:
                left -= self._append(piece, left)
        finally:
            # The master may answer its producers before the queues here have the messages.
            if self._store.commit_log.end > self._reported:
                self._report()

    @property
    def has_unread(self) -> bool:
        """Whether the master has sent bytes that wait for a later turn of the loop."""
        return self._piece is not None or bool(self._unread)

    def _next_piece(self) -> Piece | None:
        """Return the piece to append next, None if all that was read is appended."""
        while self._piece is None:
            self._piece = next(self._pieces, None)
            if self._piece is None:
                if not self._unread:
                    return None
                self._pieces = self._frames.feed(self._unread.pop(0))
        return self._piece

    def _append(self, piece: Piece, most: int) -> int:
        """Append a piece, at most so many bytes of it; return what that took, in bytes."""
        store, (offset, data) = self._store, piece
        end = store.replicated_end
        if offset != end and end:
            raise StoreError(
                f"the master sends its log from {offset} on, and this one ends at {end}: it is not "
                "touched"
            )
        part = data[:most]
        try:
            if part:
                store.append_replicated(offset, part, limit=0)
        finally:
            # When a file could not be made, the log may have taken what lies in front of it.
            self._piece = _behind(piece, store.replicated_end)
        return len(part) + _PIECE_COST

    def _rest(self, error: StoreError) -> None:
        """Keep what has come, and try again after a while. The master waits as TCP has it wait."""
        if self.held_up is None:
            log.warning("copying waits for the store", reason=str(error))
        self.held_up = str(error)
        self._pause_reading()
        self._step_due = True
        pause_s = _BUSY_PAUSE_S if isinstance(error, StoreBusyError) else _PAUSE_S
        self._timers["rest"] = self._loop.call_later(pause_s, self._step)

    def _store_works(self) -> None:
        if self.held_up is not None:
            log.info("copying goes on", own_end=self._store.replicated_end)
            self.held_up = None

    def _pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_reading():
            # Bytes that the master sent meanwhile could not be read.
            self._last_read_s = self._loop.time()
            self._transport.resume_reading()

    def _report(self) -> None:
        """Report to the master where the own log ends: behind its last whole record."""
        if self._congested or self._transport is None:
            return
        self._reported = self._store.commit_log.end
        self._last_write_s = self._loop.time()
        self._slave.last_write_ms = self._slave.clock.now_ms()
        self._transport.write(encode_report(self._reported))

    def _keep_alive(self) -> None:
        """Report again when nothing was reported for haSendHeartbeatInterval."""
        interval_s = self._config.ha_send_heartbeat_interval / 1000
        now_s = self._loop.time()
        if now_s - self._last_write_s >= interval_s - 0.001:
            self._report()
            self._last_write_s = now_s
        self._timers["heartbeat"] = self._loop.call_at(
            self._last_write_s + interval_s, self._keep_alive
        )

    def _look_for_silence(self) -> None:
        """Close the connection when nothing came for haHousekeepingInterval."""
        now_s = self._loop.time()
        if now_s - self._look_due_s > _LATE_S or (
            self._transport is not None and not self._transport.is_reading()
        ):
            # Bytes that the master sent meanwhile are not read yet.
            self._last_read_s = now_s
        limit_s = self._config.ha_housekeeping_interval / 1000
        self._look_due_s = self._last_read_s + limit_s
        # A timer may be due a rounding error before its time.
        if now_s >= self._look_due_s - 0.001:
            self.close(f"nothing came from the master for haHousekeepingInterval={limit_s:g} s")
            return
        self._timers["silence"] = self._loop.call_at(self._look_due_s, self._look_for_silence)

    def _end(self, reason: str) -> None:
        if self.closed:
            return
        for timer in self._timers.values():
            timer.cancel()
        self._unread.clear()
        self._pieces, self._piece = iter(()), None
        self.ended.set_result(reason)


def _behind(piece: Piece, end: int) -> Piece | None:
    """Return what of a piece lies behind `end`, None if nothing does."""
    rest = piece.data[max(end - piece.offset, 0) :]
    return Piece(piece.offset + len(piece.data) - len(rest), rest) if rest else None
