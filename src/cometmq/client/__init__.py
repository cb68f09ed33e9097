"""Producers and consumers on asyncio, and `sync`, the blocking classes over them.

`instance` owns what the clients of one client id share: connections, routes, heartbeats. A producer
is a shell around `sending.Sender`; a push consumer is one around `group.GroupMember`, which ties
together rebalancing, pulling, listening and offsets.
"""
