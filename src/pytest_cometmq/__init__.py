"""Gives pytest the fixtures of CometMQ: pytest loads this package by its entry point.

It lies beside `cometmq`, and imports it when a fixture is first used: tests that use none of the
fixtures pay nothing for them, and coverage of `cometmq` itself begins before its first import.

cometmq_cluster   a cluster in virtual time; an `async def` test with it runs on the virtual loop
cometmq_broker    a broker over real sockets, with a store of its own for each test
cometmq_producer  a started producer, and
cometmq_consumer  a started lite pull consumer, of `cometmq_cluster` (asyncio) if the test has it, of
                  `cometmq_broker` (blocking) else
"""
