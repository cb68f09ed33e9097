"""The storage engine: commit log, consume queues, and what keeps them on disk.

Start reading at `store.py` (the facade), then `append.py` (the way in) and `get.py` (the way out).
Nothing here knows asyncio or sockets. Java's package of the same rules: org.apache.rocketmq.store.
"""
