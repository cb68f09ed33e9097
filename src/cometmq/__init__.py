"""CometMQ: Apache RocketMQ in Python.

This package has the messages, their results and the blocking clients. `cometmq.aio` has the asyncio
clients under the same names.

`__init__.pyi` lists the names. Each name is imported when it is first used, so that a broker does
not import the clients.
"""

from cometmq import _compiled, _lazy

_compiled.install()  # before the import of any module that may have a compiled form

__getattr__, __dir__, __all__ = _lazy.attach(__name__, __file__)
