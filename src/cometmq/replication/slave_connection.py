"""Serve one slave of a master (Java: DefaultHAConnection)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from cometmq.errors import ProtocolError, StoreError
from cometmq.logs.loggers import get_logger
from cometmq.protocol.messages.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from cometmq.protocol.messages.record_layout import HEAD, record_struct
from cometmq.protocol.replication import ReportReader, encode_head
from cometmq.replication.admission import UNKNOWN_S
from cometmq.replication.pace import Allowance, Speed
from cometmq.runtime.sockets.address_list import plain_ip
from cometmq.runtime.sockets.addresses import join_address
from cometmq.runtime.sockets.write_lines import write_lines

if TYPE_CHECKING:
    from cometmq.replication.master import ReplicationMaster
    from cometmq.store.files.disk import Disk

log = get_logger(__name__)

# The most that is written before others get their turn, and that waits for a peer to read it.
_STEP_BYTES: Final = 256 * 1024
# Records nearer to the end of the log have just been written, so they are in memory.
_RECENT_BYTES: Final = 1024 * 1024
# A peer that has sent more at once than this reports faster than any slave writes.
_MOST_REPORTS_BYTES: Final = 4 * 1024
# Timers that come this much too late show that this process stood still, not its peer.
_LATE_S: Final = 1.0
_START: Final = record_struct("size", "magic", "physical_offset")


class SlaveConnection(asyncio.Protocol):
    """Sends the log from where the slave's ends, and reads its reports.

    `acknowledged` is the offset behind the slave's last byte, -1 before its first report was seen to
    be the end of a record here; `position` is the offset that is sent next; `start` is where the
    transfer began.
    """

    def __init__(self, master: ReplicationMaster) -> None:
        self._master = master
        self._config = master.config
        self._log = master.store.commit_log
        self._loop = asyncio.get_running_loop()
        self.made_s = self._loop.time()
        self.peer = "?"
        self._peer_ip = ""
        # Whether it may have the log, and its reports count: by its address, or by a token.
        self.is_proved = False
        self.acknowledged = self.position = self.start = self._reported = -1
        self.speed = Speed(self.made_s)
        self._allowance = Allowance(self.made_s)
        self._reports = ReportReader()
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._admitted = False
        self._paused = False
        # Whether the thread reads for this slave, a wait for the flow control runs, or the rest is
        # sent in the next turn.
        self._busy = False
        # Whether the bytes at `start` were seen to be the beginning of a record.
        self._start_checked = False
        self._last_read_s = self._last_write_s = self._look_due_s = self.made_s
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def unsent_bytes(self) -> int:
        """How many bytes wait because the slave does not read them."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- asyncio.Protocol --

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if not peer:  # the peer reset the connection before it was accepted
            self.abort()
            return
        self._peer_ip = plain_ip(str(peer[0]))
        self.peer = join_address(self._peer_ip, int(peer[1]))
        local = transport.get_extra_info("sockname")
        local_ip = plain_ip(str(local[0])) if local else ""
        self._transport.set_write_buffer_limits(high=_STEP_BYTES)
        self._admitted = self._master.admit(self, self._peer_ip, local_ip)
        if not self._admitted:
            self.abort()
            return
        if not self.is_proved:
            self._timers["proof"] = self._loop.call_later(UNKNOWN_S, self.refuse)
        self._look_for_silence()

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._last_read_s = self._loop.time()
        if len(data) > _MOST_REPORTS_BYTES:
            self._rest_from_reading()
        try:
            offset = self._reports.feed(data)
        except ProtocolError as error:
            if self.is_proved:
                self.close(str(error))
            else:
                self.refuse()
            return
        if not self.is_proved and not self._is_proved_now(offset):
            return
        if offset is None:
            return
        if self.start < 0:
            self._begin(offset)
        elif offset > self.position:
            self.close(
                f"it reports to have the log up to {offset}, but got it up to {self.position}"
            )
        elif offset < self._reported:
            self.close(f"it reports to have the log up to {offset}, but had {self._reported}")
        elif offset > self._reported:
            self._reported = offset
            self._acknowledge()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admitted and not self._closed:
            # A peer that has reported nothing may be a monitor that looks every second whether the port is open.
            self._end(
                "the slave closed the connection" if exc is None else str(exc),
                quietly=self.start < 0,
            )
        self._closed = True
        self._master.forget(self)

    # -- for the master --

    def close(self, reason: str) -> None:
        """Close the connection, and log why."""
        self._end(reason)
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            # The slave may never read that. It lacks nothing for good: it resumes at its own end.
            self._transport.abort()
        else:
            self._transport.close()

    def refuse(self) -> None:
        """Close the connection of a peer that has not proved to be a slave."""
        if self._closed or self.is_proved:
            return
        self._stop_timers()
        admission = self._master.admission
        assert admission is not None, "without it nobody has to prove anything"
        admission.note_refusal(self.peer, admission.refusal(self._peer_ip))
        self.abort()
        self._master.forget(self)

    def abort(self) -> None:
        """Close the connection at once; what was not read is lost."""
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    def go_on(self) -> None:
        """Send what the slave lacks, as much as fits into one turn of the loop."""
        if self._closed or self._paused or self._busy or self.start < 0:
            return
        sent = 0
        while not self._paused:
            end = self._log.readable_end
            left = end - self.position
            if not left:
                self._master.wait_for_append()
                return
            if self.position < self._log.min_offset:
                self._refuse_as_too_far_behind(self.position)
                return
            if left > _RECENT_BYTES or not self._start_checked:
                self._read_in_thread(end)
                return
            if sent >= _STEP_BYTES:
                self._busy = True
                self._loop.call_soon(self._resume)
                return
            base, file_end, view = self._log.window(self.position)
            size = min(file_end - self.position, self._config.ha_transfer_batch_size)
            if not self._may_send(size):
                return
            at = self.position - base
            self._write([encode_head(self.position, size), view[at : at + size]], size)
            sent += size

    # -- inside --

    def _rest_from_reading(self) -> None:
        """Read on in the next turn: the loop reads on as long as something comes, uvloop up to 32 times."""
        transport = self._transport
        assert transport is not None, "it has read"

        def read_on() -> None:
            if not transport.is_closing():
                transport.resume_reading()

        transport.pause_reading()
        self._loop.call_soon(read_on)

    def _is_proved_now(self, offset: int | None) -> bool:
        """Judge the token; without one a report ends the connection."""
        token, admission = self._reports.token, self._master.admission
        if token is None and offset is None:
            return False
        if token is None or admission is None or not admission.redeem(token):
            self.refuse()
            return False
        self.is_proved = True
        self._timers.pop("proof").cancel()
        if not self._master.welcome(self):
            self._stop_timers()
            self.abort()
            return False
        return True

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()

    def _begin(self, offset: int) -> None:
        """Take the first report: where the slave's log ends."""
        end, first = self._log.readable_end, self._log.min_offset
        start = offset
        if not offset:
            file_size = self._log.file_size
            start = end - end % file_size if self._config.sync_from_last_file else first
        elif offset > end:
            self.close(
                f"its log ends at {offset}, behind this master's, which ends at {end}: it is no "
                "copy of this log, or has messages that this master lost"
            )
            return
        elif offset < first:
            self._refuse_as_too_far_behind(offset)
            return
        self.start = self.position = start
        self._reported = offset
        self._start_checked = start == end
        log.info("slave connected", peer=self.peer, slave_end=offset, sends_from=start, end=end)
        self._last_write_s = self._loop.time()
        self._keep_alive()
        self._acknowledge()
        self.go_on()

    def _acknowledge(self) -> None:
        """Count what was reported, unless the slave's log may be another one's copy."""
        if self._start_checked:
            self.acknowledged = self._reported
            self._master.acknowledged()

    def _refuse_as_too_far_behind(self, offset: int) -> None:
        self.close(
            f"it lacks the log from {offset} on, and this master's begins at "
            f"{self._log.min_offset}, since retention removed older files: empty the slave's store "
            "so that it copies all again, and raise fileReservedTime here"
        )

    def _may_send(self, size: int) -> bool:
        """Say whether the flow control lets `size` bytes pass now; if not, go on when it does."""
        if not self._config.ha_flow_control_enable:
            return True
        wait_s = self._allowance.wait_s(
            size, self._config.max_ha_transfer_byte_in_second, self._loop.time()
        )
        if wait_s <= 0:
            self._allowance.take(size)
            return True
        self._busy = True
        self._timers["pace"] = self._loop.call_later(wait_s, self._resume)
        return False

    def _resume(self) -> None:
        self._busy = False
        self.go_on()

    def _read_in_thread(self, end: int) -> None:
        """Have the thread read what follows, at most a step of one file, then send it."""
        file = self._log.files.find(self.position)
        if file is None:
            self._refuse_as_too_far_behind(self.position)
            return
        size = min(end, file.end, self.position + _STEP_BYTES) - self.position
        if not self._may_send(size):
            return
        self._busy = True
        reading = self._loop.run_in_executor(
            self._master.reader,
            partial(_read, self._master.disk, file.path, self.position - file.base, size),
        )
        reading.add_done_callback(self._was_read)

    def _was_read(self, reading: asyncio.Future[bytearray]) -> None:
        self._busy = False
        if reading.cancelled() or self._closed:
            reading.cancelled() or reading.exception()
            return
        try:
            data = reading.result()
        except StoreError as error:
            if self.position < self._log.min_offset:
                self._refuse_as_too_far_behind(self.position)
            else:
                self.close(f"the log cannot be read at {self.position}: {error}")
            return
        if not self._start_checked:
            if not self._begins_record(data):
                self.close(
                    f"no record of this master's log begins at {self.position}, where the slave's "
                    f"log ends; this log ends at {self._log.readable_end}"
                )
                return
            self._start_checked = True
            self._acknowledge()
        elif not data:
            self.close(f"the log cannot be read at {self.position}: its file is cut")
            return
        view = memoryview(data)
        buffers: list[bytes | memoryview] = []
        step = self._config.ha_transfer_batch_size
        for at in range(0, len(data), step):
            part = view[at : at + step]
            buffers += (encode_head(self.position + at, len(part)), part)
        self._write(buffers, len(data))
        self.go_on()

    def _begins_record(self, data: bytearray) -> bool:
        if len(data) < HEAD.size:
            return False
        size, magic = HEAD.unpack_from(data)
        if magic == MAGIC_BLANK:
            return bool(size == self._log.file_size - self.position % self._log.file_size)
        if len(data) < _START.size:
            return False
        _, magic, offset = _START.unpack_from(data)
        return magic in (MAGIC_V1, MAGIC_V2) and offset == self.position

    def _write(self, buffers: list[bytes | memoryview], size: int) -> None:
        assert self._transport is not None
        self.position += size
        self._last_write_s = now_s = self._loop.time()
        self.speed.add(size, now_s)
        write_lines(self._transport, buffers)

    def _keep_alive(self) -> None:
        """Send an empty frame when nothing else was sent for haSendHeartbeatInterval."""
        interval_s = self._config.ha_send_heartbeat_interval / 1000
        now_s = self._loop.time()
        if now_s - self._last_write_s >= interval_s - 0.001:
            self._last_write_s = now_s
            if not self._paused and self._transport is not None:
                self._transport.write(encode_head(self.position, 0))
        self._timers["heartbeat"] = self._loop.call_at(
            self._last_write_s + interval_s, self._keep_alive
        )

    def _look_for_silence(self) -> None:
        """Close the connection when nothing came for haHousekeepingInterval."""
        now_s = self._loop.time()
        if now_s - self._look_due_s > _LATE_S:
            # Bytes that the slave sent meanwhile are not read yet.
            self._last_read_s = now_s
        limit_s = self._config.ha_housekeeping_interval / 1000
        self._look_due_s = self._last_read_s + limit_s
        # A timer may be due a rounding error before its time.
        if now_s >= self._look_due_s - 0.001:
            self.close(f"nothing came from it for haHousekeepingInterval={limit_s:g} s")
            return
        self._timers["silence"] = self._loop.call_at(self._look_due_s, self._look_for_silence)

    def _end(self, reason: str, *, quietly: bool = False) -> None:
        """Note that nothing is sent or read any more."""
        if self._closed:
            return
        self._closed = True
        self._stop_timers()
        say = log.debug if quietly else log.warning
        say("slave disconnected", peer=self.peer, reason=reason, acknowledged=self.acknowledged)


def _read(disk: Disk, path: Path, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    count = disk.read_into(path, offset, memoryview(data))
    return data if count == size else data[:count]
