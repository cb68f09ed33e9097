"""Read the whole log of the brokers by our client, to compare all tables with it.

A snapshot of the tables must hold the beginning of each queue. So this keeps the sums of every beginning.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from tests.spark.table_proof.load import Sent

from cometmq import LitePullConsumer, MessageQueue, PullStatus

Queue = tuple[str, str, int]

_PROCESSES: Final = 2
_PULL: Final = 1024


class Bodies(NamedTuple):
    """Holds sums over messages. `bodies` and `keys` add the first 32 bits of the MD5 of each."""

    rows: int
    bytes: int
    bodies: int
    keys: int

    def plus(self, other: Bodies) -> Bodies:
        return Bodies(*(one + another for one, another in zip(self, other, strict=True)))


class QueueSums(NamedTuple):
    """Holds the sums of a queue of a snapshot."""

    rows: int
    low: int
    high: int
    offsets: int
    crcs: int


class QueueLog(NamedTuple):
    """`crcs[n]` is the sum of the first n messages' checksums. `numbers` are the numbers of the keys, by prefix."""

    crcs: np.ndarray[Any, np.dtype[np.int64]]
    bodies: Bodies
    numbers: dict[str, np.ndarray[Any, np.dtype[np.int64]]]

    def beginning(self, rows: int) -> QueueSums:
        return QueueSums(rows, 0, rows - 1, rows * (rows - 1) // 2, int(self.crcs[rows]))


class Log:
    def __init__(self, queues: Mapping[Queue, QueueLog]) -> None:
        self.queues = {queue: one for queue, one in queues.items() if one.bodies.rows}

    @property
    def rows(self) -> int:
        return self.bodies.rows

    @property
    def bodies(self) -> Bodies:
        total = Bodies(0, 0, 0, 0)
        for one in self.queues.values():
            total = total.plus(one.bodies)
        return total

    def faults_of(self, sent: Sent) -> Iterator[str]:
        """Report acknowledged messages that the log lacks, and rolled back messages that it has."""
        for prefix, ranges in sent.acknowledged.items():
            wanted = np.concatenate([np.arange(one.start, one.stop) for one in ranges])
            missing = np.setdiff1d(wanted, self._numbers(prefix))
            if missing.size:
                yield f"{missing.size} acknowledged messages {prefix} are not in the log: {missing[:5]}"
        for prefix, numbers in sent.rolled_back.items():
            there = np.intersect1d(numbers, self._numbers(prefix))
            if there.size:
                yield f"{there.size} messages {prefix} were rolled back, and are in the log: {there[:5]}"

    def _numbers(self, prefix: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        found = [one.numbers[prefix] for one in self.queues.values() if prefix in one.numbers]
        return np.concatenate(found) if found else np.empty(0, np.int64)


def start_of_md5(data: bytes) -> int:
    return int.from_bytes(hashlib.md5(data, usedforsecurity=False).digest()[:4], "big")


def read_log(namesrv: str, topics: Iterable[str]) -> Log:
    """Read all messages of the topics, in processes of their own."""
    queues = _queues(namesrv, topics)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(_PROCESSES, mp_context=context) as processes:
        logs = processes.map(partial(_read_queue, namesrv), queues)
        return Log({_place(queue): one for queue, one in zip(queues, logs, strict=True)})


def read_small_log(namesrv: str, topic: str) -> Log:
    """Read the messages of a small topic, in this process."""
    return Log({_place(one): _read_queue(namesrv, one) for one in _queues(namesrv, [topic])})


def _queues(namesrv: str, topics: Iterable[str]) -> list[MessageQueue]:
    with LitePullConsumer("proof", namesrv=namesrv) as consumer:
        return sorted(queue for topic in topics for queue in consumer.queues(topic))


def _place(queue: MessageQueue) -> Queue:
    return queue.topic, queue.broker_name, queue.queue_id


def _read_queue(namesrv: str, queue: MessageQueue) -> QueueLog:
    crcs = [0]
    size = bodies = keys = 0
    numbers: dict[str, list[int]] = {}
    with LitePullConsumer("proof", namesrv=namesrv) as consumer:
        while True:
            answer = consumer.pull(queue, len(crcs) - 1, _PULL)
            if answer.status is PullStatus.NO_NEW_MSG:
                break
            for message in answer.messages:
                assert message.queue_offset == len(crcs) - 1, f"{queue} has a gap: {message}"
                crcs.append(message.body_crc)
                size += len(message.body)
                bodies += start_of_md5(message.body)
                names = message.properties["KEYS"]
                keys += start_of_md5(names.encode())
                prefix, _, number = names.partition(" ")[0].rpartition("-")
                numbers.setdefault(prefix, []).append(int(number))
    return QueueLog(
        np.cumsum(np.array(crcs, np.int64)),
        Bodies(len(crcs) - 1, size, bodies, keys),
        {prefix: np.array(found, np.int64) for prefix, found in numbers.items()},
    )
