"""Values as payloads of messages: codecs by topic, and schemas from a registry.

A producer or consumer takes `codecs={"orders": Json(Order)}`. Then `Message("orders", value=order)` is
encoded when it is sent, and `message.value` is the order again. docs/payloads.md has programs.
"""

from cometmq import _lazy

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
