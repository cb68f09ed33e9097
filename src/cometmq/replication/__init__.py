"""Copies of a broker's log on other brokers: RocketMQ's HA protocol, both sides.

The master's side is in `master.py`, the slave's in `slave.py`. The bytes on the wire are in
`cometmq.protocol.replication`.
"""
