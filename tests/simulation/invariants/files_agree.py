"""The files of a store agree with each other (Java: ConsumeQueue, IndexService, CommitLog).

- Between the first and the last record of the log there is nothing but records.
- Every unit of a consume queue points to a record of this queue with this queue offset and size; its
  tags code is the hash of the tag, in SCHEDULE_TOPIC_XXXX the time of delivery.
- The units of a queue have no hole, and every record of the log that belongs into a queue has one.
- A slave's queues and log agree in the same way.
- The index finds every record by its keys and its unique id: in a closed store each record, in that of a
  running broker, which builds its index behind, what was acknowledged INDEXED_S seconds ago.

Leniencies, and why: of a killed broker that was not started again, queues and index are what recovery
has yet to mend. So is the log of a former master that lost its power and stays away: which of the unsynced
pages a disk has is chance. Damage on purpose (`flip_bit`) is judged by what is delivered. With
transientStorePoolEnable units of a running broker may be ahead of the page cache. Units of what was
retired stay until their file goes. After the disk refused to write, the index may lack what it could not
take (Java: the running flag "write index error").
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.simulation.evidence import (
    BAD_DISK,
    KILL,
    POWER_LOSS,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    Evidence,
    Violation,
)
from tests.simulation.history import BrokerConfigured
from tests.simulation.store_reader import Record, Store, Unit, java_hash

NAME: Final = "files agree"
INDEXED_S: Final = 60.0


def judge(evidence: Evidence) -> Iterator[Violation]:
    for server, store in evidence.slave_stores.items():
        yield from _slave(evidence, server, store)
    for broker, store in evidence.stores.items():
        if evidence.damaged(broker, ""):
            continue
        image = evidence.images[broker]
        for gap in store.gaps:
            yield _violation(broker, f"bytes {gap.start} to {gap.end} of the log are no record")
        if image.state == "dead":
            continue
        configured = evidence.servers.get(evidence.master_at(broker, evidence.end_s))
        is_ahead = configured is not None and configured.transient_store_pool
        end = store.end if is_ahead and image.state == "running" else None
        for what in _units(store, configured, end):
            yield _violation(broker, what)
        for what in _dispatched(store):
            yield _violation(broker, what)
        if evidence.injected(broker, BAD_DISK):
            continue
        due = None if image.state == "closed" else _acknowledged_before(evidence, broker)
        for what in _indexed(store, due):
            yield _violation(broker, what)


def _slave(evidence: Evidence, server: str, store: Store) -> Iterator[Violation]:
    """Judge a slave's log and queues. Its index is built behind, and nobody knows from when on."""
    image = evidence.copies[server]
    is_torn = image.state == "dead" and evidence.injected_at(server, POWER_LOSS)
    for gap in store.gaps if not is_torn else ():
        yield _violation(server, f"bytes {gap.start} to {gap.end} of the log are no record")
    if image.state != "dead":
        for what in (*_units(store, evidence.servers[server], None), *_dispatched(store)):
            yield _violation(server, what)


def _acknowledged_before(evidence: Evidence, broker: str) -> set[int | None]:
    """Return where the records lie that a running broker must have indexed by now."""
    until_s = evidence.end_s - INDEXED_S
    if evidence.injected(broker, (*KILL, *POWER_LOSS, "restart", "pause", "resume"), until_s):
        return set()
    return {
        each.position
        for each in evidence.stored
        if each.broker == broker and each.acknowledged.at_s < until_s
    }


def _violation(broker: str, what: str) -> Violation:
    return Violation(invariant=NAME, what=f"in the store of {broker} {what}")


def _units(store: Store, configured: BrokerConfigured | None, end: int | None) -> Iterator[str]:
    for (topic, queue_id), units in sorted(store.queues.items()):
        before: Unit | None = None
        for unit in units:
            if before is not None and unit.offset != before.offset + 1:
                yield f"unit {unit.offset} of {topic}/{queue_id} follows unit {before.offset}"
            before = unit
            if unit.position < store.min_position or (end is not None and unit.position >= end):
                continue
            record = store.by_position.get(unit.position)
            if record is None:
                yield f"unit {unit.offset} of {topic}/{queue_id} points to {unit.position}, no record"
            elif fault := _disagreement(record, unit, topic, queue_id, configured):
                yield f"unit {unit.offset} of {topic}/{queue_id} and its record differ in {fault}"


def _disagreement(
    record: Record, unit: Unit, topic: str, queue_id: int, configured: BrokerConfigured | None
) -> str | None:
    if (record.topic, record.queue_id) != (topic, queue_id):
        return f"the queue, {record.topic}/{record.queue_id}"
    if (record.queue_offset, record.size) != (unit.offset, unit.size):
        return f"offset or size, {record.queue_offset} and {record.size}"
    wanted = _tags_code(record, configured)
    if wanted is not None and unit.tags_code >= -(1 << 31) and unit.tags_code != wanted:
        return f"the tags code, {unit.tags_code} for {wanted}"
    return None


def _tags_code(record: Record, configured: BrokerConfigured | None) -> int | None:
    if record.topic == SCHEDULE_TOPIC:
        if configured is None:
            return None
        return record.store_ms + configured.delay_levels_ms[record.queue_id]
    if record.topic == TIMER_TOPIC:
        return None
    tags = record.properties.get("TAGS")
    return java_hash(tags) if tags else 0


def _dispatched(store: Store) -> Iterator[str]:
    offsets = {key: {unit.offset for unit in units} for key, units in store.queues.items()}
    for record in store.records:
        key = (record.topic, record.queue_id)
        if record.is_in_queue and record.queue_offset not in offsets.get(key, ()):
            yield f"offset {record.queue_offset} of {key[0]}/{key[1]} has no unit in its queue"


def _indexed(store: Store, due: set[int | None] | None) -> Iterator[str]:
    for record in store.records:
        if not record.is_in_queue or (due is not None and record.position not in due):
            continue
        keys = [
            record.properties.get("UNIQ_KEY", ""),
            *record.properties.get("KEYS", "").split(" "),
        ]
        for key in keys:
            if key and record.position not in store.look_up(record.topic, key):
                yield f"the index does not find {record.topic}'s key {key} at {record.position}"
