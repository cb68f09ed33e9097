"""Hold requests that wait, in one table: pulls, and any other request whose answer has to wait for messages
(Java: PullRequestHoldService, NotifyMessageArrivingListener, PopLongPollingService).

A handler puts a `Waiter` into the table by `Waiting.wait`, with the state in which the request waits. It comes back by one way: the
table calls `Waiter.resume` once, with the reason, and counts the request no longer. The handler then answers the
request, or has it wait again, for the same or for something else.

| state | the request waits for | event | next state |
| --- | --- | --- | --- |
| MESSAGES | a message of its `places` | ARRIVED, DEADLINE, RELEASED | DUE |
| HEARTBEAT | a heartbeat of its `group` | HEARD, DEADLINE, RELEASED | DUE |
| FILTERS | the work of filters in a later turn of the loop | TURN | resumed, or PEER |
| DISK | a thread that reads what is `absent` | READ | DUE |
| DUE | its turn: connections take turns, some requests in each turn of the loop | its turn | resumed, or PEER |
| PEER | its peer, which has to read earlier answers first | every PEER_CHECK_S | DUE |
| any | | its connection is lost | out of the table |

An event that does not stand in the row of a state changes nothing: a request that is due keeps its first reason.

Deadlines lie in a wheel of buckets of TICK_S, so a request costs no timer of its own, and one that is answered
early leaves nothing behind. The loop has one timer, for the first bucket.

Longer than 500 lines: each event and each state stand in one table, which is read as one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final

from cometmq.broker.filters.work import FilterWork
from cometmq.broker.pulls.sharing import Sharing
from cometmq.broker.pulls.waiter import ANY_QUEUE, Limit, Reason, State, Waiter
from cometmq.broker.refusal import Refused
from cometmq.filtering.metering import MeteredProperties, decoding_cost
from cometmq.logs.loggers import get_logger
from cometmq.model.measures.work import OutOfWorkError
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.properties import decode_properties
from cometmq.remoting.connection import Connection
from cometmq.runtime.garbage import collect_young
from cometmq.runtime.rotation import Rotation
from cometmq.runtime.workers import Workers

log = get_logger(__name__)

# Devices serve a few reads at once faster than one after the other.
READERS: Final = 4
TICK_S: Final = 0.25
PEER_CHECK_S: Final = 0.5
# Requests resumed in one turn of the loop, which takes about a slice of runtime/slices.py; each answer may
# have some hundred kilobytes.
RESUMED_PER_TURN: Final = 16
# Requests that one turn of the loop puts into the order in which connections take turns.
_SORTED_PER_TURN: Final = 1_024
# Requests resumed in a turn while others are still to be put into that order. They are few, because the
# connections of those others may have their turn before.
_RESUMED_WHILE_SORTING: Final = 8
# Cost of looking at one request, in units of WorkBudget. Up to _FREE_LOOKS cost nothing.
_LOOK_COST: Final = 150
_FREE_LOOKS: Final = 64
# A message looks at so many requests that share it, and then takes them whatever their filters say.
_LOOKS_OF_SHARES: Final = 1_024
# The garbage collector looks at new objects after so many requests have begun to wait.
_WAITS_UNSEEN: Final = 256
# Limits of requests in a state. Not `Final`, so that tests may set them before a broker is made.
MAX_PULLS_AHEAD: int = 10_000
MAX_COLD_PULLS: int = 20_000
MAX_COLD_PULLS_OF_CONNECTION: int = 1_000


# Members are found more slowly in compiled code.
_MESSAGES: Final = State.MESSAGES
_ARRIVED: Final = Reason.ARRIVED


class Waiting:
    """The table; see the module. `work` is the budget of filters in a turn of the loop.

    Messages that arrive in one turn of the loop wake a request once, at the end of the turn, so that it finds
    all of them. Matching an arrival with the requests is charged to `work`; once that is spent, an arrival wakes
    all requests that wait for its queue, and each applies its filter itself. For the loop's thread only.
    """

    def __init__(
        self, work: FilterWork, workers: Workers, max_held: int, max_of_connection: int
    ) -> None:
        # Called with the name of a limit for each request that it does not let wait.
        self.on_limit: Callable[[str], None] = lambda _limit: None
        self._limits: Final = {
            State.MESSAGES: Limit("maxHeldPulls", 0, "maxHeldPullsPerConnection", 0),
            State.HEARTBEAT: Limit(
                "MAX_PULLS_AHEAD", MAX_PULLS_AHEAD, "MAX_PULLS_AHEAD", MAX_PULLS_AHEAD
            ),
            State.FILTERS: Limit(
                "maxHeldPulls", 0, "maxHeldPulls", 0,
                "wait for their filters' turn", "pull less often, or select by cheaper expressions",
            ),
            State.DISK: Limit(
                "MAX_COLD_PULLS", MAX_COLD_PULLS,
                "MAX_COLD_PULLS_OF_CONNECTION", MAX_COLD_PULLS_OF_CONNECTION,
                "wait for the disk", "pull again in a moment, and have fewer pulls under way",
            ),
        }  # fmt: skip
        self.set_limits(max_held, max_of_connection)
        self._work = work
        work.on_turn = self._serve_filtered
        self._owners: dict[Connection, dict[State, dict[Waiter, None]]] = {}
        # Requests that no event has made due yet, by topic and queue, by share, by group, and so on.
        self._topics: dict[str, dict[int, dict[Waiter, None]]] = {}
        self._shares: dict[str, int] = {}
        self._sharing: Final = Sharing()
        self._groups: dict[str, dict[Waiter, None]] = {}
        self._filtered: Rotation[Connection, Waiter] = Rotation()
        self._cold: Rotation[Connection, Waiter] = Rotation()
        self._buckets: dict[int, dict[Waiter, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_tick = 0
        # A reader begins its thread with its first read.
        self._readers = [workers.worker(f"cold-reads-{number}") for number in range(READERS)]
        self._idle = list(self._readers)
        # Requests that are due: in the order of their events, and in the order in which connections take turns.
        self._due: deque[Waiter] = deque()
        self._ready: Rotation[Connection, Waiter] = Rotation()
        self._is_turning = False
        self._per_turn = RESUMED_PER_TURN
        self._behind_peers: list[Waiter] = []
        self._peer_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._unseen = 0

    def set_limits(self, max_held: int, max_of_connection: int) -> None:
        messages, filters = self._limits[State.MESSAGES], self._limits[State.FILTERS]
        messages.most = filters.most = filters.most_of_connection = max_held
        messages.most_of_connection = max_of_connection

    def count(self, state: State) -> int:
        """Return how many requests wait in a state, or are due after it and not resumed yet."""
        return self._limits[state].count

    def count_of_share(self, share: str) -> int:
        """Return how many requests with this `share` wait for messages."""
        return self._shares.get(share, 0)

    def state_of(self, waiter: Waiter) -> State | None:
        """Return the state of a request, None if it is not in the table."""
        if waiter.mates is None:
            return None
        if waiter in self._behind_peers:
            return State.PEER
        return waiter.waits_for if waiter.reason is None else State.DUE

    # In and out

    def wait(self, waiter: Waiter, state: State) -> bool:
        """Let a request wait. Return False, or raise Refused or LimitError, if a limit does not allow it."""
        connection = waiter.connection
        if connection.closed:
            return True  # nobody reads its answer
        if state is _MESSAGES:
            connection.check_room(waiter.request, waiter.size)
        owned = self._owners.get(connection)
        if owned is None:
            owned = self._owners[connection] = {each: {} for each in self._limits}
            connection.on_close.append(self._lost)
        limit, mates = self._limits[state], owned[state]
        if not self._has_room(limit, mates, waiter):
            return False
        limit.count += 1
        mates[waiter] = None
        waiter.mates, waiter.waits_for, waiter.reason = mates, state, None
        if state is _MESSAGES:
            if waiter.share:
                self._sharing.add(waiter)
                self._shares[waiter.share] = self._shares.get(waiter.share, 0) + 1
            else:
                for topic, queue_id in waiter.places:
                    self._topics.setdefault(topic, {}).setdefault(queue_id, {})[waiter] = None
            self._time(waiter)
        elif state is State.HEARTBEAT:
            self._groups.setdefault(waiter.group, {})[waiter] = None
            self._time(waiter)
        elif state is State.FILTERS:
            self._filtered.add(connection, waiter)
            self._work.turn_soon()
        else:
            self._cold.add(connection, waiter)
            self._read()
        connection.keep(waiter.request, waiter.size)
        self._unseen += 1
        if self._unseen >= _WAITS_UNSEEN:
            # The collector comes when 700 objects more were made than freed: not while requests are answered and
            # come again, and then it looks at all that wait.
            self._unseen = 0
            collect_young()
        return True

    def _has_room(self, limit: Limit, mates: dict[Waiter, None], waiter: Waiter) -> bool:
        name, count, most = limit.name, limit.count, limit.most
        if count < most:
            name, count, most = limit.name_of_connection, len(mates), limit.most_of_connection
            if count < most:
                return not waiter.share or self.count_of_share(waiter.share) < waiter.max_share
        if not limit.does:
            self.on_limit(name)
            return False
        raise Refused(
            ResponseCode.SYSTEM_BUSY,
            f"{count} pulls {limit.does}, the limit {name} is {most}; {limit.remedy}",
            limit=name,
        )

    def _resume(self, waiter: Waiter) -> None:
        """Take a request out of the table and give it back to its handler."""
        connection, reason = waiter.connection, waiter.reason
        if waiter.mates is None or reason is None or connection.closed:
            return  # `_lost` has taken it out, or will
        if connection.congested:
            self._await_peer(waiter)
            return
        self._take_out(waiter)
        connection.let_go(waiter.request, waiter.size)
        try:
            waiter.resume(waiter, reason)
        except Exception:  # noqa: BLE001 - the edge between a connection and all others
            connection.fail()

    def _take_out(self, waiter: Waiter) -> None:
        state, mates = waiter.waits_for, waiter.mates
        assert mates is not None
        del mates[waiter]
        waiter.mates = None
        self._limits[state].count -= 1
        if state is _MESSAGES:
            # An arrival has taken it out of the place of the message already.
            if waiter.share:
                self._leave_share(waiter)
            elif waiter.reason is not _ARRIVED or len(waiter.places) > 1:
                self._leave_places(waiter)
        elif state is State.HEARTBEAT:
            of_group = self._groups.get(waiter.group)
            if of_group is not None:
                of_group.pop(waiter, None)
                if not of_group:
                    del self._groups[waiter.group]
        else:
            return
        bucket = self._buckets.get(waiter.tick)
        if bucket is not None:
            bucket.pop(waiter, None)
            if not bucket:
                del self._buckets[waiter.tick]

    def _leave_places(self, waiter: Waiter) -> None:
        for topic, queue_id in waiter.places:
            queues = self._topics.get(topic)
            waiting = None if queues is None else queues.get(queue_id)
            if queues is None or waiting is None:
                continue  # an event has emptied the place
            waiting.pop(waiter, None)
            if not waiting:
                del queues[queue_id]
                if not queues:
                    del self._topics[topic]

    def _leave_share(self, waiter: Waiter) -> None:
        self._sharing.remove(waiter)
        left = self._shares[waiter.share] - 1
        if left:
            self._shares[waiter.share] = left
        else:
            del self._shares[waiter.share]

    def _lost(self, connection: Connection) -> None:
        woken: list[Waiter] = []
        for mates in self._owners.pop(connection).values():
            for waiter in list(mates):
                self._take_out(waiter)
                if waiter.share and waiter.reason is _ARRIVED:
                    woken.append(waiter)
        for waiter in woken:
            # The message that woke it is for another request now.
            instead = self._sharing.next_of(waiter)
            if instead is not None:
                self._make_due([instead], _ARRIVED)
        for rotation in (self._filtered, self._cold, self._ready):
            rotation.remove(connection)

    # Events

    def is_awaited(self, topic: str, queue_id: int) -> bool:
        """Say whether any request waits for a queue's messages."""
        queues = self._topics.get(topic)
        if queues is not None and (queue_id in queues or ANY_QUEUE in queues):
            return True
        return bool(self._shares) and self._sharing.is_awaited(topic, queue_id)

    def arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        _store_timestamp_ms: int = 0,
        properties: bytes = b"",
    ) -> None:
        """Wake the requests that want the message which was put at `next_offset - 1`.

        A request whose filter does not match stays; its answer will skip the message.
        """
        if self._shares:
            self._wake_sharing(topic, queue_id, next_offset, tags_code)
        queues = self._topics.get(topic)
        if queues is None:
            return
        for place in (queue_id, ANY_QUEUE):
            waiting = queues.get(place)
            if waiting is None:
                continue
            try:
                woken = self._match(waiting, next_offset, tags_code, properties)
            except OutOfWorkError:
                woken = [waiter for waiter in waiting if waiter.reason is None]
            if len(woken) == len(waiting):
                del queues[place]
            else:
                for waiter in woken:
                    del waiting[waiter]
            for waiter in woken:
                waiter.reason = _ARRIVED
            self._due.extend(woken)
            self._turn_soon()
        if not queues:
            del self._topics[topic]

    def _wake_sharing(self, topic: str, queue_id: int, next_offset: int, tags_code: int) -> None:
        """Wake one request of each share; once the work is spent, whatever its filter says."""
        looks = 0

        def wants(waiter: Waiter) -> bool:
            nonlocal looks
            looks += 1
            if waiter.offset >= next_offset or waiter.reason is not None:
                return False
            if waiter.matches is None or looks > _LOOKS_OF_SHARES:
                return True
            return waiter.matches(tags_code)

        woken = self._sharing.take_first_of_each(topic, queue_id, wants)
        if looks > _FREE_LOOKS:
            self._work.spend(looks * _LOOK_COST)
        self._make_due(woken, _ARRIVED)

    def _match(
        self, waiting: dict[Waiter, None], next_offset: int, tags_code: int, properties: bytes
    ) -> list[Waiter]:
        """Return the requests that want a message. Raises OutOfWorkError."""
        if len(waiting) > _FREE_LOOKS:
            self._work.charge(len(waiting) * _LOOK_COST)
        woken: list[Waiter] = []
        decoded: MeteredProperties | None = None
        for waiter in waiting:
            if waiter.offset >= next_offset or waiter.reason is not None:
                continue
            if waiter.matches is not None and not waiter.matches(tags_code):
                continue
            if waiter.matches_properties is not None:
                if decoded is None:
                    text = properties.decode("utf-8", "replace")
                    self._work.charge(decoding_cost(text))
                    decoded = MeteredProperties(decode_properties(text), self._work)
                if not waiter.matches_properties(decoded):
                    continue
            woken.append(waiter)
        return woken

    def heard(self, group: str) -> None:
        """Resume the requests that wait for a heartbeat of a group: one has been taken in."""
        waiting = self._groups.pop(group, None)
        if waiting is not None:
            self._make_due(list(waiting), Reason.HEARD)

    def release_topic(self, topic: str) -> None:
        """Resume every request that waits for a topic's messages, because the topic was removed or changed."""
        for waiting in self._topics.pop(topic, {}).values():
            self._make_due(list(waiting), Reason.RELEASED)
        self._make_due(self._sharing.of_topic(topic), Reason.RELEASED)

    def release_all(self) -> None:
        """Resume all requests that wait for messages and heartbeats in the next turn, because the broker stops."""
        # Requests that begin to wait from now on are resumed, too.
        self._per_turn = max(RESUMED_PER_TURN, sum(limit.count for limit in self._limits.values()))
        for topic in dict.fromkeys((*self._topics, *self._sharing.topics())):
            self.release_topic(topic)
        for waiting in self._groups.values():
            self._make_due(list(waiting), Reason.RELEASED)
        self._groups.clear()

    def close(self) -> None:
        """Wait until the threads have ended. Requests that still wait are not answered."""
        self._is_closed = True
        for timer in (self._timer, self._peer_timer):
            if timer is not None:
                timer.cancel()
        for reader in self._readers:
            reader.shutdown(wait=True)

    # Deadlines

    def _time(self, waiter: Waiter) -> None:
        waiter.tick = tick = int(waiter.deadline / TICK_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            if self._timer is None or tick < self._timer_tick:
                self._arm(tick)
        bucket[waiter] = None

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_tick = tick
        self._timer = asyncio.get_running_loop().call_at(tick * TICK_S, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        reached = max(self._timer_tick, int(asyncio.get_running_loop().time() / TICK_S))
        for tick in sorted(tick for tick in self._buckets if tick <= reached):
            self._make_due(list(self._buckets.pop(tick)), Reason.DEADLINE)
        if self._buckets:
            self._arm(min(self._buckets))

    # Turns

    def _make_due(self, waiters: list[Waiter], reason: Reason) -> None:
        fresh = [waiter for waiter in waiters if waiter.reason is None]
        for waiter in fresh:
            waiter.reason = reason
        self._due.extend(fresh)
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._is_turning and (self._due or self._ready):
            self._is_turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        try:
            self._resume_some(self._due, self._ready)
        finally:  # whatever failed, the others go on
            self._is_turning = False
            self._turn_soon()

    def _resume_some(self, due: deque[Waiter], ready: Rotation[Connection, Waiter]) -> None:
        if not ready and len(due) <= self._per_turn:
            for _ in range(len(due)):
                self._resume(due.popleft())
        else:
            for _ in range(min(len(due), max(_SORTED_PER_TURN, self._per_turn))):
                waiter = due.popleft()
                if waiter.mates is not None:
                    ready.add(waiter.connection, waiter)
            most = min(self._per_turn, _RESUMED_WHILE_SORTING) if due else self._per_turn
            for _ in range(min(len(ready), most)):
                if not ready:
                    break  # a connection was lost, and took its others with it
                _, waiter = ready.take()
                self._resume(waiter)

    def _serve_filtered(self) -> None:
        while self._filtered and self._work.left > 0:
            _, waiter = self._filtered.take()
            waiter.reason = Reason.TURN
            self._resume(waiter)
        if self._filtered:
            self._work.turn_soon()

    def _await_peer(self, waiter: Waiter) -> None:
        if not self._behind_peers:
            loop = asyncio.get_running_loop()
            self._peer_timer = loop.call_later(PEER_CHECK_S, self._check_peers)
        self._behind_peers.append(waiter)

    def _check_peers(self) -> None:
        waiters, self._behind_peers = self._behind_peers, []
        for waiter in waiters:
            if waiter.mates is None:
                continue
            if waiter.connection.congested:
                self._await_peer(waiter)
            elif waiter.reason is None:
                self._cold.add(waiter.connection, waiter)
            else:
                self._due.append(waiter)
        self._turn_soon()
        self._read()

    # The disk

    def _read(self) -> None:
        while self._idle and self._cold and not self._is_closed:
            _, waiter = self._cold.take()
            if waiter.connection.congested:
                self._await_peer(waiter)
                continue
            reader = self._idle.pop()
            loop = asyncio.get_running_loop()
            try:
                reading = loop.run_in_executor(reader, _do, waiter.absent)
            except RuntimeError as error:  # the system gives no thread; the next read tries again
                self._idle.append(reader)
                _note(error, waiter)
                self._make_due([waiter], Reason.READ)
                continue
            reading.add_done_callback(partial(self._has_read, reader, waiter))

    def _has_read(self, reader: Executor, waiter: Waiter, reading: asyncio.Future[None]) -> None:
        self._idle.append(reader)
        if not reading.cancelled():
            error = reading.exception()
            if isinstance(error, Exception):
                _note(error, waiter)
            if waiter.mates is not None and not self._is_closed:
                self._make_due([waiter], Reason.READ)
        self._read()


def _do(absent: Sequence[Callable[[], None]]) -> None:
    for bring_in in absent:
        bring_in()


def _note(error: Exception, waiter: Waiter) -> None:
    log.error("old messages cannot be read", reason=str(error))
    waiter.error = error
