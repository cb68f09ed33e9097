"""Consume every business event once, although its message may come twice.

RocketMQ delivers at least once: after a lost acknowledgement, a rebalance or a crash a message comes
again. `idempotent` wraps a listener and skips messages whose business key is done already:

    from cometmq import ConsumeResult, PushConsumer
    from cometmq.idempotent import SQLiteStore, idempotent

    def book(messages):
        for message in messages:
            ...                              # the message has KEYS, for example the order's number
        return ConsumeResult.SUCCESS

    with SQLiteStore("/var/lib/billing/done.db") as store:
        consumer = PushConsumer("billing", idempotent(book, store, scope="billing"))

A store remembers of each key whether its message is done, or in progress with a lease. If the
listener raises an error or asks for another delivery, the store forgets the key, and the next
delivery is consumed. If the process crashes while the listener works, the key is free again when
its lease has run out. The guarantee has this limit: a crash after the listener did its work and
before the store noted it has the work done again. Where that must not happen, do the work and note
the key in one transaction of your own database.

Stores: MemoryStore for one process and no restart, SQLiteStore for the processes of one host,
RedisStore (`pip install 'cometmq[redis]'`) for many hosts. A store of your own needs the methods of
KeyStore.
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
