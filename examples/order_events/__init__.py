"""10,000 events of an online shop's orders, as JSON lines and as messages.

`order_events.jsonl.gz` is made by `python -m examples.order_events.generate` and committed, so every
run of the examples, the demo and the tests sees the same events.
"""

from examples.order_events.events import OrderEvent, load_events, to_message

__all__ = ["OrderEvent", "load_events", "to_message"]
