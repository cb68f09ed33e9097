"""Consuming every business event once, although its message may come twice.

RocketMQ delivers at least once: after a lost acknowledgement, a rebalance or a crash a message comes
again. `idempotent` wraps a listener and skips what was done, by a key of the business:

    from cometmq import ConsumeResult, PushConsumer
    from cometmq.idempotent import SQLiteStore, idempotent

    def book(messages):
        for message in messages:
            ...                                    # the message has KEYS, the order's number say
        return ConsumeResult.SUCCESS

    with SQLiteStore("/var/lib/billing/done.db") as store:
        consumer = PushConsumer("billing", idempotent(book, store, scope="billing"))

A store remembers of each key that its message is in progress, with a lease, or done. What a listener
raised or refused is forgotten, so the next delivery is consumed; after a crash in between, the lease
runs out first. The guarantee has this limit: a crash after the listener did its work and before the
store heard of it has the work done again. Where that may not be, do the work and note the key in one
transaction of your own database.

Stores: MemoryStore for one process and no restart, SQLiteStore for the processes of one host,
RedisStore (`pip install cometmq[redis]`) for many hosts. Any other needs the methods of KeyStore.
"""

from cometmq.idempotent.keys import Begun, KeyState, KeyStore
from cometmq.idempotent.listener import business_key, idempotent
from cometmq.idempotent.memory_store import MemoryStore
from cometmq.idempotent.redis_store import RedisStore
from cometmq.idempotent.sqlite_store import SQLiteStore

__all__ = [
    "Begun",
    "KeyState",
    "KeyStore",
    "MemoryStore",
    "RedisStore",
    "SQLiteStore",
    "business_key",
    "idempotent",
]
