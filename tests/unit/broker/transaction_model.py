"""Compare a broker's transactions with a plain dictionary: random half messages, verdicts, checks,
stops and kills, each step compared.

A kill may come before any append to the log, in the middle of whatever makes the append. After a
kill the pages stay, the consumer offsets are those last saved, and everything that waited in memory
is lost.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.json_text import pretty
from tests.unit.store.store_box import CLIENT, HOST, Box, ManualClock, QuickDisk, records

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups.offsets import ConsumerOffsetManager
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.broker.topics.topics import TopicManager
from cometmq.broker.transactions.check import TransactionChecker
from cometmq.broker.transactions.half_message import HalfMessage, read_half
from cometmq.broker.transactions.transactions import Transactions
from cometmq.errors import StoreFullError
from cometmq.model import names
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from cometmq.protocol.bodies.cluster import ConsumerOffsetSerializeWrapper
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.fastjson.dialect import decode_body
from cometmq.protocol.headers import EndTransactionRequestHeader
from cometmq.protocol.messages.ids import encode_offset_id
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.runtime.randomness import Randomness
from cometmq.store.store import MessageStore
from cometmq.testing.virtual.storage.disk import VirtualDisk

TOPICS = ("orders", "payments")
TIMEOUT_MS = 6_000
CHECK_MAX = 4
# Due times are kept in steps of 128 ms.
STEP_MS = 128
GROUPS = ("shop", "bank")


class Killed(BaseException):
    """Says that the process died; no code under test may catch it."""


@dataclass
class Life:
    """A broker's transaction code on an open store."""

    store: MessageStore
    offsets: ConsumerOffsetManager
    transactions: Transactions
    checker: TransactionChecker


@dataclass
class Model:
    """One transaction. `copies` are the (queue offset, log offset) of its half messages; a verdict
    that names any of them ends it.
    """

    number: int
    group: str
    topic: str
    commit: bool
    born: int
    immunity_s: int | None
    copies: list[tuple[int, int]] = field(default_factory=list)
    stale: list[tuple[int, int]] = field(default_factory=list)
    # open, committed, rolled-back, given-up
    state: str = "open"
    checks: int = 0
    discarded_at: int = 0
    resumed: bool = False
    # When it was last due.
    tried_ms: int = 0

    @property
    def key(self) -> str:
        return f"TX{self.number:08d}"

    @property
    def due_ms(self) -> int:
        if self.checks or self.resumed:
            return self.tried_ms
        immunity_ms = TIMEOUT_MS if self.immunity_s is None else self.immunity_s * 1000
        return max(self.born + immunity_ms, self.tried_ms)


class World:
    """A broker and its model. `seed` decides everything. With `power`, a death is a power failure,
    which takes from the disk what was not synced.
    """

    def __init__(self, root: Path, seed: int, *, power: bool = False) -> None:
        self.rng = random.Random(seed)
        self.box = Box(
            root,
            mapped_file_size_commit_log=1 << 18,
            mapped_file_size_consume_queue=20 * 2000,
            max_hash_slot_num=1_000,
            max_index_num=4_000,
        )
        self.power = VirtualDisk(Randomness(seed)) if power else None
        self.disk = self.power or QuickDisk()
        self.clock: ManualClock = self.box.clock
        self.config = BrokerConfig(
            broker_ip1="127.0.0.1",
            transaction_time_out=TIMEOUT_MS,
            transaction_check_max=CHECK_MAX,
            transaction_op_msg_max_size=100,
        )
        self.saved = ConsumerOffsetManager()
        self.all: list[Model] = []
        self.open: dict[str, Model] = {}
        self.ended: list[Model] = []
        # Rolled back, but no op record says so yet: a kill brings them back.
        self.unsure: dict[str, Model] = {}
        self.asked: list[tuple[Model, HalfMessage]] = []
        self.appends_left = -1
        self.fail_next = False
        self.counts: Counter[str] = Counter()
        self.life = self._begin()

    # -- lives --

    def _begin(self) -> Life:
        store = self.box.open(self.disk)
        self._append = store.append
        store.append = self._faulty_append
        self.topics = TopicManager(self.config, self.clock)
        offsets = _copied(self.saved)
        transactions = Transactions(
            self.config,
            store,
            self.topics,
            offsets,
            lambda message: message.append_to(store),
            self.clock,
            HOST,
        )
        transactions.open()
        checker = TransactionChecker(
            self.config, store, transactions, lambda _: self.rng.random() < 0.01, self._ask
        )
        return Life(store, offsets, transactions, checker)

    def _faulty_append(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        if self.appends_left == 0:
            raise Killed
        self.appends_left -= 1
        if self.fail_next:
            self.fail_next = False
            raise StoreFullError("no room")
        return self._append(*args, **kwargs)

    def stop(self) -> None:
        """Stop cleanly and start again."""
        self.fail_next = False
        self.life.transactions.close()
        self.saved = _copied(self.life.offsets)
        self.life.store.close()
        self._start_again(killed=False)

    def kill(self) -> None:
        """Kill the process, and start again."""
        if self.power is not None:
            self._lose_power(self.power)
            return
        self.box.crash(self.life.store)
        self._start_again(killed=True)

    def _lose_power(self, disk: VirtualDisk) -> None:
        disk.lose_power()
        self.life.store.abandon()
        self.appends_left, self.fail_next = -1, False
        self.asked.clear()
        self.unsure.clear()
        self.life = self._begin()
        self.counts["killed"] += 1
        self.counts["discarded"] = self.life.store.max_offset(names.TRANS_CHECK_MAX_TIME_TOPIC, 0)
        found, delivered = self.unresolved(), self.delivered()
        end = self.life.store.commit_log.end
        self.open.clear()
        self.ended.clear()
        for model in self.all:
            model.copies = [place for place in model.copies if place[1] < end]
            if model.copies:
                self._after_power_loss(model, found.pop(model.key, None), delivered[model.key], end)
            else:
                model.state = "lost"
        assert not found

    def _after_power_loss(
        self, model: Model, half: HalfMessage | None, delivered: int, end: int
    ) -> None:
        """Check a transaction after a power loss: what the log still says holds, and what it no
        longer says is open again.
        """
        assert delivered <= (model.state == "committed")
        decided = delivered or (model.state == "given-up" and model.discarded_at < end)
        if decided:
            assert half is None, f"{model} is open again"
        elif model.state != "rolled-back":
            assert half is not None, f"{model} is lost"
        if half is None:
            self.ended.append(model)
            return
        model.state, model.checks = "open", max(half.check_times, 0)
        self.open[model.key] = model

    def _start_again(self, *, killed: bool) -> None:
        self.appends_left = -1
        self.fail_next = False
        self.asked.clear()
        self.life = self._begin()
        self.counts["killed" if killed else "stopped"] += 1
        found = self.unresolved()
        if not killed:
            assert found.keys() == self.open.keys()
        # Rolled back in the last moments: as before, or forgotten.
        back = found.keys() - self.open.keys()
        assert back <= self.unsure.keys(), f"came back: {sorted(back - self.unsure.keys())[:5]}"
        assert self.open.keys() <= found.keys(), f"lost: {self.open.keys() - found.keys()}"
        for key in sorted(back):
            model = self.unsure.pop(key)
            model.state = "open"
            self.open[key] = model
            self.ended.remove(model)
        self.unsure.clear()
        # What a kill cut off in the middle is known by its record only.
        for key, half in found.items():
            model = self.open[key]
            model.checks = max(half.check_times, 0)
            place = (half.record.queue_offset, half.record.physical_offset)
            if place not in model.copies:
                model.copies.append(place)

    def unresolved(self) -> dict[str, HalfMessage]:
        """Return the transactions that the code under test holds open, by unique key."""
        found = {}
        for offset in self.life.transactions.table:
            half = read_half(self.life.store, offset)
            assert half is not None
            key = half.properties["UNIQ_KEY"]
            assert key not in found, f"{key} is open twice"
            found[key] = half
        return found

    # -- steps --

    def step(self) -> None:
        self.counts["steps"] += 1
        self.clock.value += self.rng.choice((0, 1, 40, 900))
        if self.rng.random() < 0.002:
            self.appends_left = self.rng.randrange(6)
        if self.rng.random() < 0.01:
            self.fail_next = True
        action: Callable[[], None] = self.rng.choices(
            (self.half, self.verdict, self.repeat, self.wrong, self.round, self.write, self.stop,
             self.resume, self.roll),
            (35, 45, 8, 4, 2, 8, 0.1, 1, 0.2),
        )[0]  # fmt: skip
        try:
            action()
        except Killed:
            self.kill()
        else:
            self._note_written()

    def half(self) -> None:
        model = Model(
            len(self.all),
            self.rng.choice(GROUPS),
            self.rng.choice(TOPICS),
            self.rng.random() < 0.7,
            self.clock.now_ms() - self.rng.choice((0, 0, 5, 3000)),
            self.rng.choice((None, None, None, 0, 2, 20)),
        )
        self.all.append(model)
        properties = {
            "UNIQ_KEY": model.key,
            "PGROUP": model.group,
            "TRAN_MSG": "true",
            "TAGS": "t",
        }
        if model.immunity_s is not None:
            properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] = str(model.immunity_s)
        message = IncomingMessage(
            model.topic,
            model.number % 3,
            model.key.encode() * self.rng.choice((1, 1, 20)),
            properties,
            model.born,
            CLIENT,
            sys_flag=TRANSACTION_PREPARED,
        )
        try:
            place = self.life.transactions.prepare(message)
        except StoreFullError:
            model.state = "refused"
            return
        except Killed:
            model.state = "refused"
            raise
        model.copies.append(place)
        self.open[model.key] = model
        self.counts["half"] += 1

    def verdict(self) -> None:
        """Let the producer end an open transaction, by itself or because it was asked."""
        if self.asked and self.rng.random() < 0.7:
            model, half = self.asked.pop(self.rng.randrange(len(self.asked)))
            place = (half.record.queue_offset, half.record.physical_offset)
            self.end(model, place, from_check=True)
        elif self.open:
            model = self.rng.choice(list(self.open.values())[-30:])
            if model.copies:
                self.end(model, self.rng.choice(model.copies), from_check=False)

    def repeat(self) -> None:
        """Let a verdict come again, perhaps by a copy of long ago."""
        if self.ended:
            model = self.rng.choice(self.ended[-200:])
            self.end(model, self.rng.choice(model.copies + model.stale), from_check=False)

    def end(self, model: Model, place: tuple[int, int], *, from_check: bool) -> None:
        header = _header(model, place, from_check=from_check)
        late = (
            not from_check
            and model.immunity_s is not None
            and self.clock.now_ms() - model.born > max(model.immunity_s * 1000, TIMEOUT_MS)
        )
        was_open = model.state == "open" and place in model.copies
        failing = self.fail_next
        try:
            self.life.transactions.end(header)
        except Refused as refused:
            code = refused.code
        except StoreFullError:
            assert failing
            assert was_open
            assert model.commit
            return
        except Killed:
            if was_open:
                self._killed_in_end(model)
            raise
        else:
            code = ResponseCode.SUCCESS
        if code == ResponseCode.SYSTEM_ERROR:
            assert model.state == "given-up" or place in model.stale
            return
        assert code == (ResponseCode.ILLEGAL_OPERATION if late else ResponseCode.SUCCESS)
        if was_open and not late:
            self._ended(model)

    def _killed_in_end(self, model: Model) -> None:
        """End the transaction in the model, unless the append that failed was its commit record and
        not the op record after it.
        """
        if not model.commit or self._delivered_count(model):
            self._ended(model)

    def _ended(self, model: Model) -> None:
        del self.open[model.key]
        model.state = "committed" if model.commit else "rolled-back"
        self.ended.append(model)
        self.counts[model.state] += 1
        if not model.commit:
            self.unsure[model.key] = model

    def wrong(self) -> None:
        """Send a verdict that names another group or another place: it changes nothing."""
        if not self.open:
            return
        model = self.rng.choice(list(self.open.values())[-50:])
        header = _header(model, self.rng.choice(model.copies), from_check=True)
        kind = self.rng.randrange(3)
        if kind == 0:
            header.producer_group = "nobody"
        elif kind == 1:
            header.commit_log_offset += self.rng.choice((-1, 1, 1 << 40))
        else:
            header.tran_state_table_offset += self.rng.choice((-(1 << 40), 1 << 40))
        with pytest.raises(Refused) as refused:
            self.life.transactions.end(header)
        assert refused.value.code == ResponseCode.SYSTEM_ERROR

    def round(self) -> None:
        """Check or give up everything that is due, once."""
        now_ms = self.clock.now_ms()
        checker = self.life.checker
        due = self.life.transactions.table.take_due(now_ms)
        self.asked_now: Counter[str] = Counter()
        self.skipped = 0
        will_fail = self.fail_next
        expected = {key for key, model in self.open.items() if model.due_ms + STEP_MS <= now_ms}
        self.given_up_now: set[str] = set()
        try:
            for first in due:
                self._check_one(first, now_ms)
            while checker.catch_up(10):
                pass
            if not will_fail:
                self._check_replaced(set(due))
        finally:
            self._see_copies()
        for model in self.open.values():
            if model.due_ms <= now_ms:
                model.tried_ms = now_ms
        assert all(count == 1 for count in self.asked_now.values())
        missed = expected - self.asked_now.keys() - self.given_up_now
        # A busy group and a full disk put off to the next round.
        assert len(missed) <= self.skipped, sorted(missed)[:5]
        self.counts["rounds"] += 1

    def _check_replaced(self, due: set[int]) -> None:
        """Check that the consumed offset can pass every copy that another one has replaced."""
        table = self.life.transactions.table
        low = table.low_offset(1 << 62)
        for model in self.open.values():
            if model.copies[0][0] in due:
                newest = table.newest(model.copies[0][0])
                assert all(offset < low for offset, _ in model.copies if offset != newest)

    def _check_one(self, first: int, now_ms: int) -> None:
        given_up = self._given_up_end()
        try:
            sent = self.life.checker.check(first, now_ms)
        finally:
            self._see_given_up()
        if not sent and self._given_up_end() == given_up:
            self.skipped += 1

    def _given_up_end(self) -> int:
        queue = self.life.store.queues.find(names.TRANS_CHECK_MAX_TIME_TOPIC, 0)
        return queue.next_offset if queue is not None else 0

    def _see_given_up(self) -> None:
        last = self._given_up_end()
        if last == self.counts["discarded"]:
            return
        # Also when a kill came between the discarded copy and its op record.
        self.counts["discarded"] = last
        record = records_from(self.life.store, names.TRANS_CHECK_MAX_TIME_TOPIC, last - 1)[0]
        model = self.open.pop(record.properties.split("UNIQ_KEY\x01")[1].split("\x02")[0])
        assert model.checks >= CHECK_MAX, model
        model.state = "given-up"
        model.discarded_at = record.physical_offset
        self.given_up_now.add(model.key)
        self.ended.append(model)

    def _ask(self, half: HalfMessage) -> int:
        model = self.open[half.properties["UNIQ_KEY"]]
        assert half.group == model.group
        assert model.due_ms <= self.clock.now_ms()
        model.checks += 1
        assert half.check_times == model.checks <= CHECK_MAX
        self.asked_now[model.key] += 1
        self.counts["asked"] += 1
        # Some never answer, most do when it is their turn.
        if self.rng.random() < 0.8:
            self.asked.append((model, half))
        return 100

    def _see_copies(self) -> None:
        """Report new copies to the model, including those that were made without a check."""
        for offset in self.life.transactions.table:
            half = read_half(self.life.store, offset)
            assert half is not None
            model = self.open.get(half.properties["UNIQ_KEY"])
            place = (offset, half.record.physical_offset)
            if model is not None and place not in model.copies:
                model.copies.append(place)
                # A kill may have come between the copy and the question.
                model.checks = max(half.check_times, 0)

    def roll(self) -> None:
        """Roll a part of the log that is to be deleted: nothing that waits may remain in it."""
        transactions, log = self.life.transactions, self.life.store.commit_log
        end = self.rng.randrange(log.end + 1)
        try:
            while transactions.roll(end, 5):
                pass
        except StoreFullError:
            return
        finally:
            self._see_copies()
        assert all(half.record.physical_offset >= end for half in self.unresolved().values())
        self.counts["rolled"] += 1

    def resume(self) -> None:
        if self.power is not None:
            return
        given_up = [model for model in self.ended[-100:] if model.state == "given-up"]
        if not given_up:
            return
        model = self.rng.choice(given_up)
        table = self.life.transactions.table
        try:
            self.life.transactions.resume(encode_offset_id(HOST, model.discarded_at))
        except StoreFullError:
            return
        newest = list(table)[-1]
        unit = self.life.store.queue(names.TRANS_HALF_TOPIC, 0).unit(newest)
        assert unit is not None
        # What it was known by before belongs to a transaction that is over.
        model.stale += model.copies
        model.copies = [(newest, unit.physical_offset)]
        model.state, model.checks = "open", 0
        model.resumed, model.tried_ms = True, self.clock.now_ms()
        self.open[model.key] = model
        self.ended.remove(model)
        self.counts["resumed"] += 1

    def write(self) -> None:
        """Do what the broker's timers do."""
        transactions, store = self.life.transactions, self.life.store
        actions: list[Callable[[], object]] = [
            transactions.flush_ops,
            transactions.publish_progress,
            store.flush_commit_log,
            store.flush_all,
            self._save,
        ]
        # A disk that is seldom flushed has more to lose.
        weights = (1, 3, 0.5, 0.2, 3) if self.power is not None else (1, 1, 2, 1, 1)
        self.rng.choices(actions, weights)[0]()

    def _save(self) -> None:
        self.saved = _copied(self.life.offsets)

    def _note_written(self) -> None:
        if not self.life.transactions.ops.waiting_count:
            self.unsure.clear()

    # -- the end --

    def finish(self) -> None:
        """Let all producers answer until nothing is open; then compare everything."""
        self.appends_left, self.fail_next = -1, False
        for _ in range(10 * CHECK_MAX):
            self.clock.value += 30_000
            self.asked.clear()
            self.round()
            for model, half in self.asked:
                place = (half.record.queue_offset, half.record.physical_offset)
                self.end(model, place, from_check=True)
        assert not self.open
        assert len(self.life.transactions.table) == 0
        self.stop()
        delivered = self.delivered()
        for model in self.all:
            expected = 1 if model.state == "committed" else 0
            assert delivered[model.key] == expected, model
        for topic in (names.TRANS_HALF_TOPIC, names.TRANS_OP_HALF_TOPIC):
            consumed = self.saved.query(names.TRANSACTION_GROUP, topic, 0)
            assert consumed == self.life.store.max_offset(topic, 0)
        self.box.close()

    def delivered(self) -> Counter[str]:
        """Count how often each key occurs in the real topics."""
        return Counter(
            record.properties.split("UNIQ_KEY\x01")[1].split("\x02")[0]
            for topic in TOPICS
            for queue_id in range(3)
            for record in records(self.life.store, topic, queue_id)
        )

    def _delivered_count(self, model: Model) -> int:
        """Count the message's deliveries at the end of its queue only."""
        queue_id = model.number % 3
        end = self.life.store.max_offset(model.topic, queue_id)
        return sum(
            model.key in record.properties
            for record in records_from(self.life.store, model.topic, max(0, end - 1), queue_id)
        )


def records_from(
    store: MessageStore, topic: str, offset: int, queue_id: int = 0
) -> list[StoredRecord]:
    result = store.get(topic, queue_id, offset, 32)
    return [record for data in result.slices for record in decode_records(data)]


def _header(
    model: Model, place: tuple[int, int], *, from_check: bool
) -> EndTransactionRequestHeader:
    return EndTransactionRequestHeader(
        producer_group=model.group,
        tran_state_table_offset=place[0],
        commit_log_offset=place[1],
        commit_or_rollback=TRANSACTION_COMMIT if model.commit else TRANSACTION_ROLLBACK,
        msg_id=model.key,
        from_transaction_check=from_check,
    )


def _copied(offsets: ConsumerOffsetManager) -> ConsumerOffsetManager:
    """Return a copy of the offsets, as they are read back from their file."""
    text = pretty(offsets.table)
    return ConsumerOffsetManager(decode_body(text.encode(), ConsumerOffsetSerializeWrapper))
