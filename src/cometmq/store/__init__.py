"""The storage engine: the commit log, the consume queues, and the services that keep them on disk.

Start reading at `store.py` (the facade), then `append.py` (how messages get in) and `get.py` (how
they get out). `files` is the disk, `log` the commit log, `queues` the consume queues, `index` the
message index; `reading` is for programs that only read, `offline` for tools. Nothing here knows asyncio
or sockets. Java's package with the same rules: org.apache.rocketmq.store.
"""
