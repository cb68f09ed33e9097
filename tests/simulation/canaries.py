"""Plant faults in running code, and count the seeds until the checker finds each.

A checker that finds nothing proves nothing, unless it finds what is there. A canary is one fault for
one promise: it is put into the code from outside, by patching, and runs like a fault that somebody
made. It is found when a schedule breaks one of its invariants with the canary, and none of these
without. `found` says how many seeds that took; `python -m tests.simulation.canaries` makes the table
of docs/reliability.md.

Patches are in modules that are interpreted in production, too, so that canaries also sing in compiled
form (`cometmq._compiled`). Each strikes at random, by a generator of its own: one call of some.

Longer than 500 lines: a list of small planted faults, which are read one by one.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import msgspec
from tests.simulation.__main__ import quiet
from tests.simulation.run import run
from tests.simulation.schedule import Schedule, draw

import cometmq.broker.replication.service as replication_service
import cometmq.filtering.sql92 as conditions
import cometmq.filtering.sql92_conditions as sql92
from cometmq.broker.delays.levels import DelayLevels
from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.pop import changes, revival
from cometmq.broker.pop import found as pop_found
from cometmq.broker.pop.acks import AckHandler
from cometmq.broker.pop.ordered import Ordered
from cometmq.broker.pop.revival import Revival
from cometmq.broker.pop.state import PopState
from cometmq.broker.replication import found_in_log
from cometmq.broker.replication.copies import NeededCopies
from cometmq.broker.replication.tables import MasterTables
from cometmq.broker.retries.retry import RetryHandler
from cometmq.broker.sends.service import Sends
from cometmq.broker.storage.group_commit import DiskLine
from cometmq.broker.transactions.half_table import HalfTable
from cometmq.broker.transactions.transactions import Transactions
from cometmq.bulk.range_pulls import RangePulls
from cometmq.client.consuming.listeners.orderly import OrderlyConsumption
from cometmq.client.popping.held import HeldMessages
from cometmq.client.popping.message import ReceivedMessage
from cometmq.client.pulling import received
from cometmq.errors import StoreBusyError, StoreError
from cometmq.model import names
from cometmq.model.message import MessageExt
from cometmq.model.results import ConsumeResult
from cometmq.model.sysflag import TRANSACTION_COMMIT
from cometmq.protocol.replication import FrameReader, encode_report
from cometmq.replication.master_connection import MasterConnection
from cometmq.replication.slave_connection import SlaveConnection
from cometmq.runtime.state_files.json_file import JsonFile
from cometmq.store.index.index_file import IndexFile
from cometmq.store.log.replica import ReplicaLog
from cometmq.store.queues.consume_queue import PLACEHOLDER_SIZE, Unit
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

SEEDS: Final = 1000
# Of a record: up to the place at which it says that it stands.
_HEAD_SIZE: Final = 36

Plant = Callable[[Random], Any]


class Canary(NamedTuple):
    """One planted fault. `found_by` are the invariants that have to see it.

    `needs` are the workloads (`tests.simulation.schedule.KINDS`), and `after` the faults and
    returns of masters, of which a schedule must have one to find it; without names any schedule may. `slaves` says that it needs slaves.
    """

    name: str
    what: str
    plant: Plant
    found_by: frozenset[str]
    needs: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()
    slaves: bool = False

    def can_sing(self, schedule: Schedule) -> bool:
        kinds = {each.kind for each in schedule.workloads}
        faults = {each.name for each in schedule.faults}
        faults |= {f"returns {each.returns}" for each in schedule.switches}
        faults |= {"loses processes" for each in schedule.switches if each.with_slave and each.news}
        faults |= {"loses tables" for _ in schedule.tables}
        return not (
            (self.slaves and not schedule.cluster.slaves)
            or (self.needs and not self.needs & kinds)
            or (self.after and not self.after & faults)
        )


CANARIES: Final[dict[str, Canary]] = {}

LOST: Final = "acknowledged and not lost"
REFUSED: Final = "refused is not stored"
ALTERED: Final = "never altered"
OFFSETS: Final = "offsets dense and never reused"
ORDER: Final = "order"
DELAYS: Final = "delays never early"
TRANSACTIONS: Final = "transactions one way"
RETRIES: Final = "retries counted"
LETTERS: Final = "dead letters after the last try"
RESETS: Final = "resets are followed"
COMMITS: Final = "commits behind consumption"
FILTERS: Final = "filtered exactly"
DELIVERED: Final = "delivered at least once"
RANGES: Final = "ranges complete"
FILES: Final = "files agree"
EXISTS: Final = "the log says what exists"
COPIED: Final = "acknowledged by slaves"
FOLLOWS: Final = "a slave's log is its master's"
REFUSES: Final = "slaves refuse writes"
TABLES: Final = "tables are copied"
WHOLE: Final = "state files stay whole"
HIDDEN: Final = "popped is hidden"
DONE: Final = "acknowledged pops stay done"
COUNTED: Final = "pops counted"
ONE_BATCH: Final = "one batch of a queue at a time"

# The workloads that pop.
POPS: Final = (
    "popped",
    "popped-in-order",
    "pulled-and-popped",
    "pushed-by-pop",
    "pushed-by-pop-in-order",
    "simple-consumer",
    "simple-consumer-in-order",
)


def canary(
    what: str,
    *found_by: str,
    needs: tuple[str, ...] = (),
    after: tuple[str, ...] = (),
    slaves: bool = False,
) -> Callable[[Plant], Plant]:
    """Register a planted fault under the name of the function that plants it."""

    def registered(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        CANARIES[name] = Canary(
            name, what, plant, frozenset(found_by), frozenset(needs), frozenset(after), slaves
        )
        return plant

    return registered


def _appends(change: Callable[..., Any]) -> Any:
    """Replace `append` of every store: `change(store, append, queue, args, named)` is called instead."""
    original = MessageStore.__init__

    def init(store: MessageStore, *args: Any, **named: Any) -> None:
        original(store, *args, **named)
        append = store.append

        def changed(queue: Any, *rest: Any, **fields: Any) -> tuple[int, int]:
            if queue.topic.startswith(
                ("%", "rmq_", "RMQ_", "SCHEDULE", "TRANS_", "broker", "Default")
            ):
                return append(queue, *rest, **fields)
            result: tuple[int, int] = change(store, append, queue, rest, fields)
            return result

        store.append = changed

    return patch.object(MessageStore, "__init__", init)


# -- the store --


@canary("one fsync of the commit log in three is skipped", LOST, OFFSETS, after=("power_off",))
def skip_an_fsync(rng: Random) -> Any:
    original = VirtualDisk.sync

    def sync(disk: VirtualDisk, path: Path) -> None:
        if path.parent.name == "commitlog" and rng.random() < 1 / 3:
            return
        original(disk, path)

    return patch.object(VirtualDisk, "sync", sync)


@canary("sends with SYNC_FLUSH are answered before the flush", LOST, after=("power_off",))
def acknowledge_before_the_flush(rng: Random) -> Any:
    original = DiskLine.enter

    def enter(self: DiskLine, waiting: Any) -> None:
        original(self, waiting)
        self._flushed(waiting.end)

    return patch.object(DiskLine, "enter", enter)


@canary("one send in ten is answered 0.2 s before its append", LOST, OFFSETS)
def acknowledge_before_the_append(rng: Random) -> Any:
    def change(store: Any, append: Any, queue: Any, rest: Any, fields: Any) -> tuple[int, int]:
        if rng.random() > 0.1:
            appended: tuple[int, int] = append(queue, *rest, **fields)
            return appended
        body, *others = rest
        kept = (bytes(body), *others)
        loop = asyncio.get_running_loop()
        loop.call_later(0.2, lambda: append(queue, *kept, **fields))
        return queue.next_offset, store.commit_log.end

    return _appends(change)


@canary("one message in ten gets no unit in its consume queue", FILES, DELIVERED)
def drop_a_dispatch(rng: Random) -> Any:
    def change(store: Any, append: Any, queue: Any, rest: Any, fields: Any) -> tuple[int, int]:
        offset, position = append(queue, *rest, **fields)
        if rng.random() < 0.1:
            queue.rewrite(offset, Unit(0, PLACEHOLDER_SIZE, 0))
        return offset, position

    return _appends(change)


@canary("one message in ten gets the offset of the one before it", OFFSETS)
def reuse_an_offset(rng: Random) -> Any:
    def change(store: Any, append: Any, queue: Any, rest: Any, fields: Any) -> tuple[int, int]:
        if queue.next_offset > queue.min_offset and rng.random() < 0.1:
            queue.next_offset -= 1
        appended: tuple[int, int] = append(queue, *rest, **fields)
        return appended

    return _appends(change)


@canary("one send in ten is refused after its message was stored", REFUSED)
def refuse_what_is_stored(rng: Random) -> Any:
    def change(store: Any, append: Any, queue: Any, rest: Any, fields: Any) -> tuple[int, int]:
        appended: tuple[int, int] = append(queue, *rest, **fields)
        if rng.random() < 0.1:
            raise StoreBusyError("a canary sings")
        return appended

    return _appends(change)


@canary("one record in ten loses the last byte of its body", ALTERED)
def store_a_body_short(rng: Random) -> Any:
    def change(store: Any, append: Any, queue: Any, rest: Any, fields: Any) -> tuple[int, int]:
        body, *others = rest
        short = bytes(body)[:-1] if len(body) > 1 and rng.random() < 0.1 else body
        appended: tuple[int, int] = append(queue, short, *others, **fields)
        return appended

    return _appends(change)


@canary("one key in ten enters the index under another hash", FILES)
def index_another_hash(rng: Random) -> Any:
    original = IndexFile.put

    def put(file: IndexFile, keys: Any) -> None:
        wrong = [int(each) ^ (rng.random() < 0.1) for each in keys.hashes]
        original(file, keys._replace(hashes=keys.hashes * 0 + wrong))

    return patch.object(IndexFile, "put", put)


# -- the broker --


@canary("one half message in five is forgotten", TRANSACTIONS, needs=("transactions",))
def forget_a_half_message(rng: Random) -> Any:
    original = HalfTable.add

    def add(
        table: HalfTable,
        offset: int,
        due_ms: int,
        first: int | None = None,
        *,
        is_immune: bool = False,
    ) -> None:
        if rng.random() > 0.2:
            original(table, offset, due_ms, first, is_immune=is_immune)

    return patch.object(HalfTable, "add", add)


@canary("one roll-back in five commits", TRANSACTIONS, needs=("transactions",))
def commit_a_roll_back(rng: Random) -> Any:
    original = Transactions.end

    def end(self: Transactions, header: Any) -> None:
        if rng.random() < 0.2:
            header = msgspec.structs.replace(header, commit_or_rollback=TRANSACTION_COMMIT)
        original(self, header)

    return patch.object(Transactions, "end", end)


@canary("levels deliver what is due within a second", DELAYS, needs=("delayed-level", "retries"))
def deliver_a_delay_early(rng: Random) -> Any:
    due, deliver = DelayLevels.next_due_ms, DelayLevels.deliver_due
    early_ms = 1000
    never_ms = 2**63 - 1

    def next_due_ms(levels: DelayLevels) -> int:
        at_ms = due(levels)
        return at_ms if at_ms == never_ms else at_ms - early_ms

    def deliver_due(levels: DelayLevels, now_ms: int, limit: int) -> int:
        return deliver(levels, now_ms + early_ms, limit)

    return patch.multiple(DelayLevels, next_due_ms=next_due_ms, deliver_due=deliver_due)


@canary("one commit in two is one message ahead", COMMITS, DELIVERED)
def commit_ahead(rng: Random) -> Any:
    original = ConsumerOffsetManager.commit

    def commit(
        self: ConsumerOffsetManager, group: str, topic: str, queue_id: int, offset: int
    ) -> bool:
        return original(self, group, topic, queue_id, offset + (rng.random() < 0.5))

    return patch.object(ConsumerOffsetManager, "commit", commit)


@canary("one reset in two is forgotten before a pull is answered", RESETS, needs=("resets",))
def forget_resets(rng: Random) -> Any:
    original = ConsumerOffsetManager.moved_to

    def moved_to(
        self: ConsumerOffsetManager, group: str, topic: str, queue_id: int, *args: Any
    ) -> int | None:
        if rng.random() < 0.5:
            self.resets.get(f"{topic}@{group}", {}).pop(queue_id, None)
        return original(self, group, topic, queue_id, *args)

    return patch.object(ConsumerOffsetManager, "moved_to", moved_to)


@canary("one retry in five counts twice", RETRIES, needs=("retries",))
def skip_a_retry_level(rng: Random) -> Any:
    original = RetryHandler._once_more

    def once_more(self: RetryHandler, record: Any) -> Any:
        message = original(self, record)
        message.reconsume_times += rng.random() < 0.2
        return message

    return patch.object(RetryHandler, "_once_more", once_more)


@canary("one message in five is given up a try too early", LETTERS, needs=("retries",))
def give_up_early(rng: Random) -> Any:
    original = RetryHandler._max_times

    def max_times(self: RetryHandler, *args: Any) -> int:
        return max(0, original(self, *args) - (rng.random() < 0.2))

    return patch.object(RetryHandler, "_max_times", max_times)


@canary("one dead letter in two is not stored", LETTERS, DELIVERED, needs=("retries",))
def lose_a_dead_letter(rng: Random) -> Any:
    original = RetryHandler._put_back

    def put_back(self: RetryHandler, group: str, message: Any) -> None:
        if not message.topic.startswith(names.DLQ_PREFIX) or rng.random() < 0.5:
            original(self, group, message)

    return patch.object(RetryHandler, "_put_back", put_back)


@canary("SQL92's >= also takes the number below", FILTERS, needs=("filtered",))
def serve_what_is_filtered_out(rng: Random) -> Any:
    @contextmanager
    def served() -> Iterator[None]:
        conditions.outcomes.clear()
        with patch.dict(sql92.ORDERS, {">=": lambda value, limit: value >= limit - 1}):
            yield
        conditions.outcomes.clear()

    return served()


# -- pops --


@canary("what is popped becomes visible 0.7 s early", HIDDEN, needs=POPS)
def hide_too_short(_rng: Random) -> Any:
    early_ms = 700
    return patch.object(
        pop_found.Found,
        "until_ms",
        property(lambda found: found.popped_ms + found.invisible_ms - early_ms),
    )


@canary("a popped message that is hidden again becomes visible 0.7 s early", HIDDEN, needs=POPS)
def hide_again_too_short(_rng: Random) -> Any:
    original, early_ms = PopState.write, 700

    def write(self: PopState, *made: Any) -> Any:
        return original(
            self,
            *(
                msgspec.structs.replace(each, until_ms=each.until_ms - early_ms)
                if isinstance(each, changes.Hidden | changes.OrderHidden)
                else each
                for each in made
            ),
        )

    return patch.object(PopState, "write", write)


@canary("one acknowledgement in five is answered and does nothing", DONE, needs=POPS)
def drop_an_acknowledgement(rng: Random) -> Any:
    original = AckHandler._ack

    def ack(self: AckHandler, *args: Any) -> Any:
        return None if rng.random() < 0.2 else original(self, *args)

    return patch.object(AckHandler, "_ack", ack)


@canary(
    "acknowledgements with SYNC_FLUSH are answered before the flush",
    DONE,
    needs=("popped",),
    after=("power_off",),
)
def answer_acknowledgements_before_the_flush(_rng: Random) -> Any:
    original = AckHandler._answer

    def answer(self: AckHandler, *args: Any) -> Any:
        self._group_commit = None
        return original(self, *args)

    return patch.object(AckHandler, "_answer", answer)


@canary("one delivery in five counts twice", COUNTED, needs=("popped",))
def count_a_delivery_twice(rng: Random) -> Any:
    original = revival._again

    def again(*args: Any) -> Any:
        message = original(*args)
        message.reconsume_times += rng.random() < 0.2
        return message

    return patch.object(revival, "_again", again)


@canary("a start reads nothing of what is in flight", COUNTED, HIDDEN, needs=POPS, after=("kill",))
def forget_what_is_in_flight(_rng: Random) -> Any:
    return patch.object(PopState, "open", lambda _self: None)


@canary("one dead letter of pops in two is not stored", DELIVERED, needs=("popped",))
def lose_a_popped_dead_letter(rng: Random) -> Any:
    original = Revival._put

    def put(self: Revival, state: Any, topic: str, copies: Any) -> None:
        if not topic.startswith(names.DLQ_PREFIX) or rng.random() < 0.5:
            original(self, state, topic, copies)
        else:
            self._state.write(changes.Gone(state.key, [each.offset for each in copies]))

    return patch.object(Revival, "_put", put)


@canary("a queue goes on behind a batch in flight", ONE_BATCH, ORDER, needs=("popped-in-order",))
def go_on_behind_a_batch(rng: Random) -> Any:
    original = Ordered.is_blocked

    def is_blocked(self: Ordered, *args: Any) -> bool:
        if rng.random() < 0.3 and self.pending:
            return False
        return original(self, *args)

    return patch.object(Ordered, "is_blocked", is_blocked)


@canary("what is due is forgotten once in five times", COMMITS, DELIVERED, needs=POPS)
def forget_what_is_due(rng: Random) -> Any:
    original = Revival._move

    async def move(self: Revival, state: Any, records: Any) -> None:
        if rng.random() < 0.2:
            self._state.write(changes.Gone(state.key, [offset for offset, _ in records]))
        else:
            await original(self, state, records)

    return patch.object(Revival, "_move", move)


# -- masters and slaves --


@canary("a synchronous master answers before a slave has the message", COPIED, LOST, slaves=True)
def acknowledge_before_a_slave_has_it(rng: Random) -> Any:
    original = NeededCopies.reached

    def reached(self: NeededCopies) -> int:
        return original(self) + 2000

    return patch.object(NeededCopies, "reached", reached)


@canary("a slave reports what it received 0.3 s before it appends it", COPIED, LOST, slaves=True)
def report_before_the_append(rng: Random) -> Any:
    original = MasterConnection.data_received

    def data_received(self: MasterConnection, data: bytes) -> None:
        frames = self.__dict__.setdefault("of_the_canary", FrameReader())
        ends = [piece.offset + len(piece.data) for piece in frames.feed(bytes(data))]
        if ends and self._transport is not None:
            self._transport.write(encode_report(ends[-1]))
        self._loop.call_later(0.3, original, self, data)

    return patch.object(MasterConnection, "data_received", data_received)


@canary(
    "a slave drops the inside of one record in twenty and goes on behind the gap",
    FOLLOWS,
    COPIED,
    slaves=True,
)
def go_on_after_a_gap(rng: Random) -> Any:
    original = ReplicaLog._keep

    def keep(log: ReplicaLog, view: memoryview, begin: int, whole: int) -> None:
        size = int.from_bytes(view[begin : begin + 4])
        if 0 < size <= whole - begin and rng.random() < 1 / 20:
            # Its size and its place stay, so that the slave finds the next record.
            gap, end = begin + _HEAD_SIZE, begin + size
            view = memoryview(bytes(view[:gap]) + bytes(end - gap) + bytes(view[end:]))
        original(log, view, begin, whole)

    return patch.object(ReplicaLog, "_keep", keep)


@canary(
    "a slave goes on behind a log that has diverged",
    FOLLOWS,
    slaves=True,
    after=("returns as it is",),
)
def go_on_when_diverged(rng: Random) -> Any:
    original = ReplicaLog._whole

    async def no_divergence(*_args: Any) -> None:
        return None

    def whole(log: ReplicaLog, view: memoryview, begin: int, offset: int) -> int:
        try:
            return original(log, view, begin, offset)
        except StoreError:
            return len(view)

    @contextmanager
    def goes_on() -> Iterator[None]:
        with (
            patch.object(replication_service, "find_divergence", no_divergence),
            patch.object(ReplicaLog, "_whole", whole),
            # The master looks, too.
            patch.object(SlaveConnection, "_begins_record", lambda *_: True),
        ):
            yield

    return goes_on()


@canary("a slave drops what it copies of committed offsets", TABLES, slaves=True)
def drop_a_table_copy(rng: Random) -> Any:
    original = MasterTables._take_over

    async def take_over(self: MasterTables, offsets: Any) -> None:
        none = msgspec.structs.replace(offsets.consumed, offset_table={})
        await original(self, offsets._replace(consumed=none))

    return patch.object(MasterTables, "_take_over", take_over)


@canary("a start looks for nothing in the log", EXISTS, slaves=True, after=("loses processes",))
def look_for_nothing_in_the_log(rng: Random) -> Any:
    def nothing(*_args: Any) -> dict[str, int]:
        return {}

    return patch.multiple(found_in_log, missing_queues=nothing, missing_targets=nothing)


@canary(
    "a slave takes whatever tables its master has", EXISTS, slaves=True, after=("loses tables",)
)
def take_any_tables(rng: Random) -> Any:
    def take(*_args: Any) -> None:
        pass

    return patch.multiple(MasterTables, _refuse_others=take, _refuse_older=take)


@canary("a slave takes sends", REFUSES, FOLLOWS, slaves=True)
def serve_a_write_on_a_slave(rng: Random) -> Any:
    @contextmanager
    def served() -> Iterator[None]:
        with (
            patch.object(replication_service, "bar_writes", lambda *_: None),
            patch.object(Sends, "runs_on_slave", True),
        ):
            yield

    return served()


# -- the clients --


@canary("one delivery in ten has another tag", ALTERED)
def deliver_altered(rng: Random) -> Any:
    original = received.decode_messages

    def altered(*args: Any) -> Any:
        found = original(*args)
        for message in found.messages:
            if rng.random() < 0.1:
                message.properties["TAGS"] = message.properties.get("TAGS", "") + "x"
        return found

    return patch.object(received, "decode_messages", altered)


@canary("one message in ten is dropped between pull and listener", COMMITS, DELIVERED)
def drop_a_delivery(rng: Random) -> Any:
    original = received.decode_messages

    def decoded(*args: Any) -> Any:
        found = original(*args)
        return found._replace(messages=[each for each in found.messages if rng.random() > 0.1])

    return patch.object(received, "decode_messages", decoded)


@canary(
    "an orderly queue goes on behind one suspended message in two",
    ORDER,
    COMMITS,
    needs=("orderly",),
)
def go_on_behind_a_suspended_message(rng: Random) -> Any:
    return _going_on_behind_suspended_messages(rng)


@canary(
    "an orderly queue of a push consumer that pops goes on behind one suspended message in two",
    ORDER,
    COMMITS,
    DELIVERED,
    needs=("pushed-by-pop-in-order",),
)
def acknowledge_a_suspended_message(rng: Random) -> Any:
    return _going_on_behind_suspended_messages(rng)


def _going_on_behind_suspended_messages(rng: Random) -> Any:
    original = OrderlyConsumption.conclude

    async def conclude(self: OrderlyConsumption, job: Any) -> list[MessageExt]:
        if job.result is not ConsumeResult.SUCCESS and rng.random() < 0.5:
            self._finish(job.process_queue, job.messages)
            return []
        return await original(self, job)

    return patch.object(OrderlyConsumption, "conclude", conclude)


@canary(
    "a push consumer that pops acknowledges one failed message in two",
    DELIVERED,
    needs=("pushed-by-pop",),
)
def acknowledge_what_failed(rng: Random) -> Any:
    original = HeldMessages.give_back

    async def give_back(self: HeldMessages, process_queue: Any, message: Any, delay_ms: int) -> Any:
        if rng.random() < 0.5:
            return  # what follows acknowledges each message that was not given back
        await original(self, process_queue, message, delay_ms)

    return patch.object(HeldMessages, "give_back", give_back)


@canary(
    "a simple consumer acknowledges one message in two that it is to give back",
    DELIVERED,
    ORDER,
    COMMITS,
    needs=("simple-consumer", "simple-consumer-in-order"),
)
def acknowledge_what_is_given_back(rng: Random) -> Any:
    original = ReceivedMessage.nack

    async def nack(self: ReceivedMessage, delay_ms: Any = 0) -> None:
        if rng.random() < 0.5:
            await self.ack()
        else:
            await original(self, delay_ms)

    return patch.object(ReceivedMessage, "nack", nack)


@canary("one answer in two is left out of a range", RANGES)
def leave_a_hole_in_a_range(rng: Random) -> Any:
    original = RangePulls._take

    def take(self: RangePulls, pull: Any, answer: Any, chunk: Any) -> None:
        original(self, pull, answer, chunk)
        if chunk.parts and rng.random() < 0.5:
            chunk.parts.pop()

    return patch.object(RangePulls, "_take", take)


# -- listening for them --


@canary("a damaged state file becomes the backup", WHOLE, after=("damage_state",))
def back_up_a_damaged_file(_rng: Random) -> Any:
    put_in_place = JsonFile._put_in_place

    def always(file: JsonFile, *, is_sound: bool) -> None:
        del is_sound
        put_in_place(file, is_sound=True)

    return patch.object(JsonFile, "_put_in_place", always)


class Found(NamedTuple):
    """Says with which seed a canary was found, how many seeds that took, and what saw it."""

    canary: Canary
    seed: int
    seeds: int
    by: str
    what: str


@contextmanager
def planted(canary: Canary, seed: int) -> Iterator[None]:
    """Have a canary in the code meanwhile. Its effects follow from the seed."""
    with canary.plant(Random(f"{canary.name}:{seed}")):
        yield


def sings(canary: Canary, schedule: Schedule) -> str | None:
    """Run a schedule with a canary; return what the canary's invariants say, if they see it."""
    with planted(canary, schedule.seed):
        outcome = run(schedule)
    mine = [each for each in outcome.failures if each.partition(":")[0] in canary.found_by]
    if not mine:
        return None
    without = {each.partition(":")[0] for each in run(schedule).failures}
    return next((each for each in mine if each.partition(":")[0] not in without), None)


def find(canary: Canary, first: int = 1, seeds: int = SEEDS, hours: float = 0.5) -> Found | None:
    """Return the first seed with which a canary is found, or None if none of them finds it."""
    for seed in range(first, first + seeds):
        schedule = draw(seed, hours=hours)
        if not canary.can_sing(schedule):
            continue  # counted, since a run of it could find nothing
        what = sings(canary, schedule)
        if what is not None:
            return Found(canary, seed, seed - first + 1, what.partition(":")[0], what)
    return None


def table(found: list[Found]) -> Iterator[str]:
    """Give the lines of the table in docs/reliability.md."""
    yield "| planted fault | found by | seeds needed | seed |"
    yield "| --- | --- | ---: | ---: |"
    for each in found:
        yield f"| {each.canary.what} | {each.by} | {each.seeds} | {each.seed} |"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.simulation.canaries", description=__doc__)
    parser.add_argument("names", nargs="*", help="canaries; all by default", metavar="NAME")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--hours", type=float, default=0.5)
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in CANARIES]:
        parser.error(f"no canary is called {unknown[0]}; there are {', '.join(CANARIES)}")
    found = []
    for name in options.names or CANARIES:
        began = time.perf_counter()
        with quiet():
            one = find(CANARIES[name], options.first, options.seeds, options.hours)
        took = f"{time.perf_counter() - began:.0f} s"
        if one is None:
            _say(f"{name}: NOT FOUND in {options.seeds} seeds ({took})")
            continue
        found.append(one)
        _say(f"{name}: seed {one.seed}, {one.by} ({took}): {one.what[:200]}")
    _say("\n".join(table(found)))
    sys.exit(len(found) < len(options.names or CANARIES))


if __name__ == "__main__":
    main()
