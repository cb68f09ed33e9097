"""Read a history and the stores once, for all invariants."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Final, Literal, NamedTuple

import msgspec
from tests.simulation.history import (
    MESSAGE,
    BrokerConfigured,
    Consumed,
    Delivered,
    Event,
    FaultInjected,
    Filter,
    GroupConfigured,
    HandleUsed,
    History,
    LogSeen,
    MasterChanged,
    OffsetsReset,
    Outgoing,
    Popped,
    Queue,
    RunEnded,
    SendAcknowledged,
    SendFailed,
    SendStarted,
    accepts,
)
from tests.simulation.store_reader import Record, Store, position_of

# Faults by what they take from a broker, as `cometmq.testing.faults` names them.
POWER_LOSS: Final = ("power_off",)
KILL: Final = ("kill",)
WIPE: Final = ("wipe",)
BAD_DISK: Final = ("fail_disk", "slow_disk", "fill_disk")
WRONG_CLOCK: Final = ("skew_clock", "drift_clock")
# A slave becomes the master. It lacks what it had not been sent, so that the end of the log is lost.
PROMOTE: Final = ("promote",)

# Faults of a slave that last until it may be the master, or that it hands on.
_LASTING: Final = frozenset((*BAD_DISK, *WRONG_CLOCK, "flip_bit"))

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"


def retry_topic(group: str) -> str:
    return f"%RETRY%{group}"


def dlq_topic(group: str) -> str:
    return f"%DLQ%{group}"


def pop_retry_topic(group: str, topic: str) -> str:
    return f"%RETRY%{group}_{topic}"


def is_pop_copy(record: Record) -> bool:
    """Say whether a broker made a record of a message that was popped in vain.

    A dead letter that a member asked for names no place of an original. So one that names the first place of
    a log is taken for such a letter, unless it is for a second delivery.
    """
    if not record.topic.startswith(("%RETRY%", "%DLQ%")) or "1ST_POP_TIME" not in record.properties:
        return False
    is_dead = record.topic.startswith("%DLQ%")
    return not is_dead or record.prepared_offset > 0 or record.reconsume_times == 1


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Say which invariant is broken and by which events."""

    invariant: str
    what: str
    events: tuple[Event, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.invariant}: {self.what}"]
        lines += [f"    {event.at_s:.3f} s  {event}" for event in self.events]
        return "\n".join(lines)


class StoreImage(msgspec.Struct, frozen=True, kw_only=True):
    """Hold the files of a store directory, by their path below it (`commitlog/0000…`, with slashes).

    `state` says when the files were read: while the broker ran (what the page cache has), after it
    closed, or after it was killed or lost its power and was not started again. Of a "dead" store the
    consume queues and the index are not judged, since recovery may still mend them.
    """

    files: dict[str, bytes]
    state: Literal["running", "closed", "dead"] = "closed"


class Stored(NamedTuple):
    """A message as its acknowledgement describes it. `record` is None if it is not in the log now."""

    outgoing: Outgoing
    started: SendStarted
    acknowledged: SendAcknowledged
    offset: int
    position: int | None
    record: Record | None

    @property
    def broker(self) -> str:
        return self.acknowledged.queue.broker

    @property
    def is_plain(self) -> bool:
        """Say whether its offset is that in the topic which the producer named."""
        return not (self.started.is_transaction or self.outgoing.is_delayed)


def _lasting(changes: list[MasterChanged]) -> list[MasterChanged]:
    """Return when each change of masters began, without those that were called off.

    Until somebody calls it off, the former master may take messages: a fault has started it again.
    """
    found: list[MasterChanged] = []
    under_way: dict[str, MasterChanged] = {}
    for each in changes:
        begun = under_way.pop(each.broker, None)
        if each.done:
            continue
        if begun is not None and begun.former == each.server:
            found.remove(begun)
            continue
        found.append(each)
        under_way[each.broker] = each
    return found


class Evidence:
    """Hold what the invariants look at.

    `stores`, `images` and all that is made of them are those of each broker's master at the end, by
    brokerName; `servers` has the configuration of every server, `copies` the images of slaves.

    A bit that was flipped in the log or in a consume queue can make anything of one message: only bodies
    have a CRC, while numbers, offsets, times and properties have none. Nobody outside of the broker
    knows which message it was. So, from the flip on, what the broker gives is judged by "never altered"
    only, and its log by "acknowledged and not lost" only; `stores`, `records`, `contents` and
    `deliveries` are without it. A message that was delivered from there after the flip is left out of
    the deliveries and queues of other brokers, too: it may have been sent on to them.
    """

    def __init__(self, history: History, stores: Mapping[str, StoreImage]) -> None:
        self.history = history
        self.servers = {each.name: each for each in history.of(BrokerConfigured)}
        self.brokers = {each.broker: each for each in self.servers.values() if each.role != "SLAVE"}
        self.switches = _lasting(history.of(MasterChanged))
        self.promoted = [each for each in history.of(MasterChanged) if each.done]
        self.images = {
            self.broker_of(server): image
            for server, image in stores.items()
            if self.master_at(self.broker_of(server), math.inf) == server
        }
        self.copies = {
            server: image
            for server, image in stores.items()
            if self.master_at(self.broker_of(server), math.inf) != server
        }
        self.groups = {(each.group, each.topic): each for each in history.of(GroupConfigured)}
        self.sends = {each.send: each for each in history.of(SendStarted)}
        self.acknowledged = {each.send: each for each in history.of(SendAcknowledged)}
        self.failed = {each.send: each for each in history.of(SendFailed)}
        self.verdicts = {each.delivery: each for each in history.of(Consumed)}
        self.faults = history.of(FaultInjected)
        self.resets = history.of(OffsetsReset)
        self.live = any(each.live for each in history.of(RunEnded))
        self.end_s = history.events[-1].at_s if history.events else 0.0
        self.outgoing: dict[int, tuple[SendStarted, Outgoing]] = {
            message.number: (send, message)
            for send in self.sends.values()
            for message in send.messages
        }
        # When a bit of a broker's files was flipped first.
        self.flipped_s: dict[str, float] = {}
        for flip in self.faults:
            if flip.name == "flip_bit":
                # Slaves answer pulls, too, and take what their master has.
                self.flipped_s.setdefault(self.broker_of(str(flip.args["node"])), flip.at_s)
        self._doubtful = {
            number
            for each in history.of(Delivered)
            if self.may_be_damaged(each.queue.broker, each.at_s)
            for number in (self.number(each.properties), self.by_body.get(each.body))
            if number is not None
        }
        self.deliveries = [
            each
            for each in history.of(Delivered)
            if self.number(each.properties) not in self._doubtful
            and not self.may_be_damaged(each.queue.broker, each.at_s)
        ]

    @cached_property
    def by_body(self) -> dict[bytes, int]:
        """Return the numbers of the messages by their bodies, which are different in a run."""
        return {message.body: number for number, (_, message) in self.outgoing.items()}

    def may_be_damaged(self, broker: str, at_s: float) -> bool:
        """Say whether what a broker gave at a time may be what a flipped bit made of it."""
        return self.flipped_s.get(broker, math.inf) <= at_s

    @cached_property
    def stores(self) -> dict[str, Store]:
        return {
            broker: store
            for broker, store in self.all_stores.items()
            if broker not in self.flipped_s
        }

    @cached_property
    def all_stores(self) -> dict[str, Store]:
        """Return the stores with those in which bits were flipped."""
        return {broker: self._store(image, broker) for broker, image in self.images.items()}

    @cached_property
    def slave_stores(self) -> dict[str, Store]:
        """Return the stores of slaves, by server, without those of a broker with flipped bits."""
        return {
            server: self._store(image, server)
            for server, image in self.copies.items()
            if self.broker_of(server) not in self.flipped_s
        }

    def _store(self, image: StoreImage, server: str) -> Store:
        configured = self.servers.get(server)
        return Store(image.files, 500 if configured is None else configured.index_slots)

    def number(self, properties: Mapping[str, str]) -> int | None:
        """Return the number of the message that has these properties."""
        text = properties.get(MESSAGE, "")
        return int(text) if text.isdecimal() and int(text) in self.outgoing else None

    # -- masters and slaves --

    def broker_of(self, server: str) -> str:
        """Return the brokerName of a server."""
        configured = self.servers.get(server)
        return server if configured is None else configured.broker

    def master_at(self, broker: str, at_s: float) -> str:
        """Return the server that was a broker's master at a time. Its first one has the broker's name."""
        changed = [each for each in self.switches if each.broker == broker and each.at_s <= at_s]
        return changed[-1].server if changed else broker

    def configured_at(self, broker: str, at_s: float) -> BrokerConfigured:
        """Return the configuration of the server that was a broker's master at a time."""
        return self.servers[self.master_at(broker, at_s)]

    def slaves_at(self, broker: str, at_s: float) -> list[str]:
        """Return the servers of a broker that were not its master at a time."""
        master = self.master_at(broker, at_s)
        return [
            name for name, each in self.servers.items() if each.broker == broker and name != master
        ]

    @cached_property
    def looks(self) -> dict[str, list[LogSeen]]:
        """Return the looks at the log of each server, in their order."""
        found: dict[str, list[LogSeen]] = defaultdict(list)
        for seen in self.history.of(LogSeen):
            found[seen.server].append(seen)
        return found

    # -- faults --

    def injected(
        self, broker: str, names: tuple[str, ...], since_s: float = 0.0, until_s: float = math.inf
    ) -> list[FaultInjected]:
        """Return the faults of these names that met a broker, in a time.

        A fault that takes something from a disk meets a broker through its master only.
        """
        return [
            fault
            for fault in self.faults
            if fault.name in names
            and since_s <= fault.at_s <= until_s
            and self._meets(broker, fault)
            and fault.args.get("seconds") != 0  # a `slow_disk` that ends another
        ]

    def _meets(self, broker: str, fault: FaultInjected) -> bool:
        server = str(fault.args.get("node"))
        if self.broker_of(server) != broker:
            return False
        return fault.name in _LASTING or server == self.master_at(broker, fault.at_s)

    def injected_at(
        self, server: str, names: tuple[str, ...], since_s: float = 0.0, until_s: float = math.inf
    ) -> list[FaultInjected]:
        """Return the faults of these names that met one server, in a time."""
        return [
            fault
            for fault in self.faults
            if fault.name in names
            and since_s <= fault.at_s <= until_s
            and fault.args.get("node") == server
        ]

    def damaged(
        self, broker: str, below: str = "commitlog", since_s: float = 0.0
    ) -> list[FaultInjected]:
        """Return the bits that were flipped in a broker's files below a directory."""
        flips = self.injected(broker, ("flip_bit",), since_s)
        return [flip for flip in flips if str(flip.args["path"]).startswith(below)]

    def may_forget(self, broker: str) -> tuple[str, ...]:
        """Return the faults after which a broker may have forgotten the end of its log."""
        configured = self.brokers.get(broker)
        in_memory = configured is not None and configured.transient_store_pool
        # Recovery, after any stop, ends a log at the first bit that was flipped.
        by_stop = in_memory or bool(self.damaged(broker))
        return (*POWER_LOSS, *WIPE, *PROMOTE, *((*KILL, "restart") if by_stop else ()))

    def may_have_lost(self, broker: str, answered_s: float, *, waited: bool) -> bool:
        """Say whether a broker may have lost what it had noted when it gave an answer. `waited` says that it
        gave the answer only once that was as safe as it is configured: with SYNC_FLUSH on the disk.

        The records that a promoted slave lacked are known from the last look at it: if that came after
        the answer, and the slave had all of its master's log, nothing is lost.
        """
        configured = self.configured_at(broker, answered_s)
        if self.injected(broker, WIPE, answered_s) or self.flipped_s.get(broker) is not None:
            return True
        if any(self._lacked(each, answered_s) for each in self.switches if each.broker == broker):
            return True
        stops = (*POWER_LOSS, *KILL) if configured.transient_store_pool else POWER_LOSS
        crashes = self.injected(broker, stops, answered_s)
        is_bad = bool(self.injected(broker, BAD_DISK))
        if configured.flush == "SYNC_FLUSH" and (waited or not is_bad):
            return False
        within_s = configured.flushed_within_s
        if is_bad or self.injected(broker, (*WRONG_CLOCK, "pause")):
            within_s = math.inf
        return any(each.at_s - answered_s <= within_s for each in crashes)

    def _lacked(self, switch: MasterChanged, answered_s: float) -> bool:
        """Say whether the slave of a switch may have lacked what its master had noted at a time."""
        if switch.at_s < answered_s:
            return False
        looks = [
            each
            for each in self.looks.get(switch.server, ())
            if each.master == switch.former and answered_s < each.at_s <= switch.at_s
        ]
        if not looks or self.injected_at(
            switch.server, (*POWER_LOSS, *WIPE, *KILL), looks[-1].at_s, switch.at_s
        ):
            return True
        return looks[-1].same_as_master != looks[-1].master_end

    # -- what is in the logs --

    @cached_property
    def records(self) -> dict[int, list[tuple[str, Record]]]:
        """Return by the number of a message all its records, with their brokers."""
        found: dict[int, list[tuple[str, Record]]] = defaultdict(list)
        for broker, store in self.stores.items():
            for record in store.records:
                number = self.number(record.properties)
                if number is not None and number not in self._doubtful:
                    found[number].append((broker, record))
        return found

    @cached_property
    def contents(self) -> dict[Queue, dict[int, Record]]:
        """Return what each queue holds now, by offset, as the log (not the consume queue) says."""
        found: dict[Queue, dict[int, Record]] = defaultdict(dict)
        for broker, store in self.stores.items():
            for record in store.records:
                if record.is_in_queue and self.number(record.properties) not in self._doubtful:
                    queue = Queue(record.topic, broker, record.queue_id)
                    found[queue][record.queue_offset] = record
        return found

    @cached_property
    def ends(self) -> dict[Queue, int]:
        """Return the offset behind the last message of each queue, doubtful ones counted, too."""
        found: dict[Queue, int] = defaultdict(int)
        for broker, store in self.stores.items():
            for record in store.records:
                if record.is_in_queue:
                    queue = Queue(record.topic, broker, record.queue_id)
                    found[queue] = max(found[queue], record.queue_offset + 1)
        return found

    @cached_property
    def stored(self) -> list[Stored]:
        """Return all messages that were acknowledged and whose broker's files are known."""
        return [each for ack in self.acknowledged.values() for each in self._stored(ack)]

    def _stored(self, ack: SendAcknowledged) -> Iterator[Stored]:
        started = self.sends[ack.send]
        store = self.all_stores.get(ack.queue.broker)
        if store is None:
            return
        for index, message in enumerate(started.messages):
            position, record = None, None
            if index < len(ack.offset_msg_ids):
                position = position_of(ack.offset_msg_ids[index])
                record = store.by_position.get(position)
            else:
                of_number = self.records.get(message.number, ())
                record = next((each for at, each in of_number if at == ack.queue.broker), None)
            if record is not None and self.number(record.properties) != message.number:
                record = None
            yield Stored(message, started, ack, ack.offset + index, position, record)

    # -- consumption --

    def outgoing_topic(self, delivery: Delivered) -> str:
        """Return the topic to which a delivered message was sent."""
        number = self.number(delivery.properties)
        return delivery.topic if number is None else self.outgoing[number][0].topic

    def wants(self, group: str, topic: str, number: int) -> bool:
        """Say whether a group's filter accepts a message of the topic."""
        configured = self.groups.get((group, topic))
        outgoing = self.outgoing[number][1]
        wanted = configured.filter if configured is not None else Filter()
        return accepts(wanted, outgoing.tags, outgoing.properties)

    @cached_property
    def delivered(self) -> dict[tuple[str, int], list[Delivered]]:
        """Return the deliveries of each message to each group, in their order."""
        found: dict[tuple[str, int], list[Delivered]] = defaultdict(list)
        for delivery in self.deliveries:
            number = self.number(delivery.properties)
            if number is not None:
                found[delivery.group, number].append(delivery)
        return found

    @cached_property
    def delivered_from(self) -> dict[tuple[str, Queue], list[Delivered]]:
        """Return the deliveries of each queue to each group, in their order."""
        found: dict[tuple[str, Queue], list[Delivered]] = defaultdict(list)
        for delivery in self.deliveries:
            found[delivery.group, delivery.queue].append(delivery)
        return found

    def verdict(self, delivery: Delivered) -> Consumed | None:
        return self.verdicts.get(delivery.delivery)

    def succeeded(self, delivery: Delivered) -> bool:
        verdict = self.verdict(delivery)
        return verdict is not None and verdict.verdict == "success"

    @cached_property
    def popped(self) -> dict[int, Popped]:
        """Return the pops by their deliveries."""
        return {each.delivery: each for each in self.history.of(Popped)}

    def in_order_of_pops(self, deliveries: list[Delivered]) -> list[Delivered]:
        """Return those deliveries that came by pops, in the order in which their broker handed them out."""
        popped = [each for each in deliveries if each.delivery in self.popped]
        return sorted(popped, key=lambda each: self.popped[each.delivery].popped_ms)

    @cached_property
    def handles(self) -> dict[int, list[HandleUsed]]:
        """Return what became of each delivery that was popped, in order."""
        found: dict[int, list[HandleUsed]] = defaultdict(list)
        for used in self.history.of(HandleUsed):
            found[used.delivery].append(used)
        return found

    @cached_property
    def copies_of(self) -> dict[tuple[str, int], list[Record]]:
        """Return the copies of what groups popped in vain, by the broker and place of each original."""
        found: dict[tuple[str, int], list[Record]] = defaultdict(list)
        for broker, store in self.stores.items():
            for record in store.records:
                if is_pop_copy(record) and self.number(record.properties) is not None:
                    found[broker, record.prepared_offset].append(record)
        return found

    def hidden_until_ms(self, delivery: Delivered) -> int | None:
        """Return until when the broker said that a popped message is hidden; None if nobody can know it,
        because it may have taken a change that it did not answer.
        """
        until_ms = self.popped[delivery.delivery].until_ms
        is_known = True
        for used in self.handles[delivery.delivery]:
            if used.use == "hide":
                is_known = used.done
                until_ms = used.until_ms if used.done else until_ms
        return until_ms if is_known else None

    def first_offset(self, group: GroupConfigured, queue: Queue) -> int | None:
        """Return the offset with which a group began a queue; None if nobody can know it.

        A group that began at the end of a queue began at or before its first delivery.
        """
        if group.from_first or queue.topic == retry_topic(group.group):
            return 0
        offsets = [each.offset for each in self.delivered_from[group.group, queue]]
        return min(offsets, default=None)

    def judged_from(self, group: GroupConfigured, queue: Queue) -> int | None:
        """Return the offset from which on a group owes every message of a queue; None if it owes none.

        A log that lost its end gives the offsets again that a group may have consumed and committed,
        and what gets such an offset is skipped: Java's brokers do not turn offsets back either. So
        below what was delivered before the last such fault nothing is owed. (Of a promoted slave one
        knows with what it began: only what was delivered beyond that counts.) Nor is it below where an
        operator had the group go on; if nobody knows where, because the operator got an error, nothing
        is.
        """
        first = self.first_offset(group, queue)
        if first is None:
            return None
        faults = self.injected(queue.broker, self.may_forget(queue.broker))
        forgotten_s = max((each.at_s for each in faults if each.name not in PROMOTE), default=-1.0)
        seen = self.delivered_from[group.group, queue]
        floor = max([first, *(each.offset + 1 for each in seen if each.at_s <= forgotten_s)])
        for switch in self.promoted:
            if switch.broker == queue.broker:
                end = switch.queue_ends.get(str(queue), 0)
                gone = [each.offset + 1 for each in seen if each.at_s <= switch.at_s]
                floor = max([floor, *(each for each in gone if each > end)])
        resets = [
            each for each in self.resets if (each.group, each.topic) == (group.group, queue.topic)
        ]
        done = [each for each in resets if each.done]
        if 2 * len(done) < len(resets):
            return None
        return max([floor, *(each.offsets.get(str(queue), 0) for each in done)])
