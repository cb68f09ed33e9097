"""CometMQ: Apache RocketMQ in Python.

Here are the messages, their results and the blocking clients; `cometmq.aio` has the asyncio clients
under the same names.

The names stand in `__init__.pyi` and are imported when they are first used: a broker needs none of
the clients.
"""

import lazy_loader

from cometmq import _compiled

_compiled.install()  # before any of the modules that it may serve

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
