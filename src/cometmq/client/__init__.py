"""Hold the producers and consumers on asyncio; `blocking` has the blocking classes over them.

`instance` owns what the clients of one client id share: connections, routes, heartbeats, and the
answers to brokers' questions. `lifecycle` has the base of all clients. The packages are `cluster`
(routes, typed calls, heartbeats), `producing`, `consuming` (push and lite pull), `membership`
(which queues of a group this member has, and their offsets), `pulling` (one queue's messages) and
`tracing`.
"""
