"""Producers and consumers on asyncio, and `sync`, the blocking classes over them.

`instance` owns what the clients of one client id share: connections, routes, heartbeats, and what
brokers ask (`inspection`). A producer is a shell around `sending.Sender`. A push consumer is one
around `member.GroupMember`, which ties together rebalancing, pulling, offsets and the listener:
`consumption` calls it concurrently, `orderly` queue by queue under `queue_locks`. A lite pull
consumer is a shell around `lite_pull_member.LitePullMember`.
"""
