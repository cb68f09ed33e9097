"""Define what a simulated run writes down: the events that clients and the schedule of faults record.

The checker reads a history and the files of the stores, and nothing else. So an event says what
somebody outside of the broker did or saw, never what the broker thinks. All events have `at_s`, the
world's time (never a node's own, possibly wrong, clock), and `node`, the one that did or saw it.

A message carries its number in the run as the user property `MESSAGE`, so that it is told apart from
others even where its body or its keys were altered. `Outgoing` renders what to send.

The writers of each event:

- once, before all else: `BrokerConfigured`, `TopicCreated`, `GroupConfigured`
- a producer: `SendStarted`, then exactly one of `SendAcknowledged`, `SendFailed` (neither if its
  node was killed meanwhile); transactions also `TransactionDecided`, `TransactionChecked`
- a consumer: `MemberStarted`, `Delivered` at the listener's beginning, `Consumed` at its end,
  `MemberStopped`; one that pops also `Popped` behind `Delivered`, and `HandleUsed`; a reader of ranges
  `RangeRead`
- whoever asks a broker: `OffsetSeen`, `QueueSeen`
- whoever administers: `OffsetsReset`
- the schedule: `FaultInjected` for every fault, heal, kill, restart; `MasterChanged` for every switch;
  `RunEnded` as the last event
- whoever looks at the disks of masters and slaves: `CopiesSeen`, `LogSeen`, `TableSeen`
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

# The user property that holds a message's number.
MESSAGE: Final = "simMessage"
# The user property that holds the key by which an orderly producer chose the queue.
ORDER_KEY: Final = "simOrderKey"
# The user property that holds the message's place among those of its order key, from 0.
ORDER_NUMBER: Final = "simOrderNumber"

Flush = Literal["SYNC_FLUSH", "ASYNC_FLUSH"]
Role = Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"]
Status = Literal["SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"]
Stored = Literal["yes", "no", "unknown"]
Decision = Literal["commit", "rollback", "unknown"]
Verdict = Literal["success", "later", "suspend", "raised"]

E = TypeVar("E", bound="Event")


class Queue(msgspec.Struct, frozen=True, order=True):
    """Name one queue of one broker."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


class Comparison(msgspec.Struct, frozen=True):
    """Compare a numeric user property with a constant; a message without the property fails."""

    property: str
    operator: Literal["=", "<>", "<", "<=", ">", ">="]
    value: int


class Filter(msgspec.Struct, frozen=True):
    """Say which messages a subscription wants, in a form that needs no parser to judge.

    `tags` lists the wanted tags, and none means all. With `comparisons` the filter is SQL92, and all
    of them must hold. `expression` renders what to subscribe with, and `kind` its type.
    """

    tags: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()

    @property
    def kind(self) -> Literal["TAG", "SQL92"]:
        return "SQL92" if self.comparisons else "TAG"

    @property
    def expression(self) -> str:
        if self.comparisons:
            return " AND ".join(f"{c.property} {c.operator} {c.value}" for c in self.comparisons)
        return " || ".join(self.tags) or "*"


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one message as its producer made it.

    `properties` are the user's own, without tags and keys, and without those that `user_properties`
    adds. At most one of `delay_level`, `delay_ms` and `deliver_at_ms` is set.
    """

    number: int
    body: bytes
    tags: str | None = None
    keys: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    order_key: str | None = None
    order_number: int | None = None
    delay_level: int = 0
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    wait_store_ok: bool = True

    @property
    def user_properties(self) -> dict[str, str]:
        """Return all user properties to send with."""
        own = {**self.properties, MESSAGE: str(self.number)}
        if self.order_key is not None:
            own[ORDER_KEY] = self.order_key
            own[ORDER_NUMBER] = str(self.order_number)
        return own

    @property
    def is_delayed(self) -> bool:
        return bool(self.delay_level) or (self.delay_ms, self.deliver_at_ms) != (None, None)


class Event(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Hold one event; see the module for who writes which."""

    at_s: float
    node: str


# -- what the run is made of --


class BrokerConfigured(Event, frozen=True, kw_only=True, tag=True):
    """Say how a broker was configured; `broker` is its brokerName.

    `server` is the node that it runs on (without slaves it has the broker's name), `host` the node's
    address. `role` is that of the beginning; a slave that is promoted gets that of its master.
    `copies` says how many slaves have a message before a synchronous master answers SEND_OK.

    `flushed_within_s` is the promise of asynchronous flush: what was stored so long before the power
    went is on the disk, if the disk is not at fault.
    """

    broker: str
    flush: Flush
    flushed_within_s: float = 11.0
    transient_store_pool: bool = False
    delay_levels_ms: tuple[int, ...]
    transaction_check_max: int = 15
    max_message_size: int = 4 * 1024 * 1024
    file_reserved_hours: float = 72
    index_slots: int = 500  # maxHashSlotNum; a cluster in virtual time has as many
    server: str = ""
    host: str = ""
    role: Role = "ASYNC_MASTER"
    copies: int = 1

    @property
    def name(self) -> str:
        """The name of the node."""
        return self.server or self.broker


class TopicCreated(Event, frozen=True, kw_only=True, tag=True):
    topic: str
    broker: str
    queues: int


class GroupConfigured(Event, frozen=True, kw_only=True, tag=True):
    """Say how a group consumes one topic.

    `max_reconsume_times` is the number of tries after the first one. `from_first` says that the group
    begins with the oldest message of a queue (else with what comes after its first member began, so
    only what was delivered can be judged). With `pops` some or all of its members pop: the tries are
    then counted by the brokers.
    """

    group: str
    topic: str
    filter: Filter = Filter()
    is_orderly: bool = False
    is_broadcasting: bool = False
    max_reconsume_times: int = 16
    from_first: bool = True
    pops: bool = False


# -- producers --


class SendStarted(Event, frozen=True, kw_only=True, tag=True):
    """One call of a producer: a message, or the messages of a batch.

    `send` is its number in the run. A transaction's half message has `is_transaction`. Attempts of a
    call may store its messages more than once, as Java's do.
    """

    send: int
    topic: str
    messages: tuple[Outgoing, ...]
    is_transaction: bool = False
    is_one_way: bool = False


class SendAcknowledged(Event, frozen=True, kw_only=True, tag=True):
    """A producer got the answer that its messages are stored.

    `offset` is the first message's in `queue` (of a delayed message and of a half message that of the
    broker's own topic, so nothing is judged by it). `offset_msg_ids` are as the broker gave them.
    """

    send: int
    status: Status
    queue: Queue
    offset: int
    offset_msg_ids: tuple[str, ...] = ()


class SendFailed(Event, frozen=True, kw_only=True, tag=True):
    """A call raised; `stored` is what the error says of its messages."""

    send: int
    error: str
    stored: Stored


class TransactionDecided(Event, frozen=True, kw_only=True, tag=True):
    """A producer decided on a half message, in its listener's first call or when it was checked.

    It is recorded where the decision is made, before it travels. `check` is False for the first.
    """

    send: int
    decision: Decision
    check: bool = False


class MessageRecalled(Event, frozen=True, kw_only=True, tag=True):
    """A producer took a delayed message back; `done` says that the broker agreed."""

    send: int
    done: bool


# -- consumers --


class MemberStarted(Event, frozen=True, kw_only=True, tag=True):
    """`member` is a name of the run's own, new for every life of a consumer."""

    member: str
    group: str
    topic: str


class MemberStopped(Event, frozen=True, kw_only=True, tag=True):
    """A member ended; `clean` says that it was closed, and not killed with its node."""

    member: str
    clean: bool


class Delivered(Event, frozen=True, kw_only=True, tag=True):
    """A listener was given a message.

    `delivery` numbers the deliveries of the run. `queue` names the queue that the message came from
    (a retry comes from `%RETRY%group`), `topic` is what the message says. `store_ms` and `born_ms`
    are the record's.
    """

    delivery: int
    member: str
    group: str
    queue: Queue
    offset: int
    topic: str
    body: bytes
    properties: dict[str, str]
    reconsume_times: int
    store_ms: int
    born_ms: int = 0


class Consumed(Event, frozen=True, kw_only=True, tag=True):
    """A listener ended its work on a delivery. "raised" counts as "later".

    `delay_level` is that of a ConsumeReport: 0 leaves it to the number of deliveries, -1 wants a dead
    letter.
    """

    delivery: int
    verdict: Verdict
    delay_level: int = 0


class Popped(Event, frozen=True, kw_only=True, tag=True):
    """A delivery came by a pop: the broker's time of it, and until when the message is hidden then."""

    delivery: int
    popped_ms: int
    until_ms: int


class HandleUsed(Event, frozen=True, kw_only=True, tag=True):
    """A member acknowledged a popped delivery ("ack"), or had it hidden until another time ("hide").

    Recorded when it is asked for, and once more with `done` when the broker agreed. Of "hide" the times
    are those that hold from then on, 0 while they are not known.
    """

    delivery: int
    use: Literal["ack", "hide"]
    done: bool = False
    popped_ms: int = 0
    until_ms: int = 0


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a range."""

    offset: int
    topic: str
    body: bytes
    properties: dict[str, str]


class RangeRead(Event, frozen=True, kw_only=True, tag=True):
    """A reader of `begin <= offset < end` had its answer; `error` if it was refused or cut short."""

    queue: Queue
    begin: int
    end: int
    messages: tuple[Read, ...]
    error: str | None = None


# -- questions to brokers, administration --


class OffsetSeen(Event, frozen=True, kw_only=True, tag=True):
    """A broker said which offset a group has committed; None if it knows none."""

    group: str
    queue: Queue
    offset: int | None


class QueueSeen(Event, frozen=True, kw_only=True, tag=True):
    """A broker said where a queue begins and ends; `max_offset` is the next unused."""

    queue: Queue
    min_offset: int
    max_offset: int


class OffsetsReset(Event, frozen=True, kw_only=True, tag=True):
    """An operator moved a group's offsets: to `offsets` if known, else to `timestamp_ms`.

    Recorded when it is asked for, and once more with `done` when it was answered. Events in between may
    be before or after it.
    """

    group: str
    topic: str
    offsets: dict[str, int] = {}  # by the text of the queue
    timestamp_ms: int | None = None
    done: bool = False


# -- the schedule --


class FaultInjected(Event, frozen=True, kw_only=True, tag=True):
    """A fault of `cometmq.testing.faults` was injected; names and arguments are its own.

    So are `heal`, `restart`, `resume`: everything that the schedule does to the cluster.
    """

    name: str
    args: dict[str, Any] = {}


class MasterChanged(Event, frozen=True, kw_only=True, tag=True):
    """An operator made `server` the master of `broker`, because `former` is gone.

    Recorded when it is asked for, and once more with `done` when the server runs again. `queue_ends`
    then has the next offset of each queue (by the text of it) in the log that the server begins with.
    """

    broker: str
    server: str
    former: str
    queue_ends: dict[str, int] = {}
    done: bool = False


# -- looks at the disks of masters and slaves --


class CopiesSeen(Event, frozen=True, kw_only=True, tag=True):
    """The contents of the logs at the message's place, in the moment in which a producer got SEND_OK.

    `digests` has for each server of the broker a digest of the record, as long as it says that it is,
    for each message of the send; 0 where the log has nothing.
    """

    send: int
    broker: str
    digests: dict[str, tuple[int, ...]]


class LogSeen(Event, frozen=True, kw_only=True, tag=True):
    """A server's log at one moment, compared byte by byte.

    `is_up` says that its process runs. It has bytes from `begin` to `end`. `same_as_master` is where it first differs from the log of
    `master` at the same moment, `kept` where it first differs from what itself had at the look before;
    each is the end of the shorter log if there is no difference, and None without such a log.
    """

    broker: str
    server: str
    is_up: bool = True
    begin: int
    end: int
    master: str | None = None
    master_begin: int = 0
    master_end: int = 0
    same_as_master: int | None = None
    kept: int | None = None
    former_end: int | None = None


class TableSeen(Event, frozen=True, kw_only=True, tag=True):
    """A server's file of committed offsets at one moment, by `group@topic/queue id`."""

    broker: str
    server: str
    offsets: dict[str, int]


class TopicsSeen(Event, frozen=True, kw_only=True, tag=True):
    """A server's files of topics and groups at one moment: how many queues a reader finds in each topic.

    `in_log` is given for a server that has just been promoted, or has started without its tables: how
    many queues of each topic its log has messages of, and those that messages wait for.
    """

    broker: str
    server: str
    readable: dict[str, int]
    groups: tuple[str, ...]
    in_log: dict[str, int] | None = None


class RunEnded(Event, frozen=True, kw_only=True, tag=True):
    """The run ended.

    `live` says that all faults had ended, everybody ran, and the run waited for everything to be
    delivered and consumed: what is missing then is lost. Else only safety is judged.
    """

    live: bool


AnyEvent = (
    BrokerConfigured
    | TopicCreated
    | GroupConfigured
    | SendStarted
    | SendAcknowledged
    | SendFailed
    | TransactionDecided
    | MessageRecalled
    | MemberStarted
    | MemberStopped
    | Delivered
    | Consumed
    | Popped
    | HandleUsed
    | RangeRead
    | OffsetSeen
    | QueueSeen
    | OffsetsReset
    | FaultInjected
    | MasterChanged
    | CopiesSeen
    | LogSeen
    | TableSeen
    | TopicsSeen
    | RunEnded
)

_encoder: Final = msgspec.json.Encoder(order="deterministic")
_decoder: Final = msgspec.json.Decoder(AnyEvent)


class History:
    """Hold the events of one run in their order."""

    def __init__(self, events: Iterable[AnyEvent] = ()) -> None:
        self.events: list[AnyEvent] = []
        # Checkers and operators ask for the events of a kind a thousand times in a run.
        self._by_kind: defaultdict[type[Event], list[Any]] = defaultdict(list)
        for event in events:
            self.record(event)

    def record(self, event: AnyEvent) -> None:
        self.events.append(event)
        self._by_kind[type(event)].append(event)

    def clear(self) -> None:
        """Forget all events."""
        self.events.clear()
        self._by_kind.clear()

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind, in their order."""
        return list(self._by_kind[kind])

    def lines(self) -> Iterator[str]:
        """Give each event as a line of JSON, the same in every process."""
        for event in self.events:
            yield _encoder.encode(event).decode()

    @classmethod
    def from_lines(cls, lines: Iterable[str]) -> History:
        return cls(_decoder.decode(line) for line in lines if line.strip())

    def __len__(self) -> int:
        return len(self.events)


def accepts(wanted: Filter, tags: str | None, properties: Mapping[str, str]) -> bool:
    """Say whether a filter wants a message (Java: `FilterAPI`, and SQL92's three-valued logic)."""
    if wanted.tags:
        return tags in wanted.tags
    return all(_holds(comparison, properties) for comparison in wanted.comparisons)


def _holds(comparison: Comparison, properties: Mapping[str, str]) -> bool:
    text = properties.get(comparison.property)
    if text is None:
        return False
    value, other = int(text), comparison.value
    return {
        "=": value == other,
        "<>": value != other,
        "<": value < other,
        "<=": value <= other,
        ">": value > other,
        ">=": value >= other,
    }[comparison.operator]
