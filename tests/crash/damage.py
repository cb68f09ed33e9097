"""A store that somebody or something damaged while no broker ran: `check` finds it, `repair` brings
back all that was not hit, and what was hit is never served.

Bits are flipped where RocketMQ's format can detect it: no CRC covers properties, times and hosts of a
record.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests.crash.lives import ALWAYS, QUEUES, Campaign, Message, served

from cometmq.errors import StoreFullError
from cometmq.store.offline.check import Area, Report
from cometmq.store.offline.repair import check, plan_repair, repair
from cometmq.testing.virtual.storage.file_system import SECTOR

# Parts of a record (with two IPv4 hosts) whose damage shows: size, magic, CRC, its own offset,
# length of the body.
_TELLING = ((0, 4), (4, 8), (8, 12), (28, 36), (84, 88))


class DamagedStore(Campaign):
    """One store, filled, stopped, damaged, checked, repaired."""

    def run(self) -> int:
        self._fill()
        before = dict(self.stored)
        kind = self.rng.choice((self._hurt_log, self._hurt_queues, self._hurt_index))
        changed = kind()
        report = self._check()
        if changed:
            assert not report.is_sound, "damage was not found"
        hit = self._hit(report)
        self._repair()
        self._verify_repaired(before, hit)
        return 1

    def _fill(self) -> None:
        store = self._open()
        while len(self.stored) < 30:
            self.clock.value += self.rng.choice((0, 500))
            try:
                self.rng.choice((self._put, self._put, self._put_batch))(store)
            except StoreFullError as error:
                raise AssertionError("nothing fills this disk") from error
        store.index.catch_up(store.commit_log.end, ALWAYS)
        if self.rng.random() < 0.5:
            store.close()
            return
        store.commit()
        store.publish()
        store.flush_all()
        store.abandon()

    # -- damage; each returns whether there is anything to be found --

    def _hurt_log(self) -> bool:
        files = self._paths("commitlog")
        place = self.rng.choice(sorted(self.stored))
        base = place - place % self.config.mapped_file_size_commit_log
        path = next(path for path in files if int(path.name) == base)
        how = self.rng.choice(("flip", "flip", "flip", "body", "zero", "cut", "remove"))
        if how == "remove":
            # Without its newest file a store may be a shorter one, if nothing was flushed there.
            self.disk.remove(path)
            return len(files) > 1 and path != files[-1]
        if how == "cut":
            self.disk.damage(path, lambda data: data[: place % len(data)])
            return True
        if how == "zero":
            start = place - base - (place - base) % SECTOR
            return self._zero(path, start)
        length = self._body_length(path, place - base)
        start, end = self.rng.choice(_TELLING) if how == "flip" else (88, 88 + length)
        if not length and (start, end) in ((8, 12), (88, 88)):
            return False
        self._flip(path, place - base + self.rng.randrange(start, end))
        return True

    def _paths(self, part: str) -> list[Path]:
        """Return the files of one part of the store, sorted."""
        return [path for path, _ in self.disk.system.files() if part in path.parts]

    def _body_length(self, path: Path, position: int) -> int:
        (length,) = struct.unpack_from(">i", self.disk.read(path), position + 84)
        return int(length)

    def _hurt_queues(self) -> bool:
        path = self.rng.choice(self._paths("consumequeue"))
        how = self.rng.choice(("flip", "flip", "zero", "cut", "remove"))
        used = self.disk.read(path)
        units = [at for at in range(0, len(used), 20) if any(used[at : at + 20])]
        if how == "remove":
            self.disk.remove(path)
            return bool(units)
        if how == "cut":
            self.disk.damage(path, lambda data: data[: self.rng.randrange(1, len(data))])
            return False
        if how == "zero":
            return self._zero(path, 0)
        if units:
            self._flip(path, self.rng.choice(units) + self.rng.randrange(20))
        return bool(units)

    def _hurt_index(self) -> bool:
        paths = self._paths("index")
        if not paths:
            return False
        path = self.rng.choice(paths)
        slots, entries = self.config.max_hash_slot_num, self.config.max_index_num
        data = self.disk.read(path)
        count = min(int.from_bytes(data[36:40], "big"), entries)
        if count < 3:
            return False
        entry = 40 + 4 * slots + 20 * self.rng.randrange(1, count)
        # Hash, offset and what is before it, not the seconds.
        self._flip(path, entry + self.rng.choice((*range(12), *range(16, 20))))
        return True

    def _flip(self, path: Path, position: int) -> None:
        bit = 1 << self.rng.randrange(8)

        def flip(data: bytearray) -> bytearray:
            data[position] ^= bit
            return data

        self.disk.damage(path, flip)

    def _zero(self, path: Path, start: int) -> bool:
        lost = any(self.disk.read(path)[start : start + SECTOR])

        def zero(data: bytearray) -> bytearray:
            end = min(start + SECTOR, len(data))
            data[start:end] = bytes(end - start)
            return data

        self.disk.damage(path, zero)
        # Properties are no part that tells.
        return lost and "consumequeue" in path.parts

    # -- what must hold --

    def _check(self) -> Report:
        return check(self.config, self.disk)[1]

    def _hit(self, report: Report) -> list[tuple[int, int]]:
        """Parts of the log that are lost, by offset."""
        parts = [(damage.offset, damage.base + damage.end_position) for damage in report.damages]
        size = self.config.mapped_file_size_commit_log
        for finding in report.findings:
            if finding.area is Area.LOG and finding.path.name.isdecimal():
                actual = self.disk.size(finding.path)
                if actual != size:
                    base = int(finding.path.name)
                    parts.append((base + (actual or 0), base + size))
        return parts

    def _repair(self) -> None:
        store, report = check(self.config, self.disk)
        plan = plan_repair(store, report)
        if not plan.is_empty:
            repair(store, plan, clock=self.clock, stamp="now")
        after = self._check()
        assert after.is_sound, after.findings

    def _verify_repaired(self, before: dict[int, Message], hit: list[tuple[int, int]]) -> None:
        store = self._open()
        low, high = store.commit_log.min_offset, store.commit_log.end
        found = set()
        for topic, queue_id in QUEUES:
            for record in served(store, topic, queue_id):
                place = record.physical_offset
                assert self.stored[place].is_in(record), "damage was served"
                found.add(place)
        with_damage = self._damaged_records(hit)
        expected = {place for place in before if low <= place < high} - with_damage
        assert expected <= found, ("lost without need", sorted(expected - found), hit)
        assert store.index.catch_up(high, ALWAYS)
        for place in sorted(expected):
            self._verify_found(store, place, self.stored[place])
        next_offsets = {queue: store.max_offset(*queue) for queue in QUEUES}
        for topic, queue_id in QUEUES:
            offset, _ = store.append(store.queue(topic, queue_id), b"new", b"", 0, 1, bytes(8))
            assert offset == next_offsets[topic, queue_id]
        store.close()

    def _damaged_records(self, hit: list[tuple[int, int]]) -> set[int]:
        """Places of the records that overlap a part which was hit."""
        places = sorted(self.stored)
        ends = [*places[1:], 1 << 62]
        return {
            place
            for place, end in zip(places, ends, strict=True)
            if any(start < end and place < stop for start, stop in hit)
        }
