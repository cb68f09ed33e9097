"""Drive our message store by lines on standard input; one line of JSON answers each.

    python -m benchmarks.store_subject

| command | until | count |
| --- | --- | --- |
| `open ROOT FLUSH INDEX FILE_MIB` | the store takes messages | 0 |
| `append COUNT BODY_BYTES WRITERS` | all are stored (SYNC_FLUSH: on disk) and in their queues | messages |
| `read LIMIT BATCH` | all queues are read from their start, or LIMIT messages | messages |
| `random COUNT SEED` | COUNT messages are read at random queue offsets | messages |
| `index` | the index has all messages | 0 |
| `messages` | | sum of the queues' next offsets |
| `close` | the store is closed cleanly | 0 |

`java/StoreSubject.java` does the same with Java's store. As in a broker, the log is flushed and the
next file made beside the appends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import threading
import time
from collections import deque
from pathlib import Path

import structlog

from cometmq.broker.storage.flushing import CommitLogFlusher
from cometmq.errors import StoreError
from cometmq.model.java.hashing import java_hash
from cometmq.protocol.messages.ids import pack_host
from cometmq.runtime.clock import SystemClock
from cometmq.runtime.loop import run
from cometmq.store.config import StoreConfig
from cometmq.store.get import GetStatus
from cometmq.store.queues.consume_queue import ConsumeQueue
from cometmq.store.store import MessageStore

TOPICS = 4
QUEUES = 4
TAGS_CODE = java_hash("tag")
HOST = pack_host("127.0.0.1", 10911)
# Sixteen digits, as cheap to write as the hexadecimal unique ids of clients.
SERIAL_BASE = 1 << 60


class StoreSubject:
    def __init__(self) -> None:
        self._store: MessageStore | None = None
        self._background: Background | None = None
        self._queues: list[ConsumeQueue] = []
        self._serial = 0

    @property
    def store(self) -> MessageStore:
        assert self._store is not None, "open comes first"
        return self._store

    def answer(self, words: list[str]) -> dict[str, float | str]:
        began = time.perf_counter()
        try:
            count = self.run(words)
        except (StoreError, OSError, ValueError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"seconds": time.perf_counter() - began, "count": count}

    def run(self, words: list[str]) -> int:
        match words:
            case ["open", root, flush, index, file_mib]:
                return self._open(Path(root), flush, index == "true", int(file_mib) << 20)
            case ["append", count, body_bytes, writers]:
                return self._append(int(count), b"b" * int(body_bytes), int(writers))
            case ["read", limit, batch]:
                return self._read(int(limit), int(batch))
            case ["random", count, seed]:
                return self._read_at_random(int(count), int(seed))
            case ["index"]:
                while self.store.index.build():
                    pass
                return 0
            case ["messages"]:
                return sum(self.store.max_offset(*queue) for queue in queue_names())
            case ["close"]:
                return self._close()
        raise ValueError(f"no command {' '.join(words)}")

    def _open(self, root: Path, flush: str, index: bool, file_bytes: int) -> int:
        config = StoreConfig(
            store_path_root_dir=root,
            mapped_file_size_commit_log=file_bytes,
            flush_disk_type=flush,
            message_index_enable=index,
        )
        self._store = MessageStore(config, clock=SystemClock(), store_host=HOST)
        self._store.open()
        self._queues = []
        self._background = Background(self._store)
        return 0

    def _close(self) -> int:
        if self._background is not None:
            self._background.stop()
        self.store.close()
        return 0

    # -- appending --

    def _append(self, count: int, body: bytes, writers: int) -> int:
        if not self._queues:
            self._queues = [self.store.queue(*name) for name in queue_names()]
        if self.store.config.flush_disk_type == "SYNC_FLUSH":
            run(self._append_synchronously(count, body, writers))
        else:
            for _ in range(count):
                self._put(body)
        return count

    def _put(self, body: bytes) -> int:
        """Put one message; return where its record ends in the log."""
        number = self._serial
        self._serial += 1
        name = b"%x" % (SERIAL_BASE + number)
        properties = b"UNIQ_KEY\x017F0000012A9F%b\x02KEYS\x01K%b\x02TAGS\x01tag\x02WAIT\x01true\x02"
        queue = self._queues[number % len(self._queues)]
        born = time.time_ns() // 1_000_000
        self.store.append(queue, body, properties % (name, name), TAGS_CODE, born, HOST)
        return self.store.commit_log.end

    async def _append_synchronously(self, count: int, body: bytes, writers: int) -> None:
        """Let each writer send its next message when the disk has the one before.

        One fdatasync serves all writers that wait when it begins, as in
        `cometmq.broker.storage.group_commit`.
        """
        flusher = CommitLogFlusher(self.store)
        waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        loop = asyncio.get_running_loop()
        left = count

        async def write() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                flushed = loop.create_future()
                waiting.append((self._put(body), flushed))
                await flushed

        tasks = [loop.create_task(write()) for _ in range(writers)]
        await asyncio.sleep(0)
        while waiting:
            end = await flusher.flush(0)
            while waiting and waiting[0][0] <= end:
                waiting.popleft()[1].set_result(None)
            # Let the writers that were answered send again.
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        flusher.close()

    # -- reading --

    def _read(self, limit: int, batch: int) -> int:
        count = 0
        for topic, queue_id in queue_names():
            offset = 0
            while count < limit:
                result = self.store.get(topic, queue_id, offset, batch)
                if result.status is not GetStatus.FOUND:
                    break
                count += result.message_count
                offset = result.next_begin_offset
        return count

    def _read_at_random(self, count: int, seed: int) -> int:
        rng = random.Random(seed)
        queues = [(*name, self.store.max_offset(*name)) for name in queue_names()]
        found = 0
        for _ in range(count):
            topic, queue_id, end = queues[int(rng.random() * len(queues))]
            result = self.store.get(topic, queue_id, int(rng.random() * end), 1)
            found += result.message_count
        return found


class Background:
    """Does in a thread what a broker's timers do for its store (see
    cometmq.broker.storage.flushing).
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flush", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        config = self._store.config
        rounds = 0
        while not self._ended.wait(config.flush_interval_commit_log / 1000):
            rounds += 1
            if config.flush_disk_type == "ASYNC_FLUSH":
                self._store.flush_commit_log(config.flush_commit_log_least_pages)
            if rounds % 2 == 0:
                self._store.flush_consume_queues(config.flush_consume_queue_least_pages)
                self._store.flush_checkpoint()
            if self._store.commit_log.next_file_is_due:
                self._store.prepare_next()


def queue_names() -> list[tuple[str, int]]:
    return [(f"bench-{topic}", queue_id) for queue_id in range(QUEUES) for topic in range(TOPICS)]


def main() -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    subject = StoreSubject()
    for line in sys.stdin:
        print(json.dumps(subject.answer(line.split())), flush=True)


if __name__ == "__main__":
    main()
