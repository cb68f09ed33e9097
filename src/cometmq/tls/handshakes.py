"""Let connections in at a port that serves TLS: decide by the first byte, and bound the handshakes.

A handshake costs the loop what an RSA signature takes, half a millisecond and more, while any peer
can ask for one by a few bytes. So they are rationed: so many begin in a second, so many are under
way. The others wait in the kernel, as sockets whose ClientHello nobody has read; addresses take
turns, so one that floods the port makes others wait for one of its handshakes, not for all.

Java: NettyRemotingServer.TlsModeHandler, which decides by the same byte and bounds nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from cometmq.logs.loggers import get_logger
from cometmq.logs.rare_line import RareLine
from cometmq.runtime.rotation import Rotation
from cometmq.runtime.sockets.addresses import network_of
from cometmq.runtime.sockets.arrivals import Arrival
from cometmq.runtime.tasks import TaskOwner
from cometmq.tls.records import RecordTurns
from cometmq.tls.transport import connect_tls

log = get_logger(__name__)

# A record of TLS begins with its kind (22 is a handshake), two bytes of version, two of length.
_HANDSHAKE: Final = 0x16
_RECORD_HEAD: Final = 5
_MAX_RECORD: Final = 16 * 1024
# As many handshakes may begin at once after a quiet time.
_BURST: Final = 2
# A handshake that takes more processor time than this, as RSA does with keys of 4096 bits, has the next
# one wait for so many times the rest. A client's chain of 100 KiB, trusted or not, takes 10 to 20 ms.
_FAIR_S: Final = 0.003
_WAIT_FOR_REST: Final = 4
# A handshake that has lasted so long is ended when others wait for its place.
_SLOW_AFTER_S: Final = 1.0

# Of peers that protected mode refuses so many stay connected, for so long, to read why; the next one
# takes the place of the first.
MOST_STRANGERS: Final = 32
STRANGER_S: Final = 30.0

# The names of the limits, which are those of their keys.
TIMEOUT: Final = "tlsHandshakeTimeoutSeconds"
SILENT: Final = "SILENT_TIMEOUT_S"
AT_ONCE: Final = "maxTlsHandshakes"
PER_SECOND: Final = "maxTlsHandshakesPerSecond"

COMPLETED: Final = "completed"
FAILED: Final = "failed"
TIMED_OUT: Final = "timed_out"
CROWDED_OUT: Final = "crowded_out"
PLAIN_REFUSED: Final = "plain_refused"


class Handshakes:
    """Rations the handshakes of one server, at all its ports. For the loop's thread only.

    `outcomes` counts how they ended.
    """

    def __init__(self, *, at_once: int, per_second: int, timeout_s: float) -> None:
        self.at_once = at_once
        self.per_second = per_second
        self.timeout_s = timeout_s
        self.outcomes = dict.fromkeys((COMPLETED, FAILED, TIMED_OUT, CROWDED_OUT, PLAIN_REFUSED), 0)
        # In which the records of all its connections are opened.
        self.turns = RecordTurns()
        # Connections that are neither served nor closed yet.
        self.open_count = 0
        # By network: those whose ClientHello is there.
        self._waiting: Rotation[str, _Guest] = Rotation()
        # Dicts, because they have an order.
        self._running: dict[_Guest, None] = {}
        self._tokens = float(_BURST)
        self._counted_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._lines = {outcome: RareLine() for outcome in self.outcomes}

    @property
    def running_count(self) -> int:
        """How many handshakes have begun and not ended yet."""
        return len(self._running)

    def wait(self, guest: _Guest) -> None:
        """Have `guest` begin its handshake when it is its turn."""
        self._waiting.add(network_of(guest.arrival.peer_ip), guest)
        self._begin_some()
        if not guest.began_at:
            guest.meets(PER_SECOND if self._tokens < 1 else AT_ONCE)

    def ended(self, guest: _Guest) -> None:
        """Give the place of a handshake to the next one. Idempotent."""
        if guest in self._running:
            del self._running[guest]
            self._begin_some()

    def charge(self, work_s: float) -> None:
        """Have the next handshake begin later if one took much of the loop's time."""
        self._tokens -= max(0.0, work_s - _FAIR_S) * _WAIT_FOR_REST * self.per_second

    def count(self, outcome: str, peer: str, reason: str) -> None:
        """Count a connection that is not served, and log one line for those of ten seconds."""
        self.outcomes[outcome] += 1
        if refused := self._lines[outcome].count():
            log.warning(
                "connections refused by TLS",
                outcome=outcome,
                peer=peer,
                reason=reason,
                refused=refused,
            )

    # -- inside --

    def _begin_some(self) -> None:
        now = asyncio.get_running_loop().time()
        self._tokens = min(float(_BURST), self._tokens + (now - self._counted_at) * self.per_second)
        self._counted_at = now
        while self._waiting and self._tokens >= 1 and self._has_place(now):
            guest = self._next()
            if guest is None:
                continue
            self._tokens -= 1
            self._running[guest] = None
            guest.shake_hands()
        if self._waiting and self._timer is None:
            # The next handshake is due when there is a token, or a place: slow peers must make room.
            pause_s = max((1 - self._tokens) / self.per_second, 0.001)
            if self._tokens >= 1:
                pause_s = _SLOW_AFTER_S / 4
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._begin_some()

    def _next(self) -> _Guest | None:
        """Take the first of the network whose turn it is; None if it has left meanwhile."""
        _, guest = self._waiting.take()
        if guest.closed:
            return None
        if guest.arrival.has_left:
            guest.close()
            return None
        return guest

    def _has_place(self, now: float) -> bool:
        if len(self._running) < self.at_once:
            return True
        slowest = next(iter(self._running))
        if now - slowest.began_at < _SLOW_AFTER_S:
            return False
        del self._running[slowest]
        slowest.meets(AT_ONCE)
        slowest.drop(
            CROWDED_OUT,
            f"others wait for a place, and {AT_ONCE}={self.at_once} are under way: its "
            f"handshake took more than {_SLOW_AFTER_S:g} s",
        )
        return True


class Certificates(Protocol):
    """Gives what a handshake needs: the context of the next one, and its turn."""

    @property
    def context(self) -> ssl.SSLContext: ...

    @property
    def handshakes(self) -> Handshakes: ...


class Door:
    """Lets connections in at one port.

    In the mode `disabled` a connection that begins with a handshake is closed with the reason in the log.
    `admit` says whether there is room for a connection that was just accepted, `on_leave` that it is
    closed, or served from now on. `is_stranger` says whether its peer is not served: it gets no
    handshake and takes no place from others, so `admit` is not asked; a few of them may stay until they
    have sent something, and `on_stranger` is called for each that is closed here. `new_protocol` makes the protocol object of an arrival then. `on_limit` gets the
    name of a limit that closed one. A guest that has sent
    nothing for `silent_timeout_s` is closed. For the loop's thread only.
    """

    def __init__(
        self,
        tls: Certificates,
        *,
        mode: str,
        admit: Callable[[Arrival], bool],
        on_leave: Callable[[Arrival], None] = lambda _: None,
        on_limit: Callable[[str], None] = lambda _: None,
        is_stranger: Callable[[Arrival], bool] = lambda _: False,
        on_stranger: Callable[[Arrival], None] = lambda _: None,
        new_protocol: Callable[[Arrival], asyncio.Protocol],
        silent_timeout_s: float,
        owner: TaskOwner,
    ) -> None:
        self.tls = tls
        self.handshakes = tls.handshakes
        self.is_enforcing = mode == "enforcing"
        self.is_disabled = mode == "disabled"
        self.new_protocol = new_protocol
        self.owner = owner
        # A dict, because it has an order: those that came first are first.
        self.guests: dict[_Guest, None] = {}
        self.on_leave = on_leave
        self.on_limit = on_limit
        # The same of those whose peers are not served.
        self.strangers: dict[_Guest, None] = {}
        self.on_stranger = on_stranger
        self._is_stranger = is_stranger
        self._admit = admit
        timeout_s = self.handshakes.timeout_s
        self.silent_timeout_s = (
            min(timeout_s, silent_timeout_s) if self.is_enforcing else silent_timeout_s
        )

    def arrived(self, arrival: Arrival) -> None:
        """Take a connection that was accepted."""
        if self._is_stranger(arrival):
            if len(self.strangers) >= MOST_STRANGERS:
                next(iter(self.strangers)).close()
            guest = _Guest(self, arrival, is_stranger=True)
            self.strangers[guest] = None
        elif self._admit(arrival):
            guest = _Guest(self, arrival)
            self.guests[guest] = None
        else:
            arrival.close()
            return
        self.handshakes.open_count += 1
        guest.wait_for_first_byte()

    def drop_silent(self, before: float) -> bool:
        """Close the guest that came first, and before that time, if it is not shaking hands."""
        for guest in self.guests:
            if guest.arrival.made_at > before:
                return False
            if not guest.began_at:
                guest.drop(CROWDED_OUT, "others need its place, and its handshake has not begun")
                return True
        return False

    def make_room(self) -> None:
        """Close the guest that came first of the network that has most of them."""
        networks = [network_of(guest.arrival.peer_ip) for guest in self.guests]
        most = max(networks, key=networks.count)
        first = next(
            guest for guest, network in zip(self.guests, networks, strict=True) if network == most
        )
        first.drop(CROWDED_OUT, f"others need its place, and most of the guests are from {most}")

    def close(self) -> None:
        """Close all that are not served yet; the owner ends handshakes."""
        for guest in (*self.guests, *self.strangers):
            guest.close()


class _Guest:
    """A connection at the door: it has not sent enough yet, waits for its turn, or shakes hands."""

    def __init__(self, door: Door, arrival: Arrival, *, is_stranger: bool = False) -> None:
        self.arrival = arrival
        self.is_stranger = is_stranger
        # When its handshake began, 0 before.
        self.began_at = 0.0
        self.closed = False
        self._door = door
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait_for_first_byte(self) -> None:
        limit_s = self._door.silent_timeout_s
        if self.is_stranger:
            limit_s = min(limit_s, STRANGER_S)
        self._timer = self._loop.call_later(limit_s, self._silent_too_long, limit_s)
        self.arrival.when_sent(1, self._decide)

    def shake_hands(self) -> None:
        """Begin, since it is this one's turn."""
        self.began_at = self._loop.time()
        self._task = self._door.owner.spawn(self._shake_hands(), "handshake", log_failure=False)

    def drop(self, outcome: str, reason: str) -> None:
        """Close, and count why."""
        if not self.closed:
            self._door.handshakes.count(outcome, self.arrival.peer, reason)
            self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        if self.is_stranger and not self.closed:
            self._door.on_stranger(self.arrival)
        self._leave()
        self.arrival.close()
        if self._task is not None:
            self._task.cancel()
        self._door.handshakes.ended(self)

    def meets(self, limit: str) -> None:
        """Count that a limit closed this connection, or has it wait."""
        self._door.on_limit(limit)

    # -- inside --

    def _silent_too_long(self, limit_s: float) -> None:
        self.meets(TIMEOUT if self._door.is_enforcing else SILENT)
        self.drop(TIMED_OUT, f"it has sent nothing for {limit_s:g} s")

    def _leave(self) -> None:
        if not self.closed:
            self.closed = True
            self._door.handshakes.open_count -= 1
            if self.is_stranger:
                self._door.strangers.pop(self, None)
            else:
                self._door.guests.pop(self, None)
                self._door.on_leave(self.arrival)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _decide(self) -> None:
        sent = self.arrival.peek(_RECORD_HEAD)
        if not sent:
            self.close()  # the peer is gone
        elif sent[0] != _HANDSHAKE:
            self._serve_plain()
        elif self._door.is_disabled:
            self.drop(
                FAILED,
                "it begins with a TLS handshake, and this port serves no TLS: set tls.server.certPath "
                "and tls.server.keyPath, or have the client connect without TLS",
            )
        else:
            self._begin_waiting()
            self._wait_for_hello(sent)

    def _serve_plain(self) -> None:
        if self._door.is_enforcing:
            self.drop(
                PLAIN_REFUSED,
                "it does not begin with a TLS handshake, and tls.server.mode=enforcing: use TLS there "
                "(Java: -Dtls.enable=true), or set tls.server.mode=permissive",
            )
            return
        self._leave()
        task = self._door.owner.spawn(self._connect(), "connect", log_failure=False)
        # One that is cancelled before it begins has not taken the socket.
        task.add_done_callback(lambda _: self.arrival.close())

    async def _connect(self) -> None:
        try:
            await self.arrival.connect(self._door.new_protocol(self.arrival))
        except OSError as error:
            log.debug("connection lost at the door", peer=self.arrival.peer, reason=str(error))

    def _begin_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        limit_s = self._door.handshakes.timeout_s
        self._timer = self._loop.call_later(limit_s, self._too_late)

    def _too_late(self) -> None:
        self.meets(TIMEOUT)
        limit_s = self._door.handshakes.timeout_s
        self.drop(TIMED_OUT, f"its handshake did not end within {TIMEOUT}={limit_s:g}")

    def _wait_for_hello(self, head: bytes) -> None:
        """Wait for the rest of the first record: only a whole one is worth a place."""
        if len(head) < _RECORD_HEAD:
            self.arrival.when_sent(_RECORD_HEAD, self._read_head)
            return
        length = int.from_bytes(head[3:5], "big")
        if head[1] != 3 or not 4 <= length <= _MAX_RECORD:
            self.drop(FAILED, "it sent no TLS handshake")
            return
        self.arrival.when_sent(_RECORD_HEAD + length, self._wait_for_turn)

    def _read_head(self) -> None:
        head = self.arrival.peek(_RECORD_HEAD)
        if not head or len(head) < _RECORD_HEAD:
            self.close()  # the peer is gone
        else:
            self._wait_for_hello(head)

    def _wait_for_turn(self) -> None:
        if self.arrival.has_left:
            self.close()
        elif self.is_stranger:
            self.arrival.refuse_tls()
            self.close()
        else:
            self._door.handshakes.wait(self)

    async def _shake_hands(self) -> None:
        handshakes = self._door.handshakes
        try:
            await connect_tls(
                self.arrival,
                self._enter,
                self._door.tls.context,
                handshakes.timeout_s,
                handshakes.turns,
                handshakes.charge,
            )
        except (OSError, ssl.SSLError) as error:
            if not self.closed:
                self._task = None
                self.drop(FAILED, handshake_reason(error))
        finally:
            self._task = None
            if not self.closed:
                self.close()
            handshakes.ended(self)

    def _enter(self) -> asyncio.Protocol:
        """Leave the door: the connection counts as one that is served from now on."""
        self._leave()
        self._door.handshakes.outcomes[COMPLETED] += 1
        self._door.handshakes.ended(self)
        return self._door.new_protocol(self.arrival)


def handshake_reason(error: OSError) -> str:
    """Return why a handshake with a client failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    reason = (error.reason or "" if isinstance(error, ssl.SSLError) else "").replace("_", " ")
    if "PEER DID NOT RETURN A CERTIFICATE" in reason:
        return "it has no certificate, and tls.server.need.client.auth=require"
    if "UNSUPPORTED PROTOCOL" in reason or "WRONG VERSION" in reason:
        return "it speaks no version of TLS that is safe: 1.2 or 1.3"
    if not reason and not error.strerror:
        return "the peer closed the connection during the handshake"
    return f"the handshake failed: {reason.lower() or error.strerror}"
