"""Producers and consumers on asyncio, and `sync`, the blocking classes over them.

`instance` owns what the clients of one client id share: connections, routes, heartbeats, and what
brokers ask. `lifecycle` is the base of all clients. The rest lies in packages: `cluster` (routes,
typed calls, heartbeats), `producing`, `consuming` (push and lite pull), `membership` (which queues of
a group are this member's, and their offsets), `pulling` (one queue's messages) and `tracing`.
"""
