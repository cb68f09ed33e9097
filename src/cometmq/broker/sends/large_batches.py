"""Take in batches of many messages in steps, so that others are served in between.

All that takes long is done before and after the append: to decode, to check and to encode the messages,
and to wake the requests that wait for them. Only the append itself is one piece.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import starmap

from cometmq.broker.refusal import Refused
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.messages.batch import BatchEntry
from cometmq.runtime.slices import run_slices
from cometmq.runtime.workers import Workers
from cometmq.store.batch_records import BatchRecords, prepare
from cometmq.store.store import MessageStore


class LargeBatches:
    """Stores batches of many messages. Call `close` at the end. For the loop's thread only."""

    def __init__(self, store: MessageStore, workers: Workers) -> None:
        self._store = store
        self._loader = workers.worker("large-batches")
        self._is_prepared = False

    def close(self) -> None:
        """End the thread, which has loaded what large batches need."""
        self._loader.shutdown(wait=True)

    async def store(
        self, batch: BatchRecords, messages: Iterable[tuple[BatchEntry, int]]
    ) -> tuple[int, int]:
        """Fill a batch with messages, each with its tags code, and store all or none.

        Returns the first queue offset and the first commit-log offset. Raises what `messages` raises,
        the errors of `append_records`, and Refused if the queue was removed meanwhile.
        """
        if not self._is_prepared:
            await asyncio.get_running_loop().run_in_executor(self._loader, prepare)
            self._is_prepared = True
        await run_slices(starmap(batch.add, messages))
        queue = batch.queue
        if self._store.queues.find(queue.topic, queue.queue_id) is not queue:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                f"queue {queue.queue_id} of topic[{queue.topic}] was removed while a batch of "
                f"{len(batch)} messages was taken in; send it again",
            )
        first, begin = self._store.append_records(batch)
        await run_slices(self._store.announce(batch, first))
        return first, begin
